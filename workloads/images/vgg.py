"""VGG networks (Simonyan and Zisserman 2015) of any depth: VGG-11 of Shallue et al. 2019 and others.

Shapes: B examples in a batch, C channels, H x W pixels.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from workloads.base import require_fraction, require_whole
from workloads.images.classification import ImageClassification
from workloads.images.norms import NormLayer, norm_layer
from workloads.layers import Dropout

SIZES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Depth -> number of convolutions in each stage: configurations A, B, D and E of Simonyan and Zisserman 2015."""
FILTERS = (64, 128, 256, 512, 512)


@dataclass(frozen=True, kw_only=True)
class Vgg(ImageClassification):
    """Stages of 3x3 convolutions, each followed by 2x2 max pooling, and fully connected layers with dropout.

    Arguments:
        depth: 11, 13, 16 or 19; `convolutions` replaces the stages of it.
        convolutions: number of convolutions in each stage.
        filters: of the convolutions of each stage; the first ones are used.
        units: of each fully connected layer but the last, which has one for each label.
        dropout: a rate in [0, 1), after each fully connected layer but the last.
        norm, ghost_batch, norm_groups: see `workloads.images.norms.norm_layer`; of each convolution.
    """

    depth: int = 11
    convolutions: tuple[int, ...] | None = None
    filters: tuple[int, ...] = FILTERS
    units: tuple[int, ...] = (4096, 4096)
    dropout: float = 0.5
    norm: str = "none"
    ghost_batch: int = 32
    norm_groups: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depth not in SIZES:
            raise ValueError(
                f"workload.depth must be {', '.join(map(str, SIZES))}, but got {self.depth!r}; workload.convolutions "
                "gives any other network."
            )
        for field in ("stages", "filters", "units"):
            for each in getattr(self, field):
                require_whole(f"each of workload.{'convolutions' if field == 'stages' else field}", each, 1)
        stages, (_, height, width) = len(self.stages), self.shape
        if stages > len(self.filters):
            raise ValueError(
                f"workload.filters must have a number for each of {stages} stages, but got {list(self.filters)}."
            )
        if min(height, width) < 2**stages:
            raise ValueError(
                f"{stages} stages halve height and width {stages} times and need images of at least {2**stages} x "
                f"{2**stages} pixels, but those of {self.dataset} have {height} x {width}: give workload.convolutions "
                "fewer stages, or choose larger images."
            )
        require_fraction("workload.dropout", self.dropout)
        norm = norm_layer(self.norm, self.ghost_batch, self.norm_groups)
        for filters in self.filters[:stages]:
            norm(filters)

    @property
    def stages(self) -> tuple[int, ...]:
        """The number of convolutions in each stage."""
        return SIZES[self.depth] if self.convolutions is None else self.convolutions

    def model(self) -> nn.Module:
        return vgg(
            self.shape,
            self.classes,
            self.stages,
            filters=self.filters,
            units=self.units,
            dropout=self.dropout,
            norm=norm_layer(self.norm, self.ghost_batch, self.norm_groups),
        )


def vgg(
    shape: tuple[int, int, int],
    outputs: int,
    stages: tuple[int, ...] = SIZES[11],
    *,
    filters: tuple[int, ...] = FILTERS,
    units: tuple[int, ...] = (4096, 4096),
    dropout: float = 0.5,
    norm: NormLayer,
) -> nn.Sequential:
    """A VGG network: images [B, C, H, W] -> [B, outputs].

    Weights start normal: with variance 2 / inputs (He et al. 2015, equation 10), but 1 / inputs in the first layer,
    which has no ReLU before it, and with standard deviation 0.01 in the last one; biases start at 0. The authors
    started deep networks from trained shallow ones.

    Arguments:
        shape: (C, H, W).
        outputs: numbers for each image, such as the logits of all classes.
        stages, filters, units, dropout: see `Vgg`; `stages` are its `convolutions`.
        norm: makes the norm layers, see `workloads.images.norms.norm_layer`.
    """
    channels, height, width = shape
    layers: list[nn.Module] = []
    for convolutions, number in zip(stages, filters, strict=False):
        for _ in range(convolutions):
            after = norm(number)
            layers.append(nn.Conv2d(channels, number, 3, padding=1))
            layers += [] if isinstance(after, nn.Identity) else [after]
            layers.append(nn.ReLU(inplace=True))
            channels = number
        layers.append(nn.MaxPool2d(2))
        height, width = height // 2, width // 2
    layers.append(nn.Flatten())
    inputs = channels * height * width
    for number in units:
        layers += [nn.Linear(inputs, number), nn.ReLU(inplace=True), Dropout(dropout)]
        inputs = number
    layers.append(nn.Linear(inputs, outputs))
    weighted: list[Any] = [layer for layer in layers if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in weighted:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="linear" if layer is weighted[0] else "relu")
        nn.init.zeros_(layer.bias)
    nn.init.normal_(weighted[-1].weight, std=0.01)
    return nn.Sequential(*layers)
