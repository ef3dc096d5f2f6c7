"""The constrained curve against a general solver, and the limits of planted curves with and without noise."""

from functools import partial

import numpy as np
import pytest
from helpers.fused import seldom
from scipy.optimize import minimize
from scipy.special import stdtrit

from analysis.estimates import convex

SIZES = 2.0 ** np.arange(11)
LOG_SIZES = np.log(SIZES)
INF = np.inf


def shoulder(p, critical=32.0):
    return 10 * (1 + (critical / SIZES) ** p) ** (1 / p)


# Name -> (S(B), perfect-scaling limit, maximum useful batch size), both by the formula of the curve.
PLANTED = {
    "hyperbola": (shoulder(1), 1.2 * 33 - 32, None),
    "p=2": (shoulder(2), 32 * np.sqrt(1.44 * (1 + 1 / 1024) - 1), None),
    "p=4": (shoulder(4), 32 * (1.2**4 * (1 + 2.0**-20) - 1) ** 0.25, 32 * ((1.05**4 - 1) ** -0.25)),
    "perfect": (1e4 / SIZES, INF, INF),
    "plateau": (np.full(11, 100.0), -INF, -INF),
}


def solved(log_steps, log_errors=1.0, equal=None):
    """The constrained fit by a general solver; `equal`: a function of the curve that must be zero."""
    slopes = np.diff(np.eye(len(log_steps)), axis=0) / np.diff(LOG_SIZES)[:, None]
    rows = np.vstack([np.diff(slopes, axis=0), slopes[:1], -slopes[-1:]])
    least = np.append(np.zeros(len(rows) - 2), [-1.0, 0.0])
    return minimize(
        lambda f: (((f - log_steps) / log_errors) ** 2).sum(),
        np.full(len(log_steps), log_steps.mean()) - 0.1 * LOG_SIZES,
        jac=lambda f: 2 * (f - log_steps) / log_errors**2,
        constraints=[{"type": "ineq", "fun": lambda f: rows @ f - least, "jac": lambda f: rows}]
        + [{"type": "eq", "fun": equal}] * (equal is not None),
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    ).x


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.3])
def test_the_fit_is_the_least_squares_solution(name, noise):
    log_steps = np.log(PLANTED[name][0]) + noise * np.random.default_rng(0).standard_normal(11)
    found = convex.fit(LOG_SIZES, log_steps)
    np.testing.assert_allclose(found, solved(log_steps), atol=1e-6)
    slopes = np.diff(found) / np.diff(LOG_SIZES)
    assert slopes.min() > -1 - 1e-9
    assert slopes.max() < 1e-9
    assert np.diff(slopes).min() > -1e-9


@pytest.mark.parametrize(
    ("steps", "expected"),
    [([1, 10, 100], 10.0), ([1e6, 1, 1e-6], 1.0)],
    ids=["a_rise_is_level", "no_fall_is_steeper_than_perfect_scaling"],
)
def test_data_against_the_constraints(steps, expected):
    found = np.exp(convex.fit(np.log([1, 2, 4]), np.log(steps)))
    assert found[1] == pytest.approx(expected)
    assert found[0] / found[1] == pytest.approx(1 if steps[0] < steps[1] else 2)


@pytest.mark.parametrize("name", PLANTED)
def test_limits_of_curves_without_noise(name):
    steps, perfect, useful = PLANTED[name]
    found = convex.limits(dict(zip(SIZES, steps, strict=True)))
    for limit, truth in zip(found.values(), (perfect, useful), strict=True):
        if truth is not None:
            bound = {INF: ">", -INF: "<"}.get(truth, "=")
            shown = {"=": truth, ">": 1024.0, "<": 1.0}[bound]
            assert limit.bound == bound
            assert limit.value == pytest.approx(shown, rel=0.2)  # straight pieces against a bent curve
    assert all(np.isnan(limit.low) for limit in found.values())


@pytest.mark.parametrize(
    ("steps", "base", "bounds"),
    [
        ({1: 800, 2: 400, 4: 200, 8: 200, 16: 200}, 0, "=="),
        ({1: 800, 2: 400, 4: 200, 8: 200, 16: INF}, 0, "=>"),  # a miss at the end: larger ones may still gain
        ({1: 800, 2: 400, 4: 200, 8: 100, 16: INF}, 0, ">>"),
        ({1: INF, 2: 400, 4: 200, 8: 200, 16: 200}, 0, "=="),
        ({1: 800, 2: INF, 4: 200, 8: 200, 16: 200}, 0, "=="),
        ({1: 800, 2: 400, 4: 200, 8: 200, 16: 200}, 8, "<="),
        ({1: 800, 2: 400}, 0, "=="),  # too few: NaN
    ],
)
def test_bounds(steps, base, bounds):
    found = list(convex.limits(steps, base=base).values())
    assert "".join(limit.bound for limit in found) == bounds
    assert all(np.isnan(limit.value) == (len(steps) < convex.FEWEST) for limit in found)


@pytest.mark.parametrize("name", ["hyperbola", "p=2", "p=4"])
@pytest.mark.parametrize("error", [0.1, np.linspace(0.05, 0.15, 11)], ids=["equal", "unequal"])
def test_an_interval_ends_where_the_closest_curve_is_1_96_errors_further_away(name, error):
    log_errors = error * np.ones(11)
    log_steps = np.log(PLANTED[name][0]) + log_errors * np.random.default_rng(0).standard_normal(11)

    def squares(curve):
        return (((curve - log_steps) / log_errors) ** 2).sum()

    def beyond(curve, size, limit):  # 0 if this is the limit of the curve
        there = np.interp(np.log(size), LOG_SIZES, curve)
        if limit == "perfect_scaling_limit":
            return there + np.log(size) - curve[0] - np.log(1.2)
        return there - curve[-1] - np.log(1.05)

    found = convex.limits(dict(zip(SIZES, np.exp(log_steps), strict=True)), dict(zip(SIZES, log_errors, strict=True)))
    closest, tried = squares(solved(log_steps, log_errors)), 0
    for limit, interval in found.items():
        for end in (interval.low, interval.high):
            if 1 < end < 1024 and end != interval.value:
                tried += 1
                curve = solved(log_steps, log_errors, partial(beyond, size=end, limit=limit))
                assert np.sqrt(squares(curve) - closest) == pytest.approx(1.96, rel=0.05)
    assert tried >= 2


def covered(name, curves, every=1):
    """The share of noisy curves whose intervals hold the limits of the measured points of a curve without noise."""
    sizes, log_sizes, log_steps = SIZES[::every], LOG_SIZES[::every], np.log(PLANTED[name][0][::every])
    count = len(sizes)
    limits = convex.perfect_scaling_limit, convex.useful_batch_size
    truths = [np.exp(limit(log_sizes, log_steps)) for limit in limits]
    generator, hits = np.random.default_rng(0), np.zeros(2)
    for _ in range(curves):
        seeds = log_steps + 0.15 * generator.standard_normal(count) + 0.2 * generator.standard_normal((4, count))
        points = np.median(seeds, axis=0)
        pooled = stdtrit(3 * count, 0.975) * 1.25 * np.sqrt(seeds.var(axis=0, ddof=1).mean()) / 2
        residual = np.sqrt(((points - convex.fit(log_sizes, points)) ** 2).sum() / (count - 4)) * stdtrit(
            count - 4, 0.975
        )
        steps = dict(zip(sizes, np.exp(points), strict=True))
        found = convex.limits(steps, dict.fromkeys(sizes, max(pooled, residual) / 1.96))
        hits += [
            x.low <= 1.001 * truth and truth <= 1.001 * x.high for x, truth in zip(found.values(), truths, strict=True)
        ]
    return hits / curves


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hyperbola", "p=4"])
def test_intervals_hold_the_limits(name):
    assert covered(name, 20).min() >= 0.6


@pytest.mark.parametrize("every", seldom((1, 2)))
@pytest.mark.parametrize("name", PLANTED)
def test_how_often_intervals_hold_the_limits(name, every):
    assert covered(name, 200, every).min() >= 0.91


def test_points_that_no_convex_curve_comes_close_to_have_larger_errors():
    """Steps that rise beyond their errors say that the errors, or the shape of the curve, are wrong."""
    steps, errors = {2: 300.0, 64: 39.0, 128: 28.0, 512: 28.0}, {2: 0.06, 64: 0.06, 128: 0.06, 512: 0.06}
    rising = steps | {512: 37.0}
    narrow, wide = (convex.limits(each, errors)["perfect_scaling_limit"] for each in (steps, rising))
    assert np.log(wide.high / wide.low) > 2 * np.log(narrow.high / narrow.low)


def test_intervals_move_with_the_data_alone():
    """Random numbers that differ from one data set to the next would move the ends by up to a tenth."""
    log_steps, errors = np.log(shoulder(2)), dict.fromkeys(SIZES, 0.1)
    levels = [0.0, 1e-6, -2e-6]
    found = [convex.limits(dict(zip(SIZES, np.exp(log_steps + level), strict=True)), errors) for level in levels]
    for name in found[0]:
        ends = np.array([(each[name].low, each[name].value, each[name].high) for each in found])
        assert ends == pytest.approx(np.broadcast_to(ends[0], ends.shape), rel=1e-4)


@pytest.mark.parametrize(
    "steps", [[17, 2, 1, 1], [167, 23.5, 12, 12], [800, 400, 190, 200], [18, 23, 23, 3, 3], [640, 320, 160, 80, 40]]
)
def test_limits_are_multiplied_with_the_batch_sizes(steps):
    """Curves through equal steps, or in proportion, are means of fewer curves; rounding decided how many."""
    sizes, ends = [1, 5, 18, 26, 40][: len(steps)], []
    for factor in range(1, 12):
        found = convex.limits(
            {factor * size: each for size, each in zip(sizes, steps, strict=True)},
            {factor * size: 0.02 for size in sizes},
        )
        ends.append([(each.low / factor, each.value / factor, each.high / factor) for each in found.values()])
    assert np.array(ends) == pytest.approx(np.broadcast_to(ends[0], np.shape(ends)), rel=1e-6)


@pytest.mark.parametrize("last", [8, 64, 128, 512, 4096])  # exp(log(B)) is not B for these
def test_a_bound_and_the_end_of_its_interval_are_the_same_measured_batch_size(last):
    sizes = [last // 8, last // 4, last // 2, last]
    for error in (1e-6, 0.0):
        found = convex.limits({size: 1e6 / size for size in sizes}, dict.fromkeys(sizes, error))
        for limit in found.values():
            assert (limit.value, limit.bound, limit.low) == (last, ">", last)
