"""Resizing, crops and flips of images as tensors, and their normalisation.

Random ones of one image draw from torch's global generator, which engines seed for each example and trial; those of a
batch draw from the generator that they are given.

Shapes: B images in a batch, C channels, H x W pixels, S the side of the images that a model takes.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
"""Of the channels of ImageNet, scaled to [0, 1]: the constants that are used for photographs in general."""

AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)
"""Ranges of the share of the area, and of width to height, of a random crop (Szegedy et al. 2015)."""
ATTEMPTS = 10
CENTRE = 0.875
"""S over the shorter side from which the centre is cut: 224 of 256 (Krizhevsky et al. 2012)."""
PADDING = 8
"""A padded image has S / PADDING more pixels on each side: 4 for images of 32 (He et al. 2016a)."""


def resize(image: Tensor, height: int, width: int) -> Tensor:
    """An image [C, H, W] -> [C, height, width], bilinear, with antialiasing; bytes remain bytes."""
    if image.shape[1:] == (height, width):
        return image
    size = (height, width)
    return F.interpolate(image.unsqueeze(0), size, mode="bilinear", align_corners=False, antialias=True).squeeze(0)


def resize_shorter(image: Tensor, side: int) -> Tensor:
    """An image [C, H, W] whose shorter side becomes `side`; the longer one in proportion, rounded down."""
    height, width = image.shape[1:]
    shorter = min(height, width)
    return resize(image, height * side // shorter, width * side // shorter)


def centre_crop(image: Tensor, side: int) -> Tensor:
    """The middle [C, side, side] of an image at least as large."""
    top, left = (image.shape[1] - side) // 2, (image.shape[2] - side) // 2
    return image[:, top : top + side, left : left + side]


def random_resized_crop(image: Tensor, side: int) -> Tensor:
    """A random part of an image [C, H, W], resized to [C, side, side] (Szegedy et al. 2015).

    Its area is uniform in AREA and the logarithm of its aspect ratio uniform in ASPECT. If no such part lies within the
    image in ATTEMPTS draws, it is the largest part in the middle with an aspect ratio in ASPECT.
    """
    top, left, height, width = _random_part(*image.shape[1:])
    return resize(image[:, top : top + height, left : left + width], side, side)


def _random_part(height: int, width: int) -> tuple[int, int, int, int]:
    """Top, left, height and width of a part."""
    draws = torch.rand(ATTEMPTS, 4, dtype=torch.float64).tolist()
    for area, aspect, down, right in draws:
        pixels = height * width * (AREA[0] + area * (AREA[1] - AREA[0]))
        ratio = ASPECT[0] * (ASPECT[1] / ASPECT[0]) ** aspect
        w, h = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(down * (height - h + 1)), int(right * (width - w + 1)), h, w
    w, h = min(width, round(height * ASPECT[1])), min(height, round(width / ASPECT[0]))
    return (height - h) // 2, (width - w) // 2, h, w


def random_flip(image: Tensor) -> Tensor:
    """An image [C, H, W], or with probability 1/2 its mirror image, left to right."""
    return image.flip(2) if torch.rand(()) < 0.5 else image


def random_crops_and_flips(images: Tensor, generator: torch.Generator) -> Tensor:
    """Normalised images [B, C, S, S], each moved by up to S / PADDING pixels and mirrored with probability 1/2.

    Pixels from outside are 0, the mean (He et al. 2016a, section 4.2). The layout of the images is kept.
    """
    count, _, side, _ = images.shape
    most = max(1, side // PADDING)
    moves = torch.randint(2 * most + 1, (2, count, 1), generator=generator, device=images.device)
    mirrored = torch.rand(count, 1, generator=generator, device=images.device) < 0.5
    along = torch.arange(side, device=images.device)
    rows, columns = along + moves[0], torch.where(mirrored, along.flip(0), along) + moves[1]  # [B, S]
    padded = F.pad(images, (most, most, most, most)).permute(0, 2, 3, 1)
    each = torch.arange(count, device=images.device)[:, None, None]
    cropped = padded[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    is_last = images.is_contiguous(memory_format=torch.channels_last)
    return cropped if is_last and not images.is_contiguous() else cropped.contiguous()


def normalised(image: Tensor) -> Tensor:
    """Bytes [..., 3, H, W] -> floats with about mean 0 and deviation 1 in each channel."""
    return image.to(torch.float32).sub_(_BYTE_MEAN).div_(_BYTE_DEVIATION)


_BYTE_MEAN, _BYTE_DEVIATION = (255 * torch.tensor(each)[:, None, None] for each in (MEAN, DEVIATION))
