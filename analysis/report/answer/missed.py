"""Batch sizes at which no trial reached the goal, though trials did at others: a small budget, or too few trials."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.estimates import tuned

AMPLE = 4.0
"""A budget of this many times the steps that a batch size should need is not why its trials missed the goal."""


class Missed(NamedTuple):
    """A batch size of an optimizer that missed the goal.

    Attributes:
        budget: steps of each trial.
        expected: the most steps that it should need by the batch sizes that reached the goal; NaN without any.
    """

    optimizer: str
    batch_size: int
    budget: int
    expected: float

    @property
    def ample(self) -> bool:
        """Whether the budget was no obstacle, so that tuning was."""
        return self.budget >= AMPLE * self.expected


def missed(steps: pd.DataFrame) -> list[Missed]:
    """The batch sizes that missed the goal, of all optimizers; without those at which no trial was feasible.

    Arguments:
        steps: the rows of one workload and goal, from `analysis.estimates.tuned.table`.

    >>> rows = {"batch_size": [8, 64], "reached": [True, False], "steps_to_result": [90.0, np.nan]}
    >>> counts = {"complete": 4, "infeasible": 0, "train_steps": [800, 100]}
    >>> missed(pd.DataFrame({"optimizer": "sgd", "read_from": "search", **rows, **counts}))
    [Missed(optimizer='sgd', batch_size=64, budget=100, expected=90.0)]
    """
    return [each for name, curve in steps.groupby("optimizer", sort=False) for each in _of_curve(str(name), curve)]


def _of_curve(optimizer: str, curve: pd.DataFrame) -> Iterator[Missed]:
    reached = {size: steps for size, steps in tuned.points(curve).items() if np.isfinite(steps)}
    for row in curve[~curve["reached"].astype(bool)].to_dict("records"):
        if not tuned.nothing_feasible(row):
            size = int(row["batch_size"])
            yield Missed(optimizer, size, int(row["train_steps"]), expected(reached, size))


def expected(reached: Mapping[int, float], size: int) -> float:
    """The most steps that a well-tuned batch size needs: no more than a smaller one, and no more examples than a larger
    one; NaN if there is neither.

    >>> expected({8: 400.0, 64: 100.0}, 256), expected({64: 100.0}, 8)
    (100.0, 800.0)
    """
    bounds = [steps * max(1.0, other / size) for other, steps in reached.items()]
    return min(bounds, default=np.nan)
