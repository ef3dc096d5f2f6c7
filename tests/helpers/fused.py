"""Shared by tests of fused trials: studies in each arithmetic and trials that differ."""

from collections.abc import Callable, Iterable
from itertools import cycle, islice
from typing import Any

from helpers.blobs import WORKLOADS
from helpers.desks import Desk
from study.engine import lane_count
from study.optimizers import OPTIMIZERS
from study.records import Study
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
CASES = ["linear_chain", "linear_blocks", "vmap"]


def each_once(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Rows for `parametrize` in which every value of every axis comes at least once, in place of the whole product."""
    values = [list(axis) for axis in axes]
    return list(islice(zip(*map(cycle, values), strict=True), max(map(len, values))))


def fusing(optimizer: str) -> list[str]:
    """The arithmetics with lanes that can train this optimizer."""
    return [how for how in CASES if how != "linear_blocks" or OPTIMIZERS[optimizer].linear]


class Queue(Desk):
    """Hands out trials in this order; trial i takes the i-th of HYPERPARAMETERS, trial 2 with some changed."""

    def __init__(self, study: Study, order: Iterable[int], **changed: float) -> None:
        wanted = {*study.asked_hyperparameters, "label_smoothing"}
        chosen = {i: {name: HYPERPARAMETERS[name][i] for name in wanted} | (changed if i == 2 else {}) for i in order}
        super().__init__([study.trial(index, chosen[index]) for index in order])


def asked(
    make_study: Callable[..., Study], how: str, optimizer: str = "momentum", schedule: str = "constant", **fields: Any
) -> Study:
    """A study of Blobs in an arithmetic; by default every trial runs its whole budget."""
    names = {**OPTIMIZERS[optimizer].hyperparameters, **SCHEDULES[schedule].hyperparameters, "label_smoothing": 0}
    return make_study(
        space={name: {"choices": HYPERPARAMETERS[name]} for name in names},
        optimizer=optimizer,
        schedule=schedule,
        arithmetic=how,
        **{"steps": STEPS, "batch_size": 6} | fields,
    )


def admitted(study: Study) -> list[int]:
    workload = WORKLOADS[study.arithmetic]
    return list(lane_count.admitted(study, workload, workload.data(), most=8))
