"""How the rows of a log are read: which runs count, what is an error, what a hyperparameter, what a study."""

import doctest
import json
import re
from pathlib import Path

import pandas as pd
import pytest
from helpers.estimated import estimated
from helpers.logs import made_logs

from analysis.counting import COMPLETE, INCOMPLETE, INFEASIBLE
from analysis.load import load
from analysis.report import warnings as report_warnings
from analysis.tables import steps_to_result
from study.exchange.importing import ImportRefused
from study.exchange.logs import goals, names
from study.exchange.logs.importing import import_log
from study.exchange.logs.names import Asked, metric, roles
from study.exchange.readers import tables

HEADER = "run,batch_size,step,val/loss,status\n"


def imported(tmp_path, text, goals=("val/loss<0.5",), trials=None, name="log.csv", **asked):
    """(the studies that come out of a CSV, what was said)."""
    (tmp_path / name).write_text(text)
    said = import_log(tmp_path / name, tmp_path / "results", Asked.parse(**asked), goals, trials)
    return list(load(tmp_path / "results")), said


def rows(run, losses, size=8, status="", first=10):
    """Rows of one run, every ten steps."""
    return "".join(f"{run},{size},{first + 10 * n},{loss},{status}\n" for n, loss in enumerate(losses))


# Losses and status of a run beside one that reaches the goal at step 40 of 40 -> (its status, a part of a warning).
ENDS = {
    "reaches": (([0.9, 0.4], ""), COMPLETE, None),
    "misses": (([0.9] * 4, ""), COMPLETE, None),
    "stops early without a status": (
        ([0.9, 0.9], ""),
        INCOMPLETE,
        "runs that stopped early without the goal, which do not count",
    ),
    "finished early": (([0.9, 0.9], "finished"), COMPLETE, None),
    "crashed at the end": (
        ([0.9] * 4, "crashed"),
        INCOMPLETE,
        "runs that stopped early without the goal, which do not count",
    ),
    "crashed after the goal": (([0.9, 0.4], "crashed"), COMPLETE, None),
    "NaN to the end": (([0.9, "NaN", "nan"], ""), INFEASIBLE, None),
    "infinite": (([0.9, "inf"], "finished"), INFEASIBLE, None),
    "says that it diverged": (([0.9, 0.9], "diverged"), INFEASIBLE, None),
    "NaN after the goal": (
        ([0.9, 0.4, "nan"], ""),
        COMPLETE,
        "runs that diverged after they met the goal, which count: 1",
    ),
    "NaN in between": (
        ([0.9, "nan", 0.9, "nan", 0.4], ""),
        COMPLETE,
        "runs with NaN between numbers of val/loss, taken as not measured: 1",
    ),
    "NaN in between and last": (
        ([0.9, "nan", 0.9, 0.9, "nan"], ""),
        COMPLETE,
        "runs with NaN between numbers of val/loss, taken as not measured: 1",
    ),
    "empty cells": (([0.9, "", "", 0.4], ""), COMPLETE, None),
    "never measured": ((["", "", "", ""], ""), INCOMPLETE, "runs that never measured val/loss, which do not count: 1"),
    "unknown status": (([0.9] * 4, "odd"), COMPLETE, "runs with the status 'odd', which is not known"),
}


@pytest.mark.parametrize("kind", ENDS)
def test_how_a_run_ended(kind, tmp_path):
    (losses, status), ended, said = ENDS[kind]
    text = HEADER.replace("status", "status,train/loss")
    lines = rows("a", [0.9, 0.9, 0.9, 0.4]) + rows("b", losses, status=status)
    text += "".join(f"{line},1\n" for line in lines.splitlines())  # another metric, so that no row is empty
    [study], told = imported(tmp_path, text)
    by_run = steps_to_result.outcomes(study)["status"].set_axis(study.trials["trial_id"])
    assert by_run.to_dict() == {1: COMPLETE, 2: ended}
    assert steps_to_result.outcomes(study)["counted"].all()
    assert [warning for warning in told.warnings if said and said in warning] or not said
    assert not study.measurements["val/loss"].isin([float("inf")]).any()
    if ended == INFEASIBLE:
        assert study.trials["first_bad_step"].dropna().tolist() == [20]
        assert steps_to_result.row(study)["infeasible"] == 1


@pytest.mark.parametrize(("goal", "edge"), [("val/loss<0.5", True), ("val/loss<0.001", False)])
def test_only_trials_that_met_the_goal_are_the_best_ones(goal, edge, tmp_path):
    text = "run,batch_size,lr,step,val/loss\n" + "".join(
        f"r{n},8,{0.001 * 1.2**n},{step},{1 / (1 + n * step / 300)}\n" for n in range(30) for step in range(1, 21)
    )
    studies, _ = imported(tmp_path, text, goals=[goal])
    said = " ".join(report_warnings.sentences(list(steps_to_result.answerable(studies)), *estimated(studies)))
    assert ("the best trials have learning_rate" in said) == edge
    assert ("no trial reached the goal within 20 steps" in said) != edge


def test_restarts_rows_in_any_order_and_other_grids(tmp_path):
    text = HEADER + rows("a", [0.9, 0.4, 0.4]) + rows("a", [0.8, 0.8, 0.4, 0.3], first=20) + rows("a", [0.95], first=5)
    text += "".join(f"b,8,{step},{0.9 if step < 30 else 0.4},\n" for step in (28, 26, 24, 22, 30))
    [study], told = imported(tmp_path, text)
    first = study.measurements[study.measurements["trial"] == 0]
    assert first["step"].tolist() == [5, 10, 20, 30, 40, 50]
    assert first["val/loss"].tolist() == [0.95, 0.9, 0.8, 0.8, 0.4, 0.3]  # the restart counts
    text = "\n".join(told.warnings)
    assert "2 steps of a run were measured more than once, as after a restart: the last value counts" in text
    assert "runs were evaluated every 2 to 10 steps" in text


# Rows besides those of a run that counts -> what the import says of them.
LEFT_OUT = {
    "a row without a step": ("a,8,,0.4,\n", "1 row without a step is left out"),
    "rows without a step": ("a,8,,0.4,\na,8,,0.3,\n", "2 rows without a step are left out"),
    "a run without a batch size": ("b,,10,0.4,\n", "1 run without a batch size is left out: b"),
    "runs without a batch size": (
        "b,,10,0.4,\nc,,10,0.4,\n",
        "2 runs without a batch size are left out: b, c",
    ),
    "a batch size that is none": (
        "b,64.5,10,0.4,\n",
        "1 run is left out, since a batch size is a whole number of examples, at least 1: 'b' has 64.5",
    ),
    "a run without measurements": ("b,8,,0.4,\n", "1 run without measurements is left out: b"),
    "a step again": ("a,8,10,0.8,\n", "1 step of a run was measured more than once"),
}


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_what_is_left_out_is_counted(kind, tmp_path):
    more, said = LEFT_OUT[kind]
    _, told = imported(tmp_path, HEADER + rows("a", [0.9, 0.8, 0.4]) + more)
    assert said in "\n".join(told.warnings)


def test_several_runs_of_one_name_are_told_from_restarts(tmp_path):
    lines = [
        f"0,8,{seed},{step},{10 * seed + step},{loss}" for seed in (1, 2) for step, loss in ((10, seed), (20, 0.4))
    ]
    text = "run,batch_size,worker,step,seconds,val/loss\n" + "\n".join(lines) + "\n"
    with pytest.raises(ImportRefused, match=r"They differ in worker\. Tell them apart: --map run=run,worker"):
        imported(tmp_path, text.replace("20,0.4\n", "").replace(",20,", ",10,"))
    [study], _ = imported(tmp_path, text, maps=["run=run,worker"])
    assert len(study.trials) == 2


def test_a_scheduled_learning_rate_counts_with_its_peak_unless_the_settings_say_it(tmp_path):
    text = "run,batch_size,step,lr,val/loss\n" + "".join(
        f"{run},8,{step},{rate},0.4\n" for run in "ab" for step, rate in ((10, 0.1), (20, 0.2), (30, 0.05))
    )
    [study], told = imported(tmp_path, text)
    assert study.trials["learning_rate"].tolist() == [0.2, 0.2]
    assert "The highest lr that a run logged is its learning_rate; between two logs it may be higher." in told.read


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        ("lr", "learning_rate", "learning_rate"),
        ("opt/lr", "Learning Rate", "learning_rate"),
        ("weight_decay", "wd", "weight_decay"),
    ],
)
def test_a_run_has_one_value_of_a_setting(tmp_path, first, second, name):
    """Two columns that read as the same one may agree; if they differ, the user chooses."""
    text = f"run,batch_size,step,{first},{second},val/loss\na,8,10,0.1,0.3,0.4\nb,8,10,0.2,0.4,0.4\n"
    with pytest.raises(ImportRefused) as caught:
        imported(tmp_path, text)
    for told in (f"{first}=0.1 and {second}=0.3", f"--map {name}={first}, or --map {name}={second}."):
        assert told in str(caught.value)
    for chosen, left, values in ((first, second, [0.1, 0.2]), (second, first, [0.3, 0.4])):
        [study], told = imported(tmp_path, text, maps=[f"{name}={chosen}"])
        assert study.trials[name].tolist() == values
        assert f"Left out {left}, because --map names another {name}." in told.read
    [study], _ = imported(tmp_path, text.replace("0.1,0.3", "0.1,1e-1").replace("0.2,0.4", "0.2,"))
    assert study.trials[name].tolist() == [0.1, 0.2]
    for decided in ({"sets": [f"{name}=7"]}, {"pattern": f"{{{name}}}{{letter}}"}):
        [study], _ = imported(tmp_path, text.replace("\na,", "\n7a,").replace("\nb,", "\n7b,"), **decided)
        if name == "learning_rate":
            assert study.trials[name].tolist() == [7, 7]
        else:  # what all runs share is no hyperparameter
            assert name not in study.trials


def test_optimizers_models_and_data_sets_become_studies_of_their_own(tmp_path):
    lines = [
        f"{n},{size},{model},{data},{optimizer},{0.1 * (n + 1)},10,0.4"
        for n, (size, model, data, optimizer) in enumerate(
            [(8, "cnn", "a b/c", "sgd"), (8, "cnn", "a b/c", "Adam W"), (8, "vit", "d", "sgd"), (16, "vit", "d", "sgd")]
        )
    ]
    text = "run,batch_size,arch,dataset,optim,lr,step,val/loss\n" + "\n".join(lines) + "\n"
    studies, told = imported(tmp_path, text, goals=["val/loss<0.5", "vit*:val/loss<0.45"])
    assert {study.key for study in studies} == {
        ("cnn_a_b_c", "sgd", 8), ("cnn_a_b_c", "Adam_W", 8), ("vit_d", "sgd", 8), ("vit_d", "sgd", 16)
    }  # fmt: skip
    assert {study.workload: study.goal.threshold for study in studies} == {"cnn_a_b_c": 0.5, "vit_d": 0.45}
    assert studies[-1].question["workload"] == {
        "name": "vit_d", "dataset": "d", "model": "vit", "train_examples": None
    }  # fmt: skip
    one_run = (
        "vit_d, sgd, batch sizes 8 and 16: there is one run, so S(B) is its steps, without an interval, tuned or not"
    )
    assert one_run in told.warnings
    assert report_warnings.imported(studies).count(one_run) == 1
    assert steps_to_result.table(studies)["high"].isna().all()


def test_hyperparameters_are_what_differs_and_the_space_is_what_was_tried(tmp_path):
    lines = [
        f"r{n},8,{rate},{momentum},{decay},{schedule},0.5,7,{host},{n},10,0.{n}"
        for n, (rate, momentum, decay, schedule, host) in enumerate(
            [(1, 0.9, 0, "cosine", "x1"), (0.01, 0.99, "off", "linear", "x2"), (0.1, 0.5, "1e-4", "cosine", "x3")]
        )
    ]
    header = "run,batch_size,opt/lr,momentum,weight decay,schedule,dropout,epochs_total,node_name,seed,step,val/loss"
    [study], told = imported(tmp_path, header + "\n" + "\n".join(lines) + "\n")
    space = study.question["search"]["space"]
    common = {"hard": [], "integer": False}
    assert space == {
        "learning_rate": common | {"low": 0.01, "high": 1.0, "scale": "log"},
        "momentum": common | {"low": 0.5, "high": 0.99, "scale": "reverse_log"},
        "weight_decay": {"choices": ["0", "0.0001", "off"]},
        "schedule": {"choices": ["cosine", "linear"]},
    }
    assert study.trials["seed"].tolist() == [0, 1, 2]
    text = "\n".join(told.warnings)
    assert "taken as text, because some of the values are no numbers: weight_decay" in text
    assert "left out, because text that differs in every run is no hyperparameter: node_name" in text
    assert "Runs without an optimizer are under the name unknown: --set optimizer=NAME names it" in text


GROWING = {
    "accuracy": ("val/accuracy>0.65", [0.5, 0.7], "val/classification_error", [0.5, 0.3], 0.35),
    "in percent": ("val/acc > 65", [50, 70], "val/classification_error", [0.5, 0.3], 0.35),
    "share": ("val/f1>0.65", [0.5, 0.7], "val/f1_error", [0.5, 0.3], 0.35),
    "BLEU": ("val/bleu>25", [20, 30], "val/negative_bleu", [-20, -30], -25),
    "average precision": ("val/average_precision>0.65", [0.5, 0.7], "val/average_precision_error", [0.5, 0.3], 0.35),
}


@pytest.mark.parametrize("kind", GROWING)
def test_a_metric_that_grows_becomes_an_error(kind, tmp_path):
    goal, values, error, kept, threshold = GROWING[kind]
    name = goal.partition(">")[0].strip()
    text = f"run,batch_size,step,{name}\na,8,10,{values[0]}\na,8,20,{values[1]}\na,8,30,nan\n"
    [study], told = imported(tmp_path, text, goals=[goal])
    assert (study.goal.metric, study.goal.threshold) == (error, threshold)
    assert study.measurements[error][:2].round(9).tolist() == kept
    assert steps_to_result.row(study)["steps_to_result"] == 20
    assert any(f"Goals are on errors, so {error} is " in line and name in line for line in told.read)


def test_accuracies_are_errors_also_if_they_are_not_the_goal(tmp_path):
    text = "run,batch_size,step,val/loss,test_acc\na,8,10,0.9,0.5\na,8,20,0.4,0.75\n"
    [study], _ = imported(tmp_path, text)
    assert study.measurements["test/classification_error"].tolist() == [0.5, 0.25]


def test_epochs_from_0_and_the_number_of_trials(tmp_path):
    lines = [
        f"{run},{size},{epoch},{0.9 if epoch < 2 else 0.4}"
        for run, size in (("a", 4), ("b", 8), ("c", 8))
        for epoch in range(4)
    ]
    text = "run,batch_size,epoch,val_loss\n" + "\n".join(lines) + "\n"
    studies, told = imported(tmp_path, text, trials=1, sets=["train_examples=80"])
    assert steps_to_result.table(studies)["steps_to_result"].tolist() == [60, 30]
    assert [study.question["search"]["trials"] for study in studies] == [1, 1]
    assert [study.question["workload"]["train_examples"] for study in studies] == [80, 80]
    assert "Epochs are counted from 0, so epoch 0 is taken as the end of the first epoch" in told.warnings


def test_what_is_set_counts_more_than_the_log(tmp_path):
    text = "run,batch_size,step,val/loss\na_bs4,8,10,0.4\n"
    [study], _ = imported(tmp_path, text, sets=["workload=mine", "optimizer=adam"], pattern="a_bs{batch_size}")
    assert study.key == ("mine", "adam", 4)


def test_a_run_that_diverged_before_its_first_measurement_counts(tmp_path):
    (tmp_path / "log").mkdir()
    (tmp_path / "log/runs.csv").write_text("run,batch_size,status\na,8,finished\nb,8,diverged\nc,8,crashed\n")
    (tmp_path / "log/history.csv").write_text("run,step,val/loss\na,10,0.4\n")
    said = import_log(tmp_path / "log", tmp_path / "results", Asked(), ["val/loss<0.5"])
    [study] = load(tmp_path / "results")
    assert steps_to_result.outcomes(study)["status"].tolist() == [INFEASIBLE, COMPLETE]
    assert "2 runs at batch size" in said.read[0]


@pytest.mark.parametrize("module", [tables, names, goals])
def test_the_examples_in_docstrings_hold(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


def test_metrics_by_their_usual_names():
    known = {
        "val/loss": "val/loss",
        "eval_loss": "val/loss",
        "validation.accuracy top-1": "val/accuracy_top_1",
        "Loss/train": "train/loss",
        "test_err": "test/err",
        "loss": None,
        "train/learning_rate": None,
        "train/global_step": None,
        "best_val_loss": None,
    }
    assert {name: metric(name) for name in known} == known
    assert roles(["trainer/global_step", "_step", "train_batch_size", "batch_size"], {}) == {
        "step": "trainer/global_step",
        "batch_size": "batch_size",
    }


def test_w_and_b_writes_nan_as_text_and_counts_calls(tmp_path):
    lines = [{"_step": n, "_runtime": n, "val/loss": loss} for n, loss in enumerate([0.9, 0.8, "NaN"], start=1)]
    (tmp_path / "run.jsonl").write_text("\n".join(json.dumps(line | {"batch_size": 8, "run": "a"}) for line in lines))
    said = import_log(tmp_path / "run.jsonl", tmp_path / "results", Asked(), ["val/loss<0.5"])
    [study] = load(tmp_path / "results")
    assert steps_to_result.outcomes(study)["status"].tolist() == [INFEASIBLE]
    assert any("W&B's own _step, which counts calls of log" in warning for warning in said.warnings)


@pytest.fixture
def swept(tmp_path, make_study, make_curve, write_study):
    """A sweep of our own, exported as CSV: trials that reach the goal, miss it, and diverge early and late."""
    from analysis.export import export

    for batch_size, ends in {8: [90, "bad", 40, None, 90], 16: ["late", None, 30, 60, None]}.items():
        study = make_study(batch_size=batch_size, stopping="budget", name="tiny", examples=64, trials=4)
        bad = {"bad": 1, "late": 57}
        curves = [
            make_curve(study, n, **({"bad": bad[end]} if end in bad else {"reaches": end} if end else {}))
            for n, end in enumerate(ends)
        ]
        write_study(tmp_path / "own", study, curves)
    export(tmp_path / "own", tmp_path / "tables", "csv")
    return tmp_path


def _same(before, after):
    columns = [name for name in before if name != "stopping"]
    pd.testing.assert_frame_equal(before[columns], after[columns], check_dtype=False)


def test_a_sweep_that_was_exported_as_csv_comes_back_the_same(swept):
    import_log(swept / "tables", swept / "back", Asked(), ["val/classification_error<0.1"])
    before, after = (steps_to_result.table(load(swept / folder)) for folder in ("own", "back"))
    assert before["infeasible"].tolist() == [1, 1]
    _same(before, after)


def test_a_sweep_that_was_joined_to_one_long_csv_comes_back_the_same(swept):
    trials, measurements = (pd.read_csv(swept / f"tables/{name}.csv") for name in ("trials", "measurements"))
    keys = [name for name in measurements if name in trials]
    measurements.merge(trials, on=keys).to_csv(swept / "sweep.csv", index=False)
    import_log(swept / "sweep.csv", swept / "back", Asked(), ["val/classification_error<0.1"])
    before, after = (steps_to_result.table(load(swept / folder)) for folder in ("own", "back"))
    counts = ["incomplete", "infeasible", "trial", "tuned_trial", "steps_trained"]  # a trial without rows is not there
    _same(before.drop(columns=counts), after.drop(columns=counts))


def test_the_page_on_old_runs_prints_what_its_file_gives(tmp_path):
    guide = Path(__file__).parents[4] / "docs" / "guide"
    page = (guide / "old-runs.md").read_text()
    said = import_log(guide / "old-runs.csv", tmp_path, Asked.parse(sets=["workload=digits"]), ["val/loss<0.2"])
    assert "\n".join(said.read) in page
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    columns = ["batch_size", "steps_to_result", "learning_rate", "momentum"]
    found = steps_to_result.table(load(tmp_path))[columns].astype(float)
    assert [[float(cell) for cell in row] for row in rows] == found.to_numpy().tolist()
    assert page.partition("```csv\n")[2].partition("...")[0] in (guide / "old-runs.csv").read_text()


@pytest.mark.slow
def test_from_the_command_line(tmp_path, says):
    source = made_logs.long_csv(tmp_path, **{"val/loss": "val/accuracy"})
    frame = pd.read_csv(source)
    frame.assign(**{"val/accuracy": 1 - frame["val/accuracy"]}).to_csv(source, index=False)
    assert "--goal 'val/accuracy>" in says("import", source, tmp_path / "results", status=2)
    said = says("import", source, tmp_path / "results", "--goal", "val/accuracy>0.5", "--set", "train_examples=640")
    assert "runs.csv: 10 runs at batch sizes 16 and 64." in said
    says("report", tmp_path / "results")
    page = (tmp_path / "results" / "report.html").read_text()
    assert "Imported from runs.csv" in page
    assert "This tool trained and tuned none of them." in page
    assert "Goals are on errors, so val/classification_error is 1 - val/accuracy." in page
    assert "fresh seeds (search.reruns" not in page
