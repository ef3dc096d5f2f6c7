"""The spread of critical batch sizes over pairs: errors of measurement are no difference."""

import numpy as np
import pytest
from helpers.fused import partly

from analysis.claims.spread import difference, spread

MODELS = 6
SETS = [(model, MODELS + model) for model in range(MODELS)]
"""Pairs of data sets: each model on the first and on the second."""
OTHERS = [(of + one, of + other) for of in (0, MODELS) for other in range(MODELS) for one in range(other)]
"""Pairs of models on each data set."""
TABLES = 100


def spreads(size, rng):
    """Logs of critical batch sizes whose data sets differ by exactly `size`, and whose models about as much."""
    models = np.tile(rng.normal(size=MODELS), 2)
    sets = rng.choice([-1, 1], size=MODELS)
    return size * (models / np.sqrt(2) + np.concatenate([sets, -sets]) / 2)


@pytest.mark.parametrize("size", [0.0, 0.1, 0.4, 1.0])
@pytest.mark.parametrize("error", [0.05, 0.3])
@pytest.mark.parametrize("rougher", partly([1, 3], 2, 1))
def test_intervals_hold_the_true_difference(size, error, rougher):
    """Also where the critical batch sizes of one data set are measured with three times the error."""
    rng = np.random.default_rng(5)
    errors = np.full(2 * MODELS, error) * np.repeat([1, rougher], MODELS)
    above = below = 0
    for _ in range(TABLES):
        logs = spreads(size, rng)
        truth = float(np.subtract(*(spread(logs, 0 * errors, pairs) for pairs in (OTHERS, SETS))))
        _, low, high = difference(logs + rng.normal(size=len(logs)) * errors, errors, OTHERS, SETS)
        above, below = above + (low > truth + 1e-9), below + (high < truth - 1e-9)
    assert above <= 0.06 * TABLES
    assert below <= 0.06 * TABLES


def test_errors_are_not_taken_for_differences():
    """The mean of absolute differences called half of such tables a difference of optimizers."""
    rng = np.random.default_rng(6)
    errors = np.repeat([0.1, 0.1, 0.3, 0.3], 4)
    sets, others = [(i, 4 + i) for i in range(4)], [(8 + i, 12 + i) for i in range(4)]
    shown = [difference(rng.normal(size=16) * errors, errors, others, sets)[1] > 0 for _ in range(TABLES)]
    assert np.mean(shown) <= 0.05


def test_without_errors_the_spread_is_the_root_mean_square():
    logs = np.log([10.0, 20.0, 80.0])
    found = spread(logs, np.zeros(3), [(0, 1), (1, 2)])
    assert found == pytest.approx(np.sqrt((np.log(2) ** 2 + np.log(4) ** 2) / 2))
    assert difference(logs, np.zeros(3), [(1, 2)], [(0, 1)]) == pytest.approx([np.log(2)] * 3)
