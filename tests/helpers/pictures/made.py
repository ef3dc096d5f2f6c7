"""Folders of made image files."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("cat", "dog", "emu", "fox")


def pixels(label: int, number: int, height: int = 12, width: int = 16) -> np.ndarray:
    """A picture uint8 [H, W, 3]: noise, brighter in the channel of its label."""
    noise = np.random.default_rng((label, number)).integers(0, 100, (height, width, 3))
    noise[:, :, label % 3] += 60 + 30 * (label // 3)
    return noise.astype(np.uint8)


def write(path: Path, array: np.ndarray, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)
    return path


def class_folders(root: Path, counts: Mapping[str, int], first: int = 0) -> Path:
    """A folder of JPEG files for each class; `first`: the number of the first picture of each class."""
    for label, (name, count) in enumerate(counts.items()):
        for number in range(count):
            write(root / name / f"{number:03}.jpg", pixels(label, first + number))
    return root


def imagenet(root: Path, train: int = 10, val: int = 5) -> Path:
    """Images of CLASSES in the layout of ImageNet; no two are the same."""
    for part, count, first in (("train", train, 0), ("val", val, 1000)):
        class_folders(root / part, dict.fromkeys(CLASSES, count), first)
    return root


def open_images(root: Path, counts: Mapping[str, int], labels: int = 5, prefix: str = "") -> Path:
    """Images with two of `labels` labels each, in the layout of Open Images; the first image of a part has none."""
    names = [f"/m/0{number}" for number in range(labels)]
    (root).mkdir(parents=True, exist_ok=True)
    (root / f"{prefix}class-descriptions.csv").write_text("".join(f'{name},"Label, {name}"\n' for name in names))
    for part, count in counts.items():
        rows = []
        for number in range(count):
            write(root / part / f"{number:016x}.jpg", pixels(number % labels, number))
            judged = {number % labels: 1, (number + 2) % labels: 1, (number + 1) % labels: 0} if number else {0: 0}
            rows += [f"{number:016x},verification,{names[label]},{here}" for label, here in judged.items()]
        _write_labels(root / f"{prefix}{part}-annotations-human-imagelabels.csv", rows)
    return root


def _write_labels(path: Path, rows: Iterable[str]) -> None:
    path.write_text("\n".join(["ImageID,Source,LabelName,Confidence", *rows]) + "\n")
