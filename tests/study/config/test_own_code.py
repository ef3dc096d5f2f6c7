"""Losses, optimizers and earlier requests of the user's own: what a sweep makes of them before it trains."""

import importlib
import io
import sys

import pytest
import torch
from rich.console import Console

from study import store, warn, whole_sweep
from study.config.jobs import parse_jobs
from study.errors import UsageError
from workloads.base import cross_entropy_error
from workloads.fully_connected import FullyConnected


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda self, outputs, targets: outputs**2, r"loss must be a number per example.*\[8\].*\[8, 10\]"),
        (lambda self, outputs, targets: outputs.mean(), r"loss must be a number per example.*\[8\].*\[\]"),
        (lambda self, outputs, targets, margin: outputs.mean(1), "'margin'; `hyperparameters` must name .* a default"),
    ],
)
def test_a_loss_that_is_no_number_for_each_example_is_refused(tmp_path, monkeypatch, loss, said):
    """Lanes, accumulated batches and plain ones would each make something else of it."""
    monkeypatch.setattr(FullyConnected, "loss", loss)
    with pytest.raises(UsageError, match=said):
        whole_sweep.jobs_here(["batch_size=64", f"results={tmp_path}"], None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (list, r"must return workloads.base.Splits\(train, val, test\), but got a list"),
        (lambda s: s._replace(val=(s.val[0], s.val[1][:50])), "the val split of .* has 300 inputs and 50 targets"),
        (lambda s: s._replace(test=(s.test[0][:0], s.test[1][:0])), "the test split of .* must not be empty"),
    ],
    ids=["a list", "inputs without targets", "nothing"],
)
def test_splits_that_are_none_are_refused(tmp_path, monkeypatch, change, said):
    splits = FullyConnected.splits
    monkeypatch.setattr(FullyConnected, "splits", lambda self, device: change(splits(self, device)))
    with pytest.raises(UsageError, match=said):
        whole_sweep.jobs_here(["batch_size=64", f"results={tmp_path}"], None)


def test_splits_that_fail_are_told_in_a_line(tmp_path, monkeypatch):
    def splits(self, device):
        raise RuntimeError("split_with_sizes expects split_sizes to sum exactly to 10")

    monkeypatch.setattr(FullyConnected, "splits", splits)
    said = r"mlp_digits's splits\(\) cannot be computed: RuntimeError: split_with_sizes .*test_own_code.py, line \d+\)"
    with pytest.raises(UsageError, match=said):
        whole_sweep.jobs_here(["batch_size=64", f"results={tmp_path}"], None)


def test_a_module_that_cannot_be_read_is_told_in_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "made_wrong.py").write_text("class Mine:\n    def (self):\n")
    asked = ["batch_size=64", "workload._target_=made_wrong.Mine", f"results={tmp_path / 'results'}"]
    with pytest.raises(UsageError, match=r"must be an importable class.*made_wrong.py, line 2"):
        whole_sweep.jobs_here(asked, tmp_path)


@pytest.mark.parametrize(
    ("yaml", "missing"),
    [("goal: val/x < 1\n", "goal"), ("# @package _global_\ngoal: val/x < 1\n", "budget.epochs")],
    ids=["without its first line", "without a budget"],
)
def test_what_a_workloads_file_leaves_out_is_told_with_the_cure(tmp_path, yaml, missing):
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload/mine.yaml").write_text(yaml)
    said = f"^{missing} is not set: set it in the workload's file, below its first line, `# @package _global_`"
    with pytest.raises(UsageError, match=said):
        whole_sweep.jobs_here(["workload=mine", "batch_size=8", f"results={tmp_path / 'results'}"], tmp_path)


def test_a_tuned_loss_needs_no_default_that_is_used(tmp_path, monkeypatch):
    def loss(self, outputs, targets, label_smoothing):
        return cross_entropy_error(outputs, targets) * (1 - label_smoothing)

    monkeypatch.setattr(FullyConnected, "loss", loss)
    asked = ["batch_size=64", "search.space.label_smoothing=[0,0.1]", f"results={tmp_path}"]
    [job], _ = whole_sweep.jobs_here(asked, None)
    assert job.study.arithmetic == "linear_chain"


def test_a_loss_that_takes_plain_numbers_only_is_not_fused(tmp_path, monkeypatch):
    def loss(self, outputs, targets, label_smoothing=0.0):
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=label_smoothing)

    monkeypatch.setattr(FullyConnected, "loss", loss)
    asked = ["batch_size=64", "search.space.label_smoothing=[0,0.1]", f"results={tmp_path}"]
    [job], _ = whole_sweep.jobs_here(asked, None)
    assert job.study.arithmetic == "plain"


MINE = """
import torch


class Sgd(torch.optim.SGD):
    pass
"""


def test_an_optimizer_of_the_users_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "made_optimizer.py").write_text(MINE)
    asked = ["batch_size=64", "optimizer=torch", "optimizer.target=made_optimizer.Sgd"]
    asked += ["search.space.learning_rate={low: 0.01, high: 1, scale: log}", f"results={tmp_path / 'results'}"]
    [job], _ = whole_sweep.jobs_here(asked, tmp_path)
    assert job.study.optimizer == "made_optimizer.Sgd"


def test_asking_for_less_goes_on_with_what_was_asked_before(tmp_path, write_study):
    """What follows from a search, such as its reruns, follows from all of it."""
    asked = ["batch_size=64", f"results={tmp_path}"]
    [job], _ = whole_sweep.jobs_here([*asked, "search.trials=30"], None)
    write_study(tmp_path, job.study, [])
    [less], _ = whole_sweep.jobs_here([*asked, "search.trials=6", "search.reruns=2"], None)
    assert (less.study.search.trials, less.study.search.reruns) == (30, 2)
    [elsewhere], _ = whole_sweep.jobs_elsewhere([*asked, "search.trials=6"], None)
    assert elsewhere.study.search.trials == 30


WORKLOAD = """\
# @package _global_
workload: {_target_: mine.Mine, name: mine, train_examples: 100}
goal: val/error < 0.5
batch_sizes: [4, 16]
budget: {epochs: 1, steps: 10}
search: {trials: 2}
"""


def test_a_workload_of_the_users_own(tmp_path, monkeypatch):
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload" / "mine.yaml").write_text(WORKLOAD)
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = parse_jobs(["workload=mine,mlp_digits", "optimizer=sgd"], tmp_path)
    assert [job.study.batch_size for job in found if job.study.name == "mine"] == [4, 16]
    assert len([job for job in found if job.study.name == "mlp_digits"]) == 11
    with pytest.raises(UsageError, match="unknown workload 'mine'"):
        parse_jobs(["workload=mine"])


def test_results_may_lie_beside_ones_own_workloads(tmp_path, monkeypatch):
    """Hydra takes a folder in there for choices of a key of that name."""
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload" / "mine.yaml").write_text(WORKLOAD)
    for name in ("results", "shards", "nonsense"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = parse_jobs(["workload=mine", f"results={tmp_path / 'results/mine'}", "shards=2", "batch_size=4"], tmp_path)
    assert [(job.results, job.shards, job.study.batch_size) for job in found] == [(tmp_path / "results/mine", 2, 4)]
    with pytest.raises(UsageError, match="unknown key 'nonsense'"):
        parse_jobs(["workload=mine", "nonsense=2"], tmp_path)


EDITED = """
from dataclasses import dataclass

import torch
from torch import nn

from workloads.base import Splits, classification_error, cross_entropy_error


@dataclass(frozen=True)
class Edited:
    name: str
    train_examples: int
    errors = {"classification_error": classification_error}
    hyperparameters = ()

    def splits(self, device):
        inputs = NOISE * torch.randn(140, 3, generator=torch.Generator().manual_seed(0))
        labels = (inputs.sum(1) > 0).long()
        return Splits(*zip(inputs.split([100, 20, 20]), labels.split([100, 20, 20])))

    def model(self):
        return nn.Linear(3, OUTPUTS)

    def loss(self, outputs, targets):
        return SCALE * cross_entropy_error(outputs, targets)
"""


@pytest.mark.parametrize(
    ("edit", "told"),
    [({}, None), ({"NOISE": 1.1}, "mean input"), ({"OUTPUTS": 3}, "parameters"), ({"SCALE": 2}, "untrained loss")],
    ids=str,
)
def test_code_that_was_edited_since_is_told(tmp_path, monkeypatch, edit, told):
    """By a sweep that goes on in the same folder, whose question still names the same class."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    mine = tmp_path / "mine"
    (mine / "workload").mkdir(parents=True)
    (mine / "workload" / "edited.yaml").write_text(
        WORKLOAD.replace("mine.Mine, name: mine", "made_edited.Edited, name: edited").replace(
            "val/error", "val/classification_error"
        )
    )
    said = []
    for size, changes in ((4, {}), (16, edit)):
        source = EDITED
        for name, value in ({"NOISE": 1, "OUTPUTS": 2, "SCALE": 1} | changes).items():
            source = source.replace(name, str(value))
        sys.modules.pop("made_edited", None)
        (mine / "made_edited.py").write_text(source)
        importlib.invalidate_caches()
        asked = ["workload=edited", "optimizer=sgd", f"batch_size={size}", f"results={tmp_path / 'results'}"]
        [job], _ = whole_sweep.jobs_here([*asked, "engine.workers=1"], mine)
        console = Console(width=1000, file=io.StringIO())
        warn.of_changes([job], console)
        said.append(console.file.getvalue())
        record = store.open_study(job.results, job.study, {"device": "cpu", "fingerprint": dict(job.fingerprint)})
        store.end_run(record, {"ended": "now"})
    assert said[0] == ""
    assert (told is None) == (said[1] == "")
    assert told is None or f"holds trials of another edited ({told}" in said[1] or f", {told} " in said[1]
