"""Where scaling bends: limits of the steps-to-result curve. Definitions and their sources: docs/methods.md.

Shapes: N feasible trials of one study, R resamples. Steps are infinite where a goal was not reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import pandas as pd

from analysis.counting import Goal
from analysis.intervals import PART, RESAMPLES, draws, median_best_of, ratios, resampled
from analysis.labels import bounded, curve_text
from analysis.load import CURVE, StudyData
from analysis.tables import fits
from analysis.tables.steps_to_result import answerable, feasible_steps, row

PERFECT_SCALING_TOLERANCE = 1.2
USEFUL_GAIN = 1.05
NO_DIFFERENCE = 2
"""Of Akaike's criterion (Burnham and Anderson 2002, section 2.6)."""
CRITICAL = ("critical_batch_size_mccandlish", "critical_batch_size_shoulder", "critical_batch_size_zhang")


@dataclass(frozen=True)
class Limit:
    """A batch size at which scaling changes.

    Attributes:
        bound: `=`; `>` if no end is shown: it is the largest measured batch size, or beyond it the goal was missed
            within too few steps to tell; `<` if it lies at or below the smallest.
        low, high: its 95 % interval; NaN where there is none.
    """

    value: float
    bound: str
    low: float = np.nan
    high: float = np.nan


Ends = Mapping[int, float]
"""Batch size -> the fewest steps that a trial ended at without the goal, where one did."""
NO_ENDS: Ends = MappingProxyType({})


def perfect_scaling_limit(steps: Mapping[int, float], base: float | None = None, censored_at: Ends = NO_ENDS) -> Limit:
    """The largest B with B' S(B') <= 1.2 B0 S(B0) for every measured B' from B0 to B.

    B0 is the smallest batch size, from the base on if there is one, that reached the goal.

    Arguments:
        steps: batch size -> S(B), infinite if not reached.
        base: smaller batch sizes are left out [examples].
        censored_at: what an infinite S(B) is known to exceed; without it no finite number would do.

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


def maximum_useful_batch_size(trials: Mapping[int, np.ndarray], seed: int = 0, censored_at: Ends = NO_ENDS) -> Limit:
    """The smallest B such that no larger measured batch size is shown to be faster.

    B' is shown to be faster than B if the 5 % bootstrap quantile of S_n(B) / S_n(B') exceeds 1.05, S_n being the
    median best of n = N / 4 trials: the minimum of all N cannot be bootstrapped.

    Arguments:
        trials: batch size -> steps to the goal of its feasible trials [N], infinite if not reached.
        censored_at: of trials that did not reach it.

    >>> trials = {8: np.full(20, 400.0), 16: np.full(20, 200.0), 32: np.full(20, 195.0)}
    >>> maximum_useful_batch_size(trials).value
    16.0
    """
    sizes = sorted(size for size, steps in trials.items() if np.isfinite(steps).any())

    def shown_faster(larger: int, size: int) -> bool:
        ends = censored_at.get(size, np.nan), censored_at.get(larger, np.nan)
        least, _ = ratios(trials[size], trials[larger], ((seed, size), (seed, larger)), ends)
        return bool(np.quantile(least, 0.05, method="lower") > USEFUL_GAIN)

    for size in sizes:
        if not any(shown_faster(larger, size) for larger in sizes if larger > size):
            s_n = median_best_of(trials[size], draws(len(trials[size])))
            missed = (censored_at.get(larger, np.inf) for larger in trials if larger > size and larger not in sizes)
            return Limit(
                float(size), ">" if min(missed, default=np.inf) * USEFUL_GAIN < s_n else _bound(size, trials, sizes)
            )
    return Limit(np.nan, "=")


def intervals(
    samples: Mapping[int, np.ndarray], base: float | None = None, censored_at: Ends = NO_ENDS
) -> dict[str, tuple[float, float]]:
    """What other searches of the same size might have found, by resampling trials: 95 % of the limits of S_n's curve.

    In a resample the maximum useful batch size is the smallest B that no larger one beats by more than 5 %, of those
    that reached the goal.

    Arguments:
        samples: of `resamples`.
        base, censored_at: as of `perfect_scaling_limit`.

    Returns:
        (low, high) [examples] of the perfect-scaling limit and of the maximum useful batch size; NaN if no batch size
        reached the goal.

    >>> trials = {8: np.full(20, 400.0), 16: np.full(20, 200.0), 32: np.full(20, 195.0)}
    >>> intervals(resamples(trials))
    {'perfect_scaling_limit': (16.0, 16.0), 'maximum_useful_batch_size': (16.0, 16.0)}
    """
    if not samples:
        return dict.fromkeys(("perfect_scaling_limit", "maximum_useful_batch_size"), (np.nan, np.nan))
    sizes = np.array(sorted(samples))
    curves = np.array([samples[size] for size in sizes])  # [sizes, R]
    low, _ = _middle(_perfect_scaling_limits(sizes, curves, base))
    _, high = _middle(_perfect_scaling_limits(sizes, curves, base, censored_at))
    reached = np.isfinite(curves).any(axis=1)
    sizes, curves = sizes[reached], curves[:, np.isfinite(curves).any(axis=0)][reached]
    fewest_beyond = np.minimum.accumulate(curves[::-1])[::-1]  # at this batch size or a larger one
    useful = sizes[np.argmax(~(curves > USEFUL_GAIN * fewest_beyond), axis=0)] if len(sizes) else sizes
    return {"perfect_scaling_limit": (low, high), "maximum_useful_batch_size": _middle(useful)}


def _perfect_scaling_limits(
    sizes: np.ndarray, curves: np.ndarray, base: float | None, censored_at: Ends = NO_ENDS
) -> np.ndarray:
    """`perfect_scaling_limit` of each column of curves [sizes, R]; NaN where no batch size reached the goal.

    Arguments:
        censored_at: batch sizes that never reached the goal take but a step more than this.
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


def resamples(trials: Mapping[int, np.ndarray], seed: int = 0) -> dict[int, np.ndarray]:
    """S_n of resamples [R] at each batch size, infinite where no trial reached the goal; n is the same for all others,
    and there is nothing if one of these has fewer than 4 trials.

    >>> found = resamples({8: np.full(20, 400.0), 16: np.full(20, np.inf)})
    >>> {size: (steps.shape, float(steps.max())) for size, steps in found.items()}
    {8: ((2000,), 400.0), 16: ((2000,), inf)}
    """
    reached = {size: steps for size, steps in trials.items() if np.isfinite(steps).any()}
    fewest = min(map(len, reached.values()), default=0)
    if fewest < PART:
        return {}
    missed = np.full(RESAMPLES, np.inf)
    found = {size: resampled(steps, draws(fewest), seed=(seed, size)) for size, steps in reached.items()}
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


def critical_batch_sizes(steps: Mapping[int, float], base: float | None = None) -> dict[str, Limit]:
    """Where the regimes of small and of large batch sizes meet, by each published definition (`analysis.tables.fits`).

    A value outside of the measured batch sizes says no more than that: it stands at the nearest of them, `<` or `>`.

    Arguments:
        steps: batch size -> S(B), infinite if not reached; such batch sizes are left out.
        base: B0 of Zhang et al.'s definition; the smallest batch size by default.

    Returns:
        Definition -> limit; NaN where too few batch sizes reached the goal: three for the hyperbola, four for the
        shoulder.

    >>> limits = critical_batch_sizes({size: 100 * (1 + 64 / size) for size in (4, 16, 64, 256, 1024)})
    >>> {name: round(limit.value, 1) for name, limit in limits.items()}["critical_batch_size_mccandlish"]
    64.0
    """
    reached = sorted(size for size, value in steps.items() if np.isfinite(value))
    found = dict.fromkeys(CRITICAL, Limit(np.nan, "="))
    if len(reached) >= 3:
        fit = fits.hyperbola(steps)
        low, high = fit.interval()
        base = base or min(steps)
        zhang = [fits.zhang_critical(replace(fit, critical=value), base) for value in (fit.critical, low, high)]
        found["critical_batch_size_mccandlish"] = _within(reached, fit.critical, low, high)
        found["critical_batch_size_zhang"] = _within(reached, *zhang)
    if len(reached) >= 4:
        fit = fits.shoulder(steps)
        found["critical_batch_size_shoulder"] = _within(reached, fit.critical, *fit.interval())
    return found


def _within(sizes: Sequence[int], value: float, low: float, high: float) -> Limit:
    """The value with its interval; a bound, which has none, where the curve bends outside of what was measured."""
    if value > sizes[-1]:
        return Limit(float(sizes[-1]), ">")
    if value < sizes[0]:
        return Limit(float(sizes[0]), "<")
    return Limit(value, "=", low, high) if np.isfinite(high) else Limit(value, "=")


def table(
    studies: Iterable[StudyData], goals: Sequence[Goal | None] = (None,), base: float | None = None
) -> pd.DataFrame:
    """Every limit of every curve.

    Arguments:
        goals: read off after the fact; None: each study's own.
        base: base batch size of the perfect-scaling limit and of `critical_batch_size_zhang`; the smallest measured by
            default.

    Returns:
        A row for each (workload, optimizer, goal, definition): value, low and high (batch size, examples; 95 %
        intervals, NaN where there is none, as of searches that learn from their trials), bound (`=`, `<` or `>`).

    >>> from analysis import load
    >>> from analysis.tables import answers, scaling
    >>> studies = answers.answers(load.load("results/published/mlp_digits"))
    >>> scaling.table(studies)[["optimizer", "definition", "value", "bound"]].head(3).round(1)
      optimizer                      definition  value bound
    0  momentum           perfect_scaling_limit    2.0     =
    1  momentum       maximum_useful_batch_size   64.0     =
    2  momentum  critical_batch_size_mccandlish   65.5     =
    """
    curves: dict[tuple[str, str, str, float], dict[int, np.ndarray]] = {}
    adaptive = set()
    ends: dict[tuple[str, str, str, float], dict[int, float]] = {}
    for study, goal in answerable(studies, goals):
        key = (*study.curve, goal.metric, goal.threshold)
        curves.setdefault(key, {})[study.batch_size] = feasible_steps(study, goal)
        ends.setdefault(key, {})[study.batch_size] = row(study, goal)["censored_at"]
        adaptive |= set() if study.independent else {key}
    rows = []
    for key, trials in sorted(curves.items()):
        fewest = {size: float(np.min(steps, initial=np.inf)) for size, steps in trials.items()}
        limits = {
            "perfect_scaling_limit": perfect_scaling_limit(fewest, base, ends[key]),
            "maximum_useful_batch_size": maximum_useful_batch_size(trials, censored_at=ends[key]),
        }
        sampled = {} if key in adaptive else resamples(trials)
        for name, (low, high) in intervals(sampled, base, ends[key]).items():
            # Resamples that differ by chance alone put the maximum useful batch size anywhere on a plateau, which the
            # value, by what is shown to be faster, is the beginning of.
            if not np.isnan(low):
                value = limits[name].value
                limits[name] = replace(limits[name], low=float(np.fmin(low, value)), high=float(np.fmax(high, value)))
        limits |= critical_batch_sizes(fewest, base)
        rows += [(*key, name, limit.value, limit.low, limit.high, limit.bound) for name, limit in limits.items()]
    columns = [*CURVE, "definition", "value", "low", "high", "bound"]
    return pd.DataFrame(rows, columns=columns)


def sentences(steps: pd.DataFrame, limits: pd.DataFrame) -> list[str]:
    """What was found, a plain sentence or two for each curve (tables of `steps_to_result.table` and `table`).

    >>> steps = pd.read_csv("results/published/mlp_digits/tables/steps_to_result.csv")
    >>> limits = pd.read_csv("results/published/mlp_digits/tables/scaling.csv")
    >>> for part in sentences(steps, limits)[0].split("; "):
    ...     print(part)
    mlp_digits with momentum to val/classification_error < 0.05: perfect scaling up to about 2 (1 to 256)
    no gain shown beyond 64 (64 to 1,024): 18 steps there, 38.3 times fewer than the 690 at batch size 1.
    """
    found = []
    for key, curve in steps.groupby(CURVE, sort=True):
        mine = limits[(limits[CURVE] == list(key)).all(axis=1)]
        by_name = mine.set_index("definition")
        critical = _critical_sentence(key, by_name, curve)
        found += [_sentence(key, curve.sort_values("batch_size"), by_name), critical]
    return [sentence for sentence in found if sentence]


def _sentence(key: tuple[str, str, str, float], curve: pd.DataFrame, limits: pd.DataFrame) -> str:
    subject = curve_text(*key)
    reached = curve[curve["reached"]]
    if reached.empty:
        return f"{subject}: the goal was not reached at any batch size."
    if len(reached) == 1:
        only = reached.iloc[0]
        return f"{subject}: reached at batch size {only.batch_size:,} alone, in {only.steps_to_result:,} steps."
    perfect, useful = limits.loc["perfect_scaling_limit"], limits.loc["maximum_useful_batch_size"]
    whole = curve["batch_size"].max()
    scaling = {
        "=": f"perfect scaling up to about {perfect.value:,.0f}",
        "<": f"no perfect scaling beyond {perfect.value:,.0f}, {_smallest(perfect.value, curve)}",
        ">": f"perfect scaling {'throughout, ' if perfect.value == whole else ''}up to {perfect.value:,.0f} at least",
    }[perfect.bound]
    gain = {
        "=": f"no gain shown beyond {useful.value:,.0f}",
        "<": f"no gain shown beyond {useful.value:,.0f}, {_smallest(useful.value, curve)}",
        ">": f"the largest batch size, {useful.value:,.0f}, still gains"
        if useful.value == whole
        else f"a maximum useful batch size of {useful.value:,.0f} at least",
    }[useful.bound]
    first, last = reached.iloc[0], reached.loc[reached["batch_size"] == useful.value].iloc[0]
    said = [f"{gain}{_interval(useful, curve)}"]
    if not np.isnan(perfect.value):  # as it is where no batch size from the base on reached the goal
        said.insert(0, f"{scaling}{_interval(perfect, curve)}")
    found = f"{subject}: {'; '.join(said)}"
    if useful.value != first.batch_size:
        speed_up = first.steps_to_result / last.steps_to_result
        against = f"{speed_up:,.1f} times fewer than" if speed_up > 1 else "against"
        found += (
            f": {last.steps_to_result:,} steps there, {against} the {first.steps_to_result:,} at batch size "
            f"{first.batch_size:,}"
        )
    return f"{found}."


def _smallest(batch_size: float, curve: pd.DataFrame) -> str:
    """In what it is the smallest: all that were measured, those that reached the goal, or those from the base on."""
    if batch_size == curve["batch_size"].min():
        return "the smallest batch size"
    first = curve.loc[curve["reached"], "batch_size"].min()
    return "the smallest that reached the goal" if batch_size == first else "the base"


def _interval(limit: pd.Series, curve: pd.DataFrame) -> str:
    """The 95 % interval in brackets, if there is one; how far beyond what was measured an end lies says nothing."""
    if pd.isna(limit.low):
        return ""
    least, most = curve["batch_size"].min(), curve["batch_size"].max()
    if limit.low < least or limit.high > most:
        low = f"below {least:,}" if limit.low < least else f"{limit.low:,.0f}"
        return f" ({low} to {f'above {most:,}' if limit.high > most else f'{limit.high:,.0f}'})"
    return f" ({limit.low:,.0f} to {limit.high:,.0f})" if limit.low < limit.high else f" ({limit.low:,.0f} throughout)"


def _critical_sentence(key: tuple[str, str, str, float], limits: pd.DataFrame, curve: pd.DataFrame) -> str:
    """The critical batch size by each definition that the data allow, and which fit is better; empty if none is."""
    names = {"mccandlish": "McCandlish et al. (2018)", "shoulder": "sharp shoulder", "zhang": "Zhang et al. (2024)"}
    known = {name: limits.loc[f"critical_batch_size_{name}"] for name in names}
    found = [
        f"{bounded(limit.value, limit.bound)}{_interval(limit, curve)} by {names[name]}"
        for name, limit in known.items()
        if not pd.isna(limit.value)
    ]
    text = f"Critical batch size of {curve_text(*key)}: {', '.join(found)}." if found else ""
    fitted = fits.table(curve)
    information = fitted["information"].dropna()
    if len(information) < 2:
        return text
    ahead = float(information.max() - information.min())
    better = fitted.loc[information.idxmin(), "fit"]
    if ahead < NO_DIFFERENCE:
        return f"{text} The hyperbola and the sharp shoulder fit alike."
    return f"{text} The {'sharp shoulder' if better == 'shoulder' else better} fits better (AICc lower by {ahead:.3g})."
