"""Shared by tests of fused trials: a case of each arithmetic, trials that differ, and runs of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch

from helpers.blobs import Blobs
from study.data.resident import Data
from study.engine import lane_count, lanes
from study.engine.serial import Proposals
from study.optimizers import OPTIMIZERS
from study.records import Budget, Curve, Study, Trial
from study.schedules import SCHEDULES

STEPS = 30
HYPERPARAMETERS = {
    "learning_rate": [0.05, 0.02, 0.1, 0.03, 0.08, 0.01, 0.04],
    "momentum": [0.0, 0.9, 0.5, 0.8, 0.3, 0.95, 0.7],
    "beta1": [0.9, 0.0, 0.5, 0.8, 0.3, 0.95, 0.7],
    "beta2": [0.99, 0.9, 0.95, 0.999, 0.8, 0.9, 0.9],
    "epsilon": [1e-6] * 7,
    "momentum_correction": [0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0],
    "weight_decay": [0.0, 0.01, 0.1, 0.0, 0.02, 0.03, 0.1],
    "trust_coefficient": [1.0, 0.5, 0.8, 0.9, 0.6, 2.0, 0.7],
    "precondition_frequency": [3, 5, 1, 4, 2, 7, 10],
    "learning_rate_decay_fraction": [0.5, 1.0, 0.7, 0.9, 0.6, 0.8, 1.0],
    "end_learning_rate_factor": [0.1, 0.01, 0.001, 0.3, 0.1, 0.01, 0.1],
    "learning_rate_first_drop_fraction": [0.5, 0.2, 0.4, 0.8, 0.3, 0.6, 1.0],
    "learning_rate_drops": [2, 1, 3, 2, 1, 3, 2],
    "learning_rate_drop_factor": [0.1, 0.3, 0.5, 0.01, 0.2, 0.1, 0.1],
    "learning_rate_timescale_fraction": [0.1, 1.0, 0.01, 0.3, 0.5, 0.05, 2.0],
    "label_smoothing": [0.0, 0.1, 0.2, 0.0, 0.3, 0.05, 0.1],
}
FUSING = [name for name, optimizer in OPTIMIZERS.items() if optimizer.update is not None]
CASES = {"linear_chain": Blobs(), "linear_blocks": Blobs(), "vmap": Blobs(images=True)}


def each_once(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Rows for `parametrize` in which every value of every axis comes at least once, in place of the whole product."""
    values = [list(axis) for axis in axes]
    return list(islice(zip(*map(cycle, values), strict=True), max(map(len, values))))


def fusing(optimizer: str) -> list[str]:
    """The arithmetics with lanes that can train this optimizer."""
    return [how for how in CASES if how != "linear_blocks" or OPTIMIZERS[optimizer].linear]


class Queue(Proposals):
    """Hands out trials in this order; trial i takes the i-th of HYPERPARAMETERS."""

    def __init__(self, study: Study, order: Sequence[int], **changed: float) -> None:
        self.limit = study.train_steps
        self.trials = [self.trial(study, index, changed if index == 2 else {}) for index in order]

    @staticmethod
    def trial(study: Study, index: int, changed: dict[str, float]) -> Trial:
        wanted = {*study.asked_hyperparameters, "label_smoothing"}
        return study.trial(index, {name: HYPERPARAMETERS[name][index] for name in wanted} | changed)

    def ask(self, wait: bool) -> Trial | None:
        return self.trials.pop(0) if self.trials else None

    def step_limit(self, index: int) -> int:
        return self.limit


def asked(
    make_study: Callable[..., Study], how: str, optimizer: str = "momentum", schedule: str = "constant", **fields: Any
) -> Study:
    """A study of Blobs in an arithmetic; by default every trial runs its whole budget."""
    names = {**OPTIMIZERS[optimizer].hyperparameters, **SCHEDULES[schedule].hyperparameters, "label_smoothing": 0}
    return make_study(
        space={name: {"choices": HYPERPARAMETERS[name]} for name in names},
        examples=64,
        optimizer=optimizer,
        schedule=schedule,
        arithmetic=how,
        **{"stopping": "budget", "budget": Budget(epochs=0, steps=STEPS), "batch_size": 6} | fields,
    )


def data_of(study: Study) -> Data:
    return Data.of(CASES[study.arithmetic].splits(torch.device("cpu")))


def run(study: Study, queue: Queue, heights: Sequence[int] = (4,)) -> dict[int, Curve]:
    workload, data = CASES[study.arithmetic], data_of(study)
    return {curve.trial.index: curve for curve in lanes.train(study, workload, data, queue, heights, heights[-1])}


def admitted(study: Study) -> list[int]:
    return list(lane_count.admitted(study, CASES[study.arithmetic], data_of(study), most=8))


def assert_same_bits(a: dict[int, Curve], b: dict[int, Curve]) -> None:
    assert a.keys() == b.keys()
    for index in a:
        assert a[index].first_bad_step == b[index].first_bad_step
        np.testing.assert_array_equal(a[index].steps, b[index].steps)
        for metric in a[index].errors:
            np.testing.assert_array_equal(a[index].errors[metric], b[index].errors[metric], err_msg=f"{index} {metric}")
