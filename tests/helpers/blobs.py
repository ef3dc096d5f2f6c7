"""A tiny workload for tests of the engines."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from study.data.resident import Data
from workloads.base import Splits, classification_error, cross_entropy_error
from workloads.classification import smoothed_cross_entropy
from workloads.layers import Dropout, GhostBatchNorm

CPU = torch.device("cpu")


@dataclass
class Blobs:
    """Five noisy classes, for a chain of linear layers or a small convolutional net, with dropout."""

    images: bool = False
    normed: bool = False
    validation: int = 40
    name = "tiny"
    train_examples = 64
    hyperparameters = ("label_smoothing",)

    @property
    def errors(self) -> dict[str, Any]:
        return {"classification_error": classification_error, "loss": cross_entropy_error}

    def data(self, device: torch.device = CPU) -> Data:
        return Data.of(self.splits(CPU), device)

    def splits(self, device: torch.device) -> Splits:
        generator = torch.Generator().manual_seed(0)

        def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
            targets = torch.randint(5, (count,), generator=generator)
            inputs = torch.randn(count, 2, 3, 4, generator=generator)
            inputs.view(count, -1)[torch.arange(count), targets] += 4
            return inputs if self.images else inputs.flatten(1), targets

        return Splits(draw(64), draw(self.validation), draw(20))

    def model(self) -> nn.Module:
        if not self.images:
            return nn.Sequential(nn.Flatten(), nn.Linear(24, 32), nn.ReLU(), Dropout(0.3), nn.Linear(32, 5))
        convolution = nn.Conv2d(2, 4, 3, padding=1)
        norm = [GhostBatchNorm(4, group=1)] if self.normed else []  # its statistics are state, too
        last = nn.Linear(48, 5)
        return nn.Sequential(convolution, *norm, nn.ReLU(), Dropout(0.2), nn.Flatten(), Dropout(0.5), last)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor, label_smoothing: Any = 0.0) -> torch.Tensor:
        return smoothed_cross_entropy(outputs, targets, label_smoothing, "paper")


WORKLOADS = {
    "plain": Blobs(images=True, normed=True),
    "linear_chain": Blobs(),
    "linear_blocks": Blobs(),
    "linear_chain_onednn": Blobs(),
    "linear_blocks_onednn": Blobs(),
    "vmap": Blobs(images=True),
}
"""Of each arithmetic."""
