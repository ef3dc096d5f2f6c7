"""The noise scale from made gradients: both estimators are unbiased, and intervals hold the exact ratio."""

import numpy as np
import pytest

from analysis.noise_scale.estimate import Blocks, averages, fieller, noise_scale


def blocks(u, unit=1):
    """What is kept of gradients u [K, n, P] of `unit` examples each."""
    means = u.mean(1)
    return Blocks(unit, u.shape[1], (means**2).sum(1), means @ means.mean(0), (u**2).sum(2).mean(1))


def drawn(rng, gradient, deviation, count, per_block, unit=1):
    noise = rng.normal(size=(count, per_block, len(deviation))) * deviation / unit**0.5
    return blocks(gradient + noise, unit)


SLOPES = 1 / np.arange(1, 51) ** 0.5


@pytest.mark.parametrize(("per_block", "unit"), [(1, 64), (64, 1)], ids=["two batch sizes", "per example"])
@pytest.mark.parametrize("scale", [2.0, 40.0, 400.0])
def test_intervals_hold_the_exact_noise_scale_in_nineteen_of_twenty_cases(per_block, unit, scale):
    rng = np.random.default_rng(0)
    gradient = np.sqrt((SLOPES**2).sum() / scale / len(SLOPES)) * np.ones(len(SLOPES))
    found = [noise_scale(drawn(rng, gradient, SLOPES, 32, per_block, unit)) for _ in range(150)]
    held = np.mean([each.low <= scale <= each.high for each in found])
    assert 0.9 <= held <= 0.985
    assert np.mean([each.squared_gradient for each in found]) == pytest.approx((gradient**2).sum(), rel=0.05)
    assert np.mean([each.trace for each in found]) == pytest.approx((SLOPES**2).sum(), rel=0.02)


def test_batches_give_the_mean_of_all_disjoint_pairs_of_one_and_two_batches():
    """The estimator of McCandlish et al., appendix A.1, with batches of b and 2 b examples, pair by pair."""
    u = np.random.default_rng(0).normal(size=(6, 1, 9)) + 0.3
    g, b, pairs = u[:, 0], 8, []
    for j in range(6):
        for k in range(j):
            small, big = ((g[j] ** 2).sum() + (g[k] ** 2).sum()) / 2, (((g[j] + g[k]) / 2) ** 2).sum()
            pairs.append(((2 * b * big - b * small) / b, (small - big) / (1 / b - 1 / (2 * b))))
    found = noise_scale(blocks(u, unit=b))
    assert (found.squared_gradient, found.trace) == pytest.approx(np.mean(pairs, axis=0))
    assert found.scale == pytest.approx(found.trace / found.squared_gradient)


def test_a_gradient_that_may_be_zero_has_no_upper_end():
    found = noise_scale(drawn(np.random.default_rng(0), 0 * SLOPES, SLOPES, 32, 8))
    assert found.high == np.inf
    assert found.low > 20


def test_the_jackknife_leaves_out_whole_blocks():
    u = np.random.default_rng(0).normal(size=(5, 3, 4)) + 1
    whole = blocks(u)
    left = [averages(*_of(np.delete(u, k, axis=0)), 12, 1) for k in range(5)]
    spread = np.array(left) - np.mean(left, axis=0)
    covariance = 4 / 5 * spread.T @ spread
    found = noise_scale(whole)
    ends = fieller(
        (found.trace, found.squared_gradient), (covariance[1, 1], covariance[0, 1], covariance[0, 0]), 2.7764451
    )
    assert (found.low, found.high) == pytest.approx(ends)


def _of(u):
    return (u.mean((0, 1)) ** 2).sum(), (u**2).sum(2).mean()


@pytest.mark.parametrize(
    ("means", "covariance", "ends"),
    [
        ((10, 2), (0, 0, 0), (5, 5)),
        ((10, 2), (4, 0, 0), (3, 7)),  # 10 +- 2 standard errors of 2, over 2
        ((10, 2), (0, 0, 0.25), (10 / 3, 10)),  # 2 +- 2 standard errors of 0.5
        ((10, 2), (0, 0, 4), (10 / 6, np.inf)),
        ((1, 2), (4, 0, 0), (0, 2.5)),
        ((10, -1), (1, 0, 1), (0, np.inf)),
    ],
)
def test_fieller_by_hand(means, covariance, ends):
    assert fieller(means, covariance, 2.0) == pytest.approx(ends)
