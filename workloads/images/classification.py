"""Classification of images of a known shape, for models that are built for any shape.

Shapes: B images in a batch, C channels, H x W pixels.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from workloads.base import Splits, require_one_of, require_whole
from workloads.classification import Classification
from workloads.data import images
from workloads.data.datasets import DATASETS
from workloads.data.images.places import SINGLE
from workloads.data.images.transforms import random_crops_and_flips

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""(images [B, C, H, W], generator) -> images [B, C, H, W]."""


@dataclass(frozen=True, kw_only=True)
class ImageClassification(Classification):
    """Images of a data set or a folder; subclasses add the model.

    Arguments:
        dataset: one of `workloads.data.datasets.DATASETS`, `imagenet`, or `image_folder` for the images at `path`.
        path: the folder or list file of `dataset=image_folder`.
        image_size: H = W of the images that the model sees; None: that of the data set. Folders need it.
        augmentation: `none`; `crop_flip`, for small images: each moved by up to an eighth of its side and mirrored with
            probability 1/2; or `resized_crop_flip`, for photographs: random parts. See `workloads.data.images.splits`.
        cache: decode the files of folders once, into the cache.
        class_count: train on this many of the classes; None: all.
    """

    KNOWN: ClassVar[Collection[str]] = SINGLE
    """What `dataset` may be."""
    READ: ClassVar[Callable[..., Splits]] = staticmethod(images.splits)
    """Makes the splits."""

    path: str | None = None
    image_size: int | None = None
    augmentation: str = "none"
    cache: bool = False
    class_count: int | None = None

    def require_dataset(self) -> None:
        images.require_known(self.dataset, self.path, self.image_size, self.KNOWN)
        require_one_of("workload.augmentation", self.augmentation, images.AUGMENTATIONS)
        if self.class_count is not None:
            require_whole("workload.class_count", self.class_count, 2)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images that the model sees."""
        channels, height, width = DATASETS[self.dataset].shape if self.dataset in DATASETS else (3, 0, 0)
        return channels, self.image_size or height, self.image_size or width

    @property
    def classes(self) -> int:
        """The number of labels."""
        return self.class_count or images.class_total(self.dataset, self.path)

    @property
    def augment(self) -> Augment | None:
        """Random changes of a training batch."""
        return random_crops_and_flips if self.augmentation == "crop_flip" else None

    def splits(self, device: torch.device) -> Splits:
        return self.READ(
            self.dataset,
            path=self.path,
            image_size=self.image_size,
            augmentation=self.augmentation,
            cache=self.cache,
            class_count=self.class_count,
            train_examples=self.train_examples,
            validation_examples=self.validation_examples,
            split_seed=self.split_seed,
            device=device,
        )
