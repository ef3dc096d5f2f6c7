"""Limits of scaling, read from the steps-to-result curve. Definitions and their sources: docs/methods.md.

Shapes: N feasible trials of one study, R resamples. Steps are infinite where a goal was not reached.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import pandas as pd

from analysis.counting import Goal
from analysis.intervals import PART, RESAMPLES, draws, median_best_of, ratios, resampled
from analysis.load import CURVE, StudyData
from analysis.tables import fits
from analysis.tables.steps_to_result import answerable, feasible_steps, is_left_censored, row

PERFECT_SCALING_TOLERANCE = 1.2
ROOT = PERFECT_SCALING_TOLERANCE**2
"""The perfect-scaling limit over the smallest batch size B0 where steps fall as 1 / sqrt(B) from B0 on, never in
proportion: B S(B) is then 1.2 times its value at B0 at 1.44 B0."""
USEFUL_GAIN = 1.05
PERFECT, USEFUL = "perfect_scaling_limit", "maximum_useful_batch_size"
CRITICAL, SHOULDER = "critical_batch_size_mccandlish", "critical_batch_size_shoulder"
ZHANG = "critical_batch_size_zhang"
"""Definitions of the limits of scaling; `critical batch size` alone means that of McCandlish et al."""
FEWEST = 3
"""The fewest batch sizes that show where a curve bends."""


@dataclass(frozen=True)
class Limit:
    """A batch size at which scaling changes.

    Attributes:
        bound: `=`; `>` if the data show no end, because this is the largest measured batch size or because larger ones
            missed the goal within too few steps to tell; `<` if the limit lies at or below the smallest batch size.
        low, high: 95 % interval, 0 or infinite where it is open; NaN if there is none.
    """

    value: float
    bound: str
    low: float = np.nan
    high: float = np.nan


Curve = tuple[str, str, str, float]
"""Workload, optimizer, metric and threshold."""
Ends = Mapping[int, float]
"""Batch size -> the fewest steps at which a trial ended without reaching the goal, if one did."""
NO_ENDS: Ends = MappingProxyType({})


def perfect_scaling_limit(steps: Mapping[int, float], base: float | None = None, censored_at: Ends = NO_ENDS) -> Limit:
    """The largest B with B' S(B') <= 1.2 B0 S(B0) for every measured B' from B0 to B.

    B0 is the smallest batch size that reached the goal; with a base, the smallest from the base on.

    Arguments:
        steps: batch size -> S(B), infinite if not reached.
        base: leave out smaller batch sizes [examples].
        censored_at: lower bounds of infinite S(B). Without a bound, S(B) counts as infinite.

    >>> perfect_scaling_limit({1: 1000, 2: 500, 4: 260, 8: 250}).value
    4.0
    """
    sizes = np.array(sorted(steps))
    curve = np.array([[float(steps[size])] for size in sizes]).reshape(-1, 1)
    [limit] = _perfect_scaling_limits(sizes, curve, base)
    if np.isnan(limit):
        return Limit(np.nan, "=")
    [at_most] = _perfect_scaling_limits(sizes, curve, base, censored_at)
    kept = {size: steps[size] for size in steps if size >= (base or 0)}
    bound = _bound(int(limit), kept, [size for size in kept if np.isfinite(kept[size])])
    return Limit(float(limit), ">" if at_most > limit else bound)


def maximum_useful_batch_size(trials: Mapping[int, np.ndarray], censored_at: Ends = NO_ENDS) -> Limit:
    """The smallest B such that no larger measured batch size is shown to be faster.

    B' is shown to be faster than B if the 5 % bootstrap quantile of S_n(B) / S_n(B') exceeds 1.05. S_n is the median
    best of n = N / 4 trials: the minimum of all N cannot be bootstrapped.

    Arguments:
        trials: batch size -> steps to the goal of its feasible trials [N], infinite if not reached.
        censored_at: batch size -> the fewest steps at which a trial ended without the goal.

    >>> trials = {8: np.full(20, 400.0), 16: np.full(20, 200.0), 32: np.full(20, 195.0)}
    >>> maximum_useful_batch_size(trials).value
    16.0
    """
    sizes = sorted(size for size, steps in trials.items() if np.isfinite(steps).any())

    def shown_faster(larger: int, size: int) -> bool:
        ends = censored_at.get(size, np.nan), censored_at.get(larger, np.nan)
        least, _ = ratios(trials[size], trials[larger], ends)
        return bool(np.quantile(least, 0.05, method="lower") > USEFUL_GAIN)

    for size in sizes:
        if not any(shown_faster(larger, size) for larger in sizes if larger > size):
            s_n = median_best_of(trials[size], draws(len(trials[size])))
            missed = (censored_at.get(larger, np.inf) for larger in trials if larger > size and larger not in sizes)
            hidden = min(missed, default=np.inf) * USEFUL_GAIN < s_n
            return Limit(float(size), ">" if hidden else _bound(size, trials, sizes))
    return Limit(np.nan, "=")


def intervals(
    samples: Mapping[int, np.ndarray], base: float | None = None, censored_at: Ends = NO_ENDS
) -> dict[str, tuple[float, float]]:
    """95 % intervals of the limits of S_n's curve, by resampling trials.

    In a resample, the maximum useful batch size is the smallest B that reached the goal and that no larger batch size
    beats by more than 5 %.

    Arguments:
        samples: from `resamples`.
        base, censored_at: see `perfect_scaling_limit`.

    Returns:
        (low, high) [examples] of the perfect-scaling limit and of the maximum useful batch size; NaN if no batch size
        reached the goal.

    >>> trials = {8: np.full(20, 400.0), 16: np.full(20, 200.0), 32: np.full(20, 195.0)}
    >>> intervals(resamples(trials))
    {'perfect_scaling_limit': (16.0, 16.0), 'maximum_useful_batch_size': (16.0, 16.0)}
    """
    if not samples:
        return dict.fromkeys((PERFECT, USEFUL), (np.nan, np.nan))
    sizes = np.array(sorted(samples))
    curves = np.array([samples[size] for size in sizes])  # [sizes, R]
    low, _ = _middle(_perfect_scaling_limits(sizes, curves, base))
    _, high = _middle(_perfect_scaling_limits(sizes, curves, base, censored_at))
    reached = np.isfinite(curves).any(axis=1)
    sizes, curves = sizes[reached], curves[:, np.isfinite(curves).any(axis=0)][reached]
    fewest_beyond = np.minimum.accumulate(curves[::-1])[::-1]  # at this batch size or a larger one
    useful = sizes[np.argmax(~(curves > USEFUL_GAIN * fewest_beyond), axis=0)] if len(sizes) else sizes
    return {PERFECT: (low, high), USEFUL: _middle(useful)}


def _perfect_scaling_limits(
    sizes: np.ndarray, curves: np.ndarray, base: float | None, censored_at: Ends = NO_ENDS
) -> np.ndarray:
    """`perfect_scaling_limit` of each column of curves [sizes, R]; NaN where no batch size reached the goal.

    Arguments:
        censored_at: a batch size that never reached the goal counts as needing one step more than this.
    """
    kept = sizes >= (base or 0)
    sizes, curves = sizes[kept], curves[kept]
    if not len(sizes):
        return np.full(curves.shape[1], np.nan)
    first = np.argmax(np.isfinite(curves), axis=0)
    ends = np.array([censored_at.get(size, np.inf) for size in sizes.tolist()])
    never = ~np.isfinite(curves).any(axis=1)
    examples = sizes[:, None] * np.where(never[:, None], ends[:, None] + 1, curves)
    base_examples = sizes[first] * np.take_along_axis(curves, first[None], axis=0)[0]
    allowed = PERFECT_SCALING_TOLERANCE * base_examples
    broken = (np.arange(len(sizes))[:, None] > first) & ~(examples <= allowed)
    end = np.where(broken.any(axis=0), broken.argmax(axis=0), len(sizes))
    return np.where(np.isfinite(allowed), sizes[end - 1], np.nan)


def resamples(trials: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """S_n of resamples [R] at each batch size; infinite where no trial reached the goal.

    n is the same at all batch sizes that reached the goal. Empty if one of them has fewer than 4 trials.

    >>> found = resamples({8: np.full(20, 400.0), 16: np.full(20, np.inf)})
    >>> {size: (steps.shape, float(steps.max())) for size, steps in found.items()}
    {8: ((2000,), 400.0), 16: ((2000,), inf)}
    """
    reached = {size: steps for size, steps in trials.items() if np.isfinite(steps).any()}
    fewest = min(map(len, reached.values()), default=0)
    if fewest < PART:
        return {}
    missed = np.full(RESAMPLES, np.inf)
    found = {size: resampled(steps, draws(fewest), seed=(0, size)) for size, steps in reached.items()}
    return {size: found.get(size, missed) for size in sorted(trials)}


def _middle(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    known = np.asarray(values, dtype=float)
    known = known[np.isfinite(known)]
    if not len(known):
        return np.nan, np.nan
    return float(np.quantile(known, 0.025, method="lower")), float(np.quantile(known, 0.975, method="higher"))


def _bound(limit: int, measured: Iterable[int], reached: Iterable[int]) -> str:
    if limit == max(measured):
        return ">"
    return "<" if limit == min(reached) else "="


def critical_batch_sizes(
    steps: Mapping[int, float], base: float | None = None, shoulder: bool = True, reach: float | None = None
) -> dict[str, Limit]:
    """The critical batch size by each published definition (`analysis.tables.fits`).

    A fitted value outside the measured batch sizes is only a bound: the nearest measured batch size, `<` or `>`. The
    interval is then open on that side, and ends on the other where `fits.critical_within` does.

    Arguments:
        steps: batch size -> S(B), infinite if not reached; the fits omit these batch sizes.
        base: B0 of Zhang et al.'s definition; the smallest batch size by default.
        shoulder: False leaves out the sharp shoulder, whose fit takes longest.
        reach: of `fits.critical_within`; by default from the residuals of the fit.

    Returns:
        Definition -> limit; NaN where too few batch sizes reached the goal: three for the hyperbola, four for the
        shoulder.

    >>> limits = critical_batch_sizes({size: 100 * (1 + 64 / size) for size in (4, 16, 64, 256, 1024)})
    >>> {name: round(limit.value, 1) for name, limit in limits.items()}["critical_batch_size_mccandlish"]
    64.0
    """
    reached = sorted(size for size, value in steps.items() if np.isfinite(value))
    found = dict.fromkeys((CRITICAL, SHOULDER, ZHANG), Limit(np.nan, "="))
    if len(reached) >= FEWEST:
        fit = fits.hyperbola(steps)
        low, high = fit.interval()
        if not reached[0] <= fit.critical <= reached[-1] and fit.points > len(fit.log_errors):
            low, high = fits.critical_within(steps, reach or fit.reach)
            low, high = min(low, fit.critical), max(high, fit.critical)  # its grid may miss a sharp minimum
        base = base or min(steps)
        zhang = [fits.zhang_critical(replace(fit, critical=value), base) for value in (fit.critical, low, high)]
        found[CRITICAL] = _within(reached, fit.critical, low, high)
        found[ZHANG] = _within(reached, *zhang)
    if len(reached) >= 4 and shoulder:
        fit = fits.shoulder(steps)
        # No interval: with a free sharpness the bend may lie anywhere between two batch sizes.
        found[SHOULDER] = _within(reached, fit.critical, np.nan, np.nan)
    return found


def _within(sizes: Sequence[int], value: float, low: float, high: float) -> Limit:
    """The value with its interval; outside the measured batch sizes a bound, whose interval is open on that side."""
    first, last = float(sizes[0]), float(sizes[-1])
    if value > last:
        return Limit(last, ">", min(low, last), np.inf) if low > 0 else Limit(last, ">")
    if value < first:
        return Limit(first, "<", 0.0, max(high, first)) if np.isfinite(high) else Limit(first, "<")
    return Limit(value, "=", low, high) if low > 0 or np.isfinite(high) else Limit(value, "=")


def table(
    studies: Iterable[StudyData], goals: Sequence[Goal | None] = (None,), base: float | None = None
) -> pd.DataFrame:
    """Every limit of every curve.

    Batch sizes whose steps are left-censored (`steps_to_result.is_left_censored`) have no part in them.

    Arguments:
        goals: the goals to read from the curves; None is each study's own.
        base: base batch size of the perfect-scaling limit and of `critical_batch_size_zhang`; default: the smallest.

    Returns:
        A row for each (workload, optimizer, goal, definition): value, low and high (batch size, examples; 95 %
        intervals, NaN if there is none, for example for adaptive searches), bound (`=`, `<` or `>`).

    >>> from analysis import load
    >>> from analysis.tables import answers, scaling
    >>> studies = answers.answers(load.load(published))
    >>> scaling.table(studies)[["optimizer", "definition", "value", "bound"]].head(3).round(1)
      optimizer                      definition  value bound
    0  momentum           perfect_scaling_limit   32.0     =
    1  momentum       maximum_useful_batch_size   64.0     =
    2  momentum  critical_batch_size_mccandlish   64.9     =
    """
    curves: dict[Curve, dict[int, np.ndarray]] = {}
    adaptive = set()
    ends: dict[Curve, dict[int, float]] = {}
    for study, goal in answerable(studies, goals):
        key = (*study.curve, goal.metric, goal.threshold)
        curves.setdefault(key, {})
        if is_left_censored(study, goal):
            continue
        curves[key][study.batch_size] = feasible_steps(study, goal)
        ends.setdefault(key, {})[study.batch_size] = row(study, goal)["censored_at"]
        adaptive |= set() if study.independent else {key}
    rows = []
    for key, trials in sorted(curves.items()):
        limits = _limits(trials, base, ends.get(key, NO_ENDS), {} if key in adaptive else resamples(trials))
        rows += [(*key, name, limit.value, limit.low, limit.high, limit.bound) for name, limit in limits.items()]
    columns = [*CURVE, "definition", "value", "low", "high", "bound"]
    return pd.DataFrame(rows, columns=columns)


def _limits(
    trials: Mapping[int, np.ndarray], base: float | None, censored_at: Ends, sampled: Mapping[int, np.ndarray]
) -> dict[str, Limit]:
    """Definition -> limit of one curve (steps by batch size), with intervals from resamples if there are any."""
    fewest = {size: float(np.min(steps, initial=np.inf)) for size, steps in trials.items()}
    limits = {
        PERFECT: perfect_scaling_limit(fewest, base, censored_at),
        USEFUL: maximum_useful_batch_size(trials, censored_at=censored_at),
    }
    for name, (low, high) in intervals(sampled, base, censored_at).items():
        # On a plateau, resamples differ by chance and put the maximum useful batch size anywhere on it. The value is
        # where the plateau begins, so the interval may have to be widened to contain it.
        if not np.isnan(low):
            value = limits[name].value
            limits[name] = replace(limits[name], low=float(np.fmin(low, value)), high=float(np.fmax(high, value)))
    return limits | critical_batch_sizes(fewest, base)
