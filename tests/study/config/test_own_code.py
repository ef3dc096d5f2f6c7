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


def without_a_default(self, outputs, targets, label_smoothing):
    return cross_entropy_error(outputs, targets) * (1 - label_smoothing)


def of_plain_numbers(self, outputs, targets, label_smoothing=0.0):
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=label_smoothing)


@pytest.mark.parametrize(
    ("loss", "arithmetic"), [(without_a_default, "linear_chain"), (of_plain_numbers, "plain")], ids=str
)
def test_a_tuned_loss_is_fused_if_it_takes_tensors(tmp_path, monkeypatch, loss, arithmetic):
    monkeypatch.setattr(FullyConnected, "loss", loss)
    asked = ["batch_size=64", "search.space.label_smoothing=[0,0.1]", f"results={tmp_path}"]
    [job], _ = whole_sweep.jobs_here(asked, None)
    assert job.study.arithmetic == arithmetic


def test_an_optimizer_of_the_users_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "made_optimizer.py").write_text("import torch\n\nclass Sgd(torch.optim.SGD):\n    pass\n")
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


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder of the user's own, with a workload `mine`, which is not imported beyond the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload/mine.yaml").write_text(WORKLOAD)
    return tmp_path


WORKLOAD = """\
# @package _global_
workload: {_target_: mine.Mine, name: mine, train_examples: 100}
goal: val/error < 0.5
batch_sizes: [4, 16]
budget: {epochs: 1, steps: 10}
search: {trials: 2}
"""


def test_a_workload_of_the_users_own(mine):
    found = parse_jobs(["workload=mine,mlp_digits", "optimizer=sgd"], mine)
    assert [job.study.batch_size for job in found if job.study.name == "mine"] == [4, 16]
    assert len([job for job in found if job.study.name == "mlp_digits"]) == 11
    with pytest.raises(UsageError, match="unknown workload 'mine'"):
        parse_jobs(["workload=mine"])


def test_results_may_lie_beside_ones_own_workloads(mine):
    """Hydra takes a folder in there for choices of a key of that name."""
    for name in ("results", "shards", "nonsense"):
        (mine / name).mkdir()
    found = parse_jobs(["workload=mine", f"results={mine / 'results/mine'}", "shards=2", "batch_size=4"], mine)
    assert [(job.results, job.shards, job.study.batch_size) for job in found] == [(mine / "results/mine", 2, 4)]
    with pytest.raises(UsageError, match="unknown key 'nonsense'"):
        parse_jobs(["workload=mine", "nonsense=2"], mine)


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
def test_code_that_was_edited_since_is_told(tmp_path, mine, edit, told):
    """By a sweep that goes on in the same folder, whose question still names the same class."""
    yaml = WORKLOAD.replace("mine.Mine, name: mine", "made_edited.Edited, name: edited")
    (mine / "workload/edited.yaml").write_text(yaml.replace("val/error", "val/classification_error"))
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
