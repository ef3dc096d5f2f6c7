"""What counts: goals, first crossings, statuses and the trials of a study that enter its answer.

Every rule of counting stands here once. Measuring uses it to stop and to know when a study is complete, analysis to
read curves back; both therefore agree, and a curve that ran further than its stopping rule asks is cut on reading.

Shapes: E evaluations of one trial, T trials of one study.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

COMPLETE, INFEASIBLE, INCOMPLETE = "COMPLETE", "INFEASIBLE", "INCOMPLETE"
STOPPING_RULES = ("budget", "goal")

_GOAL = re.compile(r"(?P<metric>(?:train|val|test)/\w+)\s*<\s*(?P<threshold>[-+]?[\d.]+(?:[eE][-+]?\d+)?)")


@dataclass(frozen=True)
class Goal:
    """An error and the threshold it must fall below; strict, and every metric is an error (lower is better)."""

    metric: str
    threshold: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.threshold) and self.threshold > 0):
            raise ValueError(f"a goal's threshold must be a number above 0, but got {self.threshold:g}.")
        if self.metric.endswith("/classification_error") and self.threshold > 1:
            raise ValueError(f"a classification error is at most 1, so {self} is always met; choose a lower threshold.")

    @classmethod
    def parse(cls, text: str) -> Goal:
        """Read `val/classification_error < 0.05`."""
        match = _GOAL.fullmatch(text.strip())
        if match is None:
            wanted = "'SPLIT/ERROR < NUMBER' such as 'val/classification_error < 0.05'"
            raise ValueError(f"a goal must read {wanted}, but got {text!r}.")
        return cls(match["metric"], float(match["threshold"]))

    def __str__(self) -> str:
        return f"{self.metric} < {self.threshold:g}"


class Outcome(NamedTuple):
    """How one trial ended, derived from its curve.

    Attributes:
        status: COMPLETE, INFEASIBLE or INCOMPLETE.
        end: the step at which the trial ends under its stopping rule (what ran beyond does not count); the step it
            diverged at if it is INFEASIBLE, the last step known if it is INCOMPLETE.
        steps_to_goal: the first measured step below the goal, or None.
    """

    status: str
    end: int
    steps_to_goal: int | None


def first_crossing(steps: ArrayLike, errors: ArrayLike, threshold: float) -> int | None:
    """The first measured step [E] whose error [E] is below the threshold; NaN (not measured) never is."""
    below = np.flatnonzero(np.asarray(errors, dtype=float) < threshold)
    return int(np.asarray(steps)[below[0]]) if below.size else None


def outcome(
    steps: ArrayLike,
    errors: ArrayLike,
    *,
    first_bad_step: int | None,
    threshold: float,
    stopping: str,
    train_steps: int,
) -> Outcome:
    """Derive a trial's status from its curve (steps [E], errors [E] of the goal's metric), never from a stored label.

    A trial ends at its first measurement below the goal (under `goal`), else at its budget of `train_steps`. It is
    feasible if it is finite up to its end. A divergence after the end is no part of the trial.
    """
    steps = np.asarray(steps)
    crossing = first_crossing(steps, errors, threshold)
    end = crossing if stopping == "goal" and crossing is not None else train_steps
    if first_bad_step is not None and first_bad_step <= end:
        return Outcome(INFEASIBLE, first_bad_step, crossing)
    last = int(steps[-1]) if steps.size else 0
    if last < end:
        return Outcome(INCOMPLETE, last, crossing)
    return Outcome(COMPLETE, end, crossing)


def counted_prefix(statuses: Sequence[str], wanted: int) -> int:
    """How many leading trials (statuses [T] in index order) hold the first `wanted` feasible ones; all T if too few."""
    feasible = 0
    for position, status in enumerate(statuses):
        feasible += status == COMPLETE
        if feasible == wanted:
            return position + 1
    return len(statuses)


def fewest_steps(steps_to_goal: Sequence[int | None]) -> tuple[int, int] | None:
    """(position, steps) of the trial that reached the goal first; ties go to the lower position; None if none did."""
    reached = [(steps, position) for position, steps in enumerate(steps_to_goal) if steps is not None]
    if not reached:
        return None
    steps, position = min(reached)
    return position, steps
