"""The training algorithms: hyperparameters by name, the `torch.optim` class of the serial engine, the update of lanes.

Shapes: l lanes, P parameters of one model. In `update_` weights, gradients and state are [l, P]; the learning rate,
hyperparameters and steps [l, 1] broadcast over a lane's parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from study.space import Legal

Parameters = Iterable[nn.Parameter]
Values = Mapping[str, float]
Rows = Mapping[str, Tensor]
Update = Callable[[Tensor, Tensor, Rows, Tensor, Rows, Tensor], None]


@dataclass(frozen=True)
class Optimizer:
    """A training algorithm.

    Arguments:
        hyperparameters: what it asks for, by name, and the values each may take; schedules multiply `learning_rate`.
        build: (parameters, hyperparameters) -> the `torch.optim` optimizer at multiplier 1.
        update_: (weights, gradients, state, learning_rate, hyperparameters, steps) -> None, in place; steps from 1.
        state: names of what it remembers for each parameter, 0 at first.
    """

    hyperparameters: Mapping[str, Legal]
    build: Callable[[Parameters, Values], torch.optim.Optimizer]
    update_: Update
    state: tuple[str, ...] = ()


def _sgd(parameters: Parameters, h: Values) -> torch.optim.Optimizer:
    """w <- w - lr g."""
    return torch.optim.SGD(parameters, lr=h["learning_rate"], fused=True)


def _sgd_(w: Tensor, g: Tensor, state: Rows, learning_rate: Tensor, h: Rows, steps: Tensor) -> None:
    w.addcmul_(g, learning_rate, value=-1)


def _momentum(parameters: Parameters, h: Values) -> torch.optim.Optimizer:
    """v <- m v + g; w <- w - lr v (Polyak 1964)."""
    return torch.optim.SGD(parameters, lr=h["learning_rate"], momentum=h["momentum"], fused=True)


def _momentum_(w: Tensor, g: Tensor, state: Rows, learning_rate: Tensor, h: Rows, steps: Tensor) -> None:
    v = state["velocity"]
    torch.addcmul(g, v, h["momentum"], out=v)  # one pass over memory, not two
    w.addcmul_(v, learning_rate, value=-1)


def _nesterov(parameters: Parameters, h: Values) -> torch.optim.Optimizer:
    """v <- m v + g; w <- w - lr (g + m v) (Nesterov 1983; Sutskever et al. 2013)."""
    momentum = h["momentum"]
    # torch refuses Nesterov at momentum 0, where it is plain SGD.
    return torch.optim.SGD(parameters, lr=h["learning_rate"], momentum=momentum, nesterov=momentum > 0, fused=True)


def _nesterov_(w: Tensor, g: Tensor, state: Rows, learning_rate: Tensor, h: Rows, steps: Tensor) -> None:
    v = state["velocity"]
    torch.addcmul(g, v, h["momentum"], out=v)  # one pass over memory, not two
    w.addcmul_(g.addcmul_(v, h["momentum"]), learning_rate, value=-1)


def _adam(parameters: Parameters, h: Values) -> torch.optim.Optimizer:
    """Adam with bias correction (Kingma & Ba 2015)."""
    betas = (h["beta1"], h["beta2"])
    return torch.optim.Adam(parameters, lr=h["learning_rate"], betas=betas, eps=h["epsilon"], fused=True)


def _adam_(w: Tensor, g: Tensor, state: Rows, learning_rate: Tensor, h: Rows, steps: Tensor) -> None:
    beta1, beta2 = h["beta1"], h["beta2"]
    mean, square = state["mean"].lerp_(g, 1 - beta1), state["square"].mul_(beta2).addcmul_(g * g, 1 - beta2)
    size = learning_rate / (1 - beta1.double() ** steps).float()
    deviation = (square / (1 - beta2.double() ** steps).float()).sqrt_().add_(h["epsilon"])
    w.addcdiv_(mean * size, deviation, value=-1)


_LEARNING_RATE = {"learning_rate": Legal("(0, inf)")}
_MOMENTUM = _LEARNING_RATE | {"momentum": Legal("[0, 1)")}
_ADAM = _LEARNING_RATE | {"beta1": Legal("[0, 1)"), "beta2": Legal("[0, 1)"), "epsilon": Legal("(0, inf)")}

OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Optimizer(_LEARNING_RATE, _sgd, _sgd_),
    "momentum": Optimizer(_MOMENTUM, _momentum, _momentum_, ("velocity",)),
    "nesterov": Optimizer(_MOMENTUM, _nesterov, _nesterov_, ("velocity",)),
    "adam": Optimizer(_ADAM, _adam, _adam_, ("mean", "square")),
}
