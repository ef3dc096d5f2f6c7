"""Convolutional networks that the arithmetic `grouped` knows, others that it must not take, and images for them."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Splits, cross_entropy_error
from workloads.layers import Dropout, GlobalMeanPool
from workloads.resnet_cifar import ResNetCifar

LANES, EXAMPLES, CHANNELS, SIDE = 4, 3, 3, 8


def resnet_8() -> nn.Module:
    return ResNetCifar(name="resnet", dataset="cifar10", train_examples=45_000, validation_examples=5_000).model()


def between(*layers: nn.Module, features: int = 16) -> nn.Module:
    """Layers after a first convolution, before a linear layer."""
    return nn.Sequential(nn.Conv2d(CHANNELS, 16, 3), *layers, nn.Flatten(), nn.Linear(features, 5))


def deep(depth: int, biases: bool, maxima: bool) -> nn.Module:
    """So many convolutions, one after the other."""
    blocks: list[nn.Module] = []
    for inputs in (CHANNELS, *[16] * (depth - 1)):
        blocks += [nn.Conv2d(inputs, 16, 3, padding=1, bias=biases), nn.ReLU()]
    pool = [nn.MaxPool2d(2)] if maxima else []
    return nn.Sequential(*blocks[:4], *pool, *blocks[4:], GlobalMeanPool(), nn.Linear(16, 5))


class Doing(nn.Module):
    """What a function makes of the outputs of two convolutions, the one after the other."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], outputs: int = 16) -> None:
        super().__init__()
        self.function = function
        self.first, self.second = nn.Conv2d(CHANNELS, 16, 3), nn.Conv2d(16, 16, 3, padding=1)
        self.pool, self.last = GlobalMeanPool(), nn.Linear(outputs, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(self.pool(self.function(x, self.second(F.relu(x)))))


def grown(x: Tensor, y: Tensor) -> Tensor:
    y += x
    return y


KNOWN = {
    "resnet 8": resnet_8,
    "pooled by maxima": lambda: between(nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), features=32),
    "pooled by means": lambda: between(nn.ReLU(inplace=True), nn.AvgPool2d(3, 2), nn.Conv2d(16, 16, 1), features=64),
    "pooled in order": lambda: between(nn.AdaptiveAvgPool2d((2, 1)), nn.Conv2d(16, 16, (2, 1))),
    "without biases, uneven": lambda: nn.Sequential(
        nn.Conv2d(CHANNELS, 16, (5, 2), stride=(1, 2), padding=(2, 1), bias=False),
        nn.ReLU(),
        nn.Conv2d(16, 48, (1, 3), stride=(2, 1), padding=(0, 1), bias=False),
        GlobalMeanPool(),
        nn.Linear(48, 7, bias=False),
        nn.ReLU(),
        nn.Linear(7, 5),
    ),
    "dropout": lambda: between(Dropout(0.3), nn.Conv2d(16, 16, 3), nn.Identity(), Dropout(0.5), features=256),
    "dropout of vectors": lambda: nn.Sequential(between(nn.ReLU(), features=576), Dropout(0.2), nn.Linear(5, 5)),
    "a layer used twice": lambda: between(*[nn.Conv2d(16, 16, 3)] * 2, features=64),
    "relu": lambda: Doing(lambda x, y: F.relu(y)),
    "relu as a method": lambda: Doing(lambda x, y: y.relu()),
    "relu in place": lambda: Doing(lambda x, y: y.relu_()),
    "sum": lambda: Doing(lambda x, y: x + y),
    "sum by torch": lambda: Doing(lambda x, y: torch.add(x, y)),
    "sum as a method": lambda: Doing(lambda x, y: x.add(y)),
    "sum in place": lambda: Doing(lambda x, y: y.add_(x)),
    "sum by an operator in place": lambda: Doing(grown),
    "sum with itself": lambda: Doing(lambda x, y: y + y),
    "sum of shapes": lambda: Doing(lambda x, y: F.avg_pool2d(x, 6) + y),
    "means": lambda: Doing(lambda x, y: F.avg_pool2d(y, 2)),
    "means that overlap": lambda: Doing(lambda x, y: F.avg_pool2d(y, 3, 1)),
    "means of means": lambda: Doing(lambda x, y: F.avg_pool2d(F.avg_pool2d(y, 2, None), (3, 1))),
    "further channels": lambda: Doing(lambda x, y: F.pad(y, (0, 0, 0, 0, 0, 16)), outputs=32),
    "further channels of few": lambda: Doing(lambda x, y: F.pad(F.avg_pool2d(y, 6), (0, 0, 0, 0, 0, 3)), outputs=19),
}


class Branching(nn.Module):
    """Looks at what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.model = resnet_8()

    def forward(self, x: Tensor) -> Tensor:
        x = self.model(x)
        return x if x.mean() > 0 else -x


class Scaled(Branching):
    """Has a second argument."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.model(x)


class Renamed(nn.Module):
    """Overwrites what it uses later, by another name."""

    def __init__(self) -> None:
        super().__init__()
        self.same, self.relu, self.convolution = nn.Identity(), nn.ReLU(inplace=True), nn.Conv2d(3, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolution(x)
        return self.relu(self.same(x)) + x


class Both(Branching):
    """Has two outputs."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.model(x), self.model(x)


def hooked() -> nn.Module:
    model = resnet_8()
    model[0].register_forward_hook(lambda *_: None)
    return model


def changed() -> nn.Module:
    model = resnet_8()
    model[0].forward = lambda x: 2 * x
    return model


def tied() -> nn.Module:
    model = between(nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 1), features=576)
    model[2].weight = model[1].weight
    return model


def with_more() -> nn.Module:
    model = resnet_8()
    model.register_parameter("further", nn.Parameter(torch.zeros(1)))
    return model


class Called(Branching):
    """Does more when it is called than its `forward`."""

    def __call__(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * super().__call__(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


class Drawing(Branching):
    """Draws what it does."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return self.model(F.relu(x) if self.draw() < 0.5 else x)


class WithoutGradient(Branching):
    """Trains a part of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.model = nn.Conv2d(CHANNELS, 16, 1), nn.Sequential(GlobalMeanPool(), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.first(x)
        return self.model(x)


class InHalf(Branching):
    """Computes in bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(x)


class NeverDropping(nn.Sequential):
    """Its dropout is off in training, too."""

    def train(self, mode: bool = True) -> NeverDropping:
        super().train(mode)
        self[1].eval()
        return self


class Spoiling(Branching):
    """Overwrites what it uses later in a way that tracing does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.same = nn.Conv2d(CHANNELS, 16, 3), Dropout(0.0)
        self.last = nn.Sequential(GlobalMeanPool(), nn.Linear(16, 5))
        del self.model

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.same(x)
        y += y
        return self.last(x + y)


UNKNOWN = {
    "looks at values": Branching,
    "does more when called": Called,
    "draws by torch": lambda: Drawing(lambda: float(torch.rand(()))),
    "draws by Python": lambda: Drawing(random.random),
    "draws by numpy": lambda: Drawing(np.random.rand),
    "running statistics": lambda: between(nn.InstanceNorm2d(16, track_running_stats=True)),
    "overwritten after dropout": lambda: between(Dropout(0.0), nn.ReLU(inplace=True)),
    "two arguments": Scaled,
    "two outputs": Both,
    "hooks": hooked,
    "another forward": changed,
    "tied weights": tied,
    "a parameter that is not used": with_more,
    "no convolution": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 5)),
    "groups": lambda: between(nn.Conv2d(16, 16, 3, groups=2)),
    "dilation": lambda: between(nn.Conv2d(16, 16, 3, dilation=2)),
    "padding by name": lambda: between(nn.Conv2d(16, 16, 3, padding="same")),
    "circular padding": lambda: between(nn.Conv2d(16, 16, 3, padding=1, padding_mode="circular")),
    "blocks not filled": lambda: between(nn.Conv2d(16, 8, 3), nn.Conv2d(8, 16, 1)),
    "batch norm": lambda: between(nn.BatchNorm2d(16)),
    "another activation": lambda: between(nn.GELU()),
    "torch's dropout": lambda: between(nn.Dropout(0.5)),
    "another pooling": lambda: between(nn.LPPool2d(2, 2)),
    "maxima with padding": lambda: between(nn.MaxPool2d(2, padding=1)),
    "maxima of dilated windows": lambda: between(nn.MaxPool2d(2, dilation=2)),
    "maxima that overhang": lambda: between(nn.MaxPool2d(4, ceil_mode=True)),
    "maxima with their places": lambda: between(nn.MaxPool2d(4, return_indices=True)),
    "means with padding": lambda: between(nn.AvgPool2d(2, padding=1)),
    "means that overhang": lambda: between(nn.AvgPool2d(4, ceil_mode=True)),
    "means of another divisor": lambda: between(nn.AvgPool2d(2, divisor_override=3)),
    "means with padding by a function": lambda: Doing(lambda x, y: F.avg_pool2d(y, 2, 2, 1)),
    "means by words": lambda: Doing(lambda x, y: F.avg_pool2d(y, kernel_size=2)),
    "some dimensions flattened": lambda: between(nn.Flatten(2)),
    "the batch overwritten": lambda: nn.Sequential(nn.ReLU(inplace=True), resnet_8()),
    "overwritten and used": lambda: Doing(lambda x, y: x.add_(y)),
    "overwritten by a layer and used": lambda: Doing(lambda x, y: nn.functional.relu(x, inplace=True) + y),
    "overwritten under another name": Renamed,
    "another operation": lambda: Doing(lambda x, y: x * y),
    "a number added": lambda: Doing(lambda x, y: y + 1),
    "a multiple added": lambda: Doing(lambda x, y: torch.add(x, y, alpha=2)),
    "further rows": lambda: Doing(lambda x, y: F.pad(y, (0, 0, 1, 0, 0, 0))),
    "further ones": lambda: Doing(lambda x, y: F.pad(y, (0, 0, 0, 0, 0, 16), value=1.0), outputs=32),
    "fewer channels": lambda: Doing(lambda x, y: F.pad(y, (0, 0, 0, 0, 0, -8)), outputs=8),
    "further channels before": lambda: Doing(lambda x, y: F.pad(y, (0, 0, 0, 0, 16, 0)), outputs=32),
}


class Images:
    """Made-up images for a model."""

    name = "images"
    train_examples = 64
    hyperparameters = ()

    def __init__(self, model: Callable[[], nn.Module]) -> None:
        self.model, self.errors = model, {"loss": cross_entropy_error}

    def splits(self, device: torch.device) -> Splits:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(64, CHANNELS, SIDE, SIDE, generator=generator)
        targets = torch.randint(5, (64,), generator=generator)
        return Splits((inputs, targets), (inputs[:20], targets[:20]), (inputs[:10], targets[:10]))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(1), targets, reduction="none")
