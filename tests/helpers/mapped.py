"""A workload whose examples lie in memory-mapped files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from workloads.base import Splits, classification_error, cross_entropy_error


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
