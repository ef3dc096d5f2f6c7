"""What a training algorithm is, and how a rule written for one parameter of one model trains many.

Shapes: l lanes; a parameter has any shape [*], or is the flat row [P] of all of a model's, which elementwise rules
cannot tell apart. Hyperparameters and steps are scalars [] for one lane; steps count the update, from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from analysis.counting import HALF_LIFE, beta
from study.space import Legal

State = Mapping[str, Tensor]
Scalars = Mapping[str, Tensor]
Values = Mapping[str, float]
Rule = Callable[[Tensor, Tensor, State, Scalars, Tensor], tuple[Tensor, State]]
"""(parameter, gradient, state, hyperparameters, step) -> (parameter, state); pure, for one parameter of one lane."""
Stacked = Callable[[Tensor, Tensor, State, Scalars, Tensor], None]
"""The same for many lanes in place: parameter, gradient and state [l, *], hyperparameters and steps [l, 1]."""

DECAYS = {"l2": Legal("[0, inf)"), "weight_decay": Legal("[0, inf)")}
"""What every optimizer takes where it is searched: a penalty that is part of the gradient, and decoupled decay."""
AVERAGE = {"ema_decay": Legal("[0, 1)")}
"""Of the average of weights that is measured beside them."""
BETAS = ("momentum", "beta1", "beta2", "ema_decay")


def _nothing(parameter: Tensor) -> State:
    return {}


@dataclass(frozen=True)
class Optimizer:
    """A training algorithm: a pure (init, update) pair, and its faster forms where they were measured to pay.

    Arguments:
        hyperparameters: what it asks for, by name, and the values each may take; schedules multiply `learning_rate`.
        update: the rule, which sees the gradient with the penalty in it and a parameter that was decayed before; None
            where only a whole model can be updated: then `build` says how, and there are no lanes.
        init: parameter -> the state it starts with.
        elementwise: the rule treats each number alike, so that all parameters can be one.
        linear: the rule is linear in parameter, gradient and state, with the same factors for all numbers: coordinates
            of parameters are trained as parameters are.
        refresh: (state, hyperparameters, step) -> state, after each update, lane by lane: for what is done now and
            then, and is too dear to be done by all lanes whenever one wants it.
        stacked: the rule for many lanes in place; else it is made by `torch.vmap`.
        build: (model, hyperparameters) -> the `torch.optim` optimizer of the serial engine; else the rule is wrapped.
        optional: what else it takes where it is searched; to which `optional_hyperparameters` adds half-lives.
        own: of DECAYS, those that are no business of the engine's: the rule sees to them.
        sees_examples: it needs more than the mean gradient, which is all that several devices share.
    """

    hyperparameters: Mapping[str, Legal]
    update: Rule | None = None
    init: Callable[[Tensor], State] = _nothing
    elementwise: bool = True
    linear: bool = False
    refresh: Callable[[State, Values, int], State] | None = None
    stacked: Stacked | None = None
    build: Callable[[nn.Module, Values], torch.optim.Optimizer] | None = None
    optional: Mapping[str, Legal] = field(default_factory=lambda: DECAYS | AVERAGE)
    own: tuple[str, ...] = ()
    sees_examples: bool = False

    @property
    def optional_hyperparameters(self) -> dict[str, Legal]:
        """What it takes where it is searched, betas by their half-life among it, and the values each may take."""
        betas = [name for name in BETAS if name in {**self.optional, **self.hyperparameters}]
        return {**self.optional, **{f"{name}{HALF_LIFE}": Legal("(0, inf)") for name in betas}}


def in_place(optimizer: Optimizer) -> Stacked:
    """The update of many lanes."""
    if optimizer.stacked is not None:
        return optimizer.stacked
    assert optimizer.update is not None
    rule = torch.vmap(optimizer.update)

    def update_(w: Tensor, g: Tensor, state: State, h: Scalars, steps: Tensor) -> None:
        new, changed = rule(w, g, dict(state), {name: value[:, 0] for name, value in h.items()}, steps[:, 0])
        w.copy_(new)
        for name, tensor in changed.items():
            state[name].copy_(tensor)

    return update_


class Plain(torch.optim.Optimizer):
    """A rule as a `torch.optim` optimizer of one model."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, hyperparameters: Values) -> None:
        super().__init__(model.parameters(), {"lr": hyperparameters["learning_rate"]})
        self.rule, self.hyperparameters = optimizer, hyperparameters
        device = next(model.parameters()).device
        self.scalars = {name: torch.tensor(value, device=device) for name, value in hyperparameters.items()}

    @torch.no_grad()
    def step(self, closure: Any) -> Any:  # type: ignore[override]
        """One update by the gradients that `closure` leaves behind; returns its loss."""
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"])
        return loss

    def _update(self, parameter: Tensor, learning_rate: float) -> None:
        assert parameter.grad is not None
        held = self.state[parameter] or {"step": 0, **self.rule.init(parameter)}
        step = held.pop("step") + 1
        # Filled on the device: a number copied to a GPU would wait for it.
        rate, count = (torch.full((), value, device=parameter.device) for value in (learning_rate, float(step)))
        assert self.rule.update is not None
        new, state = self.rule.update(parameter, parameter.grad, held, self.scalars | {"learning_rate": rate}, count)
        parameter.copy_(new)
        if self.rule.refresh is not None:
            state = self.rule.refresh(state, self.hyperparameters, step)
        self.state[parameter] = {"step": step, **state}


def decay_(
    optimizer: Optimizer,
    pairs: Iterable[tuple[Tensor, Tensor]],
    learning_rate: float | Tensor,
    hyperparameters: Mapping[str, float] | Scalars,
) -> None:
    """Penalise and decay (weights, gradient) in place, as the search asks for; neither is rescaled with the loss.

    `l2` is coupled, g <- g + l2 w, so that it passes through momentum and preconditioners (what `torch.optim.SGD` and
    Adam call weight_decay); `weight_decay` is decoupled, w <- w - learning_rate weight_decay w (Loshchilov & Hutter
    2019). Of plain SGD they are the same.
    """
    l2, decay = (None if name in optimizer.own else hyperparameters.get(name) for name in DECAYS)
    if l2 is None and decay is None:
        return
    for weight, gradient in pairs:
        if l2 is not None:
            gradient.add_(weight * l2)
        if decay is not None:
            weight.mul_(1 - learning_rate * decay)


def resolved(hyperparameters: Values, batch_size: int) -> dict[str, float]:
    """Hyperparameters as optimizers take them: betas given by their half-life in examples, at this batch size.

    They are the same average over examples at every batch size.

    >>> resolved({"learning_rate": 0.1, "beta2_half_life_examples": 64.0}, batch_size=128)
    {'learning_rate': 0.1, 'beta2': 0.25}
    """
    return {
        name.removesuffix(HALF_LIFE): float(beta(value, batch_size)) if name.endswith(HALF_LIFE) else value
        for name, value in hyperparameters.items()
    }
