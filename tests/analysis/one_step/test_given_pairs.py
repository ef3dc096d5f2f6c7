"""Pairs as people have them: containers, units, scales, few points, and what is refused."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from helpers.fused import partly

from analysis.one_step.estimate import SPACES, fit

SIZES = np.array([16.0, 64, 256, 1024])
PAIRS = {16: 0.5 / (1 + 40 / 16), 64: 0.5 / (1 + 40 / 64), 256: 0.5 / (1 + 40 / 256), 1024: 0.5 / (1 + 40 / 1024)}
WHOLE = PAIRS | {np.inf: 0.5}
"""The batch size of the whole gradient is infinite."""


def curve(sizes, eps_max, noise_scale):
    return eps_max / (1 + noise_scale / sizes)


@pytest.mark.parametrize(
    "given",
    [
        PAIRS,
        list(PAIRS.items()),
        list(PAIRS.items())[::-1],
        PAIRS.items(),
        [list(pair) for pair in PAIRS.items()],
        np.array(list(PAIRS.items())),
        pd.Series(PAIRS),
        pd.DataFrame({"batch_size": PAIRS.keys(), "learning_rate": PAIRS.values()}),
        pd.DataFrame({"batch_size": PAIRS.keys(), "learning_rate": PAIRS.values()}, dtype="Float64"),
        [(Fraction(size), str(rate)) for size, rate in PAIRS.items()],
        [*PAIRS.items(), (4096, None), (8192, np.nan), (None, 0.3)],
        [*PAIRS.items(), *PAIRS.items()],
        WHOLE,
    ],
)
@pytest.mark.parametrize("space", SPACES)
def test_every_container_gives_the_exact_curve(given, space):
    found = fit(given, space)
    assert (found.eps_max, found.noise_scale) == pytest.approx((0.5, 40), rel=1e-6)
    assert found.low < 40 < found.high
    assert found.eps_low < 0.5 < found.eps_high
    assert found.points == (8 if isinstance(given, list) and len(given) == 8 else 4 + (given is WHOLE))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("rate", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("noise_scale", [0.16, 3.0, 900.0, 1e6])
def test_no_unit_is_too_small_or_too_large(space, rate, unit, noise_scale):
    pairs = zip(SIZES * unit, curve(SIZES, rate, noise_scale), strict=True)
    found = fit(list(pairs), space)
    assert (found.eps_max, found.noise_scale) == pytest.approx((rate, noise_scale * unit), rel=1e-5)
    assert found.low < noise_scale * unit < found.high < 3 * found.low


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(
    ("rates", "low", "high"),
    [
        ([0.5] * 4, 0, 1e-2),  # no noise
        (1e-3 * SIZES, 1e7, np.inf),  # nothing but noise
        ([0.5, 0.4, 0.3, 0.2], 0, np.inf),  # no such curve
    ],
)
def test_curves_without_a_bend_say_so_by_an_open_end(space, rates, low, high):
    found = fit(list(zip(SIZES, rates, strict=True)), space)
    assert found.low <= low * 1.1 if low == 0 else found.low > low
    assert found.high == high if np.isinf(high) else found.high < high
    assert np.isinf(found.eps_high) == np.isinf(high)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("count", partly([3, 4, 5, 6], 3))
@pytest.mark.parametrize("place", [0.25, 8.0, 1000.0])
def test_intervals_hold_it_with_few_points(space, count, place):
    """95 % are nominal; 150 cases of 95 % have 135 or more with probability 0.99. Noise is that of the space."""
    rng, sizes, held = np.random.default_rng(count), 4.0 ** np.arange(1, count + 1), []
    exact = curve(sizes, 0.5, place)
    for _ in range(150):
        noise = rng.normal(0, 0.1, count)
        rates = exact * np.exp(noise) if space == "log" else exact + noise * exact.min()
        found = fit(list(zip(sizes, rates, strict=True)), space)
        held.append((found.low <= place <= found.high, found.eps_low <= 0.5 <= found.eps_high))
    assert (np.sum(held, axis=0) >= 135).all()


@pytest.mark.parametrize(
    ("pairs", "more", "why"),
    [
        ({4: 0.1}, {}, "two batch sizes with a best learning rate, but got 1"),
        ([(4, 0.1), (4, 0.2), (16, None)], {}, "two batch sizes with a best learning rate, but got 1"),
        ({}, {}, "but got 0"),
        (PAIRS, {"space": "logg"}, "log or linear, but got 'logg'"),
        (PAIRS, {"confidence": 95}, "between 0 and 1, but got 95"),
        ({0: 0.1, 4: 0.2}, {}, "batch_sizes must be above 0, but got 0"),
        ({4: -0.1, 16: 0.2}, {}, "learning_rates must be above 0, but got -0.1"),
        ([(4, "x"), (16, 0.2)], {}, "learning_rates must be numbers, but got"),
        ([4, 16], {}, "each row must be a batch size and its best learning rate"),
        (np.array([SIZES, SIZES]), {}, "each row must be a batch size and its best learning rate"),
    ],
)
def test_refusals(pairs, more, why):
    with pytest.raises(ValueError, match=why):
        fit(pairs, **more)
