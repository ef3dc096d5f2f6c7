"""Workloads as users write them: one of made images, as a file and its YAML, and one that maps its examples."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from workloads.base import Splits, classification_error, cross_entropy_error

IMAGES = """
from dataclasses import dataclass

import torch

from workloads.base import Splits, classification_error, cross_entropy_error


@dataclass(frozen=True)
class Images:
    name: str
    train_examples: int
    errors = {"classification_error": classification_error, "cross_entropy_error": cross_entropy_error}
    hyperparameters = ()

    def splits(self, device):
        generator = torch.Generator().manual_seed(0)
        inputs, labels = torch.randn(200, 1, 4, 4, generator=generator), torch.arange(200) % 2
        return Splits(*zip((inputs + 0.5 * labels.view(-1, 1, 1, 1)).split([100, 50, 50]), labels.split([100, 50, 50])))

    def model(self):
        return torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8, 2))

    def loss(self, outputs, targets):
        return cross_entropy_error(outputs, targets)
"""


YAML = """# @package _global_
workload: {_target_: made_images.Images, name: images, train_examples: 100}
goal: val/classification_error < 0.3
batch_sizes: [2, 4, 8, 16]
budget: {epochs: 0, steps: 60}
search: {trials: 3}
"""


MAPPED_YAML = """\
# @package _global_
workload:
  _target_: helpers.made_workload.{target}
  name: mapped
  train_examples: 4000
  folder: {folder}
goal: val/classification_error < 0.001
batch_sizes: [32]
budget: {{epochs: 0, steps: {steps}}}
search: {{trials: {trials}}}
stopping: budget
"""


@pytest.fixture
def mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Words of a sweep of Mapped or a class derived from it, and its results folder."""

    def make(target: str, trials: int = 2, steps: int = 40) -> tuple[list[str], Path]:
        (tmp_path / "workload").mkdir()
        text = MAPPED_YAML.format(target=target, folder=tmp_path, steps=steps, trials=trials)
        (tmp_path / "workload" / "mapped.yaml").write_text(text)
        MappedFile.write(tmp_path, 4000)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]))
        return ["sweep", "--config-dir", str(tmp_path), "workload=mapped", "engine.workers=1"], tmp_path / "results"

    return make


FAILING = """
from multiprocessing import parent_process

from made_images import *


class Failing(Images):
    def loss(self, outputs, targets):
        if parent_process() is not None:  # in a worker
            raise {error}
        return super().loss(outputs, targets)
"""


def own_folder(folder: Path, name: str = "images", source: str | None = None, target: str = "") -> Path:
    """Write a --config-dir that holds the workload `images` and, with a `source`, another of the class `target`."""
    (folder / "workload").mkdir(parents=True)
    (folder / "made_images.py").write_text(IMAGES)
    (folder / "workload/images.yaml").write_text(YAML)
    if source is not None:
        (folder / f"{target.partition('.')[0]}.py").write_text(source)
        (folder / f"workload/{name}.yaml").write_text(
            YAML.replace("made_images.Images, name: images", f"{target}, name: {name}")
        )
    return folder


def edited(path: Path, old: str, new: str) -> None:
    """Replace the text `old`, which the file holds, where it stands first."""
    text = path.read_text()
    assert old in text
    then = path.stat().st_mtime
    path.write_text(text.replace(old, new, 1))
    os.utime(path, (then + 2, then + 2))  # Python compiles a file again if its size or its second changed


@dataclass(frozen=True)
class Mapped:
    """A workload that maps the file of its examples instead of reading it."""

    name: str
    train_examples: int
    folder: str

    errors = {"classification_error": classification_error, "cross_entropy_error": cross_entropy_error}  # noqa: RUF012
    hyperparameters = ()

    def splits(self, device: torch.device) -> Splits:
        return Splits(*(MappedFile(Path(self.folder) / f"{split}.bin") for split in ("train", "val", "test")))

    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(8, 3)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy_error(outputs, targets)


class Filled(Mapped):
    """Runs out of memory in the middle of a trial, on the second device of a team alone."""

    calls: ClassVar[int] = 0

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        Filled.calls += torch.distributed.is_initialized() and torch.distributed.get_rank()
        if Filled.calls > 500:
            raise torch.OutOfMemoryError("no room")
        return super().loss(outputs, targets)


class MappedFile(Dataset):
    """Records of eight features and a class."""

    def __init__(self, path: Path) -> None:
        self.records = np.memmap(path, np.float32, "r").reshape(-1, 9)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        return np.array(self.records[number, :8]), int(self.records[number, 8])

    @staticmethod
    def write(folder: Path, examples: int) -> None:
        generator = np.random.default_rng(0)
        for split, count in (("train", examples), ("val", 300), ("test", 100)):
            records = generator.normal(size=(count, 9)).astype(np.float32)
            records[:, 8] = records[:, :3].argmax(1)
            records.tofile(folder / f"{split}.bin")
