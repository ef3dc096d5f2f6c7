"""The layouts of image folders: which files there are, with which labels, in which part.

Shapes: N images of a part, C classes.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workloads.data.fetching import DataError

PARTS = {"train": ("train",), "val": ("val", "validation"), "test": ("test",)}
"""Part -> the names that its folder or its list file may have."""
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
LAYOUTS = """It may be
  a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, the layout of ImageNet; a test/ like them is optional, val/ too;
  a folder with CLASS/*.jpg, whose images workload.split_seed divides;
  a text file with a path and a label in each line, which workload.split_seed divides; or a folder with train.txt and \
val.txt of this kind."""

Labelled = tuple[bytes, str]
"""(path below the root, class)."""


@dataclass(frozen=True)
class Images:
    """Image files and their labels.

    Attributes:
        root: the folder that the paths begin at.
        files: their paths, as bytes [N], which take less memory than a list of texts in every process.
        labels: int64 [N].
    """

    root: Path
    files: NDArray[np.bytes_]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.files)

    def path(self, index: int) -> Path:
        return self.root / os.fsdecode(self.files[index])

    def chosen(self, index: NDArray[np.int64]) -> "Images":
        """The images of these indices, in this order."""
        return Images(self.root, self.files[index], self.labels[index])


@dataclass(frozen=True)
class Layout:
    """Attributes:
    parts: those of `train`, `val` and `test` that are there, or one part `all` to be divided.
    classes: their names; label k is that of number k.
    """

    parts: Mapping[str, Images]
    classes: tuple[str, ...]


def read(path: str | Path) -> Layout:
    """The images of a folder or of a list file, sorted by class and name; those of a list in the order of its lines.

    Classes are numbered in the order of their names, or of their numbers if all are whole numbers.

    Raises:
        DataError: nothing is there, the layout is another one, or a class has no image; the message names the path.
    """
    root, found = _parts(path)
    pairs = {part: list(_pairs(place)) for part, place in found.items()}
    first = next(iter(pairs))
    classes = _ordered({label for _, label in pairs[first]})
    _require_two(found[first], classes)
    number = {name: label for label, name in enumerate(classes)}
    for part, held in pairs.items():
        if strange := sorted({label for _, label in held} - {*number}):
            raise DataError(
                f"{found[part]} has the class {strange[0]!r}, but {found[first]} has none of this name: the classes of "
                "all parts must be those of the training part."
            )
    _require_apart(root, found, pairs)
    parts = {}
    for part, held in pairs.items():
        labels = np.array([number[label] for _, label in held], dtype=np.int64)
        base = found[part] if found[part].is_dir() else root
        parts[part] = Images(base, np.array([file for file, _ in held], dtype=np.bytes_), labels)
    return Layout(parts, tuple(classes))


def class_names(path: str | Path) -> list[str]:
    """The names of the classes in their order, without a look at the images.

    Raises:
        DataError: as `read`.
    """
    _, found = _parts(path)
    place = next(iter(found.values()))
    names = {entry.name for entry in _folders(place)} if place.is_dir() else {label for _, label in _lines(place)}
    classes = _ordered(names)
    _require_two(place, classes)
    return classes


def image_files(folder: Path) -> list[bytes]:
    """The images in a folder and the folders below it, sorted, as paths below it. Hidden files are left out."""
    found: list[bytes] = []
    above = {os.path.realpath(folder)}
    for place, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [
            name for name in folders if not name.startswith(".") and not _seen(os.path.join(place, name), above)
        ]
        below = os.path.relpath(place, folder)
        images = [name for name in files if name.lower().endswith(ENDINGS) and not name.startswith(".")]
        found += [os.fsencode(name if below == "." else os.path.join(below, name)) for name in images]
    return sorted(found)


def _seen(folder: str, known: set[str]) -> bool:
    """Whether a folder is among the known real ones, as links may lead back; afterwards it is."""
    real = os.path.realpath(folder)
    before = real in known
    known.add(real)
    return before


def _parts(path: str | Path) -> tuple[Path, dict[str, Path]]:
    """The folder that paths of list files begin at, and the folder or list file of each part."""
    root = Path(path).expanduser()
    refuse = partial(_refusal, root)
    if root.is_file():
        return root.parent, {"all": root}
    if not root.is_dir():
        raise refuse(f"does not exist (seen from {Path.cwd()})")
    found = {
        part: place
        for part, names in PARTS.items()
        for place in [root / f"{name}{end}" for name in reversed(names) for end in (".txt", "")]
        if (place.is_dir() if not place.suffix else place.is_file())
    }
    if not found:
        if not any(True for _ in _folders(root)):
            loose = len(image_files(root))
            raise refuse(f"has {loose} images in no folder of a class" if loose else "has no folder of a class")
        return root, {"all": root}
    if "train" not in found:
        raise refuse(f"has {' and '.join(place.name for place in found.values())}, but no train/")
    return root, found


def _refusal(path: Path, what: str) -> DataError:
    return DataError(f"the image folder {path} {what}. {LAYOUTS}")


def _pairs(place: Path) -> Iterable[Labelled]:
    return _of_folders(place) if place.is_dir() else _of_list(place)


def _require_apart(root: Path, found: Mapping[str, Path], pairs: Mapping[str, Sequence[Labelled]]) -> None:
    """Raise DataError if list files name an image in two parts, or twice in a part that is divided: it could then be
    trained on and evaluated. A training list with a `val` beside it may repeat images."""
    if all(place.is_dir() for place in found.values()):
        return
    pool = {"all": True, "train": "val" not in found, "val": "test" not in found}
    first: dict[bytes, str] = {}
    for part, held in pairs.items():
        base = os.fsencode(found[part] if found[part].is_dir() else root)
        for file, _ in held:
            path = os.path.normpath(os.path.join(base, file))
            before = first.setdefault(path, part)
            if before != part:
                raise DataError(
                    f"{found[before]} and {found[part]} both name {os.fsdecode(path)}: an image must be in one part "
                    "alone, or the model is judged by what it was trained on; leave it out of one of them."
                )
        if pool.get(part) and len({*map(os.path.normpath, (file for file, _ in held))}) < len(held):
            numbers = Counter(os.path.normpath(file) for file, _ in held)
            file, times = numbers.most_common(1)[0]
            raise DataError(
                f"{found[part]} names {os.fsdecode(file)} {times} times, and is divided into training and other "
                "images: copies could be on both sides. Name each image once; to repeat training images, write "
                "train.txt and val.txt."
            )


def _of_folders(place: Path) -> Iterable[Labelled]:
    """The images of each folder of a class."""
    folders = sorted(_folders(place), key=lambda entry: entry.name)
    if not folders:
        raise _refusal(place, f"has {len(image_files(place))} images, but no folder of a class")
    for entry in folders:
        files = image_files(Path(entry.path))
        if not files:
            raise DataError(
                f"{entry.path} is the folder of a class, but has no image ({', '.join(ENDINGS)}); add some, or remove "
                "the folder."
            )
        for file in files:
            yield os.path.join(os.fsencode(entry.name), file), entry.name


def _of_list(place: Path) -> Iterable[Labelled]:
    """The images that a list file names. Each file must be there."""
    held = _lines(place)
    missing = [file for file, _ in held if not (place.parent / file).is_file()]
    if missing:
        raise DataError(
            f"{place} names {len(missing)} files of {len(held)} that are not there, such as {missing[0]} (seen from "
            f"{place.parent}): correct the paths, or leave the lines out."
        )
    return [(os.fsencode(file), label) for file, label in held]


def _lines(place: Path) -> list[tuple[str, str]]:
    """The path and the label in each line of a list file."""
    held = []
    for number, line in enumerate(place.read_text("utf-8-sig").splitlines(), 1):
        words = line.rsplit(maxsplit=1)
        if len(words) == 2:
            held.append((words[0].strip(), words[1]))
        elif words:
            raise DataError(f"line {number} of {place} must be a path and a label, but is {line!r}.")
    if not held:
        raise DataError(f"{place} must have a path and a label in each line, but is empty.")
    return held


def _folders(place: Path) -> Iterable[os.DirEntry[str]]:
    with os.scandir(place) as entries:
        yield from [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]


def _ordered(names: Iterable[str]) -> list[str]:
    names = sorted(names)
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else names


def _require_two(place: Path, classes: Sequence[str]) -> None:
    if len(classes) < 2:
        named = f", {classes[0]!r}" if classes else ""
        raise _refusal(place, f"has {len(classes)} classes{named}, but at least two are needed")
