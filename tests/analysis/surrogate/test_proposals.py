"""Points are functions of their keys; candidates and the choice among them."""

import numpy as np
import pytest

from analysis.surrogate.process import Coordinates, Process, Shape
from analysis.surrogate.proposals import NEAR, SPREAD, candidates, chosen, point_candidates, propose

TWO = Coordinates.of(
    {
        "learning_rate": {"low": 0.01, "high": 10.0, "scale": "log"},
        "momentum": {"low": 0.0, "high": 0.99, "scale": "reverse_log"},
    }
)
BEST = [(0.5, 0.5), (0.4, 0.4), (0.0, 1.0)]
KEY = (0, 64, 1)


def process(seed=0, shape=None):
    rng = np.random.default_rng(seed)
    points = rng.random((12, 2))
    return Process(TWO, shape or Shape(), points, np.repeat([16, 64], 6), 4 * abs(points[:, 0] - 0.5), np.zeros(12))


def test_a_point_does_not_depend_on_the_others():
    together = propose(process(), 64, BEST, KEY, range(6))
    assert propose(process(), 64, BEST, KEY, [5, 2]) == [together[5], together[2]]
    assert len(set(together)) == 6


@pytest.mark.parametrize("other", [(1, 64, 1), (0, 16, 1), (0, 64, 2), (0, 1, 64, 1)])
def test_other_keys_give_other_points(other):
    one, two = (propose(process(), 64, BEST, key, range(4)) for key in (KEY, other))
    assert not set(one) & set(two)


def test_a_point_minimizes_the_mean_and_a_part_of_its_draw():
    points = point_candidates(2, BEST, KEY, 3)
    posterior = process().posterior(points, 64)
    drawn = posterior.factor @ np.random.default_rng((*KEY, 2, 3)).standard_normal(len(points))
    assert propose(process(), 64, BEST, KEY, [3]) == [tuple(points[np.argmin(posterior.mean + 0.6 * drawn)])]


@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_candidates_of_a_point(dimensions):
    best = [point[:1] * dimensions for point in BEST]
    points = point_candidates(dimensions, best, KEY, 0)
    assert points.shape == (SPREAD + NEAR, dimensions)
    np.testing.assert_array_equal(points, points.round(6))
    assert points.min() >= 0
    assert points.max() <= 1
    spread, near = points[:SPREAD], points[SPREAD:]
    np.testing.assert_allclose(np.histogram(spread[:, 0], 8, (0, 1))[0], SPREAD / 8, atol=2)
    np.testing.assert_array_equal(point_candidates(dimensions, best[:1], KEY, 0)[:SPREAD], spread)
    nearest = np.array([[np.abs(point - one).max() for one in best] for point in near])
    assert nearest.min(1).max() < 0.25
    assert set(nearest.argmin(1)) == {0, 1, 2}
    assert not set(map(tuple, points)) & set(map(tuple, point_candidates(dimensions, best, KEY, 1)[:SPREAD]))
    # One best point gives the same displacements around it.
    around = point_candidates(dimensions, [(0.5,) * dimensions], KEY, 0)[SPREAD:] - 0.5
    assert around.std() == pytest.approx(0.05, rel=0.2)


def test_streams_are_different():
    """NumPy gives (1, 2) and (1, 2, 0) one stream, so that draw 0 could share the stream of the candidates."""
    words = [np.random.default_rng((*KEY, stream, number)).random() for stream in range(3) for number in range(2)]
    assert len(set(words)) == 6


def test_a_space_without_parameters_has_one_point():
    nothing = Process(Coordinates(levels=()), Shape(), np.zeros((2, 0)), [8, 8], [0.0, 0.1], [0.0, 0.0])
    assert propose(nothing, 8, [()], KEY, [0, 1]) == [(), ()]


def test_the_least_mean_and_the_fewest_steps_are_candidates():
    points = [(0.5, 0.5), (0.9, 0.5), (0.49, 0.5)]
    values = [0.1, 0.08, 0.12]  # two good points side by side
    noisy = Process(TWO, Shape(noise=0.35), points, [64] * 3, values, np.zeros(3))
    assert int(np.argmin(noisy.mean(points, 64))) == 0
    assert candidates(noisy, 64, points, [120, 100, 120]) == [0, 1]
    assert candidates(noisy, 64, points, [100, 100, None]) == [0, 2]  # the next by mean
    assert candidates(noisy, 64, points, [None, 200, 200]) == [0, 1]
    assert candidates(noisy, 64, points, [None, None, None]) == []


def test_the_lower_mean_over_screening_seeds_is_chosen():
    assert chosen([[0.0, 0.4], [0.1, 0.2]]) == 1
    assert chosen([[0.1, 0.2], [0.2, 0.1]]) == 0
    assert chosen([[1.0]]) == 0
