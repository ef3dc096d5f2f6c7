"""The training algorithms: their hyperparameters by name and the `torch.optim` class that the serial engine steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Optimizer:
    """A training algorithm.

    Arguments:
        hyperparameters: the names it asks for; `learning_rate` is the one that schedules multiply.
        build: (parameters, hyperparameters) -> the `torch.optim` optimizer at multiplier 1.
    """

    hyperparameters: tuple[str, ...]
    build: Callable[[Iterable[nn.Parameter], Mapping[str, float]], torch.optim.Optimizer]


def _sgd(parameters: Iterable[nn.Parameter], h: Mapping[str, float]) -> torch.optim.Optimizer:
    """w <- w - lr g."""
    return torch.optim.SGD(parameters, lr=h["learning_rate"], fused=True)


def _momentum(parameters: Iterable[nn.Parameter], h: Mapping[str, float]) -> torch.optim.Optimizer:
    """v <- m v + g; w <- w - lr v (Polyak 1964)."""
    return torch.optim.SGD(parameters, lr=h["learning_rate"], momentum=h["momentum"], fused=True)


def _nesterov(parameters: Iterable[nn.Parameter], h: Mapping[str, float]) -> torch.optim.Optimizer:
    """v <- m v + g; w <- w - lr (g + m v) (Nesterov 1983; Sutskever et al. 2013)."""
    momentum = h["momentum"]
    # torch refuses Nesterov at momentum 0, where it is plain SGD.
    return torch.optim.SGD(parameters, lr=h["learning_rate"], momentum=momentum, nesterov=momentum > 0, fused=True)


def _adam(parameters: Iterable[nn.Parameter], h: Mapping[str, float]) -> torch.optim.Optimizer:
    """Adam with bias correction (Kingma & Ba 2015)."""
    betas = (h["beta1"], h["beta2"])
    return torch.optim.Adam(parameters, lr=h["learning_rate"], betas=betas, eps=h["epsilon"], fused=True)


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Optimizer(("learning_rate",), _sgd),
    "momentum": Optimizer(("learning_rate", "momentum"), _momentum),
    "nesterov": Optimizer(("learning_rate", "momentum"), _nesterov),
    "adam": Optimizer(("learning_rate", "beta1", "beta2", "epsilon"), _adam),
}
