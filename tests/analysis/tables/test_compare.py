"""The best of two searches side by side: known answers, and how often chance looks like a difference."""

import math

import numpy as np
import pytest

from analysis.tables import compare

INF = math.inf
CELL = 1.11
"""At most the factor by which the evaluation grid widens each end."""


@pytest.fixture
def raced(results):
    """Studies given as {optimizer: {batch size: steps to the goal of each trial, None if missed}}, loaded."""

    def write(curves):
        for optimizer, by_size in curves.items():
            space = {"learning_rate": 0.1} | ({} if optimizer == "sgd" else {"momentum": 0.9})
            studies = results(by_size, optimizer=optimizer, space=space, stopping="goal")
        return studies

    return write


def test_ahead_behind_and_missed(raced):
    studies = raced(
        {
            "momentum": {1: [800] * 8, 4: [100] * 8, 16: [50] * 8, 64: [None] * 8},
            "sgd": {1: [400] * 8, 4: [100] * 8, 16: [None] * 8, 64: [None] * 8, 256: [9] * 8},
        }
    )
    pairs = compare.table(studies)
    assert list(pairs["batch_size"]) == [1, 4, 16, 64]  # those that both were tuned at
    assert list(pairs["speed_up"].fillna(-1)) == [0.5, 1, INF, -1]
    # Known to a cell of the grid: 2,000 steps without the goal are 40 times 50.
    for low, ratio in zip(pairs["low"], [0.5, 1, 40, 0], strict=True):
        assert ratio / CELL <= low < ratio or low == ratio == 0


def test_searches_of_unequal_numbers_are_compared_at_the_smaller_one(raced):
    """Of 64 trials the three luckiest beat all of 16, and the best of equally many do not."""
    [row] = compare.table(raced({"momentum": {4: [75] * 3 + [400] * 61}, "sgd": {4: [100] * 16}})).to_dict("records")
    assert row["speed_up"] > 1 > row["high"]


def test_nothing_is_shown_of_searches_that_learn_from_their_trials(raced):
    studies = raced({"momentum": {4: [50] * 8}, "sgd": {4: [100] * 8}})
    assert 2 / CELL <= compare.table(studies)["low"].item() < 2
    studies[0].question["search"]["sampler"] = "tpe"
    [row] = compare.table(studies).to_dict("records")
    assert (row["speed_up"], math.isnan(row["low"]), math.isnan(row["high"])) == (2, True, True)


def test_one_optimizer_has_no_pair(raced):
    assert compare.table(raced({"sgd": {1: [100]}})).empty


@pytest.mark.parametrize(("factor", "least", "most"), [(1.0, 0.0, 0.08), (1.6, 0.8, 1.0)])
def test_how_often_a_difference_is_shown(factor, least, most):
    """Rarely where there is none, nearly always where the one needs 1.6 times the steps."""
    generator = np.random.default_rng(0)
    shown = 0
    for _ in range(120):
        one, other = (np.exp(generator.exponential(0.5, 100)) for _ in range(2))
        _, low, high = compare.speed_up(100 * one, 100 * factor * other)
        shown += low > 1 or high < 1
    assert least <= shown / 120 <= most


@pytest.mark.parametrize("trials", [(4, 4), (8, 30), (29, 29)])
@pytest.mark.parametrize("ends", [(math.nan, math.nan), (6.0, math.nan), (5.0, 7.0)])
def test_the_order_of_two_searches_only_turns_their_ratio(trials, ends):
    """Where steps are few and whole, an interval from random resamples depended on the order by up to a quarter."""
    generator = np.random.default_rng(0)
    for _ in range(20):
        one, other = (generator.choice([1.0, 2.0, 3.0, 5.0, 8.0, INF], count) for count in trials)
        ratio, low, high = compare.speed_up(one, other, ends)
        turned = compare.speed_up(other, one, ends[::-1])
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(turned, np.divide(1, [ratio, high, low]), rtol=1e-12)


def test_trials_that_never_ran():
    assert compare.speed_up(np.array([]), np.array([10.0]))[0] == 0


def test_workloads_under_one_optimizer(results):
    """Two models on the same data are compared; one on other data that shares nothing with them is not."""
    for name, examples in {"small": 4096, "large": 4096, "other": 64}.items():
        workload = {"_target_": name.title(), "name": name, "dataset": f"{examples}", "train_examples": examples}
        ends = {1: [800] * 8, 4: [200 if name == "small" else 100] * 8}
        studies = results(ends, space={"learning_rate": 0.1, "momentum": 0.9}, workload=workload)
    pairs = compare.table(studies, by="workload")
    assert pairs[["optimizer", "workload", "against", "batch_size", "speed_up"]].to_numpy().tolist() == [
        ["momentum", "large", "small", 1, 1.0],
        ["momentum", "large", "small", 4, 2.0],
    ]
