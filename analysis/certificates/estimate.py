"""Tests whether the mean error of a configuration is below a goal, as the boards of speed runs do.

A board accepts a record if one-sided tests of the errors of n runs at a fixed step reject "the mean is not below the
goal" at p < 0.01 (modded-nanogpt: Student's t, `scipy.stats.ttest_1samp(errors, goal, alternative="less")`). Shapes: n
seeds.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import nctdtr, stdtr, stdtrit

LEVEL, POWER = 0.01, 0.8
"""The p value below which a goal is certified, and the probability with which a test should find a gap."""
CONFIDENCE = 0.95
"""Of the interval of the mean."""
MOST = 10**6
"""More seeds than this are not sought."""


class Certificate(NamedTuple):
    """The test of the errors of n seeds against a goal.

    Attributes:
        seeds: n.
        mean, sd: of the errors; the mean is infinite if a seed diverged.
        standard_error: sd / sqrt(n).
        errors_below: (goal - mean) / standard_error, Student's t; negative above the goal.
        p_value: one-sided, of "the mean is not below the goal"; NaN if all errors are equal, which tells no spread.
        low, high: two-sided interval of the mean.
    """

    seeds: int
    mean: float
    sd: float
    standard_error: float
    errors_below: float
    p_value: float
    low: float
    high: float


def certificate(errors: ArrayLike, goal: float) -> Certificate:
    """Student's one-sided t test of the mean error against a goal.

    The errors must be those of one step, fixed before they were seen, and of seeds that chose nothing. Then their mean
    is unbiased. The least error along a run, and the step of a first crossing, are order statistics: biased downwards.

    Arguments:
        errors: [n]; infinite where a seed diverged.
        goal: the threshold.

    Raises:
        ValueError: there are fewer than two errors, or one is NaN.

    >>> found = certificate([3.2759, 3.2781, 3.2791, 3.2771, 3.2738, 3.2749], goal=3.28)
    >>> round(found.mean, 4), round(found.errors_below, 2), round(found.p_value, 4)
    (3.2765, 4.32, 0.0038)
    """
    values = np.asarray(errors, dtype=float)
    n = len(values)
    if n < 2 or np.isnan(values).any():
        raise ValueError(f"a test needs two errors or more, all of them numbers, but got {values.tolist()}.")
    if not np.isfinite(values).all():
        return Certificate(n, np.inf, np.nan, np.nan, -np.inf, 1.0, np.nan, np.nan)
    mean, sd = float(values.mean()), float(values.std(ddof=1))
    if np.ptp(values) == 0:
        return Certificate(n, mean, 0.0, 0.0, np.nan, np.nan, np.nan, np.nan)
    error = float(sd / np.sqrt(n))
    below = (goal - mean) / error
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * error
    ends = mean - half, mean + half
    return Certificate(n, mean, sd, error, float(below), float(stdtr(n - 1, -below)), *ends)


def power(seeds: int, gap: float, sd: float, level: float = LEVEL) -> float:
    """The probability that the test of n seeds certifies a mean that lies this far below the goal.

    Student's t then has a noncentral distribution with n - 1 degrees of freedom and noncentrality gap sqrt(n) / sd.

    Arguments:
        seeds: n, at least 2.
        gap: goal - mean, above 0, in units of the error.
        sd: of the errors over seeds.

    >>> [round(power(n, gap=0.0023, sd=0.0040), 2) for n in (10, 20, 40)]
    [0.22, 0.52, 0.88]
    """
    critical = float(stdtrit(seeds - 1, 1 - level))
    return float(1 - nctdtr(seeds - 1, gap * np.sqrt(seeds) / sd, critical))


def seeds_needed(gap: float, sd: float, level: float = LEVEL) -> int | None:
    """The fewest seeds with which the test certifies a mean this far below the goal with probability POWER.

    None if the gap is not above 0 or more than a million seeds would be needed.

    >>> seeds_needed(gap=0.0023, sd=0.0040), seeds_needed(gap=0.0046, sd=0.0040), seeds_needed(gap=-0.1, sd=1.0)
    (34, 11, None)
    """
    if not (gap > 0 and sd > 0):
        return None
    low, high = 1, 2
    while power(high, gap, sd, level) < POWER:  # power grows with n
        low, high = high, 2 * high
        if high > MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle, gap, sd, level) >= POWER else (middle, high)
    return high
