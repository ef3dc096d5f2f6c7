"""eps(B) = eps_max / (1 + B_n / B): exact on exact pairs in both spaces, with intervals that hold it."""

import numpy as np
import pytest
from scipy.optimize import curve_fit

from analysis.one_step.estimate import SPACES, best_learning_rate, best_learning_rates, fit, fit_batches, interval

SIZES = np.array([4, 16, 64, 256, 1024])


def curve(sizes, eps_max, noise_scale):
    return eps_max / (1 + noise_scale / sizes)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(("eps_max", "noise_scale"), [(0.5, 40.0), (3e-4, 900.0), (20.0, 5.0)])
def test_exact_pairs_give_the_exact_curve(space, eps_max, noise_scale):
    found = fit(dict(zip(SIZES.tolist(), curve(SIZES, eps_max, noise_scale), strict=True)), space)
    assert (found.eps_max, found.noise_scale) == pytest.approx((eps_max, noise_scale), rel=1e-5)
    assert found.residual < 1e-5
    assert (found.space, found.points) == (space, 5)
    assert found.learning_rate(noise_scale) == pytest.approx(eps_max / 2, rel=1e-5)


@pytest.mark.parametrize("space", SPACES)
def test_it_is_the_least_squares_fit_of_scipy(space):
    rates = curve(SIZES, 0.5, 40.0) * np.exp(np.random.default_rng(3).normal(0, 0.2, len(SIZES)))
    shape, wanted = (curve, rates) if space == "linear" else (lambda b, a, n: np.log(curve(b, a, n)), np.log(rates))
    (eps_max, noise_scale), covariance = curve_fit(shape, SIZES, wanted, p0=(0.5, 40.0), bounds=(1e-6, 1e6))
    found = fit(dict(zip(SIZES.tolist(), rates, strict=True)), space)
    assert (found.eps_max, found.noise_scale) == pytest.approx((eps_max, noise_scale), rel=1e-3)
    quantile = 3.182446  # Student's t with 3 degrees of freedom
    half = quantile * np.sqrt(covariance[0, 0]) / eps_max**2  # of 1 / eps_max
    assert 1 / found.eps_low - 1 / eps_max == pytest.approx(half, rel=2e-2)
    assert found.low < found.noise_scale < found.high


def test_the_spaces_weigh_differently():
    rates = dict(zip(SIZES.tolist(), curve(SIZES, 0.5, 40.0), strict=True)) | {4: 0.03}
    log, linear = (fit(rates, space) for space in SPACES)
    assert abs(np.log(linear.noise_scale / 40)) < abs(np.log(log.noise_scale / 40))  # eps(4) is small in linear space


@pytest.mark.parametrize("space", SPACES)
def test_intervals_of_residuals_hold_it_in_nineteen_of_twenty_cases(space):
    rng, held = np.random.default_rng(0), []
    for _ in range(200):
        rates = curve(SIZES, 0.5, 40.0) * np.exp(rng.normal(0, 0.1, len(SIZES)))
        found = fit(dict(zip(SIZES.tolist(), rates, strict=True)), space)
        held.append(found.low <= 40 <= found.high)
    assert np.mean(held) > (0.88 if space == "log" else 0.75)  # the noise is in log space


@pytest.mark.slow
@pytest.mark.parametrize("space", SPACES)
def test_intervals_of_batches_hold_it_in_nineteen_of_twenty_cases(space):
    rng, held = np.random.default_rng(1), []
    for _ in range(100):
        pairs = {}
        for size in SIZES.tolist():
            bend = 1 / curve(size, 0.5, 40.0) * rng.gamma(8, 1 / 8, size=(32, 1))  # curvature of each batch
            grid = curve(size, 0.5, 40.0) * 2 ** np.arange(-1.0, 1.5, 0.5)
            pairs[size] = best_learning_rates(grid, -grid + bend * grid**2 / 2)
        found = fit_batches(pairs, space)
        held.append(found.low <= 40 <= found.high)
    assert np.mean(held) >= 0.85


def test_batch_sizes_without_a_best_learning_rate_are_left_out():
    pairs = {size: curve(size, 0.5, 40.0) * np.ones(9) for size in SIZES.tolist()}
    pairs[4] = pairs[4] * np.array([np.nan] + [1.0] * 8)
    assert fit_batches(pairs).points == 4
    assert fit_batches({size: pairs[size] for size in (4, 16, 64)}) is None
    assert fit({4: np.nan, 16: 0.1, 64: 0.3}).points == 2


def test_two_pairs_have_no_interval_and_a_straight_line_no_end():
    found = fit({4: 0.1, 64: 0.4})
    assert np.isnan([found.low, found.high, found.eps_low, found.residual]).all()
    assert found.learning_rate(64) == pytest.approx(0.4, rel=1e-4)
    line = fit({size: 1e-3 * size * (1.1 if size == 16 else 1) for size in (4, 16, 64)})
    assert line.high == line.eps_high == np.inf


@pytest.mark.parametrize(
    ("rates", "losses", "best"),
    [
        ([1, 2, 4], [2, 1, 2], None),
        ([0.1, 0.2, 0.4, 0.8], [1.09, 1.04, 1.04, 1.34], 0.3 * 1.0),
        ([1, 2, 4], [1, 2, 3], np.nan),
        ([1, 2, 4], [3, 2, 1], np.nan),
        ([1, 2, 4], [3, 2, np.inf], np.nan),
        ([1, 2, 4], [np.nan] * 3, np.nan),
    ],
)
def test_the_lowest_point_of_a_parabola(rates, losses, best):
    found = best_learning_rate(rates, losses)
    if best is None:
        assert 2 < found < 3
    else:
        assert found == pytest.approx(best, nan_ok=True, rel=0.2)


@pytest.mark.parametrize("spacing", [1.2, 2**0.5, 2.0, 4.0])
def test_a_quadratic_loss_is_solved_whatever_the_spacing(spacing):
    rates = 0.37 * spacing ** np.arange(-3, 4)
    assert best_learning_rate(rates, 5 - 0.6 * rates + rates**2) == pytest.approx(0.3)


def test_the_interval_of_one_learning_rate():
    assert np.isnan(interval(np.array([0.1, np.nan, 0.1]))).all()
    low, high = interval(np.array([0.1, 0.1, 0.1, 0.1]))
    assert (low, high) == pytest.approx((0.1, 0.1))
