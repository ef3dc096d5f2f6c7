"""The record of an optimizer, and functions that apply a rule for one parameter to many models at once.

Shapes: l lanes; a parameter has any shape [*]; for elementwise rules all parameters of a model may be one flat row [P].
Hyperparameters and steps are scalars [] for one lane; steps count updates from 1.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from analysis.units import HALF_LIFE, HALF_LIVES, beta
from study.optimizers import per_parameter
from study.optimizers.per_parameter import ALL_USUAL, Treatments, param_groups
from study.space import Legal

State = Mapping[str, Tensor]
Scalars = Mapping[str, Tensor]
Values = Mapping[str, float]
Rule = Callable[[Tensor, Tensor, State, Scalars, Tensor], tuple[Tensor, State]]
"""(parameter, gradient, state, hyperparameters, step) -> (parameter, state); pure, for one parameter of one lane."""
Stacked = Callable[[Tensor, Tensor, State, Scalars, Tensor], None]
"""The rule for many lanes, in place: parameter, gradient and state [l, *], hyperparameters and steps [l, 1]."""

DECAYS = {name: Legal("[0, inf)") for name in per_parameter.DECAYS}
"""Optional hyperparameters of every optimizer: an L2 penalty in the gradient, and decoupled weight decay."""
AVERAGE = {"ema_decay": Legal("[0, 1)")}
"""Decay of the moving average of weights; the averaged weights are evaluated beside the weights."""
CLIP = {"clip_norm": Legal("(0, inf)")}
"""The largest norm of the gradient of all parameters together; a longer gradient is scaled down to it."""
BETAS = ("momentum", "beta1", "beta2", "ema_decay")


@dataclass(frozen=True)
class Optimizer:
    """An optimizer: a pure (init, update) pair, and faster forms where measurements justify them.

    Arguments:
        hyperparameters: name -> legal values of each required hyperparameter; schedules multiply `learning_rate`.
        update: the rule. It gets a gradient that includes the l2 penalty, and a parameter that is already decayed.
            None: only a whole model can be updated; `build` makes the optimizer, and trials cannot be fused.
        init: parameter -> initial state.
        elementwise: the rule treats each number alike, so all parameters can be one flat row.
        linear: the rule is linear in parameter, gradient and state, with the same factors for all numbers. It may then
            update the coefficients of a linear combination instead of the parameter (`linear_blocks`).
        refresh: (state, hyperparameters, step) -> state, called after the updates for which it is `due`, lane by lane.
            For occasional work that is too expensive to do on all lanes whenever one lane needs it.
        due: (hyperparameters, step) -> whether `refresh` does anything after this update.
        stacked: the rule for many lanes, in place; None: `torch.vmap` of `update`.
        build: (model, hyperparameters, treatments of parameters) -> the serial engine's `torch.optim` optimizer; the
            learning rates of its groups keep their ratios. None: `update` is wrapped.
        optional: name -> legal values of optional hyperparameters; `optional_hyperparameters` adds half-lives.
        own: names in DECAYS and CLIP that the rule applies itself; the engine does not apply them.
        sees_examples: the rule needs more than the mean gradient, so it cannot train on several devices.
    """

    hyperparameters: Mapping[str, Legal]
    update: Rule | None = None
    init: Callable[[Tensor], State] = lambda parameter: {}
    elementwise: bool = True
    linear: bool = False
    refresh: Callable[[State, Values, int], State] | None = None
    due: Callable[[Values, int], bool] = lambda hyperparameters, step: True
    stacked: Stacked | None = None
    build: Callable[[nn.Module, Values, Treatments], torch.optim.Optimizer] | None = None
    optional: Mapping[str, Legal] = field(default_factory=lambda: DECAYS | AVERAGE | CLIP)
    own: tuple[str, ...] = ()
    sees_examples: bool = False

    @property
    def optional_hyperparameters(self) -> dict[str, Legal]:
        """Name -> legal values of all optional hyperparameters, including half-lives in place of betas."""
        betas = [name for name in BETAS if name in {**self.optional, **self.hyperparameters}]
        lives = [f"{name}{suffix}" for name in betas for suffix in HALF_LIVES]
        return {**self.optional, **dict.fromkeys(lives, Legal("(0, inf)"))}


def in_place(optimizer: Optimizer) -> Stacked:
    """The in-place update of many lanes."""
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

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, hyperparameters: Values, treatments: Treatments = ALL_USUAL
    ) -> None:
        rate = hyperparameters["learning_rate"]
        super().__init__(param_groups(model, rate, treatments), {"lr": rate})
        self.rule, self.hyperparameters = optimizer, hyperparameters
        device = next(model.parameters()).device
        self.scalars = {name: torch.tensor(value, device=device) for name, value in hyperparameters.items()}

    @torch.no_grad()
    def step(self, closure: Any) -> Any:  # type: ignore[override]
        """One update with the gradients that `closure` computes; returns its loss."""
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: Mapping[str, Any]) -> None:
        assert parameter.grad is not None
        held = self.state[parameter] or {"step": 0, **self.rule.init(parameter)}
        step = held.pop("step") + 1
        # Fill on the device: copying a number to a GPU would wait for it.
        rate, count = (torch.full((), value, device=parameter.device) for value in (group["lr"], float(step)))
        scalars = self.scalars | {"learning_rate": rate}
        if "weight_decay" in group:
            scalars["weight_decay"] = torch.full((), group["weight_decay"], device=parameter.device)
        assert self.rule.update is not None
        new, state = self.rule.update(parameter, parameter.grad, held, scalars, count)
        parameter.copy_(new)
        if self.rule.refresh is not None and self.rule.due(self.hyperparameters, step):
            state = self.rule.refresh(state, self.hyperparameters, step)
        self.state[parameter] = {"step": step, **state}


def clipped(gradients: Sequence[Tensor], most: Tensor) -> list[Tensor]:
    """The gradients of each lane, scaled as `torch.nn.utils.clip_grad_norm_` scales those of one model.

    Arguments:
        gradients: the gradients of all parameters, in parts [l, p].
        most: the largest norm of each lane's gradient [l, 1].
    """
    norms = torch.stack([torch.linalg.vector_norm(gradient, dim=1) for gradient in gradients], dim=1)
    scale = (most / (torch.linalg.vector_norm(norms, dim=1, keepdim=True) + 1e-6)).clamp_(max=1)
    # A gradient with NaN keeps its NaN. The zeros between parameters must stay 0: the next trial in the row reads them.
    scale.nan_to_num_(nan=0.0)
    # Not in place: autograd may return one tensor for two parameters.
    return [gradient * scale for gradient in gradients]


def decay_(
    optimizer: Optimizer,
    pairs: Iterable[tuple[Tensor, Tensor]],
    learning_rate: float | Tensor,
    hyperparameters: Mapping[str, float] | Scalars,
) -> None:
    """Apply the searched `l2` and `weight_decay` to (weights, gradient) pairs in place.

    `l2` is coupled, g <- g + l2 w, and passes through momentum and preconditioners (`torch.optim.SGD` and Adam call it
    weight_decay); `weight_decay` is decoupled, w <- w - learning_rate weight_decay w (Loshchilov & Hutter
    2019). For plain SGD the two are the same. Neither is rescaled with the loss.
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
    """Replace half-lives in examples by the betas that they mean at this batch size.

    A half-life gives the same average over examples at every batch size.

    >>> resolved({"learning_rate": 0.1, "beta2_half_life_examples": 64.0}, batch_size=128)
    {'learning_rate': 0.1, 'beta2': 0.25}
    """
    return {
        name.removesuffix(HALF_LIFE): float(beta(value, batch_size)) if name.endswith(HALF_LIFE) else value
        for name, value in hyperparameters.items()
    }
