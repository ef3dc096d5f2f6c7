"""Power laws of the critical batch size: exact on exact pairs, and intervals that hold the exponent."""

import numpy as np
import pytest

from analysis.sizes.fit import log_errors, power_law

N = np.array([85e6, 151e6, 302e6, 604e6, 1.2e9])


@pytest.mark.parametrize(("a", "b"), [(93.2e-6, 0.47), (1000.0, 0.0), (5e6, -0.3)])
@pytest.mark.parametrize("weighted", [False, True])
def test_exact_pairs_give_the_exact_law(a, b, weighted):
    critical = a * N**b
    ends = (critical / 1.5, critical * 1.5) if weighted else (None, None)
    law = power_law(N, critical, *ends)
    assert (law.coefficient, law.exponent) == pytest.approx((a, b), rel=1e-6, abs=1e-9)
    assert law.weighted == weighted
    assert law.residual < 1e-9
    value, low, high = law.predict(7e9)
    assert value == pytest.approx(a * 7e9**b)
    assert (low < value < high) if weighted else (low == pytest.approx(high))


def test_without_intervals_it_is_the_regression_of_logs():
    critical = 20 * N**0.4 * np.exp(np.random.default_rng(0).normal(0, 0.2, len(N)))
    (slope, level), covariance = np.polyfit(np.log(N), np.log(critical), 1, cov=True)
    law = power_law(N, critical)
    assert (law.exponent, np.log(law.coefficient)) == pytest.approx((slope, level))
    quantile = 3.182446  # Student's t with 3 degrees of freedom
    assert law.exponent_half == pytest.approx(quantile * np.sqrt(covariance[0, 0]))
    at = np.log(7e9)
    error = np.sqrt(np.array([at, 1]) @ covariance @ np.array([at, 1]))
    value, low, _ = law.predict(7e9)
    assert np.log(value / low) == pytest.approx(quantile * error)


def test_a_vague_critical_batch_size_counts_less():
    critical = np.array([20.0, 40, 80, 160, 1000])  # the last one lies far off
    vague, sure = (power_law([1, 2, 4, 8, 16], critical, critical / w, critical * w) for w in (
        np.array([1.2, 1.2, 1.2, 1.2, 9.0]), np.full(5, 1.2)
    ))  # fmt: skip
    assert vague.exponent == pytest.approx(1, abs=0.05)
    assert sure.exponent > 1.2
    assert vague.exponent_half < sure.exponent_half  # its scatter is explained


@pytest.mark.parametrize("spread", [0.1, 0.5])
def test_intervals_hold_the_exponent_in_nineteen_of_twenty_cases(spread):
    """With intervals that know the scatter, that are too narrow for it, and without any."""
    rng, held = np.random.default_rng(0), {"known": [], "narrow": [], "none": []}
    for _ in range(300):
        critical = 20 * N**0.4 * np.exp(rng.normal(0, spread, len(N)))
        wide = np.exp(1.96 * spread)
        for kind, ends in {
            "known": (critical / wide, critical * wide),
            "narrow": (critical / wide**0.2, critical * wide**0.2),
            "none": (None, None),
        }.items():
            law = power_law(N, critical, *ends)
            held[kind].append(law.low <= 0.4 <= law.high)
    for kind, cases in held.items():
        assert np.mean(cases) >= 0.92, kind


def test_open_intervals():
    critical = np.array([64.0, 100.0])
    assert log_errors(critical, [32, 0], [128, np.inf]) is None
    assert log_errors(critical, [32, np.nan], [128, 200]).tolist() == pytest.approx([0.3537, 0.3537], abs=1e-3)
    assert log_errors(critical, None, None) is None
    assert not power_law([1, 2, 4], [20, 30, 40], [0, 20, 30], [np.inf, 50, 60]).weighted


def test_two_sizes_have_a_law_and_three_an_interval():
    law = power_law([100, 400], [10, 20])
    assert law.exponent == pytest.approx(0.5)
    assert np.isnan([law.low, law.high, law.residual]).all()
    assert np.isfinite(power_law([100, 400], [10, 20], [8, 15], [13, 30]).low)
    assert np.isfinite(power_law([100, 200, 400], [10, 14, 21]).low)


@pytest.mark.parametrize(
    ("sizes", "critical"), [([1], [2]), ([2, 2], [3, 4]), ([1, 2], [0, 1]), ([1, 2], [np.inf, 1]), ([-1, 2], [1, 1])]
)
def test_refusals(sizes, critical):
    with pytest.raises(ValueError, match=r"two sizes|above 0"):
        power_law(sizes, critical)
