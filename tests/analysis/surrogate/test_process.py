"""The Gaussian process against formulas written out here."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from analysis.surrogate.process import GRIDS, JITTER, MEAN, Coordinates, Process, Shape, fit

RATE = {"low": 0.01, "high": 10.0, "scale": "log"}
MOMENTUM = {"low": 0.0, "high": 0.99, "scale": "reverse_log"}
TWO = Coordinates.of({"learning_rate": RATE, "momentum": MOMENTUM})
SHAPE = Shape(0.0, 1.0, 0.16, 0.6, 1.5, 0.1)


def covariance(one, other, shape=SHAPE):
    """Between (u_rate, u_momentum, B) and another, from the definition."""

    def position(point):
        rate, momentum, batch_size = point
        octave, slant = math.log(2) / math.log(1000), math.log(100) / math.log(1000)
        rate += shape.momentum_slant * slant * momentum - shape.batch_slant * octave * math.log2(batch_size)
        return rate / shape.learning_rate_length, momentum / shape.other_length, math.log2(batch_size)

    (*a, b), (*c, d) = position(one), position(other)
    r = math.sqrt(5 * (math.dist(a, c) ** 2 + ((b - d) / shape.batch_length) ** 2))
    return 0.64 * (1 + r + r**2 / 3) * math.exp(-r) + 0.0225 * math.exp(-((b - d) ** 2) / 32)


def data(trials, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random((trials, 2)), 2.0 ** rng.integers(2, 6, trials), rng.random(trials), rng.random(trials) / 4


def matrix(one, other, shape=SHAPE):
    return np.array([[covariance(a, b, shape) for b in other] for a in one])


def with_batch(points, batch_sizes):
    return [(*point, batch_size) for point, batch_size in zip(points, batch_sizes, strict=True)]


@pytest.mark.parametrize("shape", [SHAPE, Shape()])
def test_posterior_and_likelihood(shape):
    points, batch_sizes, values, variance = data(7)
    process = Process(TWO, shape, points, batch_sizes, values, variance)
    known, new = with_batch(points, batch_sizes), with_batch(data(4, 1)[0], [16] * 4)
    prior = matrix(known, known, shape) + np.diag(shape.noise**2 + variance)
    gain = matrix(new, known, shape) @ np.linalg.inv(prior)
    assert process.log_likelihood == pytest.approx(multivariate_normal([MEAN] * 7, prior).logpdf(values))
    posterior = process.posterior(data(4, 1)[0], 16)
    np.testing.assert_allclose(posterior.mean, MEAN + gain @ (values - MEAN))
    np.testing.assert_allclose(process.mean(data(4, 1)[0], 16), posterior.mean)
    explained = gain @ matrix(known, new, shape)
    expected = matrix(new, new, shape) - explained + JITTER * np.eye(4)
    np.testing.assert_allclose(posterior.factor @ posterior.factor.T, expected, atol=1e-9)
    np.testing.assert_allclose(process.sd(data(4, 1)[0], 16) ** 2, np.diag(expected) - JITTER)


def test_draws_have_the_covariance_of_the_posterior_and_no_mean():
    posterior = Process(TWO, SHAPE, *data(7)).posterior(data(3, 1)[0], 16)
    rng = np.random.default_rng(0)
    drawn = np.array([posterior.centred_draw(rng) for _ in range(4000)])
    np.testing.assert_allclose(drawn.mean(0), 0, atol=0.05)
    np.testing.assert_allclose(np.cov(drawn.T), posterior.factor @ posterior.factor.T, atol=0.05)


def test_fit_descends_the_grids_in_order():
    def likelihood(shape):
        return Process(TWO, shape, *data(12)).log_likelihood

    shape = Shape()
    for name, grid in GRIDS.items():
        shape = max((replace(shape, **{name: value}) for value in grid), key=likelihood)
    found = fit(TWO, *data(12))
    assert found.shape == shape != Shape()
    assert found.log_likelihood == likelihood(shape)
    assert fit(TWO, *data(12), found.shape).log_likelihood >= found.log_likelihood


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(8)))
def test_the_order_of_trials_does_not_matter(order):
    found = fit(TWO, *data(8))
    again = fit(TWO, *(each[order] for each in data(8)))
    assert again.shape == found.shape
    np.testing.assert_allclose(again.mean(data(5, 1)[0], 8), found.mean(data(5, 1)[0], 8))


@settings(max_examples=20, deadline=None)
@given(st.floats(-0.3, 0.3), st.integers(-3, 3))
def test_only_differences_of_positions_matter(shift, octaves):
    points, batch_sizes, values, variance = data(8)
    new = data(5, 1)[0]
    found = Process(TWO, SHAPE, points, batch_sizes, values, variance).mean(new, 8)
    moved = Process(TWO, SHAPE, points + shift, batch_sizes * 2.0**octaves, values, variance)
    np.testing.assert_allclose(moved.mean(new + shift, 8 * 2.0**octaves), found)


FIXED = {"choices": [0.9]}
SPACES = {
    "learning rate alone": ({"learning_rate": RATE}, {"other_length", "momentum_slant"}),
    "with momentum": ({"learning_rate": RATE, "momentum": MOMENTUM}, set()),
    "with beta1": ({"learning_rate": RATE, "beta1": MOMENTUM}, set()),
    "momentum first": ({"learning_rate": RATE, "momentum": MOMENTUM, "beta1": FIXED}, set()),
    "fixed momentum": ({"learning_rate": RATE, "momentum": FIXED}, {"momentum_slant", "other_length"}),
    "momentum by choice": ({"learning_rate": RATE, "momentum": {"choices": [0.0, 0.9]}}, {"momentum_slant"}),
    "fixed learning rate": (
        {"learning_rate": {"choices": [0.1]}, "momentum": MOMENTUM},
        {"momentum_slant", "batch_slant", "learning_rate_length"},
    ),
    "linear": (
        {"learning_rate": {"low": 0, "high": 1, "scale": "linear"}, "momentum": MOMENTUM},
        {"momentum_slant", "batch_slant"},
    ),
    "learning rate by choice": (
        {"learning_rate": {"choices": [0.1, 1.0]}, "momentum": MOMENTUM},
        {"momentum_slant", "batch_slant"},
    ),
}


@pytest.mark.parametrize("name", SPACES)
def test_what_a_space_does_not_depend_on_is_not_fitted(name):
    space, without = SPACES[name]
    coordinates = Coordinates.of(space)
    assert set(GRIDS) - set(coordinates.fitted) == without
    rng = np.random.default_rng(0)
    points, batch_sizes = rng.random((5, len(space))), 2.0 ** np.arange(2, 7)
    likelihoods = {
        field: {
            Process(
                coordinates, replace(SHAPE, **{field: value}), points, batch_sizes, np.arange(5.0), np.zeros(5)
            ).log_likelihood
            for value in grid
        }
        for field, grid in GRIDS.items()
    }
    assert {field for field, found in likelihoods.items() if len(found) == 1} == without


def test_choices_stand_at_their_ranks():
    coordinates = Coordinates.of({"a": {"choices": [8, 1, 3]}})
    shape = Shape(other_length=1.0, batch_length=1.0)
    found = coordinates.positions([[0.0], [0.34], [0.99], [1.0]], 2, shape)
    assert found.tolist() == [[1, 1], [0, 1], [0.5, 1], [0.5, 1]]
