"""What workloads of the package share in tests: made splits in place of real data, so that they need no files."""

from abc import ABC, abstractmethod
from typing import Any

import torch

from helpers.blobs import CPU
from study.data.resident import Data
from workloads.base import Splits


class Made(ABC):
    """The splits of a workload are made by its `examples`; the goals of tests name `loss`."""

    @abstractmethod
    def examples(self, count: int, generator: torch.Generator) -> Any:
        """(inputs, targets) of `count` examples."""

    def splits(self, device: torch.device) -> Splits:
        generator = torch.Generator().manual_seed(0)
        return Splits(*(self.examples(count, generator) for count in (64, 40, 20)))

    @property
    def errors(self) -> Any:
        held = super().errors  # type: ignore[misc]
        return {**held, "loss": held["cross_entropy_error"]}

    def data(self, device: torch.device = CPU) -> Data:
        return Data.of(self.splits(CPU), device)
