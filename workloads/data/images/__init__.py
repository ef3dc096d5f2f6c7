"""Images as examples of classification: folders, crops and flips, subsets, splits.

Shapes: N examples in a split, C channels, H x W pixels, S the side of the images that a model takes.
"""

from pathlib import Path

import numpy as np
import torch

from workloads.base import Splits, require_one_of
from workloads.data import datasets
from workloads.data.datasets import DATASETS
from workloads.data.images import layouts, places
from workloads.data.images.layouts import Images
from workloads.data.images.pixels import Decoded, Pixels, stored
from workloads.data.images.places import FOLDERS, OWN, require_known
from workloads.data.images.sets import AUGMENTATIONS, ImageSet, Recipe, held, of_labels, recipe
from workloads.data.images.subsets import Asked, Numbers, chosen_classes, divided, renumbered

__all__ = ["AUGMENTATIONS", "FOLDERS", "OWN", "class_total", "require_known", "splits"]


def splits(
    dataset: str,
    *,
    path: str | None = None,
    image_size: int | None = None,
    augmentation: str = "none",
    cache: bool = False,
    class_count: int | None = None,
    train_examples: int,
    validation_examples: int,
    split_seed: int = 0,
    device: torch.device | str = "cpu",
) -> Splits:
    """The images of a data set: inputs float32 [N, C, S, S], normalised in each channel, and labels int64 [N].

    If the folder has a part for validation, `validation_examples` of it are drawn with `split_seed`; otherwise they are
    the first ones of a permutation of the training images. The test set is the part of this name; otherwise the rest of
    the validation part, or the next `validation_examples` of the permutation. Smaller training sets are the beginning
    of larger ones, and fewer classes are some of the more.

    Evaluated images are resized until their shorter side is S (S / 0.875 with `augmentation=resized_crop_flip`, whose
    training images are random parts), and cut in the middle. `crop_flip` is that of whole batches, and not done here
    (see `transforms`). Images that are the same at every reading and take at most 1 GiB are tensors; others data sets.

    Arguments:
        dataset: one of DATASETS or FOLDERS, or `image_folder` for the images at `path`.
        image_size: S; None: that of the data set, which folders do not have.
        augmentation: one of AUGMENTATIONS.
        cache: decode the files of folders once, into the cache. Crops are then cut from images of the shorter side of
            evaluated ones, not of the original size.
        class_count: keep this many classes, drawn once and for all; None: all.

    Raises:
        ValueError: an argument is out of range.
        DataError: the images are not there, or their layout is unknown.
    """
    require_known(dataset, path, image_size, places.SINGLE)
    require_one_of("workload.augmentation", augmentation, AUGMENTATIONS)
    classes = chosen_classes(class_total(dataset, path), class_count)
    asked = Asked(train_examples, validation_examples, split_seed)
    if dataset in DATASETS:
        return _of_arrays(dataset, classes, asked, image_size, augmentation, device)
    return _of_files(
        places.folder(dataset, path), classes, asked, recipe(augmentation, int(image_size or 0)), cache, device
    )


def class_total(dataset: str, path: str | None = None) -> int:
    """The number of classes of a data set; of a folder, those that are there.

    Raises:
        DataError: the folder is not there, or its layout is unknown.
    """
    if dataset in DATASETS:
        return DATASETS[dataset].classes
    return len(layouts.class_names(places.folder(dataset, path)))


def source(images: Images, recipe: Recipe, cache: bool) -> Pixels:
    """The images of files, or of the cache."""
    return stored(images, recipe.shorter) if cache else Decoded(images)


def _of_files(
    place: Path, classes: Numbers, asked: Asked, found: Recipe, cache: bool, device: torch.device | str
) -> Splits:
    """The splits of a folder or list file."""
    layout = layouts.read(place)
    number = renumbered(len(layout.classes), classes)
    labels = {part: number[images.labels] for part, images in layout.parts.items()}
    kept = {part: np.flatnonzero(each >= 0) for part, each in labels.items()}
    made = {}
    pixels: dict[str, Pixels] = {}
    for split, (part, index) in divided(kept, asked, str(place)).items():
        if part not in pixels:
            pixels[part] = source(layout.parts[part], found, cache)
        made[split] = ImageSet(pixels[part], index, of_labels(labels[part]), found.of(split))
    return held(made, found, 3, device)


def _of_arrays(
    dataset: str,
    classes: Numbers,
    asked: Asked,
    image_size: int | None,
    augmentation: str,
    device: torch.device | str,
) -> Splits:
    """The splits of one of DATASETS, resized if need be."""
    channels, height, width = DATASETS[dataset].shape
    found = recipe(augmentation, image_size or height)
    as_it_is = (height, width) == (found.side, found.side) and not found.random
    tensors = datasets.splits(
        dataset,
        train_examples=asked.train,
        validation_examples=asked.validation,
        split_seed=asked.split_seed,
        device=device if as_it_is else "cpu",
        classes=None if len(classes) == DATASETS[dataset].classes else classes.tolist(),
    )
    if as_it_is:
        return tensors
    made = {}
    for split, (inputs, labels) in tensors._asdict().items():
        made[split] = ImageSet(inputs, np.arange(len(labels)), of_labels(labels.numpy()), found.of(split))
    return held(made, found, channels, device)
