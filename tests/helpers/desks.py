"""A desk that hands out trials and keeps checkpoints, what the engines make of them, and comparisons of curves."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from helpers.blobs import WORKLOADS
from study.engine import can_fuse, lane_count, lanes, serial
from study.engine.run import Run
from study.engine.trial.pace import Pace
from study.engine.trial.proposals import Proposals
from study.records import Curve, Study, Trial
from study.workers.dispatch import Supply

Curves = dict[int, Curve]
"""By the indices of their trials."""


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


def full(*_: Any, **__: Any) -> Any:
    """In place of a function that needs memory."""
    raise torch.OutOfMemoryError("no room")


def room_for(
    examples: int, monkeypatch: pytest.MonkeyPatch, whenever: Callable[[Run], bool] = lambda run: True
) -> None:
    """Let forward passes of the serial engine with more than this many examples run out of memory."""
    losses = Run.losses

    def bounded(run: Run, part: int) -> Any:
        if run.parts[part].stop - run.parts[part].start > examples and whenever(run):
            full()
        return losses(run, part)

    monkeypatch.setattr(Run, "losses", bounded)


def asked(supply: Supply) -> Iterator[tuple[Any, Trial]]:
    """Each search and trial that a pool of one worker would train, one after another."""
    while (found := next(((q, trial) for q in supply.queues() if (trial := q.ask()) is not None), None)) is not None:
        yield found


class Desk(Proposals):
    """Hands out trials in this order, some with a checkpoint; records all checkpoints taken.

    Arguments:
        kept: index -> the checkpoint to resume from; new ones replace it.
        lives: number of checkpoints after which the engine is killed.
    """

    limit = sys.maxsize

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
        return self.limit

    def checkpoint(self, index: int) -> bytes | None:
        return self.kept.get(index)

    def keep(self, index: int, checkpoint: bytes) -> None:
        self.kept[index] = checkpoint
        self.taken.append((index, checkpoint))
        if len(self.taken) >= self.lives:
            raise Killed


def fixed_trial(study: Study, index: int = 0, **changed: float) -> Trial:
    """The trial of the first choice of every hyperparameter."""
    return study.trial(index, {name: each.choices[0] for name, each in study.search.space.items()} | changed)


def training(
    study: Study, desk: Desk, heights: Sequence[int] = (4,), workload: Any = None, data: Any = None
) -> Iterator[Curve]:
    """Train by the engine of the study's arithmetic, by default the workload for it, on the CPU."""
    workload = workload or WORKLOADS[study.arithmetic]
    data = data or workload.data()
    if study.arithmetic == "plain":
        return serial.train(study, workload, data, desk)
    return lanes.train(study, workload, data, desk, heights, heights[-1])


def trained(study: Study, desk: Desk, heights: Sequence[int] = (4,), workload: Any = None, data: Any = None) -> Curves:
    return {curve.trial.index: curve for curve in training(study, desk, heights, workload, data)}


def _pairs(one: Any, other: Any) -> list[tuple[Curve, Curve]]:
    """Two curves, or the curves of the same trials."""
    if not isinstance(one, dict):
        return [(one, other)]
    assert one.keys() == other.keys()
    return [(one[index], other[index]) for index in one]


def assert_same_bits(found: Any, expected: Any) -> None:
    for one, other in _pairs(found, expected):
        assert (one.trial, one.first_bad_step) == (other.trial, other.first_bad_step)
        assert one.micro_batch == other.micro_batch
        assert one.steps.tolist() == other.steps.tolist()
        assert one.errors.keys() == other.errors.keys()
        for metric in one.errors:
            assert one.errors[metric].tobytes() == other.errors[metric].tobytes(), (one.trial.index, metric)


def assert_near(found: Any, expected: Any, tolerance: float, metrics: str = "loss") -> None:
    """The same up to this relative tolerance of the errors whose names end in `metrics`."""
    for one, other in _pairs(found, expected):
        assert (one.trial, one.first_bad_step) == (other.trial, other.first_bad_step)
        assert one.steps.tolist() == other.steps.tolist()
        for metric, errors in other.errors.items():
            if metric.endswith(metrics):
                np.testing.assert_allclose(one.errors[metric], errors, rtol=tolerance, err_msg=metric)


def desk(study: Study, order: Sequence[int] = range(5)) -> Desk:
    """Five trials, number i with the choices of this number; handed out in this order."""
    chosen = [{name: each.choices[i] for name, each in study.search.space.items()} for i in range(5)]
    return Desk([study.trial(index, chosen[index]) for index in order])


def assert_lanes_are_trials_alone(study: Study, workload: Any) -> None:
    """Five trials in lanes of every admitted height, and in another order, have the bits of each alone."""
    assert can_fuse.lanes_fail(study, workload, workload.data()) is None
    heights = list(lane_count.admitted(study, workload, workload.data(), most=4))
    assert len(heights) >= 2
    alone = {i: trained(study, desk(study, [i]), heights[:1], workload)[i] for i in range(5)}
    for chosen, order in ((heights[:2], range(5)), (heights, [3, 0, 4, 2, 1])):
        assert_same_bits(trained(study, desk(study, order), chosen, workload), alone)
    plain = trained(replace(study, arithmetic="plain"), desk(study), workload=workload)
    assert_near(alone, plain, 1e-4)
