"""Whether the answers of a sweep are narrow enough for `search.until`, and what to add if they are not."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.estimates import pairs, split, tuned
from analysis.intervals import left_censored
from analysis.load import CURVE, GOAL
from analysis.question.stages import REFINE, STAGE, ends
from analysis.question.until import FACTOR, Until

MOST_SEEDS = 16
"""More fresh seeds at one batch size than this are never asked for."""


def widest(until: Until, steps: pd.DataFrame, statements: pd.DataFrame) -> float:
    """The widest of the intervals, as a factor to either side; infinite if one is open or missing.

    Batch sizes that missed the goal, or met it at the first evaluation, have no interval and are left out.

    Arguments:
        steps: from `analysis.estimates.tuned.table`.
        statements: from `analysis.estimates.pairs.table`.

    >>> steps, statements = (pd.read_csv(f"{published}/tables/{name}.csv") for name in ("steps_to_result", "compare"))
    >>> [round(widest(Until(kind, 1.5), steps, statements), 2) for kind in ("factor", "width")]
    [1.19, 1.28]
    """
    if until.kind == FACTOR:
        rows = statements[statements["kind"] == pairs.ALL]
        compared = statements[["workload", "a", "b", *GOAL]].drop_duplicates()
        known = len(rows) == len(compared) > 0
        return _half(rows["low"].to_numpy(float), rows["high"].to_numpy(float)) if known else np.inf
    tuned_steps = steps["tuned_steps"].astype(float)
    known = steps[np.isfinite(tuned_steps) & ~left_censored(tuned_steps, steps.get("first_evaluation"))]
    if known.empty:
        return np.inf
    return _half(*tuned.interval(known))


def more(search: Mapping[str, Any], steps: pd.DataFrame) -> dict[str, int]:
    """What to add to a sweep whose intervals are too wide: key of `search` -> its new value.

    Fresh seeds are doubled while their noise is the larger part of the scatter; then tuning goes on: by another
    round of `refine`, or by twice the trials of another sampler.

    Arguments:
        search: the `search` of a recorded question.
        steps: from `analysis.estimates.tuned.table`, the rows of all curves.

    >>> steps = pd.read_csv(f"{published}/tables/steps_to_result.csv")
    >>> more({"sampler": "sobol", "trials": 100, "reruns": 5}, steps)
    {'reruns': 10}
    >>> more({"sampler": "refine", "added": 1, "reruns": 16}, steps)
    {'added': 2}
    """
    seeds = int(search["reruns"])
    if not seeds:
        return {"reruns": 4}
    parts = [split.shares(curve) for _, curve in steps.groupby(CURVE, sort=False)]
    by_tuning = [part.shortfall > part.seed_error for part in parts]
    if seeds < MOST_SEEDS and not all(by_tuning):
        return {"reruns": min(2 * seeds, MOST_SEEDS)}
    if search["sampler"] == REFINE:
        return {"added": int(search.get("added", 0)) + 1}
    return {"trials": 2 * int(search["trials"])}


def trainings(search: Mapping[str, Any]) -> int:
    """The trainings at each batch size that a search asks for, fresh seeds included.

    Arguments:
        search: the `search` of a recorded question.

    >>> trainings({"sampler": "sobol", "trials": 20, "reruns": 5})
    25
    """
    trials = ends(search, STAGE)[-1] if search["sampler"] == REFINE else search["trials"]
    return int(trials + search["reruns"])


def override(sampler: str, key: str, value: int) -> tuple[str, int]:
    """The key of the configuration that sets one of the values of `more`, and the value.

    >>> override("refine", "reruns", 8)
    ('search.confirm', 8)
    """
    return f"search.{'confirm' if key == 'reruns' and sampler == REFINE else key}", value


def _half(low: np.ndarray, high: np.ndarray) -> float:
    """The largest factor from the middle to an end of these intervals."""
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = np.sqrt(high / low)
    return float(np.inf if np.isnan(factors).any() else factors.max())
