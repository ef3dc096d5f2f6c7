"""`study advise` from its command line: what a model takes, what steps take, the published digits, and refusals."""

import json
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest
import torch
from helpers.desks import room_for
from helpers.fused import partly
from hypothesis import given
from hypothesis import strategies as st

from study.commands import advise
from study.config.jobs import parse_jobs
from study.devices import memory
from study.engine import footprint
from study.user_code import activations

PUBLISHED = Path(__file__).parents[3] / "results/published/mlp_digits"
PARAMETERS = 64 * 128 + 128 + 128 * 10 + 10


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 3), ("momentum", 4), ("adam", 5)])
def test_the_bytes_of_a_training(optimizer, copies):
    """Weights, gradients twice, and the optimizer's state, in four bytes each; a step counter may come on top."""
    [job] = parse_jobs([f"optimizer={optimizer}", "batch_size=64"])
    run = footprint.rebuilt(job.study.question(), "cpu")
    takes = footprint.footprint(run)
    assert takes.gradient == 4 * PARAMETERS
    assert copies * 4 * PARAMETERS <= takes.held <= copies * 4 * PARAMETERS + 64
    inputs, targets = run.workload.splits(torch.device("cpu")).train
    assert takes.example == memory.WORKING_SET * activations.saved_bytes(run.workload, inputs, targets)
    averaged = parse_jobs([f"optimizer={optimizer}", "batch_size=64", "search.space.ema_decay=0.9"])[0].study.question()
    assert footprint.footprint(footprint.rebuilt(averaged, "cpu")).held == takes.held + 4 * PARAMETERS


@given(st.floats(1, 1e9), st.floats(0, 1e12), st.floats(1, 1e13))
def test_what_is_said_to_fit_does(example, held, room):
    largest = footprint.Footprint(example, held, 0).largest(room)
    assert largest == 0 or held + largest * example <= footprint.WHOLE_SHARE * room * (1 + 1e-9)
    assert held + (largest + 1) * example > footprint.WHOLE_SHARE * room * (1 - 1e-9)


def test_steps_are_measured_as_far_as_they_fit(monkeypatch):
    [job] = parse_jobs(["batch_size=64"])
    run = footprint.rebuilt(job.study.question(), "cpu")
    room_for(4, monkeypatch)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    found = footprint.step_seconds(run, [1, 4, 8])
    assert not torch.backends.cudnn.allow_tf32  # as in a sweep
    assert list(found) == [1, 4]
    assert all(seconds > 0 for seconds in found.values())


def test_device_counts_are_a_limit_or_a_list():
    assert list(advise.device_counts("8")) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert advise.device_counts("8,1, 2,4") == [1, 2, 4, 8]


@pytest.fixture
def advised(says):
    """The curves of `study advise --json` with these words."""
    return lambda *words, results=PUBLISHED: json.loads(says("advise", results, *words, "--json"))["rows"]


STEP_MS = "1:1,64:1.2,1024:4.2"


@pytest.mark.slow
def test_the_published_digits_end_to_end(advised, says):
    curves = advised("--gpus", "8", "--memory", "80", "--step-ms", STEP_MS, "--price", "2", "--bandwidth", "10")
    assert {row["optimizer"] for curve in curves for row in curve["splits"]} == {"momentum", "sgd"}
    for curve in curves:
        [fastest] = [row for row in curve["splits"] if row["fastest"]]
        least = min(row["seconds"] for row in curve["splits"])
        assert fastest["seconds"] == least
        assert len({row["batch_size"] for row in curve["splits"]}) == 11
        assert len(curve["sentences"]) >= 4
        assert any("31," in note and "examples fit at once" in note for note in curve["notes"])
        ring = 2 * (7 / 8) * 4 * PARAMETERS / 10e9
        eight = next(row for row in curve["splits"] if (row["devices"], row["per_device_batch"]) == (8, 1))
        assert eight["seconds_per_step"] == pytest.approx(0.001 * eight["accumulation_steps"] + ring)
    out = says("advise", PUBLISHED, "--gpus", 2, "--optimizer", "sgd")
    assert "fastest is batch size" in out
    assert "recorded by the sweep on cpu" in out
    assert "momentum" not in out


@pytest.mark.slow
def test_a_goal_after_the_fact(advised):
    goal = ["--goal", "val/classification_error < 0.1", "--step-ms", STEP_MS, "--optimizer", "sgd"]
    [curve] = advised(*goal)
    [own] = advised(*goal[2:])
    assert {row["goal_threshold"] for row in curve["splits"]} == {0.1}
    assert all(a["seconds"] <= b["seconds"] for a, b in zip(curve["splits"], own["splits"], strict=True))


@pytest.mark.slow
def test_steps_measured_here(advised):
    [curve] = advised("--gpus", "2", "--optimizer", "sgd", "--measure", "--device", "cpu")
    assert "measured now on cpu, with one training at a time" in curve["notes"][0]
    assert {row["seconds_bound"] for row in curve["splits"]} == {"="}


REFUSED = [
    (["--gpus", "0"], "--gpus takes the largest number of devices"),
    (["--gpus", "2,x"], "--gpus takes the largest number of devices"),
    (["--gpus", "1000000"], "from 1 to 100,000"),
    (["--gpus", "3,7"], "can be divided evenly among 3 or 7 devices; give other --gpus"),
    (["--step-ms", "32"], "--step-ms takes the milliseconds of a step"),
    (["--step-ms", "32:1,32:2"], "each once"),
    (["--step-ms", "32:0"], "--step-ms takes the milliseconds of a step"),
    (["--memory", "0"], "--memory must be above 0 (GiB), but got 0."),
    (["--memory", "nan"], "--memory must be above 0 (GiB), but got nan."),
    (["--memory", "0.0001"], "not even one example fits on a device; give more --memory"),
    (["--max-per-device-batch", "0"], "--max-per-device-batch must be above 0 (examples), but got 0."),
    (["--max-per-device-batch", "1k tokens"], "is 1,024 tokens, but mlp_digits has no tokens_per_example"),
    (["--allreduce-ms", "-1"], "--allreduce-ms must be at least 0 milliseconds, but got -1."),
    (["--bandwidth", "-1"], "--bandwidth must be above 0 (GB/s)"),
    (["--price", "0"], "--price must be above 0 (per device-hour)"),
    (["--optimizer", "sgdd"], "no optimizer 'sgdd'"),
    (["--workload", "digits"], "no workload 'digits'"),
    (["--goal", "soon"], "a goal must read"),
    (["--goal", "val/x<1"], "val/x is not measured; there are: test/"),
    (["--goal", "val/classification_error<0.0001"], "give a looser --goal, or sweep again"),
]


@pytest.fixture(scope="module")
def curve(tmp_path_factory):
    """Some batch sizes of the published digits with SGD, which are read sooner than all."""
    folder = tmp_path_factory.mktemp("curve")
    for size in (8, 64, 256):
        copytree(PUBLISHED / f"studies/mlp_digits/sgd/{size}", folder / f"studies/mlp_digits/sgd/{size}")
    return folder


@pytest.mark.parametrize(("arguments", "why"), partly(REFUSED, 3))
def test_refusals(arguments, why, says, curve):
    assert why in says("advise", curve, *arguments, status=2)


def test_no_results(tmp_path, says):
    assert "no studies in" in says("advise", tmp_path, status=2)


def test_a_workload_that_cannot_be_built_again(tmp_path, advised, says, make_study, make_curve, write_study):
    study = make_study()
    write_study(tmp_path, study, [make_curve(study, index, reaches=50) for index in range(4)])
    err = says("advise", tmp_path, "--memory", 80, status=2)
    assert "tiny with momentum cannot be built again: workload._target_ must be an importable class" in err
    assert "Give --max-per-device-batch instead of --memory" in err
    assert advised("--max-per-device-batch", "8", results=tmp_path)


def test_imported_measurements_take_entered_step_times(tmp_path, advised, says):
    released, results = tmp_path / "released", tmp_path / "results"
    study = "studies/mlp_digits/momentum/64"
    copytree(PUBLISHED / study, tmp_path / "own" / study, ignore=ignore_patterns("rerun*"))  # an export has no reruns
    says("export", tmp_path / "own", released)
    says("import", released, results)
    for arguments, why in (
        ([], "no step of mlp_digits with momentum was timed on one device; enter --step-ms."),
        (["--memory", "80"], "was imported: its files do not say how its model is built"),
    ):
        assert why in says("advise", results, *arguments, status=2)
    imported, own = (advised("--step-ms", STEP_MS, results=folder) for folder in (results, tmp_path / "own"))
    assert [row["seconds"] for row in imported[0]["splits"]] == [row["seconds"] for row in own[0]["splits"]]


def test_each_imported_curve_is_refused_in_a_sentence_of_its_own(tmp_path, says):
    rows = [f"{name}{size},{name},{size},10,0.4\n" for name in ("adam", "sgd") for size in (8, 32)]
    (tmp_path / "own.csv").write_text("run,optimizer,batch_size,step,val/loss\n" + "".join(rows))
    says("import", tmp_path / "own.csv", tmp_path / "results", "--goal", "val/loss<0.5")
    why = "no step of own with {} was timed on one device; enter --step-ms."
    both = f"study: {why.format('adam')} Also: {why.format('sgd')}"
    assert says("advise", tmp_path / "results", status=2).strip() == both


@pytest.mark.slow
def test_nothing_is_said_of_triton_at_the_end():
    """Torch for GPUs brings it; to count bytes torch imports it, and it prints objects that are left at exit."""
    pytest.importorskip("triton")
    words = ["advise", str(PUBLISHED), "--optimizer", "sgd", "--gpus", "2", "--memory", "8"]
    ended = subprocess.run([sys.executable, "-m", "study", *words], check=True, capture_output=True, text=True)
    assert "leaked" not in ended.stdout + ended.stderr
