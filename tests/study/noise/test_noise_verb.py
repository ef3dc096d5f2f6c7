"""`study noise` from the command line: measures along tuned runs, point by point, and says what it found."""

import json

import pandas as pd
import pytest

from study.__main__ import main
from study.noise import measure, tuned_run
from study.tuned import runs

SWEEP = [
    "sweep",
    "optimizer=momentum,adam",
    "batch_size=64",
    "search.trials=2",
    "search.reruns=0",
    "engine=serial",
]
FEW = ["--examples", "64", "--points", "3"]


@pytest.fixture
def swept(swept_once):
    return swept_once(*SWEEP)


def points(folder, optimizer, size):
    return sorted((folder / f"studies/mlp_digits/{optimizer}/{size}/noise").glob("*.json"))


@pytest.mark.slow
def test_the_tuned_runs_are_measured_reported_and_read_again(swept, says, monkeypatch):
    said = says("noise", swept, *FEW)
    assert "mlp_digits with adam at batch size 64: 3 points of trial" in said
    assert "gradients of examples to retrain" in said
    assert "where it reached its goal; " in said
    found = pd.read_csv(swept / "tables/noise_scale.csv")
    assert set(found["batch_size"]) == {64}
    kinds = found.groupby("optimizer")["form"].unique().map(sorted).to_dict()
    assert kinds == {"momentum": ["plain"], "adam": ["half_preconditioned", "plain", "preconditioned"]}
    assert found["error"].tolist() == found["recorded_error"].tolist()  # retrained bit by bit
    assert (found["examples_seen"] == 64 * found["step"]).all()
    assert (found["examples"] == 64).all()
    point = json.loads(points(swept, "adam", 64)[0].read_text())
    assert point["question"]["optimizer"] == "adam"
    assert point["question"]["trial"]["hyperparameters"]["learning_rate"] > 0
    assert len(point["checksum"]) == 64
    assert set(point["versions"]) == {"torch", "numpy"}

    monkeypatch.setattr(measure, "measured", None)  # nothing is measured again
    shown = json.loads(says("noise", swept, *FEW, "--json"))
    assert len(shown["rows"]) == len(found)
    assert "gradients of examples to retrain" not in says("noise", swept, *FEW)


@pytest.mark.slow
def test_the_last_point_is_where_the_tuned_run_itself_reached_the_goal(swept_once):
    """A trial of the rounds can be faster by luck than the one whose configuration is confirmed."""
    folder = swept_once("sweep", "optimizer=sgd", "batch_size=64", "search=refine", "search.confirm=0")
    [run], _ = tuned_run.tuned_runs(folder, tuned_run.NoiseRequest())
    errors = [run.recorded_error(step) for step in run.steps]
    assert errors[-1] < run.study.goal.threshold <= min(errors[:-1])


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_the_missing_points(swept, says, monkeypatch):
    asked = ["noise", swept, "--batch-size", 64, "--optimizer", "momentum", "--examples", 96, "--points", 3]
    steps, real = [], measure.measured

    def measured(run, examples):
        if len(steps) == 2:
            raise KeyboardInterrupt
        steps.append(run.step)
        return real(run, examples)

    monkeypatch.setattr(measure, "measured", measured)
    assert main([*map(str, asked)]) == 130
    first = {path: path.read_text() for path in points(swept, "momentum", 64)}
    assert [json.loads(text)["step"] for text in first.values()] == steps
    monkeypatch.setattr(measure, "measured", real)
    assert ": 1 point of trial" in says(*asked)
    assert len(points(swept, "momentum", 64)) == 3
    assert all(path.read_text() == text for path, text in first.items())
    # Another question replaces the points: these examples are not those.
    says(*asked[:-4], "--examples", 128, "--points", 1)
    assert len(points(swept, "momentum", 64)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--batch-size", "32"], "momentum: batch size 32 was not swept; there are: 64."),
        (["--points", "0"], "--points must be at least 1, but got 0."),
        (["--examples", "63"], "--examples must be at least 64, 2 in each of 32 blocks, but got 63."),
        (["--optimizer", "adm"], "no optimizer 'adm' in these results; did you mean 'adam'?"),
        (["--device", "cuda:7"], "--device 'cuda:7' cannot be used"),
    ],
)
def test_refusals_say_what_to_change(words, why, swept, says):
    assert why in says("noise", swept, *words, status=2)


@pytest.mark.slow
def test_a_workload_that_changed_is_refused(swept, says, monkeypatch):
    changes = {(swept, "mlp_digits", "adam"): "its code changed (mine.py)"}
    monkeypatch.setattr(runs.fingerprint, "changes", lambda jobs: changes)
    said = says("noise", swept, "--examples", 70, status=2)
    why = "holds trials of another mlp_digits: its code changed (mine.py); undo the change to measure its gradients."
    assert why in said


def test_a_folder_without_studies_is_refused(tmp_path, says):
    assert "no studies in" in says("noise", tmp_path, status=2)


@pytest.mark.data
def test_mnist_lies_in_the_published_range(tmp_path):
    """McCandlish et al. 2018 report values between 20 and 900 for MNIST."""
    asked = ["workload=fc_mnist", "workload.widths=[128]", "optimizer=sgd", "batch_size=64", "search.trials=2"]
    asked += ["goal=val/classification_error<0.05", "search.reruns=0", "budget.epochs=2", f"results={tmp_path}"]
    assert main(["sweep", *asked]) == 0
    assert main(["noise", str(tmp_path), "--points", "4"]) == 0
    found = pd.read_csv(tmp_path / "tables/noise_scale.csv")
    assert (found["noise_scale"].between(20, 900)).any()
    assert ((found["low"] > 20) & (found["high"] < 900)).any()
