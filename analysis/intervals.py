"""Confidence intervals for the best of n trials, exact or by resampling.

The minimum of all N trials cannot be bootstrapped: resamples never go below it. S_n, the median best of n = N / 4
trials, can: it is a quantile of a single trial's steps, and has an exact interval of order statistics.

Shapes: N feasible trials of one study, R resamples. Steps are infinite where a goal was not reached.
"""

import numpy as np
from scipy.special import bdtr, betaincinv

RESAMPLES = 2000
PART = 4
"""n = N / PART. Of fewer than PART trials S_n is that of a single one, and its intervals would be far too narrow."""


def draws(trials: int) -> int:
    """n, the trials whose best S_n is the median of, for a search of N = `trials`.

    >>> draws(100)
    25
    """
    return max(1, trials // PART)


def known(steps: np.ndarray, censored_at: float) -> np.ndarray:
    """Steps [N] whose order is known; infinite beyond the fewest steps at which a trial ended without the goal.

    A race may cut a trial that would have beaten slower trials of lower index, which ran before a fast one was known.

    Arguments:
        censored_at: NaN if all reached the goal.

    >>> known(np.array([1900.0, 200.0, np.inf, 300.0]), censored_at=396.0)
    array([ inf, 200.,  inf, 300.])
    """
    return np.where(steps > censored_at, np.inf, steps)


def median_best_of(steps: np.ndarray, draws: int) -> np.ndarray | float:
    """S_n: the median of the best of n = `draws` trials drawn from the N in hand [..., N], exactly.

    >>> median_best_of(np.array([40.0, 10.0, 30.0, 20.0]), draws=1)
    20.0
    """
    rank = median_rank(np.shape(steps)[-1], draws)
    found = np.partition(steps, rank, axis=-1)[..., rank]
    return float(found) if np.ndim(found) == 0 else found


def median_rank(trials: int, draws: int) -> int:
    """How many of N trials lie below S_n, which is an order statistic: no simulation is needed.

    The best of n draws lies at or below the k-th smallest value with probability 1 - (1 - k / N)^n; S_n is the first
    for which that is at least one half.

    >>> median_rank(100, 25)
    2
    """
    return int(np.argmax(1 - (1 - np.arange(1, trials + 1) / trials) ** draws >= 0.5))


def interval(steps: np.ndarray, draws: int, confidence: float = 0.95) -> tuple[float, float]:
    """S_n's confidence interval from the trials in hand [N], distribution-free.

    S_n is the quantile p = 1 - 2^(-1/n) of one trial's steps; how many of N trials lie below it is binomial, so two
    order statistics enclose it. The interval begins at the least trial even where that may lie above S_n (its chance is
    2^(-N/n), 6 % at n = N / 4): coverage is then 92 % instead of 95 %.

    Returns:
        (low, high); high is infinite where too few trials reached the goal to bound it.

    >>> interval(np.arange(1.0, 101.0), draws=25)
    (1.0, 7.0)
    """
    trials, tail = len(steps), (1 - confidence) / 2
    at_most = bdtr(np.arange(trials + 1), trials, 1 - 0.5 ** (1 / draws))  # how many trials lie below: its distribution
    ranked = np.append(np.sort(steps), np.inf)
    few, many = np.searchsorted(at_most, (tail, 1 - tail))
    return float(ranked[max(0, few - 1)]), float(ranked[min(trials, many)])


def share(count: int, of: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact interval for the probability of an event seen `count` times in `of` trials (Clopper & Pearson 1934).

    >>> [round(end, 3) for end in share(0, 10)], [round(end, 3) for end in share(7, 10)]
    ([0.0, 0.308], [0.348, 0.933])
    """
    tail = (1 - confidence) / 2
    low = 0.0 if count == 0 else float(betaincinv(count, of - count + 1, tail))
    high = 1.0 if count == of else float(betaincinv(count + 1, of - count, 1 - tail))
    return low, high


def resampled(steps: np.ndarray, draws: int, seed: tuple[int, int]) -> np.ndarray:
    """S_n of R resamples [R] of the trials [N], each of N drawn with replacement; n = `draws`.

    S_n is the r-th smallest of a resample; that of N uniform numbers follows Beta(r, N - r + 1), and its part of N says
    which of the sorted trials it is. So one number stands for each resample, exactly.

    >>> best = resampled(np.arange(1.0, 101.0), draws=25, seed=(0, 64))
    >>> best.shape, float(np.median(best))
    ((2000,), 3.0)
    """
    trials = len(steps)
    rank = median_rank(trials, draws) + 1
    quantiles = np.random.default_rng(seed).beta(rank, trials - rank + 1, size=RESAMPLES)
    return np.sort(steps)[np.minimum((trials * quantiles).astype(int), trials - 1)]


def ratios(
    steps: np.ndarray,
    against: np.ndarray,
    seeds: tuple[tuple[int, int], tuple[int, int]],
    censored_at: tuple[float, float] = (np.nan, np.nan),
) -> tuple[np.ndarray, np.ndarray]:
    """(at least, at most): S_n(steps) / S_n(against) of R resamples [R] of either's trials; NaN with fewer than PART.

    Both have the same n, a quarter of the fewer trials: each its own quarter would be another quantile of a single
    trial's steps, and the larger search ahead by that alone. An S_n beyond its `known` trials is at least their end.

    Arguments:
        seeds: of either; must differ, since equal draws on both sides would make the ratio look surer than it is.
        censored_at: of either, NaN if all reached the goal; as of `known`.

    >>> least, most = ratios(np.full(20, 50.0), np.full(100, 100.0), ((0, 64), (1, 64)))
    >>> float(least.min()), float(most.max())
    (0.5, 0.5)
    """
    trials = min(len(steps), len(against))
    if trials < PART:
        return np.full(RESAMPLES, np.nan), np.full(RESAMPLES, np.nan)
    one, other = (
        resampled(known(each, end), draws(trials), seed)
        for each, end, seed in zip((steps, against), censored_at, seeds, strict=True)
    )
    with np.errstate(invalid="ignore"):
        found = np.fmin(one, censored_at[0]) / other, one / np.fmin(other, censored_at[1])
    # If neither resample reached the goal, and the length of the trials is unknown, the data show nothing.
    least, most = (np.where(np.isnan(each), 1.0, each) for each in found)
    return least, most
