"""A file that is not a whole checkpoint of the very trial is passed over, and nothing in it is run."""

import io
import os
import pickle
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.blobs import WORKLOADS
from helpers.checkpointed import CASES, GRID, STEPS, held, saved, trial
from helpers.desks import Desk, assert_same_bits, trained
from helpers.fused import each_once, partly

from study.engine.trial import checkpoints
from study.records import Study, Trial
from study.settings import Seeds


@pytest.fixture
def taken(resumable: Any) -> Any:
    """(study, its trial 0, a checkpoint of it at step 6)."""

    def make(how: str) -> tuple[Study, Trial, bytes]:
        study = resumable(how)
        desk = Desk([trial(study, 0)], minutes=0)
        trained(study, desk)
        return study, trial(study, 0), desk.taken[5][1]

    return make


TORN = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "tail": lambda content: content[:-1],
    "text": lambda content: b"x" * len(content),
    "zeros": lambda content: content[:1000] + bytes(len(content) - 1000),
    "a flipped bit": lambda content: flipped(content),
}


def ignored(study: Study, asked: Trial, content: bytes) -> None:
    """Training from this checkpoint is training from the first step."""
    desk = Desk([asked], kept={0: content})
    assert_same_bits(trained(study, desk), trained(study, Desk([asked])))
    assert desk.pace.made == STEPS


def flipped(content: bytes) -> bytes:
    """One bit of a weight is another; the rest of the file is whole."""
    tensor = [*held(content)["weights"].values()][-1][:4].numpy().tobytes()
    [place] = [i for i in range(len(content)) if content.startswith(tensor, i)]
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(("how", "tear"), each_once(CASES, TORN))
def test_a_torn_checkpoint_is_ignored(taken, how, tear):
    study, asked, content = taken(how)
    torn = TORN[tear](content)
    assert checkpoints.trials({0: content}) == [asked]
    assert checkpoints.trials({0: torn}) == []
    ignored(study, asked, torn)


FOREIGN = {
    "no mapping": lambda held: [1, 2],
    "nothing": lambda held: {},
    "torch": lambda held: held | {"torch": "1.0"},
    "trial": lambda held: held | {"trial": held["trial"].replace('"index": 0', '"index": 1')},
    "micro_batch": lambda held: held | {"micro_batch": 5},
    "errors": lambda held: held | {"errors": {"val/other": held["errors"]["val/loss"]}},
    "grid": lambda held: held | {"steps": [step + 1 for step in held["steps"]]},
    "past the next evaluation": lambda held: held | {"step": STEPS},
    "after the last evaluation": lambda held: held | {"steps": GRID.grid(STEPS), "step": STEPS},
    "names": lambda held: held | {"weights": {f"other.{name}": t for name, t in held["weights"].items()}},
    "shapes": lambda held: held | {"weights": {name: t[None] for name, t in held["weights"].items()}},
    "no tensors": lambda held: held | {"weights": dict.fromkeys(held["weights"], 1.0)},
}


@pytest.mark.slow
@pytest.mark.parametrize(("how", "what"), partly(each_once(["plain", "linear_chain"], FOREIGN), 2))
def test_a_checkpoint_of_something_else_is_ignored(taken, how, what):
    study, asked, content = taken(how)
    same = Desk([asked], kept={0: saved(held(content))})
    trained(study, same)
    assert same.pace.made == STEPS - 6  # what is not touched is taken
    ignored(study, asked, saved(FOREIGN[what](held(content))))


@pytest.mark.parametrize("how", partly(CASES, 3, 1))
@pytest.mark.parametrize(
    "other",
    [
        lambda study, asked: (study, trial(study, 0, learning_rate=0.011)),
        lambda study, asked: (other := replace(study, seeds=Seeds(trial=1)), trial(other, 0)),
        lambda study, asked: (other := replace(study, seeds=Seeds(data_order=1)), trial(other, 0)),
    ],
    ids=["hyperparameters", "seed", "order"],
)
def test_a_checkpoint_of_another_trial_is_ignored(taken, how, other):
    study, asked, content = taken(how)
    ignored(*other(study, asked), content)


class Evil:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize(("how", "save"), each_once(CASES, [pickle.dump, torch.save]))
def test_no_pickle_is_run(taken, tmp_path, how, save):
    study, asked, content = taken(how)
    evil = saved(held(content) | {"state": Evil(tmp_path / "made")}, save)
    with suppress(RuntimeError):  # as it would be, if late
        torch.load(io.BytesIO(evil[32:]), weights_only=False)
    (tmp_path / "made").rmdir()
    assert checkpoints.trials({0: evil}) == []
    ignored(study, asked, evil)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("how", "optimizer"), [*each_once(CASES, ["momentum", "adam", "soap"]), ("plain", "pytorch_optimizer.Lamb")]
)
def test_the_bytes_of_a_checkpoint_are_known_before(resumable, how, optimizer):
    study = resumable(how, optimizer)
    desk = Desk([trial(study, 0)], minutes=0)
    trained(study, desk)
    content = held(desk.taken[-1][1])
    states = content["state"].get("state", {}).values()
    tensors = [*content["weights"].values(), *(value for state in states for value in state.values())]
    nbytes = sum(tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor))
    assert checkpoints.bytes_of(study, WORKLOADS[how].model()) == pytest.approx(nbytes, rel=0.05)
