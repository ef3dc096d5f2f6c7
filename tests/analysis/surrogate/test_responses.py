"""Every rule by which the trials of one batch size become responses."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.counting import COMPLETE, INFEASIBLE, Outcome, TrialCurve
from analysis.surrogate.responses import SLOPE, WORST, Responses, Result, best_points, pooled, responses, slope

GOAL = 0.05


def met(steps, curve=(0.5, 0.04)):
    grid = np.linspace(steps / len(curve), steps, len(curve))
    return Result((0.5,), TrialCurve(grid, curve, None), Outcome(COMPLETE, steps, steps))


def missed(end, curve, steps=None):
    steps = np.linspace(end / len(curve), end, len(curve)) if steps is None else steps
    return Result((0.5,), TrialCurve(steps, curve, None), Outcome(COMPLETE, end, None))


DIVERGED = Result((0.5,), TrialCurve([10], [0.9], first_bad_step=13), Outcome(INFEASIBLE, 13, None))
LATE = Result((0.5,), TrialCurve([10, 20], [0.9, 0.04], first_bad_step=18), Outcome(INFEASIBLE, 18, 20))
L2 = math.log(2)
# name: (trial beside one that met the goal after 100 steps, its response, its variance, further arguments)
TABLE = {
    "met": (met(200), L2, 0, {}),
    "diverged": (DIVERGED, WORST, 0.09, {}),
    "diverged after a crossing": (LATE, WORST, 0.09, {}),
    "last three of four errors": (missed(200, [0.9, 0.1, 0.1, 0.1]), L2 + L2 / 1.1, 0.09, {}),
    "geometric mean": (missed(200, [0.9, 0.2, 0.05, 0.1]), L2 + L2 / 1.1, 0.09, {}),
    "two errors only": (missed(200, [0.2, 0.05]), L2 + L2 / 1.1, 0.09, {}),
    "another slope": (missed(200, [0.1]), L2 + L2 / 2, 0.09, {"slope": 2}),
    "close to the goal": (missed(200, [0.0501]), L2 + 0.05, 0.09, {}),
    "far from the goal": (missed(200, [0.9]), WORST, 0.09, {}),
    "nothing measured": (missed(200, [math.nan]), L2 + 0.35, 0.25, {}),
    "not measured at the end": (missed(200, [0.1, math.nan]), L2 + L2 / 1.1, 0.09, {}),
    "measured beyond its end": (missed(200, [0.1, 0.06], [200, 400]), L2 + L2 / 1.1, 0.09, {}),
    "before training": (missed(200, [0.001, 0.1], [0, 200]), L2 + L2 / 1.1, 0.09, {}),
    "error of any sign": (missed(200, [0.1]), L2 + 0.35, 0.25, {"never_negative": False}),
    "goal of 0": (missed(200, [0.1]), L2 + 0.35, 0.25, {"threshold": 0}),
}


@pytest.mark.parametrize("name", TABLE)
def test_response(name):
    trial, expected, variance, changed = TABLE[name]
    found = responses([met(100), trial], **{"threshold": GOAL, "slope": 1.1, **changed})
    assert found.values == pytest.approx([0, expected])
    assert found.noise_variance == pytest.approx([0, variance])
    assert found.least == pytest.approx(math.log(100))


def test_the_least_may_be_extrapolated():
    found = responses([missed(200, [0.1]), DIVERGED, missed(200, [0.2])], GOAL, 1)
    assert found.values == pytest.approx([0, WORST, L2])
    assert found.least == pytest.approx(math.log(400))


def test_all_diverged():
    found = responses([DIVERGED, DIVERGED], GOAL, 1.1)
    assert found.values.tolist() == [WORST, WORST]
    assert math.isnan(found.least)
    assert responses([], GOAL, 1.1).values.size == 0


@given(st.lists(st.sampled_from([each for each, *_ in TABLE.values()]), min_size=1, max_size=6), st.randoms())
def test_order_does_not_matter_and_the_least_is_0(trials, random):
    shuffled = random.sample(range(len(trials)), len(trials))
    found = responses(trials, GOAL, 1.1)
    again = responses([trials[position] for position in shuffled], GOAL, 1.1)
    np.testing.assert_array_equal(again.values, found.values[shuffled])
    assert found.values.max() <= WORST
    assert found.values.min() == (WORST if all(each.outcome.status == INFEASIBLE for each in trials) else 0)


def curve(steps, errors):
    return Result((0.5,), TrialCurve(steps, errors, None), Outcome(COMPLETE, steps[-1], steps[-1]))


SLOPES = {
    "between half the steps and the steps": ([curve([10, 20, 40], [0.5, 0.16, 0.04])], 2),
    "half lies between evaluations": ([curve([10, 30, 40], [0.64, 0.1, 0.04])], 2),
    "nothing measured up to half": ([curve([30, 40], [0.5, 0.04])], SLOPE),
    "the start does not count": ([curve([0, 40], [0.5, 0.04])], SLOPE),
    "error rose": ([curve([10, 20, 40], [0.5, 0.03, 0.04])], SLOPE),
    "missed": ([missed(40, [0.5, 0.1])], SLOPE),
    "diverged": ([LATE], SLOPE),
    "median": ([curve([10, 20], [0.04 * 2**each, 0.04]) for each in (1, 5, 2)], 2),
    "an error of 0 is half an example": ([curve([10, 20], [0.04, 0.0])], 2),
}


@pytest.mark.parametrize("name", SLOPES)
def test_slope(name):
    trials, expected = SLOPES[name]
    assert slope({64: trials}, error_floor=0.01) == pytest.approx(expected)
    assert slope({8: trials[:1], 64: trials[1:]}, error_floor=0.01) == pytest.approx(expected)


def test_an_error_of_0_without_a_floor_gives_no_slope():
    assert slope({64: [curve([10, 20], [0.04, 0.0])]}) == SLOPE


def test_best_points():
    assert best_points([(0.1,), (0.2,)], [1.0, 1.0]) == [(0.1,), (0.2,)]


def with_least(least, *more):
    return Responses(np.array([WORST if math.isnan(least) else 0.0, *more]), np.zeros(1 + len(more)), least)


# name: (batch size -> least log steps, batch size -> the least that all imply)
POOLED = {
    "perfect scaling": ({1: 6.0, 2: 6 - L2, 4: 6 - 2 * L2}, {1: 6.0, 2: 6 - L2, 4: 6 - 2 * L2}),
    "no scaling": ({1: 6.0, 2: 6.0, 4: 6.0}, {1: 6.0, 2: 6.0, 4: 6.0}),
    "the last rises": ({1: 6.0, 2: 5.5, 4: 5.9}, {1: 6.0, 2: 5.5, 4: 5.5}),
    "the first is behind": ({1: 7.0, 2: 5.5, 4: 5.0}, {1: 5.5 + L2, 2: 5.5, 4: 5.0}),
    "the first is behind the last": ({1: 9.0, 4: 5.0}, {1: 5 + 2 * L2, 4: 5.0}),
    "nothing known": ({1: 6.0, 2: math.nan}, {1: 6.0, 2: 6.0}),
    "nothing known at all": ({1: math.nan, 2: math.nan}, {1: math.nan, 2: math.nan}),
}


@pytest.mark.parametrize("name", POOLED)
def test_pooled(name):
    own, implied = POOLED[name]
    found = pooled({batch_size: with_least(least, 1.0, WORST) for batch_size, least in own.items()})
    assert {b: each.least for b, each in found.items()} == pytest.approx(implied, nan_ok=True)
    for batch_size, each in found.items():
        behind = 0 if math.isnan(own[batch_size]) else own[batch_size] - implied[batch_size]
        first = WORST if math.isnan(own[batch_size]) else behind
        assert each.values == pytest.approx([min(first, WORST), min(1 + behind, WORST), WORST])


@given(st.dictionaries(st.integers(0, 12), st.floats(1, 12), min_size=1))
def test_pooled_leasts_have_slopes_between_minus_one_and_zero(exponents):
    own = {2**exponent: with_least(least) for exponent, least in exponents.items()}
    found = pooled(own)
    leasts = [(math.log(b), found[b].least) for b in sorted(found)]
    for (a, high), (b, low) in itertools.pairwise(leasts):
        assert high - (b - a) - 1e-9 <= low <= high + 1e-9
    assert all(found[b].least <= own[b].least for b in own)
    np.testing.assert_allclose([e.least for e in pooled(found).values()], [e.least for e in found.values()])
