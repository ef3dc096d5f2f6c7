"""Triton kernels for convolutions of many lanes, each with filters of its own, on the tensor cores of GPUs.

cuDNN computes them as convolutions of many groups, for which it has few kernels: on an H100 with TF32, it computes some
of those of 100 lanes one after the other. Here one launch computes all lanes. A convolution is a product of filters
with patches of the images, which are not stored: each block of a product reads its part of the patches.

Shapes: l lanes, N images of each lane, C channels and O filters, K = kernel height * kernel width * C numbers in a
filter. Images are [l, N, height, width, C] in memory; a pixel has C or O numbers. A block of a product has PIXELS
pixels, NUMBERS of K and FILTERS of O.
"""

import triton
import triton.language as tl


# fmt: off
@triton.jit
def filtered(
    images,  # [l, N, height, width, C], or one lane's for all
    filters,  # [l, K, O]
    biases,  # [l, O]
    signs,  # as the results, which are 0 where these are not above 0, with `masked`
    summands,  # as the results, to which these are added, with `added`
    results,  # [l, N, all_rows, all_columns, O]; every `apart`-th row and column is computed, from the `first`
    from_lane, from_bias,  # numbers from lane to lane: of the images, and of the biases
    pixels,  # of the computed results of one lane
    height: tl.constexpr, width: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr,  # that are computed
    all_rows: tl.constexpr, all_columns: tl.constexpr,
    first_row: tl.constexpr, first_column: tl.constexpr, apart_rows: tl.constexpr, apart_columns: tl.constexpr,
    C: tl.constexpr, O: tl.constexpr,
    kernel_height: tl.constexpr, kernel_width: tl.constexpr, pad_height: tl.constexpr, pad_width: tl.constexpr,
    step_height: tl.constexpr, step_width: tl.constexpr,  # in the images, from one computed row to the next
    biased: tl.constexpr, rectified: tl.constexpr, masked: tl.constexpr, added: tl.constexpr,
    precision: tl.constexpr, PIXELS: tl.constexpr, NUMBERS: tl.constexpr, FILTERS: tl.constexpr,
):
    """A convolution of the images or, with `rectified`, of their ReLU; pixels outside of the images are 0."""
    lane = tl.program_id(1).to(tl.int64)
    K: tl.constexpr = kernel_height * kernel_width * C
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    o = tl.program_id(2) * FILTERS + tl.arange(0, FILTERS)
    image, row, column = p // (rows * columns), p // columns % rows, p % columns
    top, left, inside = row * step_height - pad_height, column * step_width - pad_width, p < pixels
    images += lane * from_lane
    filters += lane * K * O
    total = tl.zeros((PIXELS, FILTERS), dtype=tl.float32)
    for start in range(0, K, NUMBERS):
        k = start + tl.arange(0, NUMBERS)
        y, x = top[:, None] + (k // (C * kernel_width))[None, :], left[:, None] + (k // C % kernel_width)[None, :]
        there = inside[:, None] & (k < K)[None, :] & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        place = ((image[:, None] * height + y) * width + x) * C + (k % C)[None, :]
        patch = tl.load(images + place, mask=there, other=0.0)
        patch = rectify(patch, rectified)
        part = tl.load(filters + k[:, None] * O + o[None, :], mask=(k < K)[:, None] & (o < O)[None, :], other=0.0)
        total = tl.dot(patch, part, total, input_precision=precision)
    if biased:
        total += tl.load(biases + lane * from_bias + o, mask=o < O, other=0.0).to(tl.float32)[None, :]
    row, column = row * apart_rows + first_row, column * apart_columns + first_column
    there = inside[:, None] & (o < O)[None, :]
    place = ((image * all_rows + row) * all_columns + column)[:, None] * O + o[None, :]
    place += lane * (pixels // (rows * columns)) * (all_rows * all_columns * O)
    store(results + place, total, signs + place, summands + place, there, masked, added)


@triton.jit
def rectify(numbers, rectified: tl.constexpr):
    """The numbers or, with `rectified`, their ReLU. As torch does, so that NaN stays NaN."""
    if rectified:
        numbers = tl.maximum(numbers, 0.0, propagate_nan=tl.PropagateNan.ALL).to(numbers.dtype)
    return numbers


@triton.jit
def store(results, total, signs, summands, there, masked: tl.constexpr, added: tl.constexpr):
    """Write a block of results, masked by signs and with summands, each if asked."""
    if masked:
        total = tl.where(tl.load(signs, mask=there, other=0.0) <= 0, 0.0, total)
    if added:
        total += tl.load(summands, mask=there, other=0.0).to(tl.float32)
    tl.store(results, total, mask=there)


@triton.jit
def differentiated(
    images,  # [l, N, height, width, C], or one lane's for all
    slopes,  # of the results [l, N, rows, columns, O]
    gradients,  # of the filters, and with `biased` in a last row of the biases [parts, l, K + biased, O]
    from_lane,  # numbers of the images from lane to lane
    pixels,  # of the results of one lane
    share: tl.constexpr,  # of the pixels in a part
    height: tl.constexpr, width: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr,
    C: tl.constexpr, O: tl.constexpr,
    kernel_height: tl.constexpr, kernel_width: tl.constexpr,
    pad_height: tl.constexpr, pad_width: tl.constexpr,
    step_height: tl.constexpr, step_width: tl.constexpr,
    biased: tl.constexpr, rectified: tl.constexpr, precision: tl.constexpr,
    PIXELS: tl.constexpr, NUMBERS: tl.constexpr, FILTERS: tl.constexpr,
):
    """The gradient of the filters of a convolution, in parts that are still to be added."""
    lane, lanes = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    K: tl.constexpr = kernel_height * kernel_width * C
    blocks: tl.constexpr = (O + FILTERS - 1) // FILTERS
    part = tl.program_id(2) // blocks
    k = tl.program_id(0) * NUMBERS + tl.arange(0, NUMBERS)
    o = tl.program_id(2) % blocks * FILTERS + tl.arange(0, FILTERS)
    down, right = k // (C * kernel_width) - pad_height, k // C % kernel_width - pad_width
    images += lane * from_lane
    slopes += lane * pixels * O
    total = tl.zeros((NUMBERS, FILTERS), dtype=tl.float32)
    for first in range(0, share, PIXELS):
        p = part * share + first + tl.arange(0, PIXELS)
        inside = p < pixels
        y = (p // columns % rows * step_height)[:, None] + down[None, :]
        x = (p % columns * step_width)[:, None] + right[None, :]
        there = inside[:, None] & (k < K)[None, :] & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        place = (((p // (rows * columns))[:, None] * height + y) * width + x) * C + (k % C)[None, :]
        patch = tl.load(images + place, mask=there, other=0.0)
        patch = rectify(patch, rectified)
        if biased:  # a bias is the filter of an image of ones
            patch = tl.where((k == K)[None, :] & inside[:, None], 1.0, patch)
        slope = tl.load(slopes + p[:, None] * O + o[None, :], mask=inside[:, None] & (o < O)[None, :], other=0.0)
        total = tl.dot(tl.trans(patch), slope, total, input_precision=precision)
    gradients += (part * lanes + lane) * (K + biased) * O
    tl.store(gradients + k[:, None] * O + o[None, :], total, mask=(k < K + biased)[:, None] & (o < O)[None, :])
# fmt: on
