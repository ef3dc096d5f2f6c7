"""Compare the searches of pairs of curves at each batch size, by S(B) and S_n. No fresh seeds are needed.

Shapes: N feasible trials of one study, R resamples. Steps are infinite where a goal was not reached.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.counting import Goal
from analysis.intervals import cell_width, ratios
from analysis.load import GOAL, StudyData
from analysis.tables import relative
from analysis.tables.steps_to_result import answerable, feasible_steps, is_left_censored, row

FIXED = {"optimizer": "workload", "workload": "optimizer"}
"""The column in which two curves differ -> the column that they share."""


class _Search(NamedTuple):
    """The steps to the goal of one search.

    Attributes:
        steps: of its feasible trials [N], infinite if not reached.
        censored_at: the fewest steps at which a trial ended without the goal.
        cell: the width on log steps of the cell of the evaluation grid in which the best trial met the goal.
        left_censored: whether the fewest steps are only an upper bound.
        drawn: whether the trials were drawn independently.
    """

    steps: np.ndarray
    censored_at: float
    cell: float
    left_censored: bool
    drawn: bool


def table(studies: Sequence[StudyData], goals: Sequence[Goal | None] = (None,), by: str = "optimizer") -> pd.DataFrame:
    """Compare pairs of optimizers on a workload, or of workloads with an optimizer, at each batch size that both have.

    Arguments:
        goals: the goals to read from the curves; None is each study's own.
        by: the column in which a pair differs, `optimizer` or `workload`. Two workloads are compared only if they share
            the data or the model.

    Returns:
        A row for each (workload or optimizer, goal, `by`, against, batch_size): speed_up, S(against) / S(by) (infinite
        if only the first reached the goal, 0 if only the other did, NaN if neither did or one met it at its first
        evaluation and may have done so earlier), with low and high, the 95 % interval of the same ratio of S_n by
        resampling trials, wider by a cell of the evaluation grid (NaN with fewer than 4 trials and for adaptive
        searches).

    >>> folder = f"{published}/studies/mlp_digits"
    >>> studies = [load_study(f"{folder}/{optimizer}/256") for optimizer in ("momentum", "sgd")]
    >>> table(studies)[["optimizer", "against", "batch_size", "speed_up", "low"]]
      optimizer against  batch_size  speed_up       low
    0  momentum     sgd         256       1.0  0.888889
    """
    fixed = FIXED[by]
    curves: dict[tuple[str, str, float], dict[str, dict[int, _Search]]] = {}
    for study, goal in answerable(studies, goals):
        shared, name = (getattr(study, attribute) for attribute in (fixed, by))
        curve = curves.setdefault((shared, goal.metric, goal.threshold), {}).setdefault(name, {})
        found = row(study, goal)
        cell = cell_width(found["steps_to_result"], found["step_before"]) if found["reached"] else 0.0
        curve[study.batch_size] = _Search(
            feasible_steps(study, goal),
            censored_at=found["censored_at"],
            cell=cell,
            left_censored=is_left_censored(study, goal),
            drawn=study.independent,
        )
    related = relative.related(studies) if by == "workload" else None
    rows = []
    for key, by_name in sorted(curves.items()):
        for one, other in combinations(sorted(by_name), 2):
            if related is None or frozenset((one, other)) in related:
                both = sorted(by_name[one].keys() & by_name[other].keys())
                pairs = [_ratio(by_name[one][size], by_name[other][size]) for size in both]
                rows += [(*key, one, other, size, *each) for size, each in zip(both, pairs, strict=True)]
    return pd.DataFrame(rows, columns=[fixed, *GOAL, by, "against", "batch_size", "speed_up", "low", "high"])


def _ratio(one: _Search, other: _Search) -> tuple[float, float, float]:
    if one.left_censored or other.left_censored:
        return np.nan, np.nan, np.nan
    ends, cells = (one.censored_at, other.censored_at), (one.cell, other.cell)
    ratio, low, high = speed_up(one.steps, other.steps, ends, cells)
    return (ratio, low, high) if one.drawn and other.drawn else (ratio, np.nan, np.nan)


def speed_up(
    steps: np.ndarray,
    against: np.ndarray,
    censored_at: tuple[float, float] = (np.nan, np.nan),
    cells: tuple[float, float] = (0.0, 0.0),
) -> tuple[float, float, float]:
    """(S(against) / S(steps), low, high): the ratio of the best trials, and the 95 % interval of the same ratio of S_n.

    Arguments:
        steps, against: steps to the goal of feasible trials [N], infinite if not reached.
        censored_at: for each side, the fewest steps at which a trial ended without the goal; NaN if all reached it.
        cells: for each side, the width on log steps of its cell of the evaluation grid. The interval is wider by half a
            cell of each on both ends.

    >>> speed_up(np.full(20, 50.0), np.full(20, 100.0))
    (2.0, 2.0, 2.0)
    >>> [round(end, 2) for end in speed_up(np.full(20, 100.0), np.full(20, 110.0), cells=(0.095, 0.095))]
    [1.1, 1.0, 1.21]
    """
    with np.errstate(invalid="ignore"):
        found = np.min(against, initial=np.inf) / np.min(steps, initial=np.inf)
    least, most = ratios(against, steps, censored_at[::-1])
    low, high = np.quantile(least, 0.025, method="lower"), np.quantile(most, 0.975, method="higher")
    within = np.exp(sum(cells) / 2)
    return float(found), float(low / within), float(high * within)
