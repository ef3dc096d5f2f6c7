"""Power laws of the critical batch size: exact on exact pairs, and intervals that hold the exponent."""

import numpy as np
import pandas as pd
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


NAN, INF = float("nan"), float("inf")
DATA = [1e9, 1e10, 1e11, 1e12, 1e13]


@pytest.mark.parametrize(
    ("sizes", "critical", "exponent", "coefficient"),
    [
        (DATA, [17.7 * tokens**0.47 for tokens in DATA], 0.47, 17.7),  # tokens
        ([3.5, 3.0, 2.5, 2.2], [2e8 / loss ** (1 / 0.21) for loss in (3.5, 3.0, 2.5, 2.2)], -1 / 0.21, 2e8),  # loss
        ([10.0**power for power in range(18, 23)], [0.6 * 10 ** (power / 2) for power in range(18, 23)], 0.5, 0.6),
        ([1e-12, 1.0, 1e12], [1e-12, 1.0, 1e12], 1.0, 1.0),
        ([1, 1e3], [1e12, 1e9], -1.0, 1e12),
        ([1, 1, 100, 100], [2, 8, 40, 40], 0.5, 4.0),  # repeated: the mean of logs
    ],
)
@pytest.mark.parametrize("made", [list, tuple, np.array, pd.Series, iter])
def test_published_forms_and_containers(sizes, critical, exponent, coefficient, made):
    law = power_law(made(sizes), made(critical))
    assert (law.exponent, law.coefficient) == pytest.approx((exponent, coefficient), rel=1e-9)
    value, _, _ = law.predict([1.0, 10.0])
    assert value == pytest.approx([coefficient, coefficient * 10**exponent])


def test_whole_numbers_and_frames():
    frame = pd.DataFrame({"tokens": [10**9, 10**13, 10**20], "size": [10**4, 10**6, 31622776601]}, index=[7, 8, 9])
    law = power_law(frame["tokens"], frame["size"], frame["size"] / 1.5, frame["size"] * 1.5)
    assert (law.exponent, law.weighted, law.points) == (pytest.approx(0.6, abs=0.01), True, 3)


def test_missing_values_are_left_out_with_their_intervals():
    whole = power_law([1, 10, 100], [20, 65, 190], [18, 60, 150], [22, 70, 250])
    gaps = power_law([1, 5, 10, 100, NAN], [20, NAN, 65, 190, 7], [18, 1, 60, 150, 1], [22, 2, 70, 250, 9])
    assert gaps == whole
    none = power_law([1, 10, 100], [20, 65, 190], [18, None, 150], [22, None, 250])
    assert (none.weighted, none.exponent) == (False, power_law([1, 10, 100], [20, 65, 190]).exponent)
    censored = power_law([1, 10, 100, 1000], [20, 65, 190, INF])
    assert censored == power_law([1, 10, 100], [20, 65, 190])


@pytest.mark.parametrize("count", [3, 4, 5, 6])
@pytest.mark.parametrize("known", [False, True])
def test_intervals_hold_exponent_and_prediction_with_few_sizes(count, known):
    """95 % are nominal; 300 cases of 95 % have 275 or more with probability 0.99."""
    rng, n, held = np.random.default_rng(count), 10 ** np.linspace(6, 10, count), []
    for _ in range(300):
        critical = 20 * n**0.4 * np.exp(rng.normal(0, 0.3, count))
        ends = (critical / np.exp(1.96 * 0.3), critical * np.exp(1.96 * 0.3)) if known else (None, None)
        law = power_law(n, critical, *ends)
        _, low, high = law.predict(1e11)
        held.append((law.low <= 0.4 <= law.high, low <= 20 * 1e11**0.4 <= high))
    assert (np.sum(held, axis=0) >= 275).all()


@pytest.mark.parametrize(
    ("given", "more", "why"),
    [
        (([1], [2]), {}, "a power law needs two sizes with a critical batch size, but got"),
        (([2, 2], [3, 4]), {}, "needs two sizes"),
        (([], []), {}, "needs two sizes"),
        (([1, 2], [INF, 1]), {}, "needs two sizes"),
        (([1, 2], [0, 1]), {}, "critical must be above 0, but got 0"),
        (([-1, 2], [1, 1]), {}, "sizes must be above 0, but got -1"),
        (([1, 2, 3], [1, 2]), {}, "sizes and critical must have equally many numbers, but got 3 and 2"),
        (([1, 2], [1, 2], [1], [3]), {}, "critical, low and high must have equally many numbers, but got 2, 1 and 1"),
        (([1, 2], [1, 2], [1, 3], [3, 1]), {}, "low <= high must hold, but got low=3, high=1"),
        (([1, "many"], [1, 2]), {}, "sizes must be numbers, but got"),
        (([1, 2], [1, 2]), {"confidence": 95}, "between 0 and 1, but got 95"),
    ],
)
def test_refusals(given, more, why):
    with pytest.raises(ValueError, match=why):
        power_law(*given, **more)


def test_a_law_predicts_at_sizes_above_0():
    with pytest.raises(ValueError, match="sizes must be above 0, but got 0"):
        power_law([1, 10, 100], [20, 65, 190]).predict([10, 0])
