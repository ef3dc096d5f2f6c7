"""Optimizers side by side: which needs fewer steps at which batch size, by how much, and whether that is shown.

Shapes: N feasible trials of one study, R resamples. Steps are infinite where a goal was not reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from analysis.counting import Goal
from analysis.intervals import resampled
from analysis.load import StudyData
from analysis.steps_to_result import answerable, feasible_steps

KEY = ["workload", "goal_metric", "goal_threshold"]


def table(studies: Iterable[StudyData], goals: Sequence[Goal | None] = (None,), seed: int = 0) -> pd.DataFrame:
    """Every pair of optimizers of a workload at every batch size that both were tuned at.

    Arguments:
        goals: read off after the fact; None: each study's own.

    Returns:
        A row for each (workload, goal, optimizer, against, batch_size): speed_up, S(against) / S(optimizer) (infinite
        where only the optimizer reached the goal, 0 where only the other did, NaN where neither), with low and high:
        the 95 % interval of the same ratio of S_n by resampling trials.
    """
    curves: dict[tuple[str, str, float], dict[str, dict[int, np.ndarray]]] = {}
    for study, goal in answerable(studies, goals):
        curve = curves.setdefault((study.workload, goal.metric, goal.threshold), {}).setdefault(study.optimizer, {})
        curve[study.batch_size] = feasible_steps(study, goal)
    rows = []
    for key, by_optimizer in sorted(curves.items()):
        for one, other in combinations(sorted(by_optimizer), 2):
            for size in sorted(by_optimizer[one].keys() & by_optimizer[other].keys()):
                ratio = speed_up(by_optimizer[one][size], by_optimizer[other][size], seed=(seed, size))
                rows.append((*key, one, other, size, *ratio))
    return pd.DataFrame(rows, columns=[*KEY, "optimizer", "against", "batch_size", "speed_up", "low", "high"])


def speed_up(steps: np.ndarray, against: np.ndarray, seed: tuple[int, int] = (0, 0)) -> tuple[float, float, float]:
    """(S(against) / S, low, high): how many times fewer steps the best trial takes, and S_n's 95 % interval of it.

    Arguments:
        steps, against: steps to the goal of feasible trials [N], infinite if not reached.

    >>> speed_up(np.full(20, 50.0), np.full(20, 100.0))
    (2.0, 2.0, 2.0)
    """
    found = _ratio(np.min(against, initial=np.inf), np.min(steps, initial=np.inf))
    if not (len(steps) and len(against)):
        return float(found), np.nan, np.nan
    # Two generators, since equal draws on both sides would make the ratio look surer than it is.
    ratios = _ratio(resampled(against, (seed[0] + 1, seed[1])), resampled(steps, seed))
    ratios[np.isnan(ratios)] = 1.0  # neither resample reached the goal, and nothing is shown
    low, high = np.quantile(ratios, 0.025, method="lower"), np.quantile(ratios, 0.975, method="higher")
    return float(found), float(low), float(high)


def _ratio(numerator: np.ndarray | float, denominator: np.ndarray | float) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.divide(numerator, denominator)


def sentences(pairs: pd.DataFrame, limits: pd.DataFrame) -> list[str]:
    """Which optimizer is ahead where, a sentence for each pair (tables of `table` and `analysis.scaling.table`)."""
    return [
        _sentence(key, part.sort_values("batch_size"), limits)
        for key, part in pairs.groupby([*KEY, "optimizer", "against"], sort=True)
    ]


def _sentence(key: tuple[str, str, float, str, str], pair: pd.DataFrame, limits: pd.DataFrame) -> str:
    workload, metric, threshold, optimizer, against = key
    shown = pair[(pair["low"] > 1) | (pair["high"] < 1)]
    parts = []
    for name, rows, other in (
        (optimizer, shown[shown["low"] > 1], against),
        (against, shown[shown["high"] < 1], optimizer),
    ):
        ratios = rows["speed_up"] if name == optimizer else 1 / rows["speed_up"]
        if len(rows):
            sizes = ", ".join(f"{size:,}" for size in rows["batch_size"])
            best = "where the other missed the goal" if np.isinf(ratios.max()) else f"up to {ratios.max():.2g} times"
            parts.append(f"{name} needs fewer steps than {other} at batch size {sizes} ({best})")
    ahead = "; ".join(parts) or f"no batch size at which {optimizer} or {against} is shown to need fewer steps"
    goal = f"{metric} < {threshold:g}"
    return f"{workload} to {goal}: {ahead}. {_useful(key, limits)}".strip()


def _useful(key: tuple[str, str, float, str, str], limits: pd.DataFrame) -> str:
    workload, metric, threshold, *optimizers = key
    mine = limits[(limits[KEY] == [workload, metric, threshold]).all(axis=1)]
    useful = mine[mine["definition"] == "maximum_useful_batch_size"].set_index("optimizer")["value"]
    one, other = (useful.get(name, np.nan) for name in optimizers)
    if np.isnan(one) or np.isnan(other):
        return ""
    return f"Maximum useful batch sizes: {one:,.0f} with {optimizers[0]}, {other:,.0f} with {optimizers[1]}."
