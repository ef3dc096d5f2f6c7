"""Tables on how a search went: known answers on results folders written by the store, and on frames made by hand."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.load import load_study
from analysis.tables import best_errors, relative, trials
from study.settings import Evaluation

INF = math.inf
GOAL = {"goal_metric": "val/classification_error", "goal_threshold": 0.1}


def test_every_counted_trial_has_a_row(results):
    table = trials.trials(results({32: [None, 400, "bad", 300]}, evaluation=Evaluation()))
    assert list(table["status"]) == ["COMPLETE", "COMPLETE", "INFEASIBLE", "COMPLETE"]
    assert [None if pd.isna(s) else s for s in table["steps_to_goal"]] == [None, 400, None, 300]
    assert list(table["least_error"]) == pytest.approx([0.9, 0.05, INF, 0.05])
    assert list(table["first_bad_step"].fillna(0)) == [0, 0, 7, 0]
    assert table["learning_rate"].between(1e-3, 1).all()
    assert set(table["batch_size"]) == {32}


def test_best_of_n_falls_to_the_best_of_all(results):
    table = trials.best_of_n(results({32: [100, 200, 400, 800, None, None, None, None]}))
    assert list(table["n"]) == [1, 2, 4, 8]
    # Half of the trials miss the goal; the best of 2 is one of the best 3 of 8 with probability 1 - (5/8)^2 = 0.61.
    assert list(table["steps"]) == [800, 400, 200, 100]


def test_parameters_with_a_single_value_have_no_axis(results):
    studies = results({32: [100, "bad", None]})
    table = trials.along_axes(trials.trials(studies), studies)
    scales = dict(zip(table["parameter"], table["scale"], strict=True))
    assert scales == {"learning_rate": "log", "momentum": "reverse_log"}
    one = table[table["parameter"] == "momentum"]
    assert list(one["value"]) == list(one["momentum"])
    assert list(one["status"]) == ["COMPLETE", "INFEASIBLE", "COMPLETE"]


def test_maps_give_every_batch_size_what_the_slowest_needs(results):
    table = trials.maps(trials.trials(results({8: [900, 1000, None], 64: [200, 500, "bad", None]})))
    examples = table[table["unit"] == "examples"].set_index(["batch_size", "trial"])
    assert set(examples["budget"]) == {64 * 200}  # the best trial at 64 needs more examples than that at 8
    states = {8: ["reached", "reached", "not reached"], 64: ["reached", "not reached", "infeasible", "not reached"]}
    assert {size: list(examples["state"][size]) for size in states} == states
    assert list(examples.index[examples["fastest"]]) == [(8, 0), (64, 0)]
    steps = table[table["unit"] == "steps"].set_index(["batch_size", "trial"])
    assert set(steps["budget"]) == {900}
    assert list(steps.index[steps["state"] == "reached"]) == [(8, 0), (64, 0), (64, 1)]


def test_a_trial_that_diverged_nobody_knows_when_reached_nothing(results):
    """As imported ones may."""
    found = trials.trials(results({8: [900, 800], 64: [200, 100]}))
    found.loc[(found["batch_size"] == 64) & (found["trial"] == 1), ["status", "first_bad_step"]] = ["INFEASIBLE", None]
    states = trials.maps(found).query("batch_size == 64 and trial == 1")["state"]
    assert set(states) == {"infeasible"}


def test_maps_stay_within_what_was_trained_everywhere(results):
    table = trials.maps(trials.trials(results({2: [2000], 64: [10]})))
    assert set(table[table["unit"] == "examples"]["budget"]) == {2 * 2000}


@pytest.mark.parametrize(("ends", "rows"), [("bad", 0), (None, 4), (400, 4)])
def test_trials_that_all_diverged_have_no_budget_to_reach_the_goal_within(results, ends, rows):
    """Claims said "within nan examples"."""
    counts = trials.reaching(trials.trials(results({8: [ends] * 4, 64: [ends] * 4})))
    assert counts["budget"].notna().all()
    assert len(counts) == rows


def test_trials_that_stopped_early_say_nothing_on_maps(results):
    assert trials.maps(trials.trials(results({8: [900, 1000]}, stopping="goal"))).empty


def test_the_best_error_falls_and_ends_at_the_budget(results):
    table = best_errors.best_errors(results({8: [900, None], 64: [None, "bad"]}))
    eight = table[table["batch_size"] == 8]
    assert list(eight["error"]) == [0.9, 0.05, 0.05]
    assert list(eight["step"])[1:] == [900, 2000]
    assert set(table["train_examples"]) == {4096}
    assert list(table[table["batch_size"] == 64]["error"]) == [0.9, 0.9]


def test_the_best_error_has_one_row_a_step_however_many_trials_lower_it():
    published = Path(__file__).parents[3] / "results/published/mlp_digits/studies/mlp_digits"
    table = best_errors.best_errors([load_study(published / "sgd/64")])
    assert table["step"].is_unique
    assert table["error"].is_monotonic_decreasing


def test_budgets_are_those_that_all_batch_sizes_had(results):
    table = best_errors.by_budget(best_errors.best_errors(results({8: [900], 64: [100]})))
    within = table.set_index(["unit", "budget", "batch_size"])["error"]
    assert sorted(set(table["budget"][table["unit"] == "steps"])) == [74, 222, 667, 2000]
    assert within["steps", 667, 64] == 0.05
    assert within["steps", 667, 8] == 0.9
    assert within["examples", 16000, 8] == within["examples", 16000, 64] == 0.05
    assert within["examples", 5333, 64] == 0.9  # 83 steps
    assert np.isnan(within["steps", 74, 8]) == (74 < 40)


def test_label_smoothing_takes_the_best_of_each_value():
    rows = [(0.0, "COMPLETE", 0.10), (0.0, "COMPLETE", 0.12), (0.1, "COMPLETE", 0.09), (0.1, "INFEASIBLE", 0.01)]
    trials = pd.DataFrame(rows, columns=["label_smoothing", "status", "least_error"])
    trials = trials.assign(workload="w", optimizer="o", batch_size=8, stopping="budget", **GOAL)
    table = best_errors.by_label_smoothing(trials)
    assert table[["label_smoothing", "error", "trials"]].to_numpy().tolist() == [[0.0, 0.10, 2], [0.1, 0.09, 1]]
    assert best_errors.by_label_smoothing(trials.assign(stopping="race")).empty
    assert best_errors.by_label_smoothing(trials.drop(columns="label_smoothing")).empty


def curve(workload, steps, threshold=0.1):
    frame = pd.DataFrame({"batch_size": list(steps), "steps_to_result": pd.array(list(steps.values()), dtype="Int64")})
    names = {"workload": workload, "optimizer": "sgd", **GOAL, "goal_threshold": threshold}
    return frame.assign(reached=frame["steps_to_result"].notna(), **names)


def made_of(**parts):
    return pd.DataFrame([(name, *of) for name, of in parts.items()], columns=["workload", "dataset", "part", "model"])


def test_models_on_the_same_data_are_relative_to_the_smallest_common_batch_size():
    steps = pd.concat([curve("a", {1: 800, 2: 400, 4: 200}), curve("b", {2: 100, 4: 50, 8: None})])
    made = made_of(a=("mnist", "100", "x"), b=("mnist", "100", "y"))
    table = relative.table(steps, made)
    assert set(table["compared"]) == {"models"}
    assert set(table["of"]) == {"mnist, 100 examples"}
    found = table.set_index(["workload", "batch_size"])["relative_steps"]
    assert found["a", 1] == 2
    assert found["a", 2] == found["b", 2] == 1
    assert found["b", 4] == 0.5
    assert np.isnan(found["b", 8])
    at_four = relative.table(steps, made, norm=4)
    assert at_four.set_index(["workload", "batch_size"])["relative_steps"]["a", 1] == 4


@pytest.mark.parametrize(
    ("other", "compared"),
    [(("mnist", "100", "y"), set()), (("cifar", "100", "x"), {"data sets"}), (("mnist", "50", "x"), {"subsets"})],
)
def test_models_need_the_same_goal_and_data_sets_do_not(other, compared):
    steps = pd.concat([curve("a", {2: 400, 4: 200}), curve("b", {2: 100, 4: 50}, threshold=0.2)])
    table = relative.table(steps, made_of(a=("mnist", "100", "x"), b=other))
    assert (set() if table.empty else set(table["compared"])) == compared


def test_a_single_workload_is_compared_with_nothing():
    assert relative.table(curve("a", {2: 400}), made_of(a=("mnist", "100", "x"))).empty


def test_published_subsets_are_parts_of_their_data_set():
    found = relative._parts({"name": "w", "dataset": "mnist_subsets/mnist_6875", "model": "simple_cnn_base"})
    assert found == {"dataset": "mnist", "part": "mnist_6875", "model": "simple_cnn_base"}


def test_a_workload_that_never_reached_its_goal_does_not_hide_the_others():
    steps = pd.concat([curve("a", {1: 8, 2: 4}), curve("b", {1: 6, 2: 2}), curve("c", {1: None, 2: None})])
    table = relative.table(steps, made_of(a=("mnist", "100", "x"), b=("mnist", "100", "y"), c=("mnist", "100", "z")))
    assert set(table["workload"]) == {"a", "b"}
    assert set(table["norm"]) == {1}


def test_label_smoothing_makes_no_other_model():
    smoothing = {"label_smoothing": 0.1, "label_smoothing_convention": "paper"}
    one, other = ({"name": "a", "dataset": "d", "_target_": "Net"} | more for more in ({}, smoothing))
    assert relative._parts(one)["model"] == relative._parts(other)["model"]
