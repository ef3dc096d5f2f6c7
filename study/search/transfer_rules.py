"""Rules that transfer a tuned configuration to another batch size, as pure functions of configuration and batch sizes.

`study.transfer` compares them with retuning. B0 is the batch size of the tuned configuration, B the new one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from analysis.units import HALF_LIVES

Values = Mapping[str, float]
RESCALED = ("beta1", "beta2")
"""The decay rates that half-life rules change. Momentum and averages of weights keep their rates."""
LIVES = tuple(f"{name}{suffix}" for name in RESCALED for suffix in HALF_LIVES)
"""The same, as half-lives."""
WARMUP_EPOCHS = 5
WARMUP_SHARE = 5 / 90
"""Goyal et al. warm up over 5 of 90 epochs; a shorter training warms up over the same share of its steps."""


class Move(NamedTuple):
    """A transfer from batch size `base` (B0) to `batch_size` (B). `train_steps`: the step budget at B."""

    base: int
    batch_size: int
    train_examples: int
    train_steps: int

    @property
    def ratio(self) -> float:
        """B / B0."""
        return self.batch_size / self.base


@dataclass(frozen=True)
class Rule:
    """A transfer rule.

    Arguments:
        move: (hyperparameters at B0, move) -> hyperparameters at B.
        betas: the rule keeps half-lives, so it applies only to configurations with a decay rate in RESCALED.
    """

    move: Callable[[Values, Move], dict[str, float]]
    betas: bool = False

    def applies_to(self, hyperparameters: Values) -> bool:
        """True unless the rule is for decay rates and the configuration has none."""
        return not self.betas or not {*RESCALED, *LIVES}.isdisjoint(hyperparameters)


def constant(hyperparameters: Values, move: Move) -> dict[str, float]:
    """Keep all values. If a decay rate is given as a half-life, keep the rate per update."""
    return {n: value * move.ratio if n.endswith(HALF_LIVES) else value for n, value in hyperparameters.items()}


def square_root(hyperparameters: Values, move: Move) -> dict[str, float]:
    """Learning rate x sqrt(B / B0), which keeps the variance of an update (Krizhevsky 2014; Hoffer et al. 2017)."""
    rate = hyperparameters["learning_rate"] * math.sqrt(move.ratio)
    return {**constant(hyperparameters, move), "learning_rate": rate}


def linear(hyperparameters: Values, move: Move) -> dict[str, float]:
    """Learning rate x B / B0 with the same momentum (Goyal et al. 2017, sections 2.1 and 2.2).

    A transfer to a larger batch size adds their gradual warmup from the learning rate of B0. It takes 5 epochs, but at
    most 1/18 of the step budget at B, which is its share of their 90 epochs. It replaces a tuned warmup.
    """
    rate = hyperparameters["learning_rate"] * move.ratio
    moved = {**constant(hyperparameters, move), "learning_rate": rate}
    if move.ratio <= 1:
        return moved
    for name in ("warmup_steps", "warmup_tokens"):
        moved.pop(name, None)
    examples = min(WARMUP_EPOCHS * move.train_examples, WARMUP_SHARE * move.train_steps * move.batch_size)
    return {**moved, "warmup_examples": float(round(examples)), "warmup_initial_factor": 1 / move.ratio}


def with_half_lives(rule: Callable[[Values, Move], dict[str, float]]) -> Callable[[Values, Move], dict[str, float]]:
    """Extend a rule for the learning rate: beta1 and beta2 also keep their half-lives of t examples or tokens.

    beta becomes beta^(B / B0) = 0.5^(B / t). Marek et al. 2025 propose this for beta2. The square-root rule of Malladi
    et al. 2022 multiplies 1 - beta by B / B0 for both, which agrees to first order. It also divides epsilon by
    sqrt(B / B0); this rule does not.
    """

    def moved(hyperparameters: Values, move: Move) -> dict[str, float]:
        rates = {name: hyperparameters[name] ** move.ratio for name in RESCALED if name in hyperparameters}
        given = [name for name in LIVES if name in hyperparameters]
        return {**rule(hyperparameters, move), **rates, **{name: hyperparameters[name] for name in given}}

    return moved


LINEAR = ("sgd", "momentum", "nesterov", "folded_momentum", "torch.optim.SGD")
"""Optimizers whose step is proportional to the gradient."""


def usual(optimizer: str) -> str:
    """The rule for an optimizer unless another is asked for: `linear` for those in LINEAR, else `square_root`."""
    return "linear" if optimizer in LINEAR else "square_root"


RULES = {
    "constant": Rule(constant),
    "square_root": Rule(square_root),
    "linear": Rule(linear),
    "constant_half_life": Rule(with_half_lives(constant), betas=True),
    "square_root_half_life": Rule(with_half_lives(square_root), betas=True),
    "linear_half_life": Rule(with_half_lives(linear), betas=True),
}
