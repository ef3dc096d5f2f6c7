"""Whether a batch size is shown to need more steps than the best: by fresh seeds if all have some, else by trials."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.counting import Goal
from analysis.estimates import tuned
from analysis.intervals import PART, ratios
from analysis.load import StudyData
from analysis.tables import steps_to_result

KNOWN, FEW_TRIALS, FEW_RUNS, ADAPTIVE = "known", "few trials", "few runs", "adaptive search"
FEW_SEEDS, LEFT_CENSORED = "few seeds", "first evaluation"
"""How a batch size compares with the best: by an interval, or why there is none."""


class Compared(NamedTuple):
    """One batch size against the best.

    Attributes:
        low: the least ratio of its steps to those of the best, the 2.5 % quantile.
        comparison: KNOWN, or why nothing shows whether it needs more; `low` is then a guess by few values, or 0.
    """

    low: float
    comparison: str


def compared(steps: pd.DataFrame, studies: Sequence[StudyData], goal: Goal | None, best: int) -> dict[int, Compared]:
    """Batch size -> its comparison with the best.

    Arguments:
        steps: the rows of one curve, from `analysis.estimates.tuned.table`.
        studies: its searches.

    >>> tables = [pd.read_csv(f"{published}/tables/{name}.csv") for name in ("steps_to_result", "rerun_steps")]
    >>> steps = tuned.table(*[table[table["optimizer"] == "sgd"] for table in tables])
    >>> {size: round(each.low, 2) for size, each in compared(steps, [], None, best=512).items() if size >= 128}
    {128: 1.1, 256: 0.89, 512: 1.0, 1024: 0.89}
    """
    found = _by_seeds(steps, best) if tuned.reads_seeds(steps) else _by_trials(steps, studies, goal, best)
    return found | {best: Compared(1.0, KNOWN)}  # all splits of a batch size share its steps


def _by_seeds(steps: pd.DataFrame, best: int) -> dict[int, Compared]:
    points, errors = tuned.points(steps), tuned.log_errors(steps)
    found = {}
    for size, taken in points.items():
        if np.isinf(taken):
            found[size] = Compared(np.inf, KNOWN)
        elif size in errors and best in errors:
            half = tuned.half_width(np.hypot(errors[size], errors[best]), tuned.NORMAL)
            found[size] = Compared(float(taken / points[best] * np.exp(-half)), KNOWN)
        else:
            censored = np.isnan(taken) or np.isnan(points[best])
            found[size] = Compared(0.0, LEFT_CENSORED if censored else FEW_SEEDS)
    return found


def _by_trials(steps: pd.DataFrame, studies: Sequence[StudyData], goal: Goal | None, best: int) -> dict[int, Compared]:
    """By resamples of both S_n. An adaptive search counts with its best trial only."""
    ends = dict(zip(steps["batch_size"], steps["censored_at"], strict=True))
    trials, why = {}, {}
    for study in studies:
        size, taken = study.batch_size, steps_to_result.feasible_steps(study, goal)
        trials[size] = taken if study.independent else np.sort(taken)[:1]
        why[size] = _without_interval(study, taken)
    found = {}
    for size in trials.keys() - {best}:
        draws, _ = ratios(trials[size], trials[best], (ends[size], ends[best]))
        low = float(np.quantile(draws, 0.025, method="lower")) if np.isfinite(trials[size]).any() else np.inf
        found[size] = Compared(low, why[size] or why[best] or KNOWN)
    return found


def _without_interval(study: StudyData, steps: np.ndarray) -> str:
    """Why the S_n of a search has no interval; empty if it has one, or never reached the goal."""
    if not np.isfinite(steps).any() or (study.independent and len(steps) >= PART):
        return ""
    return ADAPTIVE if not study.independent else FEW_RUNS if study.imported else FEW_TRIALS
