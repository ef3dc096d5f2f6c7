"""Confidence intervals for the best of n trials, exact or by resampling.

The minimum of all N trials cannot be bootstrapped: resamples never go below it. S_n, the median best of n = N / 4
trials, can: it is a quantile of one trial's steps and has an exact interval between order statistics.

Shapes: N feasible trials of one study, R resamples. Steps are infinite where a goal was not reached.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import bdtr, betaincinv

from analysis.labels import BOUNDS, number

TAIL = (1 - 0.95) / 2
"""The probability on either side of an interval."""
RESAMPLES = 2000
LEVELS = 200
"""Equally likely values of S_n on either side of a ratio: all their pairs stand for its distribution."""
HARMONICS = 200
SAWTOOTH = 3**0.5
"""The greatest value of a sawtooth over its standard deviation; without some of its harmonics it is less."""
PART = 4
"""n = N / PART. With fewer than PART trials, a 95 % interval of S_n would hold it in only 52 to 88 % of cases."""


def draws(trials: int) -> int:
    """n, the size of the searches whose median best is S_n, for N = `trials`.

    >>> draws(100)
    25
    """
    return max(1, trials // PART)


def known(steps: np.ndarray, censored_at: float) -> np.ndarray:
    """Steps [N] with all values above `censored_at` set to infinity, because their order is unknown.

    A race may stop a trial that would have beaten slower trials of lower index, which ran before a fast one was known.

    Arguments:
        censored_at: the fewest steps at which a trial ended without the goal; NaN if all trials reached it.

    >>> known(np.array([1900.0, 200.0, np.inf, 300.0]), censored_at=396.0)
    array([ inf, 200.,  inf, 300.])
    """
    return np.where(steps > censored_at, np.inf, steps)


def median_best_of(steps: np.ndarray, draws: int) -> np.ndarray | float:
    """S_n: the exact median of the best of n = `draws` trials, drawn with replacement from `steps` [..., N].

    >>> median_best_of(np.array([40.0, 10.0, 30.0, 20.0]), draws=1)
    20.0
    """
    rank = median_rank(np.shape(steps)[-1], draws)
    found = np.partition(steps, rank, axis=-1)[..., rank]
    return float(found) if np.ndim(found) == 0 else found


def median_rank(trials: int, draws: int) -> int:
    """The position of S_n among N sorted trials, from 0: S_n is an order statistic, so no simulation is needed.

    The best of n draws lies at or below the k-th smallest value with probability 1 - (1 - k / N)^n. S_n is the smallest
    value for which this probability is at least one half.

    >>> median_rank(100, 25)
    2
    """
    return int(np.argmax(1 - (1 - np.arange(1, trials + 1) / trials) ** draws >= 0.5))


def interval(steps: np.ndarray, draws: int) -> tuple[float, float]:
    """A distribution-free 95 % interval of S_n from the steps of N trials.

    S_n is the quantile p = 1 - 2^(-1/n) of one trial's steps. The number of trials below it is binomial(N, p), so two
    order statistics enclose it. The interval cannot begin below the least value, which lies above S_n with probability
    2^(-N/n), 6 % at n = N / 4: coverage is then 92 % instead of 95 %.

    Returns:
        (low, high); high is infinite if too few trials reached the goal to bound it.

    >>> interval(np.arange(1.0, 101.0), draws=25)
    (1.0, 7.0)
    """
    trials = len(steps)
    at_most = bdtr(np.arange(trials + 1), trials, 1 - 0.5 ** (1 / draws))  # distribution of the number of trials below
    ranked = np.append(np.sort(steps), np.inf)
    few, many = np.searchsorted(at_most, (TAIL, 1 - TAIL))
    return float(ranked[max(0, few - 1)]), float(ranked[min(trials, many)])


def share(count: int, of: int) -> tuple[float, float]:
    """Exact 95 % interval for the probability of an event seen `count` times in `of` trials (Clopper & Pearson 1934).

    >>> [round(end, 3) for end in share(0, 10)], [round(end, 3) for end in share(7, 10)]
    ([0.0, 0.308], [0.348, 0.933])
    """
    low = 0.0 if count == 0 else float(betaincinv(count, of - count + 1, TAIL))
    high = 1.0 if count == of else float(betaincinv(count + 1, of - count, 1 - TAIL))
    return low, high


def resampled(steps: np.ndarray, draws: int, seed: tuple[int, int]) -> np.ndarray:
    """S_n of R resamples [R], each of N trials drawn with replacement from `steps` [N]; n = `draws`.

    S_n is the r-th smallest value of a resample. The r-th smallest of N uniform numbers, u, follows
    Beta(r, N - r + 1), and N u rounded down is the position of the drawn value among the sorted trials. One random
    number thus replaces each resample exactly.

    >>> best = resampled(np.arange(1.0, 101.0), draws=25, seed=(0, 64))
    >>> best.shape, float(np.median(best))
    ((2000,), 3.0)
    """
    trials = len(steps)
    rank = median_rank(trials, draws) + 1
    return _at(steps, np.random.default_rng(seed).beta(rank, trials - rank + 1, size=RESAMPLES))


def _at(steps: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The steps of sorted trials [N] at places from 0 to 1."""
    trials = len(steps)
    return np.asarray(np.sort(steps)[np.minimum((trials * places).astype(int), trials - 1)])


def ratios(
    steps: np.ndarray, against: np.ndarray, censored_at: tuple[float, float] = (np.nan, np.nan)
) -> tuple[np.ndarray, np.ndarray]:
    """(lower, upper) bounds on S_n(steps) / S_n(against), each of `LEVELS` S_n of one side over each of the other
    [LEVELS^2]; NaN with fewer than PART trials.

    Both sides use the same n, a quarter of the smaller number of trials. With a quarter of its own trials on each side,
    S_n would be a different quantile of one trial's steps, and the larger search would look faster for this reason
    alone. If S_n is beyond the `known` steps, it is at least `censored_at`: hence the two bounds.

    Arguments:
        steps, against: steps to the goal [N] of each side.
        censored_at: one for each side, see `known`.

    >>> least, most = ratios(np.full(20, 50.0), np.full(100, 100.0))
    >>> float(least.min()), float(most.max())
    (0.5, 0.5)
    """
    trials = min(len(steps), len(against))
    if trials < PART:
        return np.full(LEVELS**2, np.nan), np.full(LEVELS**2, np.nan)
    one, other = (
        _levels(known(each, end), draws(trials)) for each, end in zip((steps, against), censored_at, strict=True)
    )
    with np.errstate(invalid="ignore"):
        found = (
            np.divide.outer(np.fmin(one, censored_at[0]), other),
            np.divide.outer(one, np.fmin(other, censored_at[1])),
        )
    # If neither side reached the goal, and the length of the trials is unknown, the data show nothing.
    least, most = (np.where(np.isnan(each), 1.0, each).ravel() for each in found)
    return least, most


def _levels(steps: np.ndarray, draws: int) -> np.ndarray:
    """S_n of resamples [LEVELS], not drawn as by `resampled` but at evenly spaced quantiles of their distribution."""
    trials = len(steps)
    rank = median_rank(trials, draws) + 1
    return _at(steps, betaincinv(rank, trials - rank + 1, (np.arange(LEVELS) + 0.5) / LEVELS))


def quotient(one: tuple[float, float, float], other: tuple[float, float, float]) -> tuple[float, float, float]:
    """(ratio, low, high) of two positive estimates, each with its interval as (value, low, high).

    The two are independent, so the distances of their ends add as the sides of a right triangle, on logarithms. An
    interval that begins at 0 or has no end leaves that side open; without an interval, low and high are NaN.

    >>> [round(end, 2) for end in quotient((30.0, 20.0, 45.0), (60.0, 60.0, 60.0))]
    [0.5, 0.33, 0.75]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        (value, low, high), (known, least, most) = np.log([one, other])
        ends = [value - known, value - known - np.hypot(value - low, most - known)]
        ratio, down, up = np.exp([*ends, value - known + np.hypot(high - value, known - least)])
    return float(ratio), float(down), float(up)


def cell_width(steps: Any, before: Any) -> Any:
    """The width on log steps of the cell of the evaluation grid in which a goal was met; 0 if every step was measured.

    The goal was first met at one of the whole steps after `before`. The log of one of n neighbouring whole numbers,
    each as likely, has the variance of a uniform number on an interval of this width, width^2 / 12, up to 3 %.

    Arguments:
        steps: at which it was first measured to be met, a number or an array.
        before: the last measured step before. NaN (unknown) and 0 (none: steps may be `left_censored`) give 0.

    >>> [round(cell_width(steps, before), 3) for steps, before in ((110, 100), (20, 19), (22, 20), (20, 0))]
    [0.094, 0.0, 0.081, 0.0]
    """
    steps, before = np.asarray(steps, dtype=float), np.asarray(before, dtype=float)
    whole, one = (np.log((steps + 0.5) / (least + 0.5)) for least in (before, steps - 1))
    width = np.where(before > 0, np.sqrt(np.maximum(whole**2 - one**2, 0.0)), 0.0)
    return float(width) if width.ndim == 0 else width


def grid_error(width: Any, noise: Any) -> Any:
    """The standard error that the evaluation grid adds to log steps, beyond what the scatter of seeds shows of it.

    Every value is moved to the end of its cell. Half a cell of this is common to all, and the rest averages out if the
    noise of seeds is as wide as a cell, as dither does (Widrow & Kollar 2008, chapter 4): the harmonics of a sawtooth,
    w^2 / (2 pi^2 k^2), damped by exp(-(2 pi k noise / w)^2). Without noise, all seeds end in one cell: w / sqrt(12).
    Rounded to 1e-4: less changes no interval.

    Arguments:
        width: of the cell, on log steps, w; the error of a width that is NaN is NaN.
        noise: standard deviation of the log steps that fall into the cell, without the grid's own share.

    >>> [round(float(grid_error(0.1, noise)), 4) for noise in (0.0, 0.01, 0.03, 0.1)]
    [0.0288, 0.0192, 0.0038, 0.0]
    """
    width, noise = np.broadcast_arrays(np.asarray(width, dtype=float), np.asarray(noise, dtype=float))
    k = np.arange(1, HARMONICS + 1)
    wide = np.where(width > 0, width, 1.0)
    damped = np.exp(-((2 * np.pi * k * (noise / wide)[..., None]) ** 2)) / k**2
    return np.round(np.where(width == 0, 0.0, width * np.sqrt(damped.sum(axis=-1) / 2) / np.pi), 4)


def without_grid(deviation: Any, width: Any) -> Any:
    """The noise of seeds on log steps from their measured standard deviation, which holds the grid's own share, too
    (Sheppard's correction); 0 if it is unknown.

    >>> round(float(without_grid(0.1, 0.1)), 3), float(without_grid(0.02, 0.1)), float(without_grid(np.nan, 0.1))
    (0.096, 0.0, 0.0)
    """
    return np.sqrt(np.fmax(np.square(deviation) - np.square(width) / 12, 0.0))


def moved_by_grid(steps: np.ndarray, before: np.ndarray) -> float:
    """The most by which the evaluation grid moves the mean log steps of some seeds, beyond what is common to all.

    Arguments:
        steps, before: as in `cell_width` [K]; infinite steps, of missed goals, are left out.

    >>> round(moved_by_grid(np.array([110.0, 110.0]), np.array([100.0, 100.0])), 3)
    0.047
    """
    met = np.isfinite(steps)
    if not met.any():
        return 0.0
    width = np.sqrt(np.mean(cell_width(steps[met], before[met]) ** 2))
    deviation = np.std(np.log(steps[met]), ddof=1) if met.sum() > 1 else 0.0
    return float(SAWTOOTH * grid_error(width, without_grid(deviation, width)))


def left_censored(steps: Any, first: Any = None, before: Any = None) -> Any:
    """Where steps to a goal are only an upper bound: it was met at the first evaluation, after more than one step.

    Arguments:
        steps: to the goal, a number or an array; NA or infinite if it was not reached.
        first: the first evaluation; None or NA if it is unknown.
        before: in the place of `first`, the last measured step before, as in `cell_width`.

    >>> left_censored(np.array([20, 25, 1, np.inf]), first=20), left_censored(np.array([20, 22]), before=[0, 20])
    (array([ True, False, False, False]), array([ True, False]))
    """
    steps, first, before = (np.where(pd.isna(each), np.nan, each).astype(float) for each in (steps, first, before))
    return (steps > 1) & ((steps <= first) | (before == 0))


def with_before(runs: pd.DataFrame) -> np.ndarray:
    """The steps of some runs, and the last measured step before each [2, K]; NaN if it is unknown.

    Arguments:
        runs: with the column steps, and step_before if it is known.

    >>> with_before(pd.DataFrame({"steps": [20, 22], "step_before": [0, 20]})).tolist()
    [[20.0, 22.0], [0.0, 20.0]]
    """
    return runs.reindex(columns=["steps", "step_before"]).to_numpy(dtype=float).T


def fewest(steps: np.ndarray, before: np.ndarray | float) -> np.ndarray:
    """The fewest steps at which a goal can have been met: 1 where those measured are left-censored.

    Arguments:
        steps, before: as in `cell_width` [K].

    >>> fewest(np.array([20.0, 22.0, np.inf]), np.array([0.0, 20.0, np.nan]))
    array([ 1., 22., inf])
    """
    return np.where(left_censored(steps, before=before), 1.0, steps)


def median(steps: np.ndarray, before: np.ndarray | float = np.nan) -> float:
    """The median of steps [K] on a log scale: infinite if half or more missed the goal, NaN without any.

    Of an even number that met the goal, the lower median if it is left-censored: it bounds a median, where a mean of
    both would pass for a known one.

    Arguments:
        before: as in `cell_width`.

    >>> median(np.array([100.0, 400.0])), median(np.array([100.0, 100.0, np.inf, np.inf]))
    (200.0, inf)
    >>> median(np.array([20.0, 80.0]), np.array([0.0, 70.0]))
    20.0
    """
    if not len(steps):
        return np.nan
    middle = np.argsort(steps)[[(len(steps) - 1) // 2, len(steps) // 2]]
    if left_censored(steps, before=before)[middle[0]] and np.isfinite(steps[middle[1]]):
        return float(steps[middle[0]])
    return float(np.sqrt(steps[middle].prod()))


def steps_text(row: Mapping[str, Any], column: str) -> str:
    """Steps to a goal as text, with a sign if they are `left_censored`.

    Arguments:
        row: of a table of steps-to-result.
        column: `steps_to_result` or `tuned_steps`.

    >>> row = {"steps_to_result": 20, "tuned_steps": 25.5, "first_evaluation": 20}
    >>> steps_text(row, "steps_to_result"), steps_text(row, "tuned_steps")
    ('≤ 20', '25.5')
    """
    sign = BOUNDS["<"] if left_censored(row[column], row.get("first_evaluation")) else ""
    return f"{sign}{number(row[column])}"
