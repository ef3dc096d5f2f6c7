"""The response of each trial: how many log steps it needs more than the best of its batch size, or of the curve.

Shapes: n trials of one batch size, D tuned parameters.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from analysis.counting import INFEASIBLE, Outcome, TrialCurve
from analysis.question.goals import NEVER_NEGATIVE

WORST = math.log(6)
"""The response of a trial that diverged, and the largest response."""
SLOPE = 1.1
"""The slope of log error against log steps if no trial of a curve shows one; 1.05 to 1.31 were measured."""
LAST = 3
"""A trial's error at its end is the geometric mean of its last measurements."""
LEAST_EXCESS, SD = 0.05, 0.3
"""An extrapolated trial needs at least this many log steps more than it ran; standard deviation of its log steps, and
of WORST for a trial that diverged: the best points can lie at a cliff, and a smooth process must not avoid it."""
UNKNOWN_EXCESS, UNKNOWN_SD = 0.35, 0.5
"""The same if the error cannot be extrapolated."""


@dataclass(frozen=True)
class Result:
    """One finished trial.

    Attributes:
        point: coordinates in the unit cube [D], rounded to 6 digits.
        trial: its curve.
        outcome: how it ended under the race of its stage.
    """

    point: tuple[float, ...]
    trial: TrialCurve
    outcome: Outcome


class Responses(NamedTuple):
    """The responses of n trials of one batch size.

    Attributes:
        values: log steps to the goal minus `least`, at most WORST [n].
        noise_variance: variance of each value beyond the noise of seeds [n].
        least: the log steps at response 0: the least of these trials; NaN if all trials diverged.
    """

    values: np.ndarray
    noise_variance: np.ndarray
    least: float


def responses(
    results: Sequence[Result],
    threshold: float,
    slope: float,
    never_negative: bool = True,
    error_floor: float | None = None,
) -> Responses:
    """The responses of the trials of one batch size.

    A trial that met the goal responds with its log steps. A race stopped the others at a step `end`, but they are not
    merely censored: an error falls about as steps^-slope, so that log(end) + log(error / threshold) / slope predicts
    the log steps to within 0.3, which is as good as one seed. Trials that diverged get WORST.

    Arguments:
        results: [n], with the race of each trial's own stage.
        threshold: the threshold of the goal.
        slope: see `slope`.
        never_negative: False for an error that can be 0 or less; it is then not extrapolated.
        error_floor: the value that replaces an error of 0: half an example of the evaluated split, 0.5 / examples.

    >>> met = Result((0.5,), TrialCurve([10, 20], [0.5, 0.04], None), Outcome("COMPLETE", 20, 20))
    >>> missed = Result((0.2,), TrialCurve([10, 20, 40], [0.5, 0.4, 0.1], None), Outcome("COMPLETE", 40, None))
    >>> diverged = Result((0.9,), TrialCurve([10], [0.9], first_bad_step=13), Outcome("INFEASIBLE", 13, None))
    >>> found = responses([met, missed, diverged], threshold=0.05, slope=1.1)
    >>> found.values.round(2).tolist(), found.noise_variance.tolist()
    ([0.0, 1.79, 1.79], [0.0, 0.09, 0.09])
    """
    extrapolated = never_negative and threshold > 0
    found = [_log_steps(each, threshold if extrapolated else None, slope, error_floor) for each in results]
    log_steps, variance = np.array(found).reshape(-1, 2).T
    least = float(log_steps.min(initial=np.inf))
    if not math.isfinite(least):
        return Responses(np.full(len(results), WORST), variance, math.nan)
    return Responses(np.minimum(log_steps - least, WORST), variance, least)


def about_errors(metric: str, errors: np.ndarray) -> tuple[bool, float | None]:
    """(whether a metric is never negative, the value that replaces an error of 0: half of the least one above 0, which
    is half an example; None if there is none).

    Arguments:
        metric: such as `val/classification_error`.
        errors: all measurements of it.

    >>> about_errors("val/classification_error", np.array([0.5, 0.02, 0.0]))
    (True, 0.01)
    """
    errors = errors[np.isfinite(errors)]
    positive = errors[errors > 0]
    name = metric.rpartition("/")[2].removeprefix("ema_")
    floor = float(positive.min()) / 2 if positive.size else None
    return name in NEVER_NEGATIVE or bool((errors > 0).all()), floor


def measured(results: Iterable[Result]) -> np.ndarray:
    """All measurements of the goal's metric, in one array.

    >>> measured([Result((), TrialCurve([10, 20], [0.5, 0.04], None), Outcome("COMPLETE", 20, 20))]).tolist()
    [0.5, 0.04]
    """
    return np.concatenate([np.asarray(each.trial.errors, dtype=float) for each in results])


def slope(by_batch_size: Mapping[int, Sequence[Result]], error_floor: float | None = None) -> float:
    """The median slope -d log(error) / d log(steps) before the goal over all trials of a curve that met it.

    The slope of a trial that met the goal after s steps is that between its last measurement up to s / 2 and s. Trials
    without a measurement up to s / 2, and those whose error did not fall, are left out; SLOPE if none remains.

    Arguments:
        by_batch_size: batch size -> its results.
        error_floor: see `responses`.

    >>> met = Result((0.5,), TrialCurve([5, 10, 20], [0.3, 0.16, 0.04], None), Outcome("COMPLETE", 20, 20))
    >>> slope({64: [met]})
    2.0
    """
    slopes = [_slope(result, error_floor) for results in by_batch_size.values() for result in results]
    found = [each for each in slopes if each is not None and each > 0]
    return float(np.median(found)) if found else SLOPE


def pooled(by_batch_size: Mapping[int, Responses]) -> dict[int, Responses]:
    """The same responses relative to the least steps that all batch sizes together imply.

    From a batch size B' to B, the steps of tuned configurations do not rise if B is larger, and rise at most as B' / B
    if it is smaller: log S(B) has slopes in [-1, 0] in log B. A batch size that has not found its good configurations
    yet thus shows it: all its responses are above 0, and the process looks where its neighbours are better.

    Arguments:
        by_batch_size: batch size -> its responses relative to its own least steps.

    >>> found = {8: Responses(np.zeros(1), np.zeros(1), 5.0), 16: Responses(np.array([0.0, 1.7]), np.zeros(2), 5.4)}
    >>> found = pooled(found)
    >>> found[8].values.tolist(), found[16].values.round(2).tolist(), found[16].least
    ([0.0], [0.4, 1.79], 5.0)
    """
    least = {batch_size: each.least for batch_size, each in by_batch_size.items() if math.isfinite(each.least)}
    found = {}
    for batch_size, each in by_batch_size.items():
        implied = min((low + max(0.0, math.log(b / batch_size)) for b, low in least.items()), default=math.nan)
        behind = each.least - implied if math.isfinite(each.least) else 0.0
        found[batch_size] = each._replace(values=np.minimum(each.values + behind, WORST), least=implied)
    return found


def best_points(points: Sequence[tuple[float, ...]], values: Iterable[float]) -> list[tuple[float, ...]]:
    """The three points with the least responses, the best first; ties go to the lower index.

    >>> best_points([(0.1,), (0.2,), (0.3,), (0.4,)], [0.5, 0.0, 0.5, 0.2])
    [(0.2,), (0.4,), (0.1,)]
    """
    return [points[position] for position in np.argsort(np.array([*values]), kind="stable")[:3]]


def shortened(result: Result) -> Result:
    """The same result with only the measurements that its response and its slope depend on.

    >>> trial = TrialCurve(list(range(1, 9)), [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.04], None)
    >>> shortened(Result((0.5,), trial, Outcome("COMPLETE", 8, 8))).trial.steps.tolist()
    [4, 6, 7, 8]
    """
    steps, errors = np.asarray(result.trial.steps), np.asarray(result.trial.errors, dtype=float)
    until = result.outcome.result or result.outcome.end
    usable = np.flatnonzero((steps > 0) & (steps <= until) & (errors >= 0) & np.isfinite(errors))
    half = usable[: int(np.searchsorted(steps[usable], until / 2, side="right"))][-1:]
    kept = np.unique([*half, *usable[-LAST:]]).astype(int)
    return replace(result, trial=result.trial._replace(steps=steps[kept], errors=errors[kept]))


def _log_steps(result: Result, threshold: float | None, slope: float, floor: float | None) -> tuple[float, float]:
    """(log steps to the goal, their variance); infinite if the trial diverged. Not extrapolated without a threshold."""
    if result.outcome.status == INFEASIBLE:
        return math.inf, SD**2
    if result.outcome.result is not None:
        return math.log(result.outcome.result), 0.0
    log_end = math.log(max(result.outcome.end, 1))
    errors = _measured(result.trial, result.outcome.end, floor)[1][-LAST:]
    if threshold is None or not errors.size:
        return log_end + UNKNOWN_EXCESS, UNKNOWN_SD**2
    log_error = float(np.log(errors).mean())
    return log_end + max((log_error - math.log(threshold)) / slope, LEAST_EXCESS), SD**2


def _slope(result: Result, floor: float | None) -> float | None:
    met = result.outcome.result
    if met is None:
        return None
    steps, errors = _measured(result.trial, met, floor)
    half = int(np.searchsorted(steps, met / 2, side="right")) - 1
    if half < 0 or steps[-1] == steps[half]:
        return None
    return float(np.log(errors[half] / errors[-1]) / np.log(steps[-1] / steps[half]))


def _measured(trial: TrialCurve, end: int, floor: float | None) -> tuple[np.ndarray, np.ndarray]:
    """(steps, errors) with a finite logarithm, from step 1 to `end`; a floor replaces errors of 0."""
    steps, errors = np.asarray(trial.steps, dtype=float), np.asarray(trial.errors, dtype=float)
    if floor is not None:
        errors = np.where(errors == 0, floor, errors)
    kept = (steps > 0) & (steps <= end) & (errors > 0) & np.isfinite(errors)
    return steps[kept], errors[kept]
