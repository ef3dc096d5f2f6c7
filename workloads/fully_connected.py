"""Fully connected ReLU networks: the softmax classifier (no hidden layer) and the FC family of Shallue et al. 2019."""

import itertools
import math
from dataclasses import dataclass

from torch import nn

from workloads.base import require_whole
from workloads.classification import Classification
from workloads.data.datasets import DATASETS


@dataclass(frozen=True, kw_only=True)
class FullyConnected(Classification):
    """`widths` of the hidden layers: () is softmax regression, (1024, 1024) is FC-1024-1024 of the paper."""

    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.widths, tuple):
            raise ValueError(f"workload.widths must be a list such as [128] or [], but got {self.widths!r}.")
        for width in self.widths:
            require_whole("each of workload.widths", width, 1)

    def model(self) -> nn.Module:
        data = DATASETS[self.dataset]
        sizes = (math.prod(data.shape), *self.widths, data.classes)
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [he_linear(inputs, outputs), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers[:-1])


def he_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer with He-normal weights and zero biases (He et al. 2015)."""
    layer = nn.Linear(inputs, outputs)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    nn.init.zeros_(layer.bias)
    return layer
