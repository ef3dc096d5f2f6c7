"""Shapes of convolutions of lanes, and their images in memory.

Images are [l, N, C, H, W], with a pixel's channels side by side in memory (channels-last, one lane after the other).
"""

from collections.abc import Sequence

from torch import Tensor

Sizes = Sequence[int]
"""Of a height and a width."""


def by_pixels(images: Tensor) -> Tensor:
    """Images [l, N, C, H, W] with a pixel's channels side by side; [1, N, C, H, W] if all lanes share them."""
    if images.stride(0) == 0:
        images = images[:1]
    return images.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


def new(like: Tensor, lanes: int, count: int, channels: int, height: int, width: int) -> Tensor:
    """New images [l, N, C, H, W]. Not a view, which could not be changed in place where gradients are recorded."""
    strides = [count * height * width * channels, height * width * channels, 1, width * channels, channels]
    return like.new_empty_strided((lanes, count, channels, height, width), strides)


def results_size(images: Tensor, weight: Tensor, stride: Sizes, padding: Sizes) -> list[int]:
    """Height and width of the results of a convolution."""
    parts = zip(images.shape[-2:], weight.shape[-2:], stride, padding, strict=True)
    return [(size + 2 * pad - kernel) // step + 1 for size, kernel, step, pad in parts]
