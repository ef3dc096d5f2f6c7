"""The released layout: what is read counts as it was released, what is broken is named."""

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.made_workload import edited

from analysis.counting import COMPLETE, INCOMPLETE, INFEASIBLE, Goal
from analysis.export import export
from analysis.load import load
from analysis.report import warnings as report_warnings
from analysis.tables import steps_to_result
from analysis.tables.status import table as status
from study.exchange.importing import PUBLISHED, ImportRefused, import_released, parse_goal
from study.store import StoreError

COUNTS = Path(__file__).parents[2] / "data" / "batch_science_study_counts.csv"
GOAL = "val/classification_error<0.3"
CONFIGS = {
    "learning_rate": {"type": "DOUBLE", "min_value": 1e-4, "max_value": 10.0, "scale": "LOG_SCALE"},
    "momentum": {"type": "DOUBLE", "min_value": 0.0, "max_value": 0.999, "scale": "REVERSE_LOG_SCALE"},
    "learning_rate_decay_steps": {"type": "INTEGER", "min_value": 50, "max_value": 100, "scale": ""},
    "label_smoothing": {"type": "DISCRETE", "feasible_points": [0.0, 0.1]},
}
PARAMETERS = {"learning_rate": 0.1, "momentum": 0.9, "learning_rate_decay_steps": 75, "label_smoothing": 0.0}


@pytest.fixture
def tree(tmp_path):
    return tmp_path / "released"


def release(tree, curves, path="cifar_10/resnet_8/sgd/64", metric="val/classification_error", **fields):
    """Write a study of trials {trial id: (status, errors at steps 10, 20, ...)}; returns its folder."""
    *_, dataset, model, optimizer, batch_size = path.split("/")
    study = {"batch_size": int(batch_size), "dataset": dataset, "early_stopping": False, "model": model}
    study |= {"optimizer": optimizer, "parameter_configs": CONFIGS, "train_steps": 100} | fields
    folder = tree / path
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps(study))
    for trial_id, (ended, errors) in curves.items():
        steps = [10 * number for number in range(1, len(errors) + 1)]
        last = steps[-1] if steps else 0
        trial = {"parameters": PARAMETERS, "status": ended, "steps": last, "trial_id": trial_id}
        (folder / str(trial_id)).mkdir()
        (folder / str(trial_id) / "metadata.json").write_text(json.dumps(trial))
        rows = "".join(f"{step},{error}\n" for step, error in zip(steps, errors, strict=True))
        (folder / str(trial_id) / "measurements.csv").write_text(f"step,{metric}\n{rows}")
    return folder


def imported(tree, **options):
    """(the one study that comes out, the warnings)."""
    results = tree.parent / "results"
    warnings = import_released(tree, results, **options)
    [study] = load(results)
    return study, warnings


def test_the_first_complete_trials_by_number_count_strictly_and_ties_go_to_the_lower(tree):
    release(
        tree,
        {
            2: (COMPLETE, [0.9, 0.3, 0.2]),  # 0.3 is not below 0.3
            10: (COMPLETE, [0.9, 0.2, 0.2]),  # as text, 10 comes before 2
            1: (INFEASIBLE, [0.1]),
            3: (INCOMPLETE, [0.1]),
            4: (COMPLETE, [0.9, 0.9, 0.2]),
        },
    )
    study, warnings = imported(tree, trials=2)
    row = steps_to_result.row(study)
    assert not warnings
    assert (row["steps_to_result"], row["trial"]) == (30, 1)
    assert (row["complete"], row["incomplete"], row["infeasible"]) == (2, 1, 1)
    assert study.trials["trial_id"].tolist() == [1, 2, 3, 4, 10]
    assert list(steps_to_result.outcomes(study)["status"][:3]) == [INFEASIBLE, COMPLETE, INCOMPLETE]


def test_all_complete_trials_count_where_nothing_else_is_known(tree):
    release(tree, {1: (COMPLETE, [0.9]), 2: (COMPLETE, [0.2])}, path="somewhere/net/sgd/8")
    study, _ = imported(tree, goals=[GOAL])
    assert study.question["search"]["trials"] == 2
    assert steps_to_result.row(study)["steps_to_result"] == 10


def test_goal_and_number_of_trials_are_the_published_ones(tree):
    release(tree, {1: (COMPLETE, [0.29])})
    release(tree, {1: (COMPLETE, [3.8])}, "lm1b/lstm/nesterov_momentum/16", metric="val/cross_entropy_error")
    import_released(tree, tree.parent / "results")
    first, second = load(tree.parent / "results")
    assert (first.workload, str(first.goal)) == ("lstm_lm1b", "val/cross_entropy_error < 3.9")
    assert first.question["search"]["trials"] == 50
    assert (second.workload, str(second.goal)) == ("resnet_8_cifar_10", "val/classification_error < 0.3")
    assert second.question["search"]["trials"] == 100
    assert second.question["workload"]["train_examples"] == 45000


def test_every_published_goal_can_be_read():
    for text, trials in PUBLISHED.values():
        assert parse_goal(text).metric.startswith("val/")
        assert trials in (50, 100)


def test_leading_folders_join_the_name_of_the_data_set(tree):
    release(tree, {1: (COMPLETE, [0.005])}, "mnist_subsets/mnist_55000/simple_cnn_base/nesterov_momentum/1")
    study, _ = imported(tree)
    assert study.workload == "simple_cnn_base_mnist_subsets_mnist_55000"
    workload = study.question["workload"]
    assert (workload["dataset"], workload["model"]) == ("mnist_subsets/mnist_55000", "simple_cnn_base")
    assert study.goal == Goal("val/classification_error", 0.01)


def test_a_part_of_the_tree_is_read_by_what_its_files_say(tree):
    release(tree, {1: (COMPLETE, [0.2])})
    study, _ = imported(tree / "cifar_10" / "resnet_8", goals=[GOAL])
    assert (study.workload, study.optimizer, study.batch_size) == ("resnet_8_cifar_10", "sgd", 64)


def test_a_space_is_read_and_what_is_legal_has_hard_ends(tree):
    release(tree, {1: (COMPLETE, [0.2])})
    study, _ = imported(tree)
    space = study.question["search"]["space"]
    common = {"scale": "linear", "hard": [], "integer": False}
    assert space["learning_rate"] == common | {"low": 1e-4, "high": 10.0, "scale": "log"}
    assert space["momentum"] == common | {"low": 0.0, "high": 0.999, "scale": "reverse_log", "hard": ["low"]}
    decay = common | {"low": 50, "high": 100, "hard": ["high"], "integer": True}  # T = train_steps
    assert space["learning_rate_decay_steps"] == decay
    assert space["label_smoothing"] == {"choices": [0.0, 0.1]}


def test_average_precision_enters_as_an_error_and_leaves_as_it_was(tree, tmp_path):
    path, metric = "open_images_v4/resnet_50/nesterov_momentum/64", "val/average_precision"
    release(tree, {1: (COMPLETE, [0.25, 0.31, 0.5])}, path, metric)
    study, warnings = imported(tree)
    assert study.goal == Goal("val/average_precision_error", 0.69) == parse_goal("val/average_precision > 0.31")
    assert steps_to_result.row(study)["steps_to_result"] == 30  # 0.31 is not above 0.31
    assert np.allclose(study.measurements["val/average_precision_error"], [0.75, 0.69, 0.5])
    export(tmp_path / "results", tmp_path / "again", "batch_science")
    back = pd.read_csv(tmp_path / "again" / path / "1" / "measurements.csv")
    assert list(back) == ["step", metric]
    assert np.allclose(back[metric], [0.25, 0.31, 0.5])
    assert not warnings


def test_under_a_time_budget_all_that_did_not_diverge_is_complete(tree):
    release(tree, {1: (COMPLETE, [0.9] * 7), 2: (INCOMPLETE, [0.2]), 3: (INFEASIBLE, [0.2])}, train_steps=0)
    study, [warning] = imported(tree)
    assert warning.endswith("INCOMPLETE under a time budget (train_steps 0): counted as COMPLETE (1 trial: 2)")
    assert steps_to_result.row(study)["complete"] == 2
    assert (study.train_steps, study.question["time_budget"]) == (70, True)


def replace(name, old, new):
    return lambda folder: edited(folder / "2" / name, old, new)


def remove(name):
    return lambda folder: (folder / "2" / name).unlink()


BROKEN = {
    "no metadata.json: left out": (remove("metadata.json"), None),
    "malformed metadata.json: left out": (replace("metadata.json", "}", ""), None),
    "no measurements.csv: taken as empty": (remove("measurements.csv"), INCOMPLETE),
    "COMPLETE without measurements: counted as INCOMPLETE": (remove("measurements.csv"), INCOMPLETE),
    "malformed measurements.csv: taken as empty": (replace("measurements.csv", "0.9", "many"), INCOMPLETE),
    "malformed measurements.csv: taken as empty ": (replace("measurements.csv", "20,", ","), INCOMPLETE),
    "malformed measurements.csv: taken as empty  ": (replace("measurements.csv", "step", "steps"), INCOMPLETE),
    "odd status 'DONE': counted as INCOMPLETE": (replace("metadata.json", "COMPLETE", "DONE"), INCOMPLETE),
    "odd status None: counted as INCOMPLETE": (replace("metadata.json", '"COMPLETE"', "null"), INCOMPLETE),
    "odd parameters: those that are not numbers are left out": (replace("metadata.json", "0.9", "null"), COMPLETE),
    "metadata.json has another trial_id: taken by its folder": (replace("metadata.json", ": 2}", ": 9}"), COMPLETE),
    "NaN cells: taken as not measured": (replace("measurements.csv", "0.9", "nan"), COMPLETE),
    "NaN cells: taken as not measured ": (replace("measurements.csv", "0.9", ""), COMPLETE),
    "unsorted steps: sorted": (replace("measurements.csv", "10,", "99,"), COMPLETE),
    "duplicate steps: the smaller errors count": (replace("measurements.csv", "10,", "20,"), COMPLETE),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_trial_is_named_and_the_others_count(tree, rule):
    change, status = BROKEN[rule]
    folder = release(tree, {n: (COMPLETE, [0.9, 0.25, 0.5]) for n in (1, 2, 3)})
    change(folder)
    study, warnings = imported(tree, trials=3)
    assert f"cifar_10/resnet_8/sgd/64: {rule.strip()} (1 trial: 2)" in warnings
    assert study.trials["trial_id"].tolist() == ([1, 3] if status is None else [1, 2, 3])
    found = list(steps_to_result.outcomes(study)["status"])
    assert found == [COMPLETE, *([status] if status else []), COMPLETE]
    assert steps_to_result.row(study)["steps_to_result"] == 20
    steps = study.measurements.groupby("trial")["step"]
    assert steps.apply(lambda trial: trial.is_monotonic_increasing and trial.is_unique).all()
    assert set(warnings) <= set(report_warnings.imported([study]))


@pytest.mark.parametrize("broken", [{2}, {1, 9}, {3, 4, 5}, set(range(1, 10))])
def test_files_are_parsed_together_and_those_that_cannot_be_are_told_apart(tree, broken):
    folder = release(tree, {n: (COMPLETE, [0.9, 0.1 * n]) for n in range(1, 10)})
    for n in broken:
        (folder / str(n) / "measurements.csv").write_text("step,val/classification_error\n10,many\n")
    others = {  # no newline at the end, blank lines, another header
        6: "step,val/classification_error\n10,0.9\n20,0.6",
        7: "step,val/classification_error\n\n10,0.9\n\n20,0.7\n",
        8: '"val/classification_error","step","test/loss"\r\n0.9,10,0.5\r\n0.8,20,0.5\r\n',
    }
    for n in others.keys() - broken:
        (folder / str(n) / "measurements.csv").write_text(others[n])
    study, warnings = imported(tree, goals=["val/classification_error<0.95"], trials=1)
    malformed = [text for text in warnings if "malformed measurements.csv" in text]
    assert len(malformed) == 1
    assert f"({len(broken)} trial{'s' if len(broken) > 1 else ''}: " in malformed[0]
    rows = study.measurements
    read = [n for n in range(1, 10) if n not in broken]
    assert rows["trial"].tolist() == [n - 1 for n in read for _ in range(2)]
    assert rows["step"].tolist() == [10, 20] * len(read)
    if read:
        assert np.allclose(rows["val/classification_error"][1::2], [0.1 * n for n in read])
        assert np.allclose(rows.loc[rows["trial"] == 7, "test/loss"], 0.5)


def test_nothing_is_odd_about_nan_where_training_diverged_or_about_what_was_not_measured(tree):
    folder = release(tree, {1: (INFEASIBLE, [0.9, "nan"]), 2: (COMPLETE, [0.2])})
    (folder / "2" / "measurements.csv").write_text("step,val/classification_error,test/loss\n10,0.2,\n20,0.1,0.5\n")
    study, warnings = imported(tree)
    assert not warnings
    assert study.measurements["test/loss"].isna().tolist() == [True, True, True, False]
    assert study.trials["first_bad_step"].tolist() == [20, pd.NA]


def test_a_broken_study_is_named_and_the_others_are_read(tree):
    for name in ("absent", "torn", "other"):
        release(tree, {1: (COMPLETE, [0.2])}, f"{name}/net/sgd/8")
    (tree / "absent/net/sgd/8/study.json").unlink()
    (tree / "torn/net/sgd/8/study.json").write_text("{")
    (tree / "other/net/sgd/8/study.json").write_text("[]")
    release(tree, {1: (COMPLETE, [0.2])}, train_steps="long", parameter_configs={"momentum": {"type": "COLOUR"}})
    study, warnings = imported(tree)
    assert study.workload == "resnet_8_cifar_10"
    assert study.train_steps == 10
    text = "\n".join(warnings)
    for said in (
        "absent/net/sgd/8: no study.json: left out",
        "torn/net/sgd/8: malformed study.json: left out",
        "other/net/sgd/8: malformed study.json: left out",
        "resnet_8/sgd/64: odd train_steps 'long': taken as those of the longest trial",
        "resnet_8/sgd/64: odd parameter_configs of momentum: left out of the space (type 'COLOUR')",
    ):
        assert said in text


def test_a_goal_can_be_given_for_all_and_for_some(tree):
    for path in ("a/fc_1/sgd/8", "a/fc_2/sgd/8", "a/cnn/sgd/8"):
        release(tree, {1: (COMPLETE, [0.2])}, path)
    goals = [GOAL, "fc_*:val/classification_error < 0.2", "a/fc_1:val/classification_error<0.25"]
    import_released(tree, tree.parent / "results", goals)
    thresholds = {study.workload: study.goal.threshold for study in load(tree.parent / "results")}
    assert thresholds == {"fc_1_a": 0.25, "fc_2_a": 0.2, "cnn_a": 0.3}


REFUSED = {
    "Add --goal 'net_a:val/classification_error<X'": {},
    "fits no workload; choose among net_a": {"goals": ["nest_a:" + GOAL]},
    "a goal must read 'SPLIT/ERROR < NUMBER'": {"goals": ["low"]},
    "net_a does not measure val/loss, only val/classification_error": {"goals": ["val/loss<3"]},
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_imported_is_refused_before_anything_is_written(tree, said):
    release(tree, {1: (COMPLETE, [0.2])}, "a/net/sgd/8")
    with pytest.raises(ImportRefused, match=said.replace("*", r"\*")):
        import_released(tree, tree.parent / "results", **REFUSED[said])
    (tree.parent / "empty").mkdir()
    with pytest.raises(ImportRefused, match="no studies to import"):
        import_released(tree.parent / "empty", tree.parent / "results")
    with pytest.raises(ImportRefused, match=r"there is no folder .*nowhere"):
        import_released(tree.parent / "nowhere", tree.parent / "results")
    assert not (tree.parent / "results").exists()


@pytest.mark.parametrize("rows", [{}, {1: (COMPLETE, [])}], ids=["no trials", "no rows"])
def test_a_tree_without_measurements_is_refused(tree, rows):
    release(tree, rows)
    with pytest.raises(ImportRefused, match=r"has 1 study.json, but no trial beside one has measurements"):
        imported(tree)
    assert not (tree.parent / "results").exists()


def test_results_and_other_files_in_a_tree_are_named_once_and_left_out(tree):
    for size in (8, 64):
        release(tree, {1: (COMPLETE, [0.2])}, f"cifar_10/resnet_8/sgd/{size}")
    import_released(tree, tree / "out")
    (tree / "more.csv").write_text("run,step\n")
    assert import_released(tree, tree.parent / "results") == [
        "out: results of this project, no released data: left out",
        "more.csv: no part of the released layout: left out",
    ]
    assert len(list(load(tree.parent / "results"))) == 2


@pytest.mark.slow
def test_a_sweep_does_not_go_on_with_what_was_imported(tree, says):
    release(tree, {1: (COMPLETE, [0.2])}, "digits/mlp/momentum/64")
    imported(tree, goals=["val/classification_error<0.05"])
    assert "holds another question" in says("sweep", "batch_size=64", f"results={tree.parent / 'results'}", status=2)


def test_another_question_is_refused_and_the_same_is_read_anew(tree, make_study, write_study):
    release(tree, {1: (COMPLETE, [0.2])})
    imported(tree)
    release(tree, {1: (COMPLETE, [0.2])}, "cifar_10/resnet_8/sgd/128")
    with pytest.raises(StoreError, match=r"another question \(goal.threshold: 0.3 -> 0.2\)"):
        imported(tree, goals=["val/classification_error<0.2"])
    import_released(tree, tree.parent / "results")
    assert [study.batch_size for study in load(tree.parent / "results")] == [64, 128]
    write_study(tree.parent / "own", make_study(name="resnet_8_cifar_10", optimizer="momentum"), [])
    release(tree, {1: (COMPLETE, [0.2])}, "cifar_10/resnet_8/momentum/8")
    with pytest.raises(StoreError, match="another question"):
        import_released(tree, tree.parent / "own")


@pytest.mark.slow
def test_the_published_counts_come_back(tree):
    with COUNTS.open() as file:
        counts = [{k: int(v) if v.isdigit() else v for k, v in row.items()} for row in csv.DictReader(file)]
    assert len(counts) == 454
    columns = ("complete", "incomplete", "infeasible")
    curves = {}
    for row in sorted(counts, key=lambda row: -sum(row[c] for c in columns)):
        curves[row["dataset"], row["model"], row["optimizer"]] = row  # the smallest study of each
    assert len(curves) == 35
    curves = dict(list(curves.items())[-12:])
    for row in curves.values():
        statuses = [s for s in (COMPLETE, INCOMPLETE, INFEASIBLE) for _ in range(row[s.lower()])]
        trials = {n: (s, [0.5]) for n, s in enumerate(np.random.default_rng(0).permutation(statuses), start=1)}
        release(tree, trials, "/".join(str(row[k]) for k in ("dataset", "model", "optimizer", "batch_size")))
    assert not import_released(tree, tree.parent / "results", [GOAL], trials=0)
    found = {}
    for study in load(tree.parent / "results"):
        [row] = status([study]).to_dict("records")
        workload = study.question["workload"]
        assert (row["state"], row["wanted"]) == ("done", max(1, row["complete"]))
        found[workload["dataset"], workload["model"], study.optimizer] = tuple(row[c] for c in columns)
    assert found == {key: tuple(row[c] for c in columns) for key, row in curves.items()}
