"""Trials of edited code, data or weights are refused; comments, formatting and a larger search change nothing."""

import importlib
import io
import sys
from dataclasses import replace

import pytest
import torch
from helpers.fused import partly
from helpers.made_workload import IMAGES, edited, own_folder
from rich.console import Console

from study import store, warn, whole_sweep
from study.config import code_fingerprint, fingerprint
from workloads.fully_connected import FullyConnected
from workloads.resnet_cifar import ResNetCifar

MODEL = "from made_parts.layers import first\nfrom .layers import *\nfrom made_base import Base\nimport torch\n"
LAYERS = "import made_deep\n\ndef first():\n    import made_lazy\n    return torch.nn.Conv2d(1, 2, 3)\n"
FILES = {
    "made_images.py": IMAGES.replace("import torch\n", "import torch\nimport made_parts.model\n", 1),
    "made_parts/__init__.py": "",
    "made_parts/model.py": MODEL,
    "made_parts/layers.py": "import torch\n" + LAYERS,
    "made_base.py": "class Base: pass\n",
    "made_deep.py": "DEEP = 1\n",
    "made_lazy.py": "LAZY = 1\n",
    "made_apart.py": "APART = 1\n",
    "made_optimizer.py": "import torch\n\n\nclass Sgd(torch.optim.SGD):\n    pass\n",
}


@pytest.fixture
def mine(tmp_path):
    """A user's folder with the workload `images` in several files. `settled` imports them again."""
    folder = own_folder(tmp_path / "mine")
    (folder / "made_parts").mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def forget():
    for name in [name for name in sys.modules if name.startswith("made_")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def settled(tmp_path, mine, *more, optimizer="sgd", mix=False):
    forget()
    asked = ["workload=images", f"optimizer={optimizer}", f"results={tmp_path / 'results'}", "search=sobol"]
    [job], _ = whole_sweep.jobs_here([*asked, "search.reruns=0", "engine.workers=1", *more], mine, mix)
    return job


def recorded(job, keys=None):
    """Write the record of a run of this job, which began a trial; `keys`: only those of its fingerprint."""
    held = {key: value for key, value in job.fingerprint.items() if keys is None or key in keys}
    record = store.open_study(job.results, job.study, {"device": "cpu", "fingerprint": held})
    store.end_run(record, {"ended": "now"})
    checkpoints = store.study_folder(job.results, job.study) / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    (checkpoints / "000000.pt").touch()


OWN = ("optimizer.target=made_optimizer.Sgd", "search.space.learning_rate={low: 0.01, high: 1, scale: log}")
LOSS = "return cross_entropy_error(outputs, targets)"
CODE = r"its code changed \(made_images.py\)"
DATA = r"its data changed \(the train, val and test splits\)"
SPLIT = "(inputs + 0.5 * labels"


EDITS = [
    ("made_images.py", "", "", None),
    ("made_images.py", "@dataclass(frozen=True)", "# A comment.\n@dataclass( frozen = True )", None),
    ("made_images.py", "    name: str\n", '    """A docstring."""\n\n    name: str\n', None),
    ("made_images.py", f"        {LOSS}", f'        "Another."\n        {LOSS}', None),
    ("made_images.py", LOSS, LOSS.replace("return", "return 2 *"), CODE),
    ("made_images.py", "torch.randn(", "1.1 * torch.randn(", f"{CODE} and {DATA}"),
    ("made_images.py", SPLIT, SPLIT.replace("0.5", "0.6"), f"{CODE} and {DATA}"),
    ("made_images.py", "Linear(8, 2)", "Linear(8, 3)", f"{CODE} and the initial weights of its model changed"),
    ("made_parts/__init__.py", "", "HERE = 1\n", r"its code changed \(made_parts/__init__.py\)"),
    ("made_parts/model.py", "import torch\n", "import torch\nX = 1\n", r"its code changed \(made_parts/model.py\)"),
    ("made_parts/layers.py", "(1, 2, 3)", "(1, 2, 2)", r"its code changed \(made_parts/layers.py\)"),
    ("made_base.py", "pass", "x = 1", r"its code changed \(made_base.py\)"),
    ("made_deep.py", "1", "2", r"its code changed \(made_deep.py\)"),
    ("made_lazy.py", "1", "2", r"its code changed \(made_lazy.py\)"),
    ("made_parts/layers.py", "import made_deep\n", "", r"its code changed \(made_deep.py, made_parts/layers.py\)"),
    ("made_apart.py", "1", "2", None),
    ("made_optimizer.py", "pass", "x = 1", None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "old", "new", "said"), partly(EDITS, 8))
def test_edits_are_told_by_file_and_part(tmp_path, mine, name, old, new, said):
    recorded(settled(tmp_path, mine, "batch_size=4"))
    edited(mine / name, old, new)
    if said is None:
        assert settled(tmp_path, mine, "batch_size=4", "search.trials=9")
        assert settled(tmp_path, mine, "batch_size=8")
        return
    with pytest.raises(store.StoreError, match=f"holds trials of another images: {said}; choose another results=DIR"):
        settled(tmp_path, mine, "batch_size=8")
    forget()
    with pytest.raises(store.StoreError, match=said):
        whole_sweep.jobs_elsewhere(
            ["workload=images", "optimizer=sgd", "search=sobol", f"results={tmp_path / 'results'}"], mine
        )
    console = Console(width=1000, file=io.StringIO())
    warn.of_changes([settled(tmp_path, mine, "batch_size=8", mix=True)], console)
    assert "holds trials of another images: its code changed (" in console.file.getvalue()


@pytest.mark.slow
def test_only_trials_of_an_optimizer_depend_on_its_code(tmp_path, mine):
    recorded(settled(tmp_path, mine, "batch_size=4", *OWN, optimizer="torch"))
    edited(mine / "made_optimizer.py", "pass", "x = 1")
    assert settled(tmp_path, mine, "batch_size=4")
    with pytest.raises(store.StoreError, match=r"the code of its optimizer changed \(made_optimizer.py\); choose"):
        settled(tmp_path, mine, "batch_size=4", *OWN, optimizer="torch")


@pytest.mark.slow
def test_an_edited_weights_file_is_noticed(tmp_path, mine):
    weights = mine / "weights.pt"
    made = "return torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), "
    read = f"layer = torch.nn.Linear(16, 2)\n        layer.load_state_dict(torch.load({str(weights)!r}))\n        "
    flat = "return torch.nn.Sequential(torch.nn.Flatten(), layer)  # "
    edited(mine / "made_images.py", made, f"{read}{flat}")
    state = torch.nn.Linear(16, 2).state_dict()
    torch.save(state, weights)
    recorded(settled(tmp_path, mine, "batch_size=4"))
    torch.save({name: value * (1 + 1e-7) for name, value in state.items()}, weights)
    assert settled(tmp_path, mine, "batch_size=4")
    torch.save({name: value.flip(0) for name, value in state.items()}, weights)
    with pytest.raises(store.StoreError, match="another images: the initial weights of its model changed; choose"):
        settled(tmp_path, mine, "batch_size=4")


@pytest.mark.slow
def test_keys_that_an_earlier_version_did_not_record_are_not_compared(tmp_path, mine):
    job = settled(tmp_path, mine, "batch_size=4")
    recorded(job, keys=["parameters", "mean input", "mean target", "untrained loss"])
    edited(mine / "made_images.py", "return cross", "return 1 * cross")
    assert settled(tmp_path, mine, "batch_size=4")
    edited(mine / "made_images.py", "return 1 *", "return 2 *")
    with pytest.raises(store.StoreError, match=r"its code or data changed \(untrained loss 0.\d+, now 1.\d+\); choose"):
        settled(tmp_path, mine, "batch_size=4")


@pytest.mark.slow
def test_a_finished_sweep_of_edited_code_is_still_reported(tmp_path, mine, write_study, make_curve):
    job = settled(tmp_path, mine, "batch_size=4")
    recorded(job)
    write_study(job.results, job.study, [make_curve(job.study, index, reaches=20) for index in range(3)])
    edited(mine / "made_images.py", "return cross", "return 2 * cross")
    assert whole_sweep.missing([settled(tmp_path, mine, "batch_size=4")]) == []
    with pytest.raises(store.StoreError, match=CODE):
        settled(tmp_path, mine, "batch_size=4", "search.trials=9")


def test_shipped_workloads_have_no_hash_of_their_code(tmp_path):
    for workload in (FullyConnected, ResNetCifar):
        assert code_fingerprint.code([workload, torch.nn.Linear]) == {}
    [job], _ = whole_sweep.jobs_here(["batch_size=64", f"results={tmp_path}"], None)
    assert not [key for key in job.fingerprint if "code" in key]
    assert {key.split()[0] for key in job.fingerprint} == {"parameters", "mean", "untrained", "weights", "data"}


def test_rounding_and_older_keys_pass(tmp_path, mine):
    job = settled(tmp_path, mine, "batch_size=4")
    rounded = {key: value if value == int(value) else value * (1 + 3e-6) for key, value in job.fingerprint.items()}
    assert fingerprint.compared(rounded, job.fingerprint) == []
    assert fingerprint.compared({}, job.fingerprint) == []
    assert fingerprint.changes([replace(job, results=tmp_path / "other")]) == {}
