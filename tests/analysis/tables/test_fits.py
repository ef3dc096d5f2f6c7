"""Fits through curves whose critical batch size is known, and what they say where there is none."""

import math

import numpy as np
import pytest
from helpers.fused import partly
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.tables import fits
from analysis.tables.scaling import critical_batch_sizes

SIZES = [2**power for power in range(13)]


def curve(critical, sharpness=1.0, least=200.0, sizes=SIZES):
    return {size: least * (1 + (critical / size) ** sharpness) ** (1 / sharpness) for size in sizes}


def noisy(steps, deviation, generator):
    return {size: count * math.exp(generator.normal(0, deviation)) for size, count in steps.items()}


@settings(max_examples=40)
@given(st.floats(2, 2000), st.floats(5, 1e6))
def test_an_exact_hyperbola(critical, least):
    fit = fits.hyperbola(curve(critical, least=least))
    assert (fit.critical, fit.steps_min) == pytest.approx((critical, least), rel=1e-5)
    assert fit.examples_min == pytest.approx(critical * least, rel=1e-5)
    assert fit.steps(np.array(SIZES)) == pytest.approx(list(curve(critical, least=least).values()), rel=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.floats(8, 500), st.floats(0.7, 8))
def test_an_exact_shoulder(critical, sharpness):
    fit = fits.shoulder(curve(critical, sharpness))
    assert (fit.critical, fit.sharpness) == pytest.approx((critical, sharpness), rel=1e-3)


def test_a_bend_between_two_batch_sizes_is_as_sharp_as_it_can_be():
    """Any sharp bend fits as well: the descent ended anywhere, with errors of 1e5 here and 2e7 elsewhere."""
    steps = {16: 37243.697, 64: 8877.6864, 256: 1445.3539, 1024: 841.04934}  # Adam on softmax regression
    found = [fits.shoulder({size: value * (1 + tiny) for size, value in steps.items()}) for tiny in (0, 1e-9, -3e-9)]
    assert [each.sharpness for each in found] == pytest.approx([50] * 3)
    assert max(each.log_errors[1] for each in found) < 2
    assert len({f"{each.log_errors[1]:.6g}" for each in found}) == 1


def test_zhang_uses_a_fifth_more_data_than_linear_scaling_from_the_base():
    fit = fits.hyperbola(curve(100))
    for base in (1, 16, 256):
        critical = fits.zhang_critical(fit, base)
        [at_base, at_critical] = fit.steps(np.array([base, critical]))
        assert critical * at_critical == pytest.approx(1.2 * base * at_base)
    assert fit.critical / fits.zhang_critical(fit, 1) > 4  # definitions must never be mixed


@pytest.mark.parametrize("missed", [(), (2,), (2, 16)])
@pytest.mark.parametrize("critical", [0.03, 0.17, 0.4, 90.0, 300.0, 900.0])
def test_a_value_lies_in_its_interval(critical, missed):
    steps = curve(critical, least=1e6, sizes=SIZES[:8]) | dict.fromkeys(missed, math.inf)
    for limit in critical_batch_sizes(steps).values():
        assert not limit.value < limit.low
        assert not limit.value > limit.high


def test_sizes_that_missed_the_goal_are_left_out():
    steps = curve(64) | {8192: math.inf, 16384: math.nan}
    assert fits.hyperbola(steps) == fits.hyperbola(curve(64))
    with pytest.raises(ValueError, match="2 batch sizes that reached the goal, but got 1"):
        fits.hyperbola({1: 100.0, 2: math.inf})


@pytest.mark.slow
def test_intervals_cover_the_truth():
    """By Student's t: some 95 % of them, with noise of 10 % on every S."""
    generator = np.random.default_rng(0)
    steps = curve(64, sizes=SIZES[::2])
    ends = [fits.hyperbola(noisy(steps, 0.1, generator)).interval() for _ in range(200)]
    assert 0.91 <= np.mean([low <= 64 <= high for low, high in ends]) <= 0.98


def test_no_interval_without_a_point_to_spare():
    assert all(map(math.isnan, fits.hyperbola(curve(64, sizes=[4, 256])).interval()))


@pytest.mark.slow
@pytest.mark.parametrize(("sharpness", "better"), [(1.0, "hyperbola"), (4.0, "shoulder")])
def test_the_criterion_tells_which_curve_it_is(sharpness, better):
    generator = np.random.default_rng(1)
    right = 0
    for _ in range(50):
        steps = noisy(curve(64, sharpness), 0.03, generator)
        one, other = fits.hyperbola(steps).information, fits.shoulder(steps).information
        right += (one < other) is (better == "hyperbola")
    assert right >= 42


def test_every_definition_by_name():
    found = critical_batch_sizes(curve(64))
    assert {name: limit.bound for name, limit in found.items()} == dict.fromkeys(found, "=")
    values = {name.rpartition("_")[2]: limit.value for name, limit in found.items()}
    assert values == pytest.approx({"mccandlish": 64, "shoulder": 64, "zhang": 1.2 + 64 / 5}, rel=1e-3)
    from_32 = critical_batch_sizes(curve(64), base=32)["critical_batch_size_zhang"].value
    assert from_32 == pytest.approx(1.2 * 32 + 64 / 5)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ({size: 1e5 / size for size in SIZES}, (4096.0, ">", 4096.0, np.inf)),  # perfect scaling throughout
        ({size: 1e5 / size for size in (1, 4, 16, 64)}, (64.0, ">", 64.0, np.inf)),
        (dict.fromkeys(SIZES, 300.0), (1.0, "<", 0.0, 1.0)),  # no gain anywhere
    ],
)
def test_what_the_data_do_not_show_is_a_bound(steps, expected):
    found = critical_batch_sizes(steps)
    for name in ("mccandlish", "shoulder", *(["zhang"] if expected[1] == ">" else [])):
        limit = found[f"critical_batch_size_{name}"]
        assert (limit.value, limit.bound) == expected[:2]
        ends = (np.nan, np.nan) if name == "shoulder" else expected[2:]  # certain without noise
        assert (limit.low, limit.high) == pytest.approx(ends, nan_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("times", partly([1 / 4096, 1, 2, 8, 1000], 5, 1))
def test_the_interval_of_a_bound_holds_the_truth(times):
    # The error at a minimum far outside the measured batch sizes says nothing: a profile does.
    draws, truth = np.random.default_rng(0), 4096 * times
    noisy = [{b: s * np.exp(0.1 * draws.normal()) for b, s in curve(truth).items()} for _ in range(200)]
    found = [critical_batch_sizes(steps, shoulder=False)["critical_batch_size_mccandlish"] for steps in noisy]
    bounds = [limit for limit in found if limit.bound != "="]
    held = [limit.low <= truth <= limit.high for limit in bounds if not np.isnan(limit.low)]
    assert len(bounds) > 20
    assert np.mean(held) > 0.9


def test_too_few_batch_sizes_say_nothing():
    nothing = critical_batch_sizes({1: 100.0, 2: 60.0, 4: math.inf})
    assert all(math.isnan(limit.value) and limit.bound == "=" for limit in nothing.values())
    three = critical_batch_sizes({1: 100.0, 4: 30.0, 16: 12.0})
    assert not math.isnan(three["critical_batch_size_mccandlish"].value)
    assert math.isnan(three["critical_batch_size_shoulder"].value)
