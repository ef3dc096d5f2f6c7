"""CIFAR residual networks (He et al. 2016a, section 4.2) with pre-activation blocks (2016b), without batch norm.

Batch norm would make the training objective depend on the batch size, the quantity under study.
`workloads.images.resnet` has the networks with norms behind convolutions.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import require_whole
from workloads.classification import Classification
from workloads.data.datasets import DATASETS
from workloads.images.norms import NormLayer, norm_layer
from workloads.layers import GlobalMeanPool


@dataclass(frozen=True, kw_only=True)
class ResNetCifar(Classification):
    """6n + 2 layers: a first convolution, three stages of n blocks with 16, 32 and 64 filters, and a linear layer.

    n = `blocks_per_stage` = 1 with `norm=none` is the ResNet-8 of Shallue et al. 2019.

    Arguments:
        norm, ghost_batch, norm_groups: see `workloads.images.norms.norm_layer`; in front of every ReLU.
    """

    blocks_per_stage: int = 1
    norm: str = "none"
    ghost_batch: int = 32
    norm_groups: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("workload.blocks_per_stage", self.blocks_per_stage, 1)
        self._norm(16)  # further layers have a multiple of its channels

    @property
    def _norm(self) -> NormLayer:
        return norm_layer(self.norm, self.ghost_batch, self.norm_groups)

    def model(self) -> nn.Module:
        data = DATASETS[self.dataset]
        # Gain 1 for the first layer, which has no ReLU before it (He et al. 2015, section 2.2), and for the last, which
        # has none after it. With gain 2 there and no batch norm, steps at the best learning rates kill every unit.
        layers: list[nn.Module] = [_convolution(data.shape[0], 16, gain="linear")]
        width = 16
        for filters, stride in ((16, 1), (32, 2), (64, 2)):
            for block in range(self.blocks_per_stage):
                layers.append(PreActivationBlock(width, filters, stride if block == 0 else 1, self._norm))
                width = filters
        classifier = nn.Linear(width, data.classes)
        nn.init.kaiming_normal_(classifier.weight, nonlinearity="linear")
        nn.init.zeros_(classifier.bias)
        last = [] if self.norm == "none" else [self._norm(width)]
        return nn.Sequential(*layers, *last, nn.ReLU(inplace=True), GlobalMeanPool(), classifier)


class PreActivationBlock(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x)))))).

    When the shape changes, the shortcut average-pools and pads with zero channels.
    """

    def __init__(self, inputs: int, filters: int, stride: int, norm: NormLayer) -> None:
        super().__init__()
        self.before, self.between = norm(inputs), norm(filters)
        self.first = _convolution(inputs, filters, stride)
        self.second = _convolution(filters, filters)
        self.stride = stride
        self.padding = filters - inputs

    def forward(self, x: Tensor) -> Tensor:
        # In place where no other operation reads the input: saves up to a tenth of a step, with the same bits.
        residual = self.second(F.relu(self.between(self.first(F.relu(self.before(x)))), inplace=True))
        if self.stride > 1:
            x = F.avg_pool2d(x, self.stride)
        if self.padding:
            x = F.pad(x, (0, 0, 0, 0, 0, self.padding))
        return residual.add_(x)


def _convolution(inputs: int, filters: int, stride: int = 1, gain: str = "relu") -> nn.Conv2d:
    """A 3x3 convolution with He-normal weights and zero biases; `gain`: the nonlinearity before it."""
    layer = nn.Conv2d(inputs, filters, 3, stride=stride, padding=1)
    nn.init.kaiming_normal_(layer.weight, nonlinearity=gain)  # type: ignore[arg-type]
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
