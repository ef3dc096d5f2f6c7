"""Where the folders of the large image data sets lie, which the user brings, and the user's own."""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from workloads.base import require_whole
from workloads.data import fetching
from workloads.data.datasets import DATASETS, Row
from workloads.data.fetching import DataError, Origin
from workloads.suggest import suggest

OWN = "image_folder"
"""The name of the user's own images, which have a path."""


@dataclass(frozen=True, kw_only=True)
class Folder(Origin):
    """The description of a folder of images.

    Attributes:
        what: the description in `study data list`.
        needs: files and folders that must be in it; a pattern each.
        directions: where they come from.
    """

    what: str
    needs: tuple[str, ...]
    directions: str


FOLDERS: dict[str, Folder] = {
    "imagenet": Folder(
        what="ImageNet (ILSVRC 2012), 1,000 classes, 1,281,167 + 50,000 photographs",
        needs=("train", "val"),
        subfolders=("imagenet", "ILSVRC2012"),
        directions="The files come from https://image-net.org (after registration): ILSVRC2012_img_train.tar, whose "
        "archives are unpacked into a folder for each class below train/, and ILSVRC2012_img_val.tar, whose images "
        "are moved into folders of the same names below val/.",
    ),
    "open_images": Folder(
        what="Open Images, 7,186 labels, photographs with several labels each",
        needs=("train", "validation", "test", "*class-descriptions*.csv", "*-annotations-human-imagelabels.csv"),
        subfolders=("open_images", "OpenImages"),
        directions="The files come from https://storage.googleapis.com/openimages/web/download.html: the images of "
        "train/, validation/ and test/, their *-annotations-human-imagelabels.csv, class-descriptions.csv and, to "
        "train on its labels alone, classes-trainable.txt.",
    ),
}


SINGLE = (*DATASETS, "imagenet", OWN)
SEVERAL = ("open_images", OWN)
"""Data sets whose images have a single label, and those whose images have several."""


def require_known(dataset: str, path: str | None, image_size: int | None, known: Collection[str]) -> None:
    """Raise ValueError unless these name images: a path if and only if they are the user's own, and a size if they are
    files.

    Arguments:
        known: SINGLE or SEVERAL.
    """
    if dataset not in known:
        raise ValueError(f"unknown data set {dataset!r}{suggest(dataset, known)}")
    if dataset == OWN and not path:
        raise ValueError(f"workload.dataset={OWN} needs workload.path: a folder of images, or a list file.")
    if dataset != OWN and path:
        raise ValueError(f"workload.path belongs to workload.dataset={OWN}, but the data set is {dataset}: drop it.")
    if image_size is None and dataset not in DATASETS:
        raise ValueError(f"workload.dataset={dataset} needs workload.image_size: a side in pixels, such as 224.")
    if image_size is not None:
        require_whole("workload.image_size", image_size, 1)


def folder(dataset: str, path: str | None = None) -> Path:
    """The folder or list file of a data set of files.

    Raises:
        DataError: it is not on this machine; the message says where it was looked for and where it comes from.
    """
    return Path(str(path)).expanduser() if dataset == OWN else fetch(dataset)


def fetch(name: str, folder: Path | None = None) -> Path:
    """The folder of one of FOLDERS; they are not fetched.

    Raises:
        DataError: it is not on this machine; the message says where it was looked for and where it comes from.
    """
    if home := find(name, folder):
        return home
    known = FOLDERS[name]
    looked = "\n  ".join(f"{place}: no {_lacking(known, place)}" for place in _places(name, folder))
    unset = "" if os.environ.get("STUDY_DATA") else f" (STUDY_DATA is not set; $STUDY_DATA/{name} is found too)"
    raise DataError(
        f"{name} is not fetched by this program, and is not here. Looked for it{unset}:\n  {looked}\n{known.directions}"
    )


def find(name: str, folder: Path | None = None) -> Path | None:
    """The first folder on this machine that has what one of FOLDERS needs. Only reads."""
    return next((place for place in _places(name, folder) if not _lacking(FOLDERS[name], place)), None)


def status(folder: Path | None = None) -> list[Row]:
    """A row for each of FOLDERS."""
    rows = []
    for name, known in FOLDERS.items():
        home = find(name, folder)
        rows.append(Row(name, home is not None, str(home or ""), 0, known.what, (known.directions,), fetched=False))
    return rows


def _places(name: str, folder: Path | None) -> list[Path]:
    """Folders with a name of the data set, and its folder in the cache."""
    named = [each for each in fetching.user_places(FOLDERS[name], folder) if each.name in FOLDERS[name].subfolders]
    return [*named, fetching.cache_folder(name)]


def _lacking(known: Folder, place: Path) -> str:
    """The first thing that a folder needs and does not have; empty if it has all."""
    return next((need for need in known.needs if not any(place.glob(need))), "")
