"""Learning-rate schedules: multipliers of the learning rate, pure functions of (step, train_steps, parameters).

`step` counts from 0 (the first update uses multiplier(0)); `train_steps` is the study's step budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from study.space import Legal


@dataclass(frozen=True)
class Schedule:
    """A multiplier, and the hyperparameters it asks for by name with the values each may take."""

    multiplier: Callable[..., float]
    hyperparameters: Mapping[str, Legal] = field(default_factory=dict)

    def at(self, step: int, train_steps: int, hyperparameters: Mapping[str, float]) -> float:
        """The factor on the learning rate for update number `step`."""
        return self.multiplier(step, train_steps, **{name: hyperparameters[name] for name in self.hyperparameters})


def constant(step: int, train_steps: int) -> float:
    """1."""
    return 1.0


def linear_decay(
    step: int, train_steps: int, *, learning_rate_decay_fraction: float, end_learning_rate_factor: float
) -> float:
    """1 - (1 - alpha) min(t, T) / T with T = fraction * train_steps (Shallue et al. 2019, section 3.2).

    Arguments:
        learning_rate_decay_fraction: T / train_steps, in (0, 1].
        end_learning_rate_factor: alpha, the final fraction of the learning rate.
    """
    decay_steps = learning_rate_decay_fraction * train_steps
    return 1 - (1 - end_learning_rate_factor) * min(step, decay_steps) / decay_steps


SCHEDULES: dict[str, Schedule] = {
    "constant": Schedule(constant),
    "linear_decay": Schedule(
        linear_decay, {"learning_rate_decay_fraction": Legal("(0, 1]"), "end_learning_rate_factor": Legal("[0, 1]")}
    ),
}
