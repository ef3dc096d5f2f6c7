"""The records Trial -> Curve: one training, and what it measured.

Shapes: E evaluations of one trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from study.space import Values


@dataclass(frozen=True)
class Trial:
    """One training of a study's model with one point of the search space.

    Attributes:
        index: position in the search, from 0.
        seed: of initialisation and dropout.
        order_seed: of the order of the training data.
    """

    index: int
    seed: int
    order_seed: int
    hyperparameters: Values


@dataclass(frozen=True)
class Curve:
    """What one trial measured.

    Attributes:
        first_bad_step: the update (from 1) with the first non-finite training loss, or the evaluation that found
            non-finite parameters; None if the trial stayed finite.
        steps: updates done at each evaluation [E], increasing.
        errors: metric such as `val/classification_error` -> values [E], NaN where it was not measured.
        seconds: `training` and `evaluation` wall time of this trial alone.
        micro_batch: most examples in one forward pass; None: the whole batch.
        evaluation_chunk: most examples in one forward pass of an evaluation.
        at_least: metric -> what it is at least where it is NaN, because these evaluations ended when they missed the
            goal (`evaluation.exact=false`). All other validation errors are unknown there.
        command: of a trial that a command trained: its exit `status`, why it was `stopped` (empty: it ended by itself),
            and the last lines of its `output`.
    """

    trial: Trial
    first_bad_step: int | None
    steps: np.ndarray
    errors: Mapping[str, np.ndarray]
    seconds: Mapping[str, float]
    micro_batch: int | None = None
    evaluation_chunk: int = 1024
    at_least: Mapping[str, float] = field(default_factory=dict)
    command: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (np.diff(self.steps) > 0).all():
            raise ValueError(f"a curve's steps must increase, but trial {self.trial.index} has {self.steps}.")
        for metric, values in self.errors.items():
            if len(values) != len(self.steps):
                raise ValueError(f"trial {self.trial.index} has {len(self.steps)} steps but {len(values)} of {metric}.")
