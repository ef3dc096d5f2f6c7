"""Launches the Triton kernels of this room: the sizes of their blocks, and the numbers that they take.

One size of each kind serves all layers. Of about ten on an H200 with TF32, over the layers of ResNet-8 and the Simple
CNN, it is the fastest or near it (docs/speed.md). Shapes as in `study.engine.fused.convolution.operations`.
"""

from contextlib import nullcontext
from itertools import product
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from study.engine.fused.convolution import kernels, row_kernels
from study.engine.fused.convolution.shapes import Sizes


class Blocks(NamedTuple):
    """Sizes of the blocks of a product, and how they are computed.

    Attributes:
        pixels, numbers, filters: pixels, numbers of a filter and most filters in a block.
        warps: that compute a block.
        stages: blocks in memory: while one is multiplied, the others are read; with one, the first-level cache serves.
    """

    pixels: int
    warps: int
    numbers: int
    filters: int
    stages: int


PATCHES, PATCHES_OF_GRADIENTS = Blocks(128, 4, 32, 64, stages=1), Blocks(64, 4, 32, 64, stages=3)
"""Of `kernels`: of results and gradients of images, and of gradients of filters."""
ROWS, ROWS_OF_GRADIENTS = Blocks(64, 2, 16, 32, stages=2), Blocks(32, 2, 16, 32, stages=2)
"""The same of `row_kernels`."""
ROWS_OF_LARGE_KERNELS = Blocks(32, 2, 32, 32, stages=1)
"""Of gradients of filters where a kernel has more than MOST_PLACES. A block has one of its rows then, and else all."""
MOST_PLACES = 9
LEAST_CHANNELS, MOST_KERNEL_WIDTH, MOST_COLUMNS = 16, 5, 64
"""Where rows are read once (`row_kernels`), on tensor cores. With wider kernels, the sums of a block do not fit in
registers."""
PARTS, LEAST_SHARE, MOST_SHARE = 8, 512, 4096
"""Gradients of filters are summed in about this many parts, and the fewest and most pixels of a part, a power of two: a
kernel is compiled for each of these numbers."""


class Beside(NamedTuple):
    """What a product computes beside a convolution, as `operations.filtered` and `spread` have it."""

    bias: Tensor | None = None
    rectified: bool = False
    signs: Tensor | None = None
    plus: Tensor | None = None


def filtered(
    found: Tensor,
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    rectified: bool,
    plus: Tensor | None,
) -> Tensor:
    """Fill `found` as `operations.filtered` does, and return it."""
    beside = Beside(bias, rectified, plus=plus)
    _filtered(images, weight.permute(0, 3, 4, 2, 1).contiguous(), beside, found, padding, stride, (0, 0), (1, 1))
    return found


def spread(
    found: Tensor,
    slopes: Tensor,
    weight: Tensor,
    stride: Sizes,
    padding: Sizes,
    signs: Tensor | None,
    plus: Tensor | None,
) -> Tensor:
    """Fill `found` as `operations.spread` does, and return it.

    Every `stride`-th row and column of the images takes part in a convolution with the same pixels of the kernel: there
    is one launch for each of their first places.
    """
    size, kernel = found.shape[-2:], weight.shape[-2:]
    turned = weight.flip(3, 4).permute(0, 3, 4, 1, 2)
    if any(step > length for step, length in zip(stride, kernel, strict=True)):
        found.zero_() if plus is None else found.copy_(plus)  # some places take part in none
    for first in product(*(range(min(step, length)) for step, length in zip(stride, size, strict=True))):
        around = [length - 1 - pad - place for length, pad, place in zip(kernel, padding, first, strict=True)]
        row, column = (pad % step for pad, step in zip(around, stride, strict=True))
        if row < kernel[0] and column < kernel[1]:
            part = turned[:, row :: stride[0], column :: stride[1]].contiguous()
            pads = [pad // step for pad, step in zip(around, stride, strict=True)]
            _filtered(slopes, part, Beside(signs=signs, plus=plus), found, pads, (1, 1), first, stride)
    return found


def _filtered(
    images: Tensor,
    filters: Tensor,
    beside: Beside,
    found: Tensor,
    padding: Sizes,
    step: Sizes,
    first: Sizes,
    apart: Sizes,
) -> None:
    """Fill every `apart`-th row and column of `found`, from the `first`, by filters [l, height, width, C, O]."""
    lanes, *kernel, channels, count = filters.shape
    bias, rectified, signs, plus = beside
    size = [-(-(length - start) // each) for length, start, each in zip(found.shape[-2:], first, apart, strict=True)]
    lines, columns = found.shape[1] * size[0], _columns(images, size)
    by_rows = _by_rows(images, kernel, step, size, columns)
    blocks = ROWS if by_rows else PATCHES
    wide = min(blocks.filters, _power(count))
    tensors = images, filters, *(found if each is None else each for each in (bias, signs, plus)), found
    from_lanes = _from_lane(images), 0 if bias is None else bias.stride(0)
    shapes = *images.shape[-2:], *size, *found.shape[-2:], *first, *apart, channels, count, *kernel, *padding
    options = bias is not None, rectified, signs is not None, plus is not None, _precision(images)
    with _on(images):
        if by_rows:
            pixels = max(blocks.pixels, columns)
            row_kernels.filtered[(-(-lines // (pixels // columns)), lanes, -(-count // wide))](
                *(*tensors, *from_lanes, lines, *shapes, *options),
                *(columns, pixels, blocks.numbers, wide),
                **_options(blocks),
            )
        else:
            pixels = lines * size[1]
            kernels.filtered[(-(-pixels // blocks.pixels), lanes, -(-count // wide))](
                *(*tensors, *from_lanes, pixels, *shapes, *step, *options),
                *(blocks.pixels, blocks.numbers, wide),
                **_options(blocks),
            )


def differentiated(
    images: Tensor, slopes: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, biased: bool, rectified: bool
) -> Tensor:
    """As `operations.differentiated`."""
    lanes, channels, count, size = len(slopes), images.shape[2], slopes.shape[2], slopes.shape[-2:]
    lines, columns = slopes.shape[1] * size[0], _columns(images, size)
    by_rows = _by_rows(images, kernel, stride, size, columns)
    wide_kernel = prod(kernel) > MOST_PLACES
    blocks = PATCHES_OF_GRADIENTS
    if by_rows:
        blocks = ROWS_OF_LARGE_KERNELS if wide_kernel else ROWS_OF_GRADIENTS
    wide, pixels = min(blocks.filters, _power(count)), lines * size[1]
    share = min(MOST_SHARE, max(LEAST_SHARE, _power(pixels // PARTS)))
    parts = -(-lines // (share // columns)) if by_rows else -(-pixels // share)
    found = torch.empty(parts, lanes, channels * prod(kernel) + biased, count, device=slopes.device)
    shapes = *images.shape[-2:], *size, channels, count, *kernel, *padding
    options = biased, rectified, _precision(images)
    with _on(images):
        if by_rows:
            kernel_rows, block = 1 if wide_kernel else kernel[0], max(blocks.pixels, columns)
            in_rows = kernel[0] // kernel_rows * -(-channels // blocks.numbers)
            row_kernels.differentiated[(in_rows, lanes, parts * -(-count // wide))](
                *(images, slopes, found, _from_lane(images), lines, share // columns, *shapes, *options),
                *(columns, block, blocks.numbers, wide, kernel_rows),
                **_options(blocks),
            )
        else:
            # To read ahead, a GPU copies 4 numbers at a time; one at a time, it takes four times as long as not to.
            ahead = blocks if channels % 4 == 0 else blocks._replace(stages=1)
            kernels.differentiated[(-(-found.shape[2] // blocks.numbers), lanes, parts * -(-count // wide))](
                *(images, slopes, found, _from_lane(images), pixels, share, *shapes, *stride, *options),
                *(blocks.pixels, blocks.numbers, wide),
                **_options(ahead),
            )
    return (found[0] if parts == 1 else found.sum(0)).to(slopes.dtype)


def _by_rows(images: Tensor, kernel: Sizes, step: Sizes, size: Sizes, columns: int) -> bool:
    """Whether `row_kernels` compute a convolution whose results have this size, in blocks of `columns` columns."""
    narrow = kernel[1] <= MOST_KERNEL_WIDTH and columns <= min(MOST_COLUMNS, 1.5 * size[1])
    by_tensor_cores = images.dtype == torch.bfloat16 or _precision(images) == "tf32"
    return narrow and by_tensor_cores and images.shape[2] >= LEAST_CHANNELS and tuple(step) == (1, 1)


def _columns(images: Tensor, size: Sizes) -> int:
    """The least power of two that is not below the columns of the images and of results of this size.

    >>> [_columns(torch.empty(1, 1, 1, 3, columns), (3, 30)) for columns in (30, 32, 33)]
    [32, 32, 64]
    """
    return 1 << (max(images.shape[-1], size[1]) - 1).bit_length()


def _options(blocks: Blocks) -> dict[str, int]:
    """Triton's options of a launch."""
    return {"num_warps": blocks.warps, "num_stages": blocks.stages}


def _from_lane(images: Tensor) -> int:
    """Numbers from a lane's images to the next one's; 0 if all lanes share them."""
    return images.stride(0) if len(images) > 1 else 0


def _on(images: Tensor) -> torch.cuda.device | nullcontext[None]:
    """A block in which Triton uses the GPU of these images; its interpreter has none."""
    return torch.cuda.device(images.device) if images.is_cuda else nullcontext()


def _power(number: int) -> int:
    """The least power of two that is at least this number, and 16: tensor cores multiply no smaller blocks.

    >>> [_power(number) for number in (3, 16, 17)]
    [16, 16, 32]
    """
    return max(16, 1 << (number - 1).bit_length())


def _precision(images: Tensor) -> str:
    """How the factors of products are rounded, as Triton calls it; bfloat16 is not rounded any more."""
    return "tf32" if images.dtype == torch.float32 and torch.backends.cudnn.allow_tf32 else "ieee"
