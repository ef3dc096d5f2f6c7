"""A user's sweep whose code changes halfway, and one whose splits() draws random data."""

import importlib
import sys

import pytest
from helpers.made_workload import edited, own_folder

from study.__main__ import main


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The folder of the workload `images`; the current folder is beside it."""
    monkeypatch.chdir(tmp_path)
    return own_folder(tmp_path / "mine")


def edit(folder, old, new):
    edited(folder / "made_images.py", old, new)
    sys.modules.pop("made_images", None)
    importlib.invalidate_caches()


def study(verb, *words):
    return main([verb, *words, "--config-dir", "mine"])


def asked(size):
    return [
        "workload=images",
        "optimizer=sgd",
        "engine.workers=1",
        "search.trials=2",
        "search.reruns=0",
        f"batch_size={size}",
    ]


def refused(verb, words, capsys):
    capsys.readouterr()
    assert study(verb, *words) == 2
    err = capsys.readouterr().err
    return "study: results/images holds trials of another images: its code changed (made_images.py); choose" in err


@pytest.mark.slow
def test_trials_of_edited_code_are_refused_and_mix_trains_on(mine, capsys):
    assert study("sweep", *asked(4)) == 0
    edit(mine, "return cross_entropy_error(", "return 2 * cross_entropy_error(")
    assert refused("sweep", asked("4,8"), capsys)
    assert refused("plan", asked(8), capsys)
    assert study("sweep", *asked(8), "--mix") == 0
    assert "its code changed (made_images.py). --mix trains on" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_transfers_of_edited_code_are_refused_too(mine, capsys):
    assert study("sweep", *asked("2,4")) == 0
    edit(mine, "return cross_entropy_error(", "return 2 * cross_entropy_error(")
    assert study("sweep", *asked("2,4")) == 0  # complete
    rules = ["results/images", "--seeds", "1", "--rules", "constant", "--device", "cpu", "--workers", "1"]
    assert refused("rules", rules, capsys)
    assert study("rules", *rules, "--mix") == 0


DRAWN = "torch.randn(200, 1, 4, 4, generator=generator)"
GLOBAL = f"""{DRAWN} * torch.rand(1) + __import__('random').random() + __import__('numpy').random.normal()"""


@pytest.mark.slow
def test_splits_drawn_from_global_generators_are_equal_in_each_process(mine):
    edit(mine, DRAWN, GLOBAL)
    assert study("plan", *asked(4)) == 0


@pytest.mark.parametrize(
    "drawn",
    [
        "torch.as_tensor(__import__('numpy').random.default_rng().normal(size=(200, 1, 4, 4))).float()",
        pytest.param(f"{DRAWN} + __import__('os').getpid()", marks=pytest.mark.slow),
    ],
)
def test_other_data_in_each_process_are_refused(mine, capsys, drawn):
    edit(mine, DRAWN, drawn)
    assert study("plan", *asked(4)) == 1
    err = capsys.readouterr().err
    assert err.startswith("study: splits() of images gives other data in each process (the train, val and test splits")
    assert "default_rng(0)" in err
    assert "Traceback" not in err
