"""Reports on what sweeps leave behind when they go badly: empty studies, divergence, goals never reached."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis import errors, relative, scaling, steps_to_result, tuning
from analysis.build import Asked, build
from analysis.counting import Goal, Measured, first_crossing
from analysis.edges import scaled
from analysis.load import LoadError, load
from study.records import Budget

FIELDS = {"examples": 4096, "budget": Budget(0, 2000), "stopping": "budget"}


@pytest.fixture
def written(tmp_path, make_study, make_curve, write_study):
    """Write studies of {batch size: keyword arguments of each trial's curve}; returns the folder."""

    def write(studies, **fields):
        for size, trials in studies.items():
            study = make_study(batch_size=size, trials=max(1, len(trials)), **FIELDS | fields)
            write_study(tmp_path, study, [make_curve(study, index, **trial) for index, trial in enumerate(trials)])
        return tmp_path

    return write


def test_a_study_without_trials_has_not_missed_its_goal(written):
    folder = written({8: [{"reaches": 400}, {"reaches": 500}], 64: [], 128: []})
    data = build([folder], folder)
    assert list(pd.read_csv(folder / "tables/steps_to_result.csv")["batch_size"]) == [8]
    assert list(pd.read_csv(folder / "tables/searches.csv")["batch_size"]) == [8, 64, 128]
    assert "tiny, momentum, batch sizes 64, 128: no trial has ended yet; sweep again to go on." in data.warnings
    assert "not reached" not in " ".join(data.sentences)


def test_a_sweep_of_which_no_trial_has_ended(written):
    folder = written({8: [], 64: []})
    with pytest.raises(LoadError, match=r"no trial in .* has ended yet; sweep again to go on"):
        build([folder], folder)


@pytest.mark.parametrize("trial", [{"bad": 7}, {"reaches": None}], ids=["diverged", "missed"])
def test_a_batch_size_at_which_nothing_worked_stays(written, trial):
    folder = written({8: [{"reaches": 400}] * 4, 64: [trial] * 4})
    build([folder], folder)
    falling = errors.best_errors(load(folder))
    assert set(falling["batch_size"]) == {8, 64}
    budgets = errors.by_budget(falling)
    assert set(budgets["batch_size"]) == {8, 64}
    assert budgets["budget"].min() > 0


def test_a_trial_that_diverges_after_its_goal_is_no_success_on_a_map(tmp_path, make_study, make_curve, write_study):
    study = make_study(batch_size=8, trials=2, **FIELDS)
    early, later = study.evaluation_steps[0], study.evaluation_steps[3]
    ends = [{"reaches": early, "bad": later}, {"reaches": later}, {"reaches": later}]
    write_study(tmp_path, study, [make_curve(study, index, **end) for index, end in enumerate(ends)])
    table = tuning.maps(tuning.trials(load(tmp_path)))
    steps = table[table["unit"] == "steps"].set_index("trial")
    assert set(steps["budget"]) == {later}
    assert steps["state"].to_dict() == {0: "infeasible", 1: "reached", 2: "reached"}
    assert list(steps.index[steps["fastest"]]) == [1]


def test_a_goal_given_twice_is_one_goal(written):
    folder = written({8: [{"reaches": 400}]})
    goal = Goal("val/classification_error", 0.2)
    assert len(build([folder], folder, Asked([goal, goal])).tables["steps_to_result"]) == 1


def test_the_step_before_a_crossing_is_one_at_which_its_metric_was_measured():
    trial = Measured([10, 20, 30, 40], [0.5, math.nan, math.nan, 0.01], None)
    assert steps_to_result._last_before(trial, 40) == 10


def test_a_goal_met_before_training_was_not_reached_by_it():
    assert first_crossing([0, 10, 20], [0.01, 0.5, 0.02], 0.05) == 20


def test_values_where_a_scale_ends():
    assert scaled(1.0, "reverse_log") == math.inf
    assert scaled(0.0, "log") == -math.inf


def curve(workload, steps):
    frame = pd.DataFrame({"batch_size": list(steps), "steps_to_result": pd.array(list(steps.values()), dtype="Int64")})
    names = {"workload": workload, "optimizer": "sgd", "goal_metric": "val/error", "goal_threshold": 0.1}
    return frame.assign(reached=frame["steps_to_result"].notna(), **names)


def test_a_workload_that_never_reached_its_goal_does_not_hide_the_others():
    steps = pd.concat([curve("a", {1: 8, 2: 4}), curve("b", {1: 6, 2: 2}), curve("c", {1: None, 2: None})])
    made = pd.DataFrame({"workload": list("abc"), "dataset": "d", "part": "10", "model": list("xyz")})
    table = relative.table(steps, made)
    assert set(table["workload"]) == {"a", "b"}
    assert set(table["norm"]) == {1}


def test_label_smoothing_makes_no_other_model():
    one = {"name": "a", "dataset": "d", "_target_": "Net", "label_smoothing": 0.0}
    other = {
        "name": "b",
        "dataset": "e",
        "_target_": "Net",
        "label_smoothing": 0.1,
        "label_smoothing_convention": "paper",
    }
    assert relative._parts(one)["model"] == relative._parts(other)["model"]


def test_a_bound_has_no_interval():
    falling = {size: 1e5 / size for size in (1, 4, 16, 64)}
    for limit in scaling.critical_batch_sizes(falling).values():
        assert limit.bound == ">"
        assert np.isnan(limit.low)
        assert np.isnan(limit.high)
