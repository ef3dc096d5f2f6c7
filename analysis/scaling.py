"""Where scaling bends: limits of the steps-to-result curve. Definitions and their sources: docs/methods.md.

Shapes: N feasible trials of one study, R bootstrap resamples. Steps are infinite where a goal was not reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.load import StudyData
from analysis.steps_to_result import feasible_steps

PERFECT_SCALING_TOLERANCE = 1.2
USEFUL_GAIN = 1.05
RESAMPLES = 2000


@dataclass(frozen=True)
class Limit:
    """A batch size at which scaling changes.

    Attributes:
        bound: `=`; `>` if the largest measured batch size does not show an end; `<` if it lies at or below the
            smallest.
    """

    value: float
    bound: str


def perfect_scaling_limit(steps: Mapping[int, float]) -> Limit:
    """The largest B with B' S(B') <= 1.2 B0 S(B0) for every measured B' from B0 to B.

    B0 is the smallest batch size that reached the goal.

    Arguments:
        steps: batch size -> S(B), infinite if not reached.

    >>> perfect_scaling_limit({1: 1000, 2: 500, 4: 260, 8: 250})
    Limit(value=4.0, bound='=')
    """
    sizes = sorted(size for size in steps if np.isfinite(steps[size]))
    if not sizes:
        return Limit(np.nan, "=")
    base = sizes[0]
    limit = base
    for size in sorted(size for size in steps if size >= base):
        if not size * steps[size] <= PERFECT_SCALING_TOLERANCE * base * steps[base]:
            break
        limit = size
    return Limit(float(limit), _bound(limit, steps, sizes))


def median_best_of(steps: np.ndarray, draws: int) -> np.ndarray | float:
    """S_n: the median of the best of n = `draws` trials drawn from the N in hand [..., N], exactly.

    The best of n draws lies at or below the k-th smallest value with probability 1 - (1 - k / N)^n; the least k for
    which that is at least one half is an order statistic, so no simulation is needed.

    >>> median_best_of(np.array([40.0, 10.0, 30.0, 20.0]), draws=1)
    20.0
    """
    trials = np.shape(steps)[-1]
    reaches_half = 1 - (1 - np.arange(1, trials + 1) / trials) ** draws >= 0.5
    rank = int(np.argmax(reaches_half))
    found = np.partition(steps, rank, axis=-1)[..., rank]
    return float(found) if np.ndim(found) == 0 else found


def maximum_useful_batch_size(trials: Mapping[int, np.ndarray], seed: int = 0) -> Limit:
    """The smallest B such that no larger measured batch size is shown to be faster.

    B' is shown to be faster than B if the 5 % bootstrap quantile of S_n(B) / S_n(B') exceeds 1.05, S_n being the
    median best of n = N / 4 trials: the minimum of all N cannot be bootstrapped.

    Arguments:
        trials: batch size -> steps to the goal of its feasible trials [N], infinite if not reached.
    """
    reached = {size: steps for size, steps in trials.items() if np.isfinite(steps).any()}
    if not reached:
        return Limit(np.nan, "=")
    resampled = {size: _resampled(steps, seed=(seed, size)) for size, steps in sorted(reached.items())}
    sizes = sorted(resampled)
    for size in sizes:
        if not any(_shown_faster(resampled[size], resampled[other]) for other in sizes if other > size):
            return Limit(float(size), _bound(size, trials, sizes))
    raise AssertionError("the largest batch size has none above it")


def _resampled(steps: np.ndarray, seed: tuple[int, int]) -> np.ndarray:
    """S_n of R resamples [R] of the trials [N]."""
    picks = np.random.default_rng(seed).integers(len(steps), size=(RESAMPLES, len(steps)))
    return np.asarray(median_best_of(steps[picks], draws=max(1, len(steps) // 4)))


def _shown_faster(steps: np.ndarray, of_larger: np.ndarray) -> bool:
    # Where neither resample reached the goal nothing is shown: the ratio counts as 1.
    neither = np.isinf(steps) & np.isinf(of_larger)
    ratio = np.where(neither, 1.0, steps / np.where(neither, 1.0, of_larger))
    return bool(np.quantile(ratio, 0.05, method="lower") > USEFUL_GAIN)


def _bound(limit: int, measured: Iterable[int], reached: Iterable[int]) -> str:
    if limit == max(measured):
        return ">"
    return "<" if limit == min(reached) else "="


def table(studies: Iterable[StudyData]) -> pd.DataFrame:
    """Every limit of every curve.

    Returns:
        A row for each (workload, optimizer, goal, definition): value (batch size, examples), low and high (empty until
        intervals are estimated), bound (`=`, `<` or `>`).
    """
    curves: dict[tuple[str, str, str, float], dict[int, np.ndarray]] = {}
    for study in studies:
        key = (study.workload, study.optimizer, study.goal.metric, study.goal.threshold)
        curves.setdefault(key, {})[study.batch_size] = feasible_steps(study)
    rows = []
    for key, trials in sorted(curves.items()):
        fewest = {size: float(np.min(steps, initial=np.inf)) for size, steps in trials.items()}
        limits = {
            "perfect_scaling_limit": perfect_scaling_limit(fewest),
            "maximum_useful_batch_size": maximum_useful_batch_size(trials),
        }
        rows += [(*key, name, limit.value, np.nan, np.nan, limit.bound) for name, limit in limits.items()]
    columns = ["workload", "optimizer", "goal_metric", "goal_threshold", "definition", "value", "low", "high", "bound"]
    return pd.DataFrame(rows, columns=columns)


def sentences(steps: pd.DataFrame, limits: pd.DataFrame) -> list[str]:
    """What was found, one plain sentence for each curve (tables of `steps_to_result.table` and `table`)."""
    found = []
    for key, curve in steps.groupby(["workload", "optimizer", "goal_metric", "goal_threshold"], sort=True):
        mine = limits[(limits[["workload", "optimizer", "goal_metric", "goal_threshold"]] == list(key)).all(axis=1)]
        by_name = mine.set_index("definition")
        found.append(_sentence(key, curve.sort_values("batch_size"), by_name))
    return found


def _sentence(key: tuple[str, str, str, float], curve: pd.DataFrame, limits: pd.DataFrame) -> str:
    subject = f"{key[0]} with {key[1]} to {key[2]} < {key[3]:g}"
    reached = curve[curve["reached"]]
    if reached.empty:
        return f"{subject}: the goal was not reached at any batch size."
    if len(reached) == 1:
        only = reached.iloc[0]
        return f"{subject}: reached at batch size {only.batch_size:,} alone, in {only.steps_to_result:,} steps."
    perfect, useful = limits.loc["perfect_scaling_limit"], limits.loc["maximum_useful_batch_size"]
    scaling = {
        "=": f"perfect scaling up to about {perfect.value:,.0f}",
        "<": f"no perfect scaling beyond {perfect.value:,.0f}, the smallest batch size",
        ">": f"perfect scaling throughout, up to {perfect.value:,.0f} at least",
    }[perfect.bound]
    gain = {
        "=": f"no gain shown beyond {useful.value:,.0f}",
        "<": f"no gain shown beyond {useful.value:,.0f}, the smallest batch size",
        ">": f"the largest batch size, {useful.value:,.0f}, still gains",
    }[useful.bound]
    first, last = reached.iloc[0], reached.loc[reached["batch_size"] == useful.value].iloc[0]
    if useful.value == first.batch_size:
        return f"{subject}: {scaling}; {gain}."
    speed_up = first.steps_to_result / last.steps_to_result
    return (
        f"{subject}: {scaling}; {gain} ({last.steps_to_result:,} steps, {speed_up:,.1f} times fewer than the "
        f"{first.steps_to_result:,} at batch size {first.batch_size:,})."
    )
