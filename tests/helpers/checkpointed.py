"""Shared by tests of checkpoints: studies, a desk that hands out trials and keeps checkpoints, their contents."""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from helpers.blobs import Blobs
from study.data.resident import Data
from study.engine import lanes, serial
from study.engine.checkpoints import Pace
from study.engine.serial import Proposals
from study.records import Budget, Curve, Evaluation, Study, Trial
from study.search.tuner import point
from study.space import values

STEPS = 12
GRID = Evaluation(first=0.25, ratio=1.5)
SPACES: dict[str, dict[str, Any]] = {
    "momentum": {
        "learning_rate": {"low": 1e-2, "high": 0.3, "scale": "log"},
        "momentum": {"low": 0.5, "high": 0.99, "scale": "reverse_log"},
        "ema_decay": 0.9,
    },
    "adam": {
        "learning_rate": {"low": 1e-3, "high": 0.1, "scale": "log"},
        "beta1": {"low": 0.5, "high": 0.9},
        "beta2": {"low": 0.9, "high": 0.99},
        "epsilon": 1e-6,
    },
    "soap": {
        "learning_rate": {"low": 1e-3, "high": 0.1, "scale": "log"},
        "beta1": {"low": 0.5, "high": 0.9},
        "beta2": 0.9,
        "epsilon": 1e-6,
        "precondition_frequency": 3,
    },
    "kfac": {
        "learning_rate": {"low": 1e-3, "high": 0.1, "scale": "log"},
        "momentum": 0.5,
        "damping": 0.1,
        "factor_decay": 0.9,
        "inverse_frequency": 3,
    },
    # Keeps its step count beside the parameters' states.
    "pytorch_optimizer.Lamb": {"learning_rate": {"low": 1e-3, "high": 0.1, "scale": "log"}},
}
WHOLE = ("kfac", "pytorch_optimizer.Lamb")


CASES = {"plain": Blobs(images=True, normed=True), "linear_chain": Blobs(), "vmap": Blobs(images=True)}


class Counting(Pace):
    """Counts the steps that the engine runs."""

    made = 0

    def advance(self, advance: Any, most: int) -> None:
        def counted(steps: int) -> None:
            self.made += steps
            advance(steps)

        super().advance(counted, most)


class Killed(Exception):
    """Stands for SIGKILL: the engine writes nothing after it."""


class Desk(Proposals):
    """Hands out trials in this order, some with a checkpoint; records all checkpoints taken.

    Arguments:
        kept: index -> the checkpoint to resume from; new ones replace it.
        lives: number of checkpoints after which the engine is killed.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        minutes: float | None = None,
        kept: dict[int, bytes] | None = None,
        lives: float = float("inf"),
    ) -> None:
        self.trials, self.lives, self.kept = list(trials), lives, {} if kept is None else kept
        self.pace: Counting = Counting(minutes)
        self.taken: list[tuple[int, bytes]] = []

    def ask(self, wait: bool) -> Trial | None:
        return self.trials.pop(0) if self.trials else None

    def step_limit(self, index: int) -> int:
        return sys.maxsize

    def checkpoint(self, index: int) -> bytes | None:
        return self.kept.get(index)

    def keep(self, index: int, checkpoint: bytes) -> None:
        self.kept[index] = checkpoint
        self.taken.append((index, checkpoint))
        if len(self.taken) >= self.lives:
            raise Killed


def asked(make_study: Callable[..., Study], how: str, optimizer: str = "momentum", **fields: Any) -> Study:
    """A study of Blobs in an arithmetic; the plain one accumulates micro-batches."""
    defaults = {
        "space": SPACES[optimizer],
        "examples": 64,
        "batch_size": 8,
        "micro_batch": 3 if how == "plain" else None,
        "stopping": "budget",
        "budget": Budget(epochs=0, steps=STEPS),
        "evaluation": GRID,
    }
    return make_study(optimizer=optimizer, arithmetic=how, **defaults | fields)


def trial(study: Study, index: int, **changed: float) -> Trial:
    return study.trial(index, values(study.search.space, point(study, index)) | changed)


def training(study: Study, desk: Desk, heights: Sequence[int] = (4,), workload: Blobs | None = None) -> Iterator[Curve]:
    workload = workload or CASES[study.arithmetic]
    data = Data.of(workload.splits(torch.device("cpu")))
    if study.arithmetic == "plain":
        return serial.train(study, workload, data, desk)
    return lanes.train(study, workload, data, desk, heights, heights[-1])


def trained(study: Study, desk: Desk, heights: Sequence[int] = (4,)) -> dict[int, Curve]:
    return {curve.trial.index: curve for curve in training(study, desk, heights)}


def assert_same_bits(one: Curve, other: Curve) -> None:
    assert (one.trial, one.first_bad_step, one.micro_batch) == (other.trial, other.first_bad_step, other.micro_batch)
    assert one.steps.tolist() == other.steps.tolist()
    assert one.errors.keys() == other.errors.keys()
    for metric in one.errors:
        assert one.errors[metric].tobytes() == other.errors[metric].tobytes(), metric


def held(content: bytes) -> dict[str, Any]:
    return torch.load(io.BytesIO(content[32:]), weights_only=True)


def step(content: bytes) -> int:
    return held(content)["step"]


def saved(content: Any, save: Any = torch.save) -> bytes:
    buffer = io.BytesIO()
    save(content, buffer)
    return hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue()
