"""Intervals for S_n: how often they hold, and what they say where the data do not bound them."""

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from helpers.fused import partly
from scipy.stats import binom

from analysis import intervals
from analysis.tables import compare, scaling
from analysis.tables.scaling import resamples


@pytest.mark.parametrize("trials", [100, 40, 20])
def test_coverage(trials):
    """92 % as the protocol has it: at the low end the observed minimum is the last that can be said."""
    generator = np.random.default_rng(0)
    n = intervals.draws(trials)
    truth = math.exp(2 * NormalDist().inv_cdf(1 - 0.5 ** (1 / n)))
    samples = np.exp(2 * generator.standard_normal((3000, trials)))
    ends = [intervals.interval(sample, n) for sample in samples]
    covered = np.mean([low <= truth <= high for low, high in ends])
    assert 0.90 <= covered <= 0.98


def test_s_n_lies_within_and_the_minimum_is_its_lowest_end():
    steps = np.random.default_rng(1).permutation(np.arange(1.0, 101.0))
    low, high = intervals.interval(steps, 25)
    assert low == 1 <= intervals.median_best_of(steps, 25) <= high
    assert (low, high) == intervals.interval(np.sort(steps), 25)


def test_open_above_where_too_few_reached_the_goal():
    steps = np.full(100, math.inf)
    steps[:3] = [10, 20, 30]
    assert intervals.interval(steps, 25) == (10, math.inf)
    assert intervals.interval(np.full(20, math.inf), 5) == (math.inf, math.inf)
    assert intervals.interval(np.array([7.0]), 1)[0] == 7


def test_more_trials_are_surer():
    generator = np.random.default_rng(0)
    widths = []
    for trials in (20, 80, 320):
        ends = [intervals.interval(np.exp(generator.standard_normal(trials)), 5) for _ in range(200)]
        widths.append(np.median([math.log(high / low) for low, high in ends if np.isfinite(high)]))
    assert widths == sorted(widths, reverse=True)


def test_limits_of_a_curve_that_bends_in_one_place():
    generator = np.random.default_rng(0)
    steps = {size: 6400 / min(size, 64) for size in (1, 4, 16, 64, 256, 1024)}
    trials = {size: value * np.exp(generator.exponential(0.5, 100)) for size, value in steps.items()}
    found = scaling.intervals(resamples(trials))
    low, high = found["maximum_useful_batch_size"]
    assert low == 64 <= high
    low, high = found["perfect_scaling_limit"]
    assert low <= 64
    assert high < 1024
    never = dict.fromkeys(trials, np.full(100, math.inf))
    assert all(math.isnan(end) for ends in scaling.intervals(resamples(never)).values() for end in ends)


def test_resamples_are_distributed_as_if_every_trial_had_been_drawn():
    generator = np.random.default_rng(1)
    steps = np.append(generator.lognormal(size=30), [math.inf] * 10)
    drawn = steps[generator.integers(40, size=(20_000, 40))]
    expected = np.sort(np.asarray(intervals.median_best_of(drawn, intervals.draws(40))))
    found = np.sort(np.concatenate([intervals.resampled(steps, 10, (0, run)) for run in range(10)]))
    for value in np.sort(steps)[:12]:
        assert np.mean(found <= value) == pytest.approx(np.mean(expected <= value), abs=0.012)


def raced(steps):
    """(steps as a race leaves them, the fewest that a trial was cut at, NaN if none was)."""
    best = np.minimum.accumulate(np.append(np.inf, steps))[:-1]
    cut = steps > 2 * best
    return np.where(cut, np.inf, steps), 2 * best[cut].min() if cut.any() else math.nan


SEARCHES = [(20, 20), (20, 5), (5, 20), (100, 20), (20, 100), (100, 10), (10, 100)]


@pytest.mark.slow
@pytest.mark.parametrize(("trials", "race"), partly(itertools.product(SEARCHES, [False, True]), 3))
def test_no_search_is_ahead_by_its_size(trials, race):
    """S_n of n = N / 4 of each its own N would be 2.7 % of 100 trials against 21 % of 12. In a race the larger search
    has cut more of what lies beyond its best, and early trials of the smaller one ran on."""
    generator = np.random.default_rng(3)
    ahead, useful = [], []
    for _ in range(300):
        searches = [np.exp(0.5 * generator.standard_normal(count)) for count in trials]
        (one, end), (other, end_other) = [raced(each) if race else (each, math.nan) for each in searches]
        ahead.append(compare.speed_up(one, other, censored_at=(end, end_other))[1] > 1)
        ends = {1: end_other, 2: end}
        useful.append(scaling.maximum_useful_batch_size({1: other, 2: one}, censored_at=ends).value == 2)
    assert np.mean(ahead) < 0.06
    assert np.mean(useful) < 0.09


def test_what_is_much_faster_is_shown_in_races_too():
    generator = np.random.default_rng(4)
    for _ in range(20):
        (one, end), (other, end_other) = [raced(f * np.exp(0.3 * generator.standard_normal(40))) for f in (1, 4)]
        assert compare.speed_up(one, other, censored_at=(end, end_other))[1] > 1
        assert compare.speed_up(other, one, censored_at=(end_other, end))[2] < 1
        ends = {1: end_other, 2: end}
        assert scaling.maximum_useful_batch_size({1: other, 2: one}, censored_at=ends).value == 2


@pytest.mark.parametrize("trials", [1, 2, 3])
def test_fewer_than_four_trials_show_nothing(trials):
    few, many = np.full(trials, 100.0), np.full(20, 10_000.0)
    value, low, high = compare.speed_up(few, many)
    assert value == 100
    assert math.isnan(low)
    assert math.isnan(high)
    assert scaling.maximum_useful_batch_size({1: many, 2: few}).value == 1
    assert scaling.maximum_useful_batch_size({1: many, 2: few, 4: many / 2}).value == 2  # 4 beats 1, and not 2
    assert resamples({1: many, 2: few}) == {}  # else the interval would be that of another curve


@pytest.mark.parametrize("base", [None, 4, 1000])
def test_limits_of_many_curves_are_those_of_each(base):
    generator = np.random.default_rng(2)
    sizes = np.array([1, 2, 4, 8, 16, 32])
    curves = np.exp(generator.normal(size=(6, 500))) * 100 / np.minimum(sizes, 8)[:, None]
    curves[generator.random(curves.shape) < 0.2] = math.inf
    curves[:, 0] = math.inf
    each = [scaling.perfect_scaling_limit(dict(zip(sizes, curve, strict=True)), base).value for curve in curves.T]
    np.testing.assert_array_equal(scaling._perfect_scaling_limits(sizes, curves, base), each)


@pytest.mark.parametrize("trials", [1, 3, 10, 40])
@pytest.mark.parametrize("chance", [0.0, 0.02, 0.3, 0.5, 0.9, 1.0])
def test_exact_intervals_of_a_share_hold_at_least_as_often_as_they_say(trials, chance):
    ends = [intervals.share(count, trials) for count in range(trials + 1)]
    covering = [count for count, (low, high) in enumerate(ends) if low <= chance <= high]
    assert sum(binom.pmf(count, trials, chance) for count in covering) >= 0.95
    assert [1 - low for low, _ in reversed(ends)] == pytest.approx([high for _, high in ends])


@pytest.mark.parametrize("trials", [6, 10, 15, 20])
def test_the_interval_of_a_median_holds_for_any_distribution(trials):
    """How many of the trials lie below their distribution's median is a fair coin's; with ranks 1 to N as trials, the
    interval holds if the median has that many below it."""
    low, high = intervals.interval(np.arange(1.0, trials + 1), draws=1)
    below = np.arange(trials + 1)
    holds = (below >= low) & (below < high)
    assert binom.pmf(below, trials, 0.5)[holds].sum() >= 0.95
