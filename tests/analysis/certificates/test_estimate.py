"""The test of a goal: as the boards of speed runs compute it, with the power that simulations have."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from analysis.certificates.estimate import certificate, power, seeds_needed

RECORD = [
    *(3.2759, 3.2781, 3.2791, 3.2771, 3.2838, 3.2749, 3.2793, 3.2790, 3.2794, 3.2744, 3.2751, 3.2845, 3.2736, 3.2783),
    *(3.2793, 3.2779, 3.2756, 3.2810, 3.2803, 3.2766, 3.2851, 3.2750, 3.2778, 3.2723, 3.2842, 3.2735, 3.2750, 3.2796),
    *(3.2782, 3.2758, 3.2763, 3.2751, 3.2791, 3.2804, 3.2725, 3.2898, 3.2718, 3.2764, 3.2710, 3.2745),
]
"""Losses of 40 runs of a record of modded-nanogpt, which its log gives as p = 0.0003, mean 3.2777, deviation 0.0040."""


def test_a_published_record():
    found = certificate(RECORD, 3.28)
    assert (round(found.mean, 4), round(found.sd, 4), round(found.p_value, 4)) == (3.2777, 0.0040, 0.0003)
    assert found.seeds == 40
    assert found.errors_below == pytest.approx((3.28 - found.mean) / found.standard_error)


@pytest.mark.parametrize("goal", [-1.0, 0.0, 0.3, 2.0])
@pytest.mark.parametrize("n", [2, 3, 20])
def test_it_is_the_t_test_of_scipy(goal, n):
    errors = np.random.default_rng(n).normal(size=n)
    found, reference = certificate(errors, goal), ttest_1samp(errors, goal, alternative="less")
    assert found.p_value == pytest.approx(reference.pvalue)
    assert found.errors_below == pytest.approx(-reference.statistic)
    ends = ttest_1samp(errors, goal).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(tuple(ends))


def test_a_seed_that_diverged_certifies_nothing():
    found = certificate([0.1, np.inf, 0.1], 0.2)
    assert (found.p_value, found.mean) == (1.0, np.inf)


def test_equal_errors_say_nothing_of_their_spread():
    found = certificate([0.1, 0.1, 0.1], 0.2)
    assert np.isnan(found.p_value)
    assert found.mean == pytest.approx(0.1)


@pytest.mark.parametrize("errors", [[], [0.1], [0.1, np.nan]])
def test_too_few_errors_are_refused(errors):
    with pytest.raises(ValueError, match="two errors or more"):
        certificate(errors, 0.2)


def test_false_certificates_are_as_rare_as_the_level_says():
    rng = np.random.default_rng(0)
    errors = rng.normal(0.5, 0.1, size=(20_000, 8))
    share = np.mean(ttest_1samp(errors, 0.5, axis=1, alternative="less").pvalue < 0.01)
    assert np.mean([certificate(row, 0.5).p_value < 0.01 for row in errors[:2000]]) < 0.02
    assert share == pytest.approx(0.01, abs=0.003)


@pytest.mark.parametrize(("n", "gap"), [(4, 2.0), (10, 1.0), (40, 0.4)])
def test_the_power_is_that_of_simulated_tests(n, gap):
    errors = np.random.default_rng(n).normal(-gap, 1.0, size=(20_000, n))
    found = np.mean(ttest_1samp(errors, 0.0, axis=1, alternative="less").pvalue < 0.01)
    assert power(n, gap, 1.0) == pytest.approx(found, abs=0.015)


@pytest.mark.parametrize("gap", [0.05, 0.3, 1.0, 5.0])
def test_the_seeds_that_are_needed_are_the_fewest(gap):
    n = seeds_needed(gap, 1.0)
    assert power(n, gap, 1.0) >= 0.8
    assert n == 2 or power(n - 1, gap, 1.0) < 0.8


@pytest.mark.parametrize(("gap", "sd"), [(0.0, 1.0), (-0.1, 1.0), (0.1, 0.0), (1e-6, 1.0)])
def test_no_number_of_seeds(gap, sd):
    assert seeds_needed(gap, sd) is None
