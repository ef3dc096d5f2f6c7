"""Losses, optimizers and earlier requests of the user's own: what a sweep makes of them before it trains."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from helpers.blobs import Blobs
from helpers.fused import partly
from helpers.made_workload import own_folder

from study import store, whole_sweep
from study.config.checked import check_names
from study.config.composed.choices import CONF
from study.config.jobs import parse_jobs
from study.errors import UsageError
from workloads.base import cross_entropy_error
from workloads.fully_connected import FullyConnected

RATES = "search.space.learning_rate={low: 0.01, high: 1, scale: log}"


def test_a_module_that_cannot_be_read_is_told_in_a_line(tmp_path):
    (tmp_path / "made_wrong.py").write_text("class Mine:\n    def (self):\n")
    asked = ["batch_size=64", "workload._target_=made_wrong.Mine", f"results={tmp_path / 'results'}"]
    with pytest.raises(UsageError, match=r"must be an importable class.*made_wrong.py, line 2"):
        whole_sweep.jobs_here(asked, tmp_path)


DIGITS = {
    "_target_": "workloads.fully_connected.FullyConnected",
    "name": "mine",
    "dataset": "digits",
    "train_examples": 100,
    "validation_examples": 100,
    "widths": [8],
}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"wdths": [8]}, "FullyConnected takes no argument 'wdths'; did you mean 'widths'"),
        ({"_target_": "workloads.fully_connected.FullConnected"}, "workload._target_ must be an importable class"),
        ({"_target_": None}, "workload._target_ must be an importable class"),
        ({"widths": 8}, "workload.widths must be a list"),
    ],
    ids=str,
)
def test_a_wrong_key_of_a_workload_is_told_before_data_are_read(tmp_path, keys, said):
    """Also those of the last workload of several, whose first ones would have loaded theirs."""
    (tmp_path / "workload").mkdir()
    head = "# @package _global_\ngoal: val/x < 1\nbudget: {epochs: 1, steps: 9}\n"
    (tmp_path / "workload/mine.yaml").write_text(f"{head}workload: {json.dumps(DIGITS | keys)}\n")
    with pytest.raises(UsageError, match=said):
        parse_jobs(["workload=mlp_digits,mine", "batch_size=8"], tmp_path)


MOVES = {
    "at import": "import os\nfrom made_images import *\nos.chdir('/')\nclass Moving(Images): 0",
    "in splits": "import os\nfrom made_images import *\nclass Moving(Images):\n"
    "    def splits(self, device):\n        os.chdir('/')\n        return super().splits(device)",
}


@pytest.mark.parametrize("jobs", [whole_sweep.jobs_here, whole_sweep.jobs_elsewhere])
@pytest.mark.parametrize("source", MOVES.values(), ids=MOVES)
def test_a_users_code_that_changes_the_folder_does_not_move_the_results(tmp_path, monkeypatch, source, jobs):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "made_moving", raising=False)
    folder = own_folder(tmp_path / "mine", "moving", source, "made_moving.Moving")
    jobs(["workload=moving", "batch_size=4"], folder)
    assert Path.cwd() == tmp_path
    sys.modules.pop("made_moving", None)


READS = """import os
from made_images import *
os.chdir('data')
class Moving(Images):
    def splits(self, device):
        os.stat('here.txt')
        return super().splits(device)
"""


def test_a_users_code_stays_in_its_folder_and_recorded_trials_in_ours(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/here.txt").write_text("read")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "made_moving", raising=False)
    words = ["workload=moving", "batch_size=4"], own_folder(tmp_path / "mine", "moving", READS, "made_moving.Moving")
    [job] = whole_sweep.jobs_here([*words[0], "engine=serial"], words[1])[0]
    store.open_study(job.results, job.study, {})
    for jobs in (whole_sweep.jobs_here, whole_sweep.jobs_elsewhere):  # as a later round, which imports nothing
        [later] = jobs(*words)[0]
        assert later.study.arithmetic == "plain"
        assert Path.cwd() == tmp_path
    sys.modules.pop("made_moving", None)


FILES = {
    "without its first line": ("goal: val/x < 1\n", [], "goal, budget.epochs and budget.steps are"),
    "without anything": (
        "# @package _global_\n",
        [],
        "goal, budget.epochs and budget.steps are not set: give them, such as 'goal=val/classification_error < 0.1' "
        "budget.epochs=4 budget.steps=200, or set them in the workload's file",
    ),
    "without epochs": (
        "# @package _global_\ngoal: val/x < 1\nbudget: {tokens: 1e6, steps: 9}\n",
        [],
        "budget.epochs is not set: give it, such as budget.epochs=4, or set it in the workload's file, below its first "
        "line, `# @package _global_`; budget.epochs=0 if budget.tokens or budget.steps alone count.",
    ),
    "without batch sizes": (
        "# @package _global_\ngoal: val/x < 1\nbudget: {epochs: 1, steps: 9}\n",
        ["batch_size=null"],
        "batch_sizes is not set: give it, such as batch_sizes=[8,64,512], or set it in the workload's file",
    ),
}


@pytest.mark.parametrize(("yaml", "words", "said"), FILES.values(), ids=FILES)
def test_all_that_a_workloads_file_leaves_out_is_told_with_the_cure(tmp_path, yaml, words, said):
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload/mine.yaml").write_text(yaml)
    with pytest.raises(UsageError, match=re.escape(said)):
        whole_sweep.jobs_here(["workload=mine", "batch_size=8", f"results={tmp_path / 'results'}", *words], tmp_path)


def without_a_default(self, outputs, targets, label_smoothing):
    return cross_entropy_error(outputs, targets) * (1 - label_smoothing)


def of_plain_numbers(self, outputs, targets, label_smoothing=0.0):
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=label_smoothing)


@pytest.mark.parametrize(("loss", "arithmetic"), [(without_a_default, "linear_chain"), (of_plain_numbers, "plain")])
def test_a_tuned_loss_is_fused_if_it_takes_tensors(tmp_path, monkeypatch, loss, arithmetic):
    monkeypatch.setattr(FullyConnected, "loss", loss)
    asked = ["batch_size=64", "search.space.label_smoothing=[0,0.1]", f"results={tmp_path}"]
    [job], _ = whole_sweep.jobs_here(asked, None)
    assert job.study.arithmetic == arithmetic


def test_an_optimizer_of_the_users_folder(tmp_path):
    (tmp_path / "made_optimizer.py").write_text("import torch\n\nclass Sgd(torch.optim.SGD):\n    pass\n")
    asked = ["batch_size=64", "optimizer=torch", "optimizer.target=made_optimizer.Sgd"]
    asked += [RATES, f"results={tmp_path / 'results'}"]
    [job], _ = whole_sweep.jobs_here(asked, tmp_path)
    assert job.study.optimizer == "made_optimizer.Sgd"


VIEWING = """
from made_images import *


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.head = torch.nn.Conv2d(1, 2, 2), torch.nn.Linear(18, 2)

    def forward(self, x):
        y = self.convolution(x)
        return self.head(y.view(y.size(0), -1))


class Viewing(Images):
    def model(self):
        return Net()
"""


@pytest.mark.parametrize(
    ("words", "arithmetic"),
    [([], "vmap"), (["optimizer=torch", "optimizer.target=torch.optim.RAdam", RATES], "plain")],
)
def test_a_model_of_one_layout_is_tried_in_that_layout(tmp_path, words, arithmetic):
    """`view` after a convolution fails with channels-last, so trial steps take the contiguous layout, too."""
    folder = own_folder(tmp_path, "viewing", VIEWING, "made_viewing.Viewing")
    asked = ["workload=viewing", "batch_size=2", f"results={tmp_path / 'results'}", *words]
    [job], _ = whole_sweep.jobs_here(asked, folder)
    assert (job.study.arithmetic, job.alone) == (arithmetic, "")


@pytest.mark.slow
def test_asking_for_less_goes_on_with_what_was_asked_before(tmp_path, write_study):
    """What follows from a search, such as its reruns, follows from all of it."""
    asked = ["batch_size=64", f"results={tmp_path}"]
    [job], _ = whole_sweep.jobs_here([*asked, "search.trials=30"], None)
    write_study(tmp_path, job.study, [])
    [less], _ = whole_sweep.jobs_here([*asked, "search.trials=6", "search.reruns=6"], None)
    assert (less.study.search.trials, less.study.search.reruns) == (30, 6)
    [elsewhere], _ = whole_sweep.jobs_elsewhere([*asked, "search.trials=6"], None)
    assert elsewhere.study.search.trials == 30


@pytest.fixture
def mine(tmp_path):
    """A folder of the user's own, with a workload `images`."""
    return own_folder(tmp_path / "mine")


def test_a_workload_of_the_users_own(mine):
    found = parse_jobs(["workload=images,mlp_digits", "optimizer=sgd"], mine)
    assert [job.study.batch_size for job in found if job.study.name == "images"] == [2, 4, 8, 16]
    assert len([job for job in found if job.study.name == "mlp_digits"]) == 11
    with pytest.raises(UsageError, match="unknown workload 'images'"):
        parse_jobs(["workload=images"])


def test_results_may_lie_beside_ones_own_workloads(mine):
    """Hydra takes a folder in there for choices of a key of that name."""
    for name in ("results", "shards", "nonsense"):
        (mine / name).mkdir()
    found = parse_jobs(["workload=images", f"results={mine / 'results/mine'}", "shards=2", "batch_size=4"], mine)
    assert [(job.results, job.shards, job.study.batch_size) for job in found] == [(mine / "results/mine", 2, 4)]
    with pytest.raises(UsageError, match="unknown key 'nonsense'"):
        parse_jobs(["workload=images", "nonsense=2"], mine)


@pytest.mark.parametrize(
    "path", partly(["workload/mlp_digits.yaml", "optimizer/adam.yaml", "space/mlp_digits/momentum.yaml"], 2)
)
def test_a_file_that_ours_of_the_same_name_would_hide_is_refused(mine, path):
    own, ours = mine / path, (CONF / path).read_text()
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(ours)
    assert parse_jobs(["batch_size=64"], mine) == parse_jobs(["batch_size=64"])
    own.write_text(f"{ours}seeds: {{search: 7}}\n")
    with pytest.raises(UsageError, match=f"{path} is not read"):
        parse_jobs(["batch_size=64"], mine)


def test_a_parameter_of_the_loss_and_of_the_training_is_refused(make_study):
    """One value would set both: Adam's epsilon of 1e-8 would be that of the loss, too."""
    workload = Blobs()
    workload.hyperparameters = ("epsilon",)
    space = {"learning_rate": 0.1, "epsilon": 1.0}
    check_names(make_study({**space, "beta1": 0.9, "beta2": 0.9}, optimizer="adam"), Blobs())
    check_names(make_study(space, optimizer="sgd"), workload)
    with pytest.raises(UsageError, match=r"epsilon is a hyperparameter of both optimizer adam .* and the loss of tiny"):
        check_names(make_study({**space, "beta1": 0.9, "beta2": 0.9}, optimizer="adam"), workload)


@pytest.mark.parametrize("name", ["low", "seeds", "stage", "status"])
def test_a_parameter_of_the_loss_with_the_name_of_a_column_is_refused(make_study, name):
    """The interval or the seeds of S(B) would take its place in the tables."""
    workload = Blobs()
    workload.hyperparameters = (name,)
    with pytest.raises(UsageError, match=f"search.space.{name} would share its name .*; let tiny call it own_{name}"):
        check_names(make_study({"learning_rate": 0.1, name: 1.0}, optimizer="sgd"), workload)


def test_a_tuple_of_one_name_without_its_comma_is_refused(make_study):
    """It was read letter by letter."""
    workload = Blobs()
    workload.hyperparameters = "smoothing"
    with pytest.raises(UsageError, match=r"must be a tuple of names, but got .*; .* \('smoothing',\)"):
        check_names(make_study({"learning_rate": 0.1, "smoothing": 0.1}, optimizer="sgd"), workload)
