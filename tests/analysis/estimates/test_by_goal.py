"""The critical batch size against the goal: which goals trials can answer, and curves whose answers are known."""

from pathlib import Path

import numpy as np
import pytest

from analysis.counting import Goal
from analysis.estimates import by_goal
from analysis.estimates.by_goal import Errors, ladder
from analysis.load import load, load_study
from study.records import Budget

RECORDED, CRITICAL = 0.1, 64


@pytest.fixture
def searches(make_study, make_curve, write_study, tmp_path):
    """Searches of six trials, whose errors fall as 1 / steps: the same critical batch size at every goal."""

    def made(sizes=(4, 16, 64, 256, 1024), **fields):
        for size in sizes:
            usual = {"goal": Goal("val/loss", RECORDED), "stopping": "budget", "budget": Budget(0, 4000)}
            study = make_study(batch_size=size, trials=6, examples=4096, **usual | fields)
            curves = [make_curve(study, index) for index in range(6)]
            for index, curve in enumerate(curves):
                curve.errors["val/loss"][:] = (8.2 + index / 4) / curve.steps * (1 + CRITICAL / size)
                if study.stopping != "budget":
                    kept = np.flatnonzero(curve.errors["val/loss"] < RECORDED)[0] + 1
                    curve.errors["val/loss"][kept:] = np.nan
            write_study(tmp_path, study, curves)
        return list(load(tmp_path))

    return made


def test_the_same_critical_batch_size_at_every_goal(searches):
    studies = searches()
    found = by_goal.table(studies)
    assert found["goal_threshold"].between(RECORDED / 10, RECORDED).all(), "looser goals are met at once at B = 1,024"
    assert len(found) == 1 + by_goal.EACH_WAY
    assert found["goal_threshold"][found["recorded"]].tolist() == [RECORDED]
    assert (found["fewest_trials"] >= by_goal.ENOUGH).all()
    np.testing.assert_allclose(found["critical_batch_size"], CRITICAL, rtol=0.25)
    assert (found["low"] < CRITICAL).all()
    assert (found["high"] > CRITICAL).all()
    [said] = by_goal.sentences(found, studies)
    assert "from the fewest steps of each search, the critical batch size is " in said


def test_trials_that_stopped_at_their_goal_name_the_cure(searches):
    studies = searches(stopping="goal")
    found = by_goal.table(studies)
    assert found["goal_threshold"].tolist() == [RECORDED]
    [said] = by_goal.sentences(found, studies)
    assert said.endswith("stopping=budget reads it at tighter and looser ones.")


@pytest.mark.parametrize("threshold", [3.0, 30.0, 1e6])
def test_goals_met_at_the_first_evaluation_are_not_said_to_have_a_critical_batch_size(searches, threshold):
    """3 is met at the first evaluation at large batch sizes, 1e6 at all of them."""
    studies = searches(goal=Goal("val/loss", threshold))
    found = by_goal.table(studies)
    assert found["critical_batch_size"].isna().iloc[-1]
    [said] = by_goal.sentences(found, studies)
    assert "nan" not in said


def test_few_batch_sizes_have_no_curve(searches):
    assert by_goal.table(searches((4, 16, 64))).empty


def made(least, falls):
    steps, errors = zip(*falls, strict=True)
    return Errors(np.sort(least), np.array(steps), np.array(errors))


@pytest.mark.parametrize(
    ("searches", "tightest", "loosest"),
    [
        ([made([0.01] * 5, [(10, 0.8), (20, 0.01)])], 0.0101, 0.4),  # at most four times as loose
        ([made([0.01] * 5, [(10, 0.2), (20, 0.01)])], 0.0101, 0.2),  # below 0.2 at the first evaluation
        ([made([0.01] * 4 + [0.5], [(10, 0.8), (20, 0.01)])], RECORDED, RECORDED),  # the fifth trial is far
        ([made([0.01] * 5, [(1, 0.2), (20, 0.01)])], 0.0101, 0.4),  # a grid from step 1 on
        ([made([0.01] * 5, [(10, 0.8), (20, 0.01)]), made([0.05] * 5, [(10, 0.3), (20, 0.05)])], 0.0501, 0.3),
        ([made([0.095] * 5, [(10, 0.105), (20, 0.095)])], RECORDED, RECORDED),  # closer than 1.1 times
        ([Errors(np.empty(0), np.empty(0), np.empty(0))], RECORDED, RECORDED),
    ],
)
def test_goals_that_all_batch_sizes_can_answer(searches, tightest, loosest):
    found = ladder(RECORDED, searches)
    assert (found[0], found[-1]) == (tightest, loosest)
    assert RECORDED in found
    assert found == sorted(set(found))


def test_the_least_of_equal_steps_counts(study):
    found = by_goal.errors(study)
    rows = study.reader.read([study.goal.metric])
    least = rows[rows["trial"].isin(study.trials.index)].groupby("step")[study.goal.metric].min().cummin()
    for threshold in (0.1, 0.15, 0.2, 0.3):
        assert found.steps_to(threshold) == least.index[least < threshold][0]


@pytest.fixture
def study():
    return load_study(Path(__file__).parents[3] / "results/published/mlp_digits/studies/mlp_digits/sgd/64")
