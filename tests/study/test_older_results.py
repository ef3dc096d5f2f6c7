"""Results folders of older versions are read, reported and continued; what cannot be continued is refused."""

import io
import json
import platform
import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.fused import partly
from helpers.made_workload import edited
from rich.console import Console

from analysis import load
from study import store, transfer, whole_sweep
from study.__main__ import main
from study.calibration import compare
from study.config.jobs import Job, parse_jobs
from study.devices.machine import processor
from study.devices.placement import Placement
from study.engine import footprint, older
from study.engine.trial import checkpoints
from study.records import Study

DATA = Path(__file__).parents[1] / "data" / "older_results"
PLACE = Placement(device="cpu", workers=1)
ARITHMETICS = {
    "broad/momentum/4": "plain",
    "nqm/momentum/32": "plain",
    "serial/momentum/4": "plain",
    "softmax/momentum/16": "linear_chain",
    "softmax/momentum/2": "linear_chain",
    "wide/momentum/1": "linear_blocks",
}


@pytest.fixture
def results(tmp_path):
    return Path(shutil.copytree(DATA / "complete", tmp_path / "results"))


def folder_of(results, name):
    return results / "studies" / name


def job_of(results, name, **search):
    """The study on file, asked for again, perhaps with more of its search."""
    study = Study.from_question(store.read(folder_of(results, name) / "study.json")["question"])
    return Job(replace(study, search=replace(study.search, **search)), results, PLACE)


def trained(job):
    console = Console(file=io.StringIO())
    whole_sweep.train(whole_sweep.settled([job]), None, "", console)
    return store.load(store.study_folder(job.results, job.study))


def assert_continued(found, expected):
    """Equal bits on the kind of processor and the torch that wrote the folder, else equal but for rounding."""
    recorded = store.read(folder_of(DATA / "complete", "serial/momentum/4") / "study.json")["provenance"][0]
    here = (processor(), version("torch"), torch.backends.cpu.get_cpu_capability(), platform.machine())
    alike = here == (recorded["processor"], recorded["versions"]["torch"], "AVX512", "x86_64")
    assert [curve.trial for curve in found] == [curve.trial for curve in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.steps.tolist() == other.steps.tolist()
        assert one.errors.keys() == other.errors.keys()
        for metric, values in one.errors.items():
            np.testing.assert_allclose(values, other.errors[metric], rtol=0 if alike else 1e-4)


def test_names_are_those_of_this_version(results):
    found = {f"{s.workload}/{s.optimizer}/{s.batch_size}": s.question["arithmetic"] for s in load.load(results)}
    assert found == ARITHMETICS
    nqm = load.load_study(folder_of(results, "nqm/momentum/32"))
    assert nqm.question["workload"]["_target_"] == "workloads.noisy_quadratic.NoisyQuadraticModel"
    assert "fingerprint" in nqm.provenance[0]
    assert "traits" not in nqm.provenance[0]


FAST = ("softmax/momentum/16",)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow])
        for name in ARITHMETICS
        if name != "broad/momentum/4"
    ],
)
def test_an_older_study_is_continued(results, name):
    folder = folder_of(results, name)
    whole = store.load(folder)
    store.write_curves(whole[:1], folder / "curves.parquet")
    assert_continued(trained(job_of(results, name)), whole)
    held = json.loads((folder / "study.json").read_text())
    assert held["question"]["arithmetic"] == ARITHMETICS[name]
    assert ["fingerprint" in run for run in held["provenance"]] == [False, True]


@pytest.mark.slow
def test_a_killed_sweep_of_an_older_version_is_continued(tmp_path):
    results = Path(shutil.copytree(DATA / "interrupted", tmp_path / "results"))
    folder = folder_of(results, "serial/momentum/4")
    assert [trial.index for trial in checkpoints.trials(store.Checkpoints(folder))] == [1]
    assert len(store.load(folder)) == 1
    expected = store.load(folder_of(DATA / "complete", "serial/momentum/4"))
    assert_continued(trained(job_of(results, "serial/momentum/4")), expected)


@pytest.mark.parametrize("verb", partly(["report", "status"], 2, 1))
def test_older_results_are_reported(results, says, verb):
    said = says(verb, results)
    assert all(name in said for name in ("broad", "nqm", "serial", "softmax", "wide"))


def test_trials_are_refused_if_an_older_fingerprint_differs(results):
    edited(folder_of(results, "softmax/momentum/16") / "study.json", '"parameters": 650.0', '"parameters": 651.0')
    edited(folder_of(results, "softmax/momentum/2") / "study.json", '"parameters": 650.0', '"parameters": 651.0')
    job = job_of(results, "softmax/momentum/16")
    assert whole_sweep.settled([job])  # it is complete
    more = replace(job, study=replace(job.study, search=replace(job.study.search, trials=50)))
    said = r"holds trials of another softmax: its code or data changed \(parameters 651, now 650\); .* with --mix"
    with pytest.raises(store.StoreError, match=said):
        whole_sweep.settled([more])
    assert whole_sweep.settled([replace(more, mix=True)])


def test_an_older_noisy_quadratic_model_is_calibrated(results):
    compare.check([job_of(results, "nqm/momentum/32", reruns=1)])


def test_a_class_with_new_arguments_continues_older_folders(tmp_path):
    """`norm` and its numbers came later; without them the networks had no norm."""
    [job] = parse_jobs(["workload=resnet_cifar", "batch_size=64", f"results={tmp_path}"])
    folder = store.study_folder(tmp_path, job.study)
    question = json.loads(json.dumps(job.study.question()))
    for argument in ("norm", "ghost_batch", "norm_groups"):
        del question["workload"][argument]
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps({"question": question}))
    store.check(tmp_path, [job.study])
    [other] = parse_jobs(["workload=resnet_cifar", "workload.norm=ghost", "batch_size=64", f"results={tmp_path}"])
    with pytest.raises(store.StoreError, match=r"workload\.norm"):
        store.check(tmp_path, [other.study])


@pytest.mark.slow
def test_what_is_complete_needs_no_continuing(results):
    edited(folder_of(results, "softmax/momentum/2") / "study.json", '"arithmetic": "bmm"', '"arithmetic": "grouped"')
    for name in ("softmax/momentum/2", "broad/momentum/4"):
        job = job_of(results, name)
        assert whole_sweep.missing(whole_sweep.settled([job])) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("softmax/momentum/2", r"at batch size 2 .* in the arithmetic grouped, which was removed"),
        pytest.param(
            "broad/momentum/4",
            r"at batch size 4 .* 1,048,576 weights or more by factored gradients .* were removed",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_cannot_be_continued_is_refused(results, name, reason):
    edited(folder_of(results, "softmax/momentum/2") / "study.json", '"arithmetic": "bmm"', '"arithmetic": "grouped"')
    job = job_of(results, name, trials=3)
    with pytest.raises(store.StoreError, match=rf"{reason}; choose another results=DIR") as refusal:
        whole_sweep.settled([job])
    assert "reported but not continued: " in str(refusal.value)
    assert main(["report", str(results)]) == 0
    assert footprint.rebuilt(store.read(folder_of(results, name) / "study.json")["question"], "cpu").model


def test_tuned_settings_of_removed_arithmetics_are_not_transferred(results, monkeypatch):
    for size in (2, 16):
        path = folder_of(results, f"softmax/momentum/{size}") / "study.json"
        edited(path, '"arithmetic": "bmm"', '"arithmetic": "grouped"')
        edited(path, '"threshold": 0.05', '"threshold": 0.9')  # which its trials reached
    for name in ("broad", "nqm", "serial", "wide"):
        shutil.rmtree(results / "studies" / name)
    with pytest.raises(store.StoreError, match="in the arithmetic grouped, which was removed"):
        transfer.transfers(results, transfer.TransferRequest(), PLACE)


def test_engines_that_chose_a_removed_arithmetic_are_no_cure(results):
    edited(folder_of(results, "softmax/momentum/2") / "study.json", '"arithmetic": "bmm"', '"arithmetic": "grouped"')
    job = job_of(results, "softmax/momentum/2")
    with pytest.raises(store.StoreError, match=r"arithmetic: grouped -> plain\); choose another results=DIR"):
        store.check(results, [replace(job.study, arithmetic="plain")])


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({}, True),
        ({"batch_size": 8}, True),
        ({"batch_size": 9}, False),
        ({"precision": "bf16"}, False),
        ({"micro_batch": 2}, False),
        ({"arithmetic": "linear_chain"}, False),
        ({"optimizer": "sgd"}, True),
        ({"optimizer": "torch.optim.SGD"}, False),
        ({"widths": [16383]}, False),
    ],
    ids=str,
)
def test_the_rule_of_factored_gradients(change, refused):
    study = job_of(DATA / "complete", "broad/momentum/4").study
    if "widths" in change:
        change = {"workload": {**study.workload, **change}}
    assert older.factored(replace(study, **change)) is refused


def test_factored_gradients_were_those_of_one_cpu_in_older_versions():
    study = job_of(DATA / "complete", "broad/momentum/4").study
    on_cpu = {"device": "cpu", "devices": 1}
    assert older.refusal(study, [on_cpu])
    assert older.refusal(study, [{"device": "cuda:0", "devices": 1}, on_cpu])
    for other in ({"device": "cuda:0"}, {"devices": 2}, {"fingerprint": {}}):
        assert older.refusal(study, [on_cpu | other]) is None
    assert older.refusal(study, []) is None
