"""Data sets of images that are read when they are asked for, and their tensors.

Shapes: N examples in a split, C channels, H x W pixels, S the side of the images that a model takes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from workloads.base import Split, Splits
from workloads.data.images import transforms
from workloads.data.images.pixels import Pixels

RESIDENT_BYTES = 2**30
"""Splits whose tensors would be larger are read image by image."""

Transform = Callable[[Tensor], Tensor]
"""An image [C, H, W] -> [C, S, S]."""


@dataclass(frozen=True)
class Recipe:
    """What happens to the images of a training and of an evaluated set.

    Attributes:
        side: S.
        shorter: their shorter side before the middle is cut from evaluated images.
        random: training images are random parts, which differ from reading to reading.
    """

    side: int
    shorter: int
    random: bool

    def of(self, split: str) -> Transform:
        """What happens to an image of this split."""
        return self.changed if self.random and split == "train" else self.centre

    def centre(self, image: Tensor) -> Tensor:
        """The middle of an image."""
        return transforms.centre_crop(transforms.resize_shorter(image, self.shorter), self.side)

    def changed(self, image: Tensor) -> Tensor:
        """A random part of an image, or its mirror image."""
        return transforms.random_flip(transforms.random_resized_crop(image, self.side))


AUGMENTATIONS = ("none", "crop_flip", "resized_crop_flip")


def recipe(augmentation: str, side: int) -> Recipe:
    """The recipe of one of AUGMENTATIONS. Only `resized_crop_flip` cuts the middle from larger images, and changes
    images one by one; `crop_flip` is `transforms.random_crops_and_flips` of whole batches."""
    if augmentation == "resized_crop_flip":
        return Recipe(side, round(side / transforms.CENTRE), random=True)
    return Recipe(side, side, random=False)


class ImageSet(Dataset):
    """Some images in an order, each read, changed and normalised when it is asked for.

    Arguments:
        pixels: bytes are normalised; floats are already.
        index: the numbers of the images [N].
        targets: of all images of `pixels`.
    """

    def __init__(self, pixels: Pixels, index: NDArray[np.int64], targets: "Targets", transform: Transform) -> None:
        self.pixels, self.index, self.targets, self.transform = pixels, index, targets, transform

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if not 0 <= number < len(self.index):
            raise IndexError(f"images are numbered 0 to {len(self.index) - 1}, but got {number}")
        image = int(self.index[number])
        return self._input(image), self.targets(image)

    def _input(self, image: int) -> Tensor:
        changed = self.transform(self.pixels[image])
        return (transforms.normalised(changed) if changed.dtype == torch.uint8 else changed).contiguous()

    def tensors(self, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """All inputs float32 [N, C, S, S] and targets [N, ...]."""
        targets = torch.stack([self.targets(int(image)) for image in self.index]).to(device)
        first = self._input(int(self.index[0]))
        inputs = torch.empty(len(self), *first.shape)
        for number, image in enumerate(self.index):
            inputs[number] = self._input(int(image))
        return inputs.to(device), targets


Targets = Callable[[int], Tensor]
"""Number of an image -> its target."""


def of_labels(labels: NDArray[np.int64]) -> Targets:
    """The label of each image as its target, a tensor int64 []."""
    held = torch.from_numpy(labels)
    return lambda image: held[image]


def held(sets: dict[str, ImageSet], recipe: Recipe, channels: int, device: torch.device | str) -> Splits:
    """The splits as tensors, if they are the same at every reading and at most 1 GiB; else as they are."""
    size = sum(map(len, sets.values())) * channels * recipe.side**2 * 4
    if recipe.random or size > RESIDENT_BYTES:
        return Splits(**sets)
    found: dict[str, Split] = {name: each.tensors(device) for name, each in sets.items()}
    return Splits(**found)
