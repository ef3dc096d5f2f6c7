"""The Simple CNN of Shallue et al. 2019 on MNIST and Fashion-MNIST: two 5x5 convolutions and one hidden layer."""

from dataclasses import dataclass

from torch import nn

from workloads.base import require_fraction, require_one_of
from workloads.classification import Classification
from workloads.data.datasets import DATASETS
from workloads.layers import Dropout

SIZES = {"narrow": (16, 32, 512), "base": (32, 64, 1024), "wide": (64, 128, 2048)}
"""Filters of the two convolutions and units of the fully connected layer."""


@dataclass(frozen=True, kw_only=True)
class SimpleCNN(Classification):
    """5x5 "same" convolutions with ReLU, each followed by 2x2 max pooling; one ReLU layer with dropout; softmax."""

    size: str = "base"
    dropout: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("workload.size", self.size, SIZES)
        require_fraction("workload.dropout", self.dropout)

    def model(self) -> nn.Module:
        first, second, units = SIZES[self.size]
        channels, height, width = DATASETS[self.dataset].shape
        return nn.Sequential(
            nn.Conv2d(channels, first, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * (height // 4) * (width // 4), units),
            nn.ReLU(inplace=True),
            Dropout(self.dropout),
            nn.Linear(units, DATASETS[self.dataset].classes),
        )
