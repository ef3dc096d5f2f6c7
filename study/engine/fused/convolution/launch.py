"""Launches the Triton kernels of this room: the sizes of their blocks, and the numbers that they take.

The sizes are the fastest of six of each kind on an H100, over the layers of ResNet-8 and the Simple CNN (see
`benchmarks.gpu.convolutions`). Shapes as in `study.engine.fused.convolution.operations`.
"""

from contextlib import nullcontext
from itertools import product
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from study.engine.fused.convolution import kernels
from study.engine.fused.convolution.shapes import Sizes

BLOCKS = {True: (256, 8), False: (128, 4)}
"""Whether a lane has MANY_PIXELS -> (pixels in a block of a product, warps that compute it)."""
MANY_PIXELS = 512
NUMBERS, FILTERS = 32, 64
"""Numbers of a filter in a block of a product, and most filters."""
STAGES = 3
"""Blocks in memory: while one is multiplied, the others are read."""
PIXELS_OF_GRADIENTS, WARPS_OF_GRADIENTS = 64, 4
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
    pixels = found.shape[1] * prod(size)
    block, warps = BLOCKS[pixels >= MANY_PIXELS]
    wide = min(FILTERS, _power(count))
    with _on(images):
        kernels.filtered[(-(-pixels // block), lanes, -(-count // wide))](
            *(images, filters, *(found if each is None else each for each in (bias, signs, plus)), found),
            *(_from_lane(images), 0 if bias is None else bias.stride(0), pixels),
            *(*images.shape[-2:], *size, *found.shape[-2:], *first, *apart),
            *(channels, count, *kernel, *padding, *step),
            *(bias is not None, rectified, signs is not None, plus is not None),
            *(_precision(images), block, NUMBERS, wide),
            num_warps=warps,
            num_stages=STAGES,
        )


def differentiated(
    images: Tensor, slopes: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, biased: bool, rectified: bool
) -> Tensor:
    """As `operations.differentiated`."""
    lanes, channels, count = len(slopes), images.shape[2], slopes.shape[2]
    pixels, rows = slopes[0].numel() // count, channels * prod(kernel) + biased
    share = min(MOST_SHARE, max(LEAST_SHARE, _power(pixels // PARTS)))
    parts, wide = -(-pixels // share), min(FILTERS, _power(count))
    found = torch.empty(parts, lanes, rows, count, device=slopes.device)
    with _on(images):
        kernels.differentiated[(-(-rows // NUMBERS), lanes, parts * -(-count // wide))](
            *(images, slopes, found, _from_lane(images), pixels, share),
            *(*images.shape[-2:], *slopes.shape[-2:]),
            *(channels, count, *kernel, *padding, *stride),
            *(biased, rectified, _precision(images), PIXELS_OF_GRADIENTS, NUMBERS, wide),
            num_warps=WARPS_OF_GRADIENTS,
            # To read ahead, a GPU copies 4 numbers at a time; one at a time, it takes four times as long as not to.
            num_stages=STAGES if channels % 4 == 0 else 1,
        )
    return (found[0] if parts == 1 else found.sum(0)).to(slopes.dtype)


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
