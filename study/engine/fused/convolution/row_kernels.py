"""Triton kernels for convolutions of many lanes that read each row of the images once for all columns of the filters.

`kernels` reads the images once for each of the places of a kernel, 9 of 3 x 3, and that decides how long it takes. Here
a block is some whole rows of the results. For each row of the kernel, it multiplies the same pixels by the filters of
each column of the kernel, and shifts the sums by pixels: a third of the numbers are read. Steps are of one pixel, and
the images have 16 channels or more, because tensor cores multiply blocks of no fewer.

Shapes as in `kernels`. A block has PIXELS places in PIXELS / COLUMNS rows. COLUMNS is the least power of two that is
not below the columns of images and results: the places behind these are 0.
"""

import triton
import triton.language as tl

from study.engine.fused.convolution.kernels import rectify, store


# fmt: off
@triton.jit
def filtered(
    images, filters, biases, signs, summands, results,  # as in `kernels.filtered`
    from_lane, from_bias,  # numbers from lane to lane: of the images, and of the biases
    lines,  # computed rows of all images of one lane
    height: tl.constexpr, width: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, all_rows: tl.constexpr, all_columns: tl.constexpr,
    first_row: tl.constexpr, first_column: tl.constexpr, apart_rows: tl.constexpr, apart_columns: tl.constexpr,
    C: tl.constexpr, O: tl.constexpr,
    kernel_height: tl.constexpr, kernel_width: tl.constexpr, pad_height: tl.constexpr, pad_width: tl.constexpr,
    biased: tl.constexpr, rectified: tl.constexpr, masked: tl.constexpr, added: tl.constexpr, precision: tl.constexpr,
    COLUMNS: tl.constexpr, PIXELS: tl.constexpr, NUMBERS: tl.constexpr, FILTERS: tl.constexpr,
):
    """A convolution of the images or, with `rectified`, of their ReLU; pixels outside of the images are 0."""
    lane, place = tl.program_id(1).to(tl.int64), tl.arange(0, PIXELS)
    line, column = tl.program_id(0) * (PIXELS // COLUMNS) + place // COLUMNS, place % COLUMNS
    image, row, inside = line // rows, line % rows, line < lines
    o = tl.program_id(2) * FILTERS + tl.arange(0, FILTERS)
    images += lane * from_lane
    filters += lane * (kernel_height * kernel_width * C * O)
    sums = _zeros(kernel_width, PIXELS, FILTERS)  # for each column of the kernel, at the pixels that it reads
    blocks: tl.constexpr = (C + NUMBERS - 1) // NUMBERS
    for block in range(kernel_height * blocks):
        down, c = block // blocks, block % blocks * NUMBERS + tl.arange(0, NUMBERS)
        pixels = _row(images, image, row + down - pad_height, column, inside, c, height, width, C, rectified)
        after = ()
        for across in tl.static_range(kernel_width):
            k = (down * kernel_width + across) * C + c
            there = (c < C)[:, None] & (o < O)[None, :]
            part = tl.load(filters + k[:, None] * O + o[None, :], mask=there, other=0.0)
            after += (tl.dot(pixels, part, sums[across], input_precision=precision),)
        sums = after
    total = tl.zeros((PIXELS, FILTERS), dtype=tl.float32)
    for across in tl.static_range(kernel_width):
        total += _from_right(sums[across], across - pad_width, COLUMNS)
    if biased:
        total += tl.load(biases + lane * from_bias + o, mask=o < O, other=0.0).to(tl.float32)[None, :]
    there = (inside & (column < columns))[:, None] & (o < O)[None, :]
    row, column = row * apart_rows + first_row, column * apart_columns + first_column
    at = ((image * all_rows + row) * all_columns + column)[:, None] * O + o[None, :]
    at += lane * (lines // rows) * (all_rows * all_columns * O)
    store(results + at, total, signs + at, summands + at, there, masked, added)


@triton.jit
def _zeros(count: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr):
    """This many sums of products [rows, columns]."""
    sums = ()
    for _ in tl.static_range(count):
        sums += (tl.zeros((rows, columns), dtype=tl.float32),)
    return sums


@triton.jit
def _row(
    images, image, y, column, inside, c,
    height, width: tl.constexpr, C: tl.constexpr, rectified: tl.constexpr,
):
    """Channels `c` of the pixels in these columns of the rows `y`; 0 beyond the image."""
    inside = inside & (y >= 0) & (y < height) & (column >= 0) & (column < width)
    there = inside[:, None] & (c < C)[None, :]
    at = (((image * height + y) * width + column) * C)[:, None] + c[None, :]
    return rectify(tl.load(images + at, mask=there, other=0.0), rectified)


@triton.jit
def _from_right(numbers, right: tl.constexpr, COLUMNS: tl.constexpr):
    """The numbers [PIXELS, FILTERS] of the pixels this far to the right; 0 beyond the ends of rows."""
    if right == 0:
        return numbers
    place = tl.arange(0, numbers.shape[0])
    column = place % COLUMNS + right
    source = ((place + right) & (numbers.shape[0] - 1))[:, None] + tl.zeros(numbers.shape, dtype=tl.int32)
    return tl.where(((column >= 0) & (column < COLUMNS))[:, None], tl.gather(numbers, source, 0), 0.0)


@triton.jit
def differentiated(
    images, slopes, gradients, from_lane,  # as in `kernels.differentiated`
    lines, share: tl.constexpr,  # rows of the results of one lane, and in a part
    height: tl.constexpr, width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
    C: tl.constexpr, O: tl.constexpr,
    kernel_height: tl.constexpr, kernel_width: tl.constexpr, pad_height: tl.constexpr, pad_width: tl.constexpr,
    biased: tl.constexpr, rectified: tl.constexpr, precision: tl.constexpr,
    COLUMNS: tl.constexpr, PIXELS: tl.constexpr, NUMBERS: tl.constexpr, FILTERS: tl.constexpr,
    KERNEL_ROWS: tl.constexpr,  # of the kernel in a block
):
    """The gradient of the filters of a convolution, in parts that are still to be added."""
    lane, lanes, place = tl.program_id(1).to(tl.int64), tl.num_programs(1), tl.arange(0, PIXELS)
    K: tl.constexpr = kernel_height * kernel_width * C
    blocks: tl.constexpr = (C + NUMBERS - 1) // NUMBERS
    blocks_of_filters: tl.constexpr = (O + FILTERS - 1) // FILTERS
    part, column = tl.program_id(2) // blocks_of_filters, place % COLUMNS
    down = tl.program_id(0) // blocks * KERNEL_ROWS
    c = tl.program_id(0) % blocks * NUMBERS + tl.arange(0, NUMBERS)
    o = tl.program_id(2) % blocks_of_filters * FILTERS + tl.arange(0, FILTERS)
    images, slopes = images + lane * from_lane, slopes + lane * lines * (columns * O)
    gradients += (part * lanes + lane) * (K + biased) * O
    sums = _zeros(KERNEL_ROWS * kernel_width, NUMBERS, FILTERS)  # for each place of the kernel in this block
    of_biases = tl.zeros((PIXELS, FILTERS), dtype=tl.float32)
    for first in range(0, share, PIXELS // COLUMNS):
        line = part * share + first + place // COLUMNS
        image, row, inside = line // rows, line % rows, line < lines
        shifted = ()  # for each column of the kernel: the slopes of the results to which a pixel adds by it
        for across in tl.static_range(kernel_width):
            shifted += (_row(slopes, 0, line, column + (pad_width - across), inside, o, lines, columns, O, False),)
        if biased:
            of_biases += shifted[pad_width].to(tl.float32)
        after = ()
        for number in tl.static_range(KERNEL_ROWS):
            y = row + down + number - pad_height
            pixels = tl.trans(_row(images, image, y, column, inside, c, height, width, C, rectified))
            for across in tl.static_range(kernel_width):
                total = sums[number * kernel_width + across]
                after += (tl.dot(pixels, shifted[across], total, input_precision=precision),)
        sums = after
    for number in tl.static_range(KERNEL_ROWS * kernel_width):
        k = (down * kernel_width + number) * C + c
        there = ((c < C) & (k < K))[:, None] & (o < O)[None, :]
        tl.store(gradients + k[:, None] * O + o[None, :], sums[number], mask=there)
    if biased:  # by the first program, whose number is 0
        tl.store(gradients + K * O + o, tl.sum(of_biases, 0), mask=o + tl.program_id(0) * O < O)
# fmt: on
