"""The minimum and the share of the box near it, on surfaces whose answers are known."""

import math

import numpy as np
import pytest

from analysis.surrogate.process import Coordinates, Process, Shape
from analysis.surrogate.tunability import landscape

TWO = Coordinates(levels=(None, None), learning_rate=0)
SHAPE = Shape(0.0, 0.0, 0.25, 0.3, 3.0, 0.03)
CENTRE = (0.62, 0.41)


def bowl(curvature, trials=300, noise=0.03):
    """The response is curvature x distance^2 from CENTRE."""
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.random((trials // 2, 2)), CENTRE + 0.1 * rng.standard_normal((trials // 2, 2))])
    values = curvature * np.square(points - CENTRE).sum(1) + noise * rng.standard_normal(len(points))
    return Process(TWO, SHAPE, points, [64] * len(points), values, np.zeros(len(points)))


def test_minimum():
    point, response, _ = landscape(bowl(4), 64)
    assert point == pytest.approx(CENTRE, abs=0.03)
    assert response == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("curvature", [4, 64])
def test_share(curvature):
    share, low, high = landscape(bowl(curvature), 64).tunability
    assert low < share < high
    truth = math.pi * math.log(1.2) / curvature
    assert low * 0.8 < truth < high * 1.2


def test_fewer_trials_tell_less():
    widths = [high / low for _, low, high in (landscape(bowl(16, trials), 64).tunability for trials in (16, 300))]
    assert widths[0] > 1.5 * widths[1]


def test_a_space_without_parameters():
    nothing = Process(Coordinates(levels=()), SHAPE, np.zeros((2, 0)), [8, 8], [0.0, 0.1], [0.0, 0.0])
    found = landscape(nothing, 8)
    assert (found.point, found.tunability) == ((), (1, 1, 1))
