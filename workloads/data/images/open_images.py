"""Open Images: photographs with several labels each, from the image files and the CSV files of their labels.

Shapes: N images of a part, C labels.
"""

import csv
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.base import Splits
from workloads.data.fetching import DataError
from workloads.data.images import places, source
from workloads.data.images.layouts import PARTS, Images, image_files
from workloads.data.images.sets import ImageSet, held, recipe
from workloads.data.images.subsets import Asked, chosen_classes, divided, renumbered

LABELS = "*{}-annotations-human-imagelabels.csv"
"""The CSV file with the labels of a part, with the columns COLUMNS."""
COLUMNS = ("ImageID", "LabelName", "Confidence")
TRAINABLE, DESCRIPTIONS = "*classes-trainable.txt", "*class-descriptions*.csv"
PRESENT = 0.5
"""A label with at least this confidence is in the image. Human judges give 0 or 1."""
ROWS = 10**6
"""Lines of a CSV file that are read at once."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Labelled:
    """The images of a part, and the labels of each.

    Attributes:
        images: their files; `images.labels` is not used.
        starts: the labels of image i are those from starts[i] up to starts[i + 1], int64 [N + 1].
        labels: the labels of all images, one image after the other.
    """

    images: Images
    starts: NDArray[np.int64]
    labels: NDArray[np.int64]

    def of_classes(self, number: NDArray[np.int64]) -> "Labelled":
        """With label number[k] in place of label k; labels whose number is below 0 are left out."""
        labels = number[self.labels]
        kept = np.concatenate([[0], np.cumsum(labels >= 0)])
        return Labelled(self.images, kept[self.starts], labels[labels >= 0])

    def target(self, image: int, classes: int) -> Tensor:
        """1 for each label of an image, 0 for the others, float32 [C]."""
        found = torch.zeros(classes)
        found[torch.from_numpy(self.labels[self.starts[image] : self.starts[image + 1]])] = 1.0
        return found


def splits(
    dataset: str,
    *,
    path: str | None = None,
    image_size: int,
    augmentation: str = "none",
    cache: bool = False,
    class_count: int | None = None,
    train_examples: int,
    validation_examples: int,
    split_seed: int = 0,
    device: torch.device | str = "cpu",
) -> Splits:
    """Inputs float32 [N, 3, S, S], and targets float32 [N, C]: 1 for labels that human judges saw, otherwise 0.

    A label without a judgement counts as absent, like one that was judged to be absent. Images without one of the C
    labels are left out. The splits are those of the files; for the other arguments see `workloads.data.images.splits`.

    Raises:
        ValueError: an argument is out of range.
        DataError: files are missing, or a CSV file has other columns.
    """
    place = places.folder(dataset, path)
    names = label_names(place)
    classes = chosen_classes(len(names), class_count)
    number = renumbered(len(names), classes)
    parts = {part: _read(place, part, names).of_classes(number) for part in PARTS}
    kept = {part: np.flatnonzero(np.diff(each.starts)) for part, each in parts.items()}
    found = recipe(augmentation, image_size)
    asked, made = Asked(train_examples, validation_examples, split_seed), {}
    for split, (part, index) in divided(kept, asked, str(place)).items():
        pixels = source(parts[part].images, found, cache)
        made[split] = ImageSet(pixels, index, _Targets(parts[part], len(classes)), found.of(split))
    return held(made, found, 3, device)


@dataclass(frozen=True)
class _Targets:
    labelled: Labelled
    classes: int

    def __call__(self, image: int) -> Tensor:
        return self.labelled.target(image, self.classes)


def label_names(place: Path) -> list[str]:
    """The labels that a model may learn, such as `/m/0pc9`: those of classes-trainable.txt if it is there, otherwise
    those of class-descriptions.csv.

    Raises:
        DataError: neither is there.
    """
    if files := sorted(place.glob(TRAINABLE)):
        found = files[0].read_text().split()
    else:
        with open(_one(place, DESCRIPTIONS), newline="") as file:
            found = [row[0] for row in csv.reader(file) if row and row[0] != "LabelName"]
    if len(found) < 2:
        raise DataError(f"{place} must have at least two labels in {TRAINABLE} or {DESCRIPTIONS}, but has {found}.")
    return found


def _one(place: Path, pattern: str) -> Path:
    files = sorted(place.glob(pattern))
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise DataError(
            f"{place} must have one file {pattern}, but has {found}. {places.FOLDERS['open_images'].directions}"
        )
    return files[0]


def _read(place: Path, part: str, names: Sequence[str]) -> Labelled:
    """The images of a part that are there, and their labels."""
    import pandas

    folder = next((place / name for name in PARTS[part] if (place / name).is_dir()), None)
    if folder is None:
        raise DataError(f"{place} has no {PARTS[part][-1]}/ with images. {places.FOLDERS['open_images'].directions}")
    file = _one(place, LABELS.format(PARTS[part][-1]))
    files = image_files(folder)
    images = Images(folder, np.array(files, dtype=np.bytes_), np.zeros(0, dtype=np.int64))
    known = pandas.Index([os.path.splitext(os.path.basename(os.fsdecode(each)))[0] for each in files])
    if not known.is_unique:
        raise DataError(
            f"{folder} has several images named {known[known.duplicated()][0]}: each needs a name of its own."
        )
    number = pandas.Index(names)
    pairs, absent = [np.zeros((0, 2), dtype=np.int64)], 0
    try:
        for rows in pandas.read_csv(file, usecols=list(COLUMNS), dtype={"ImageID": str}, chunksize=ROWS):
            rows = rows[rows["Confidence"] >= PRESENT]
            found = np.stack([known.get_indexer(rows["ImageID"]), number.get_indexer(rows["LabelName"])], axis=1)
            found = found[found[:, 1] >= 0]
            absent += int((found[:, 0] < 0).sum())
            pairs.append(found[found[:, 0] >= 0])
    except ValueError as error:
        raise DataError(f"{file} must have the columns {', '.join(COLUMNS)}: {error}.") from error
    each = np.unique(np.concatenate(pairs), axis=0)  # by image, then by label
    if not len(each):
        raise DataError(f"{folder} has {len(files)} images, but {file} has a label for none of them.")
    if absent:
        log.info("%s: left out %d labels of images that are not in %s", file, absent, folder)
    starts = np.searchsorted(each[:, 0], np.arange(len(files) + 1))
    return Labelled(images, starts, each[:, 1])
