"""The process that knows where training diverges."""

import numpy as np
import pytest

from analysis.surrogate.divergence import Bounded, fit_bounded
from analysis.surrogate.process import MEAN, SD, Coordinates, Process, Shape
from analysis.surrogate.responses import WORST

ONE = Coordinates.of({"learning_rate": {"low": 0.01, "high": 10.0, "scale": "log"}})
UNITS = np.linspace(0.05, 0.95, 10)[:, None]
EDGE = 0.68
"""Responses fall up to here; beyond it all trials diverge."""


def cliff(units):
    return np.where(units[:, 0] < EDGE, 3 * (EDGE - units[:, 0]), WORST).clip(max=WORST)


def bounded():
    return fit_bounded(ONE, UNITS, [64] * 10, cliff(UNITS), [0.0] * 10, UNITS[:, 0] > EDGE)


def test_the_least_is_found_beside_the_edge():
    process, grid = bounded(), np.linspace(0, 1, 401)[:, None]
    smooth = fit_bounded(
        ONE, UNITS, [64] * 10, cliff(UNITS), [0.3**2 * bad for bad in UNITS[:, 0] > EDGE], [False] * 10
    )
    best, without = (float(grid[np.argmin(each.mean(grid, 64)), 0]) for each in (process, smooth))
    assert 0.65 <= best <= 0.7  # the last trial that did not diverge, and the middle between it and the next
    assert without < 0.64  # the process of one output stays away from the edge


def test_beyond_the_edge_nothing_is_promised():
    process, beyond = bounded(), [[0.8], [0.9]]
    posterior = process.posterior([[0.5], *beyond], 64)
    assert process.mean(beyond, 64).tolist() == posterior.mean[1:].tolist() == [WORST, WORST]
    assert process.sd(beyond, 64).tolist() == [0, 0]
    assert not posterior.factor[1:].any()
    assert process.sd([[0.5]], 64) > 0


def test_far_from_all_trials_divergence_is_not_assumed():
    near = Bounded(ONE, Shape(), [[0.1], [0.2], [0.3]], [64] * 3, [1.0, 0.5, WORST], [0.0] * 3, [False, False, True])
    assert near.mean([[0.3]], 64) == WORST
    assert near.mean([[-2.0]], 64) < MEAN + 0.1
    assert near.sd([[-2.0]], 64) == pytest.approx(SD, rel=0.02)


@pytest.mark.parametrize("diverged", [[False] * 4, [True, True, False, False], [True] * 4])
def test_one_output_if_none_diverged_or_nearly_all_did(diverged):
    found = fit_bounded(ONE, UNITS[:4], [64] * 4, cliff(UNITS[:4]), [0.0] * 4, diverged)
    assert type(found) is Process
