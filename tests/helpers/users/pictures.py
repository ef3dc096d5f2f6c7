"""Tiny networks of every family for images, with each of its norms, on made pictures."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from helpers.users.made import Made
from workloads.images.norms import NORMS
from workloads.images.resnet import ResNet
from workloads.images.vgg import Vgg
from workloads.images.vit import Vit
from workloads.resnet_cifar import ResNetCifar

COMMON: dict[str, Any] = {"name": "tiny", "dataset": "digits", "train_examples": 64, "validation_examples": 40}
GHOST = 3
NORMED: dict[str, Any] = {"ghost_batch": GHOST, "norm_groups": 2}


def pictures(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noise [count, 1, 8, 8] with a bright pixel, whose place is the label [count]."""
    targets = torch.randint(10, (count,), generator=generator)
    inputs = torch.randn(count, 1, 8, 8, generator=generator)
    inputs.view(count, -1)[torch.arange(count), 6 * targets] += 4
    return inputs, targets


class Pictures(Made):
    def examples(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return pictures(count, generator)


@dataclass(frozen=True, kw_only=True)
class MadeResNet(Pictures, ResNet):
    pass


@dataclass(frozen=True, kw_only=True)
class MadeVgg(Pictures, Vgg):
    pass


@dataclass(frozen=True, kw_only=True)
class MadeVit(Pictures, Vit):
    pass


@dataclass(frozen=True, kw_only=True)
class MadeResNetCifar(Pictures, ResNetCifar):
    pass


def _normed(norm: str) -> dict[str, Any]:
    common = {**COMMON, **NORMED, "norm": norm}
    bottleneck = {"block": "bottleneck", "blocks": (1, 1), "width": 8, "shortcut": "padding"}
    return {
        f"basic {norm}": MadeResNet(**common, depth=8, width=4, stem="cifar"),
        f"bottleneck {norm}": MadeResNet(**common, **bottleneck),
        f"vgg {norm}": MadeVgg(**common, convolutions=(1, 2), filters=(4, 6), units=(16,)),
        f"pre-activation {norm}": MadeResNetCifar(**common),
    }


def _vit(**options: Any) -> MadeVit:
    return MadeVit(**COMMON, width=16, depth=2, heads=2, mlp_width=24, patch=4, dropout=0.1, **options)


NETWORKS: dict[str, Any] = {name: network for norm in NORMS for name, network in _normed(norm).items()}
NETWORKS |= {"vit layer": _vit(), "vit rms": _vit(norm="rms", pool="mean"), "vit none": _vit(norm="none")}
