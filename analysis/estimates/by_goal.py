"""The critical batch size against the goal, read from the same trials.

Trials that run past their goal know the steps to tighter and looser goals, too. Every goal has the best of the same
trials, so one search gives a whole curve of critical batch sizes.

Shapes: N counted feasible trials of one batch size, E steps at which the least error of any of them fell.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.counting import COMPLETE
from analysis.estimates import limits, tuned
from analysis.intervals import left_censored
from analysis.labels import bounded, curve_text, goal_text, interval_text, listed
from analysis.load import ANSWER, CURVE, StudyData
from analysis.tables.scaling import CRITICAL
from analysis.tables.steps_to_result import counted_trials, measured, row

ENOUGH = 5
"""The fewest trials of each batch size that reach a goal of the ladder."""
FEWEST = 4
"""The fewest batch sizes with which a hyperbola has an interval that means something."""
EACH_WAY = 3
"""Goals on either side of the recorded one."""
APART = 1.1
"""Neighbouring goals differ at least by this factor."""
COLUMNS = ["recorded", "batch_sizes", "fewest_trials", "critical_batch_size", "low", "high", "bound"]


class Errors(NamedTuple):
    """The errors of one search by the metric of its goal.

    Attributes:
        least: the least error of each trial up to its end, rising [N].
        steps, errors: the least error of any trial up to each step at which it fell [E].
    """

    least: np.ndarray
    steps: np.ndarray
    errors: np.ndarray

    def steps_to(self, threshold: float) -> int | None:
        """The fewest steps to an error below the threshold; None if no trial reached it, or one did at its first
        evaluation and may have done so earlier.

        >>> found = errors(study)
        >>> found.steps_to(0.2), found.steps_to(0.1)
        (21, 61)
        """
        below = np.flatnonzero(self.errors < threshold)
        steps = self.steps[below[0]] if below.size else np.inf
        return None if np.isinf(steps) or left_censored(steps, self.steps[0]) else int(steps)

    def reached(self, threshold: float) -> int:
        """The number of trials whose error fell below the threshold.

        >>> errors(study).reached(0.1)
        6
        """
        return int(np.searchsorted(self.least, threshold, side="left"))


def errors(study: StudyData) -> Errors:
    """The errors of a search, read once. Step 0 does not count.

    >>> errors(study).least[:2].round(3).tolist()
    [0.059, 0.064]
    """
    return study.once("errors by goal", lambda: _errors(study))


def _errors(study: StudyData) -> Errors:
    counted = counted_trials(study)
    ends = counted["end"][counted["status"] == COMPLETE]
    curves = measured(study, study.goal)
    each = []
    for index, end in ends.items():
        steps, found = np.asarray(curves[index].steps), np.asarray(curves[index].errors, dtype=float)
        kept = (steps > 0) & (steps <= end) & np.isfinite(found)
        each.append((steps[kept], found[kept]))
    if not any(len(steps) for steps, _ in each):
        return Errors(np.empty(0), np.empty(0, dtype=int), np.empty(0))
    least = np.sort([found.min() for _, found in each if len(found)])
    steps, found = (np.concatenate(parts) for parts in zip(*each, strict=True))
    order = np.argsort(steps, kind="stable")
    falling = np.minimum.accumulate(found[order])
    fell = np.diff(falling, prepend=np.inf) < 0
    first = np.flatnonzero(np.diff(steps[order], append=-1))  # the last of equal steps has the least error
    at = first[np.maximum.reduceat(fell, np.r_[0, first[:-1] + 1])]
    return Errors(least, steps[order][at], falling[at])


def ladder(recorded: float, searches: Iterable[Errors]) -> list[float]:
    """Thresholds around the recorded one, evenly spaced on a log scale, that every batch size can answer.

    Each batch size has ENOUGH trials below each of them. No trial is below the loosest at its first evaluation, before
    which nothing is known, unless that is step 1.

    >>> ladder(0.2, [errors(study)])
    [0.0801, 0.109, 0.148, 0.2, 0.281, 0.395, 0.555]
    """
    found = [each for each in searches if len(each.least)]
    if recorded <= 0 or not found:
        return [recorded]
    tightest = max(np.sort(each.least)[ENOUGH - 1] if len(each.least) >= ENOUGH else np.inf for each in found)
    loosest = min(each.errors[0] if each.steps[0] > 1 else np.inf for each in found)
    tighter = _rungs(recorded, tightest * (1 + 1e-6), up=True)
    looser = _rungs(recorded, min(loosest, 4 * recorded), up=False)
    known = [each for each in looser if min(errors.reached(each) for errors in found) >= ENOUGH]
    return sorted({*tighter, recorded, *known})


def _rungs(recorded: float, end: float, up: bool) -> list[float]:
    """Up to EACH_WAY thresholds from the recorded one to an end, rounded inwards to three digits."""
    if not 0 < end < np.inf or (end >= recorded) == up:
        return []
    count = min(EACH_WAY, int(abs(np.log(end / recorded)) / np.log(APART)))
    values = recorded * (end / recorded) ** (np.arange(1, count + 1) / max(count, 1))
    digits = 10.0 ** (np.floor(np.log10(values)) - 2)
    whole = np.ceil(values / digits) if up else np.floor(values / digits)
    return [float(f"{value:.3g}") for value in whole * digits]


def table(studies: Iterable[StudyData]) -> pd.DataFrame:
    """The critical batch size of every curve at several goals.

    Arguments:
        studies: the searches that S(B) is read from (`analysis.tables.answers.answers`).

    Returns:
        A row for each (workload, optimizer, goal): recorded (True for the studies' own goal), batch_sizes (that reach
        it), fewest_trials (that reach it at one of them), and critical_batch_size (by the hyperbola through the fewest
        steps of the search at each batch size) with low, high and bound as in `analysis.estimates.limits.table`. A
        curve has one goal if its trials cannot answer another, and no row with fewer than four batch sizes.

    >>> from analysis import load
    >>> from analysis.tables import answers
    >>> found = table(answers.answers(load.load(published)))
    >>> found[found["optimizer"] == "sgd"][["goal_threshold", "critical_batch_size", "low", "high"]].round(2)
       goal_threshold  critical_batch_size    low   high
    6            0.10                27.52  19.20  39.44
    7            0.13                35.97  26.26  49.28
    8            0.16                36.03  25.99  49.96
    9            0.20                33.06  25.18  43.41
    """
    curves: dict[tuple[Any, ...], dict[int, StudyData]] = {}
    for study in studies:
        if row(study)["reached"]:
            key = (*study.curve, study.goal.metric, study.goal.threshold)
            curves.setdefault(key, {})[study.batch_size] = study
    rows = [each for key, searches in curves.items() if len(searches) >= FEWEST for each in _rows(key, searches)]
    return pd.DataFrame(rows, columns=[*CURVE, *COLUMNS])


def _rows(key: Sequence[Any], searches: Mapping[int, StudyData]) -> list[dict[str, Any]]:
    found = {size: errors(study) for size, study in sorted(searches.items())}
    recorded = key[-1]
    early = any(study.stops_early for study in searches.values())
    exact = all(study.exact for study in searches.values())
    rows = []
    for threshold in ladder(recorded, found.values()) if exact else [recorded]:
        if threshold < recorded and early:
            continue
        steps = {size: each.steps_to(threshold) for size, each in found.items()}
        limit = _critical(key[:-1], threshold, steps)
        rows.append(
            {
                **dict(zip(CURVE, (*key[:-1], threshold), strict=True)),
                **{"recorded": threshold == recorded, "batch_sizes": sum(each is not None for each in steps.values())},
                "fewest_trials": min(each.reached(threshold) for each in found.values()),
                **{"critical_batch_size": limit.value, "low": limit.low, "high": limit.high, "bound": limit.bound},
            }
        )
    return rows


def _critical(names: Sequence[Any], threshold: float, steps: Mapping[int, int | None]) -> limits.Limit:
    """The critical batch size by the fewest steps of each search."""
    curve = pd.DataFrame({"batch_size": list(steps), "steps_to_result": pd.array([*steps.values()], "Int64")})
    curve = curve.assign(**dict(zip(CURVE, (*names, threshold), strict=True)))
    by_search = tuned.table(curve, pd.DataFrame(columns=[*ANSWER, "steps"]))
    return limits.critical(tuned.points(by_search), tuned.log_errors(by_search), shoulder=False)[CRITICAL]


def sentences(table: pd.DataFrame, studies: Sequence[StudyData]) -> list[str]:
    """The critical batch size at the tightest and the loosest goal of each curve, of those with one; one sentence about
    the curves that have one goal, because trials stopped at it.

    Arguments:
        table: from `table`, for these studies.

    >>> from analysis import load
    >>> from analysis.tables import answers
    >>> made = answers.answers(load.load(published))
    >>> [sgd] = [each for each in sentences(table(made), made) if "with sgd" in each]
    >>> sgd.partition(": ")[2].partition(" at ")[0]
    'from the fewest steps of each search, the critical batch size is 28 (95%: 19 to 39)'
    """
    said, alone = [], []
    for (workload, optimizer, metric), curve in table.groupby(CURVE[:3], sort=False):
        if len(curve) < 2:
            alone.append((workload, optimizer))
            continue
        known = curve[curve["critical_batch_size"].notna()]  # not at goals that searches met at the first evaluation
        if known.empty:
            continue
        recorded = curve["goal_threshold"][curve["recorded"]].iloc[0]
        rows = [known.iloc[place] for place in sorted({0, len(known) - 1})]
        ends = [f"{_in_words(row)} at {goal_text(metric, row['goal_threshold'])}" for row in rows]
        said.append(
            f"{curve_text(workload, optimizer, metric, recorded)}: from the fewest steps of each search, the critical "
            f"batch size is {listed(ends)}."
        )
    early = {study.curve for study in studies if study.stops_early}
    stopped = [" with ".join(curve) for curve in alone if curve in early]
    if stopped:
        said.append(
            f"{listed(stopped)}: trials stopped at the goal, so the critical batch size is known at this goal alone; "
            "stopping=budget reads it at tighter and looser ones."
        )
    return said


def _in_words(found: pd.Series) -> str:
    interval = interval_text(found["low"], found["high"], "{:,.0f}".format)
    return bounded(found["critical_batch_size"], found["bound"]) + (f" (95%: {interval})" if interval else "")
