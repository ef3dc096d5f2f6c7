"""A GPU goes on with all lanes while the host waits for the errors of some: curves and ends are the same."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from unittest import mock

import pytest
import torch
from helpers import checkpointed, desks, pretended
from helpers.blobs import WORKLOADS
from helpers.desks import Counting, Curves, Desk
from helpers.fused import partly
from helpers.pretended import DEVICE
from torch import Tensor

from analysis.counting import Goal
from study.devices import memory
from study.engine import lanes
from study.engine.lanes import Lanes
from study.engine.trial import evaluation
from study.records import Study
from study.settings import Budget

GOAL = Goal("val/classification_error", 0.3)
CASES = {
    "budget": {"stopping": "budget"},
    "goal": {"stopping": "goal", "goal": GOAL},
    "averaged": {"stopping": "goal", "goal": replace(GOAL, metric="val/ema_classification_error")},
    "early": {"stopping": "goal", "goal": GOAL},
}


@pytest.fixture
def device() -> Iterator[pretended.Device]:
    with pretended.device() as there:
        yield there


@pytest.fixture
def asked(resumable) -> Callable[..., Study]:
    """A study of 30 steps that stops as the case of this name."""

    def made(name: str, how: str = "linear_chain") -> Study:
        study = resumable(how, **{"steps": 30} | CASES[name])
        return replace(study, evaluation=replace(study.evaluation, exact=name != "early"))

    return made


@pytest.fixture
def told(monkeypatch) -> list[str]:
    """What a device is asked, in order: to `train` lanes for a step, to `send` errors; and that the host `waits`."""
    happened: list[str] = []
    segment = Lanes._segment

    def trained(made: Lanes, steps: int) -> Tensor:
        happened.extend(["train"] * steps * len(made.lanes))
        return segment(made, steps)

    def sent(tensor: Tensor) -> Callable[[], Tensor]:
        happened.append("send")
        arrived = memory.fetched(tensor)

        def found() -> Tensor:
            happened.append("wait")
            return arrived()

        return found

    monkeypatch.setattr(Lanes, "_segment", trained)
    monkeypatch.setattr(evaluation, "fetched", sent)
    return happened


def curves(study: Study, on_device: bool, minutes: float | None = None) -> Curves:
    """The curves of six trials in four rows; the second trial diverges."""
    changed = {1: {"learning_rate": 1e38}}
    desk = Desk([checkpointed.trial(study, index, **changed.get(index, {})) for index in range(6)])
    desk.pace = Counting(minutes)
    workload = replace(WORKLOADS[study.arithmetic], validation=64)
    return desks.trained(study, desk, workload=workload, data=workload.data(*[DEVICE] * on_device))


def idle(told: Sequence[str]) -> int:
    """How often the host waits for a device that has nothing else to do."""
    return sum(pair == ("send", "wait") for pair in pairwise(told))


@pytest.mark.slow
@pytest.mark.parametrize("share", partly([0.0, 10.0], 2, 1))
@pytest.mark.parametrize("how", partly(["linear_chain", "vmap"], 2))
@pytest.mark.parametrize("name", partly(CASES, 2, 1))
def test_curves_are_those_of_the_cpu(device, asked, monkeypatch, name, how, share):
    """However far lanes go on: a trial that ends forgets it, and one that diverges there does so at the same step."""
    monkeypatch.setattr(lanes, "AHEAD", share)
    study = asked(name, how)
    expected = curves(study, False)
    assert expected[1].first_bad_step is not None
    assert name == "budget" or len({int(curve.steps[-1]) for curve in expected.values() if len(curve.steps)}) > 1
    desks.assert_near(curves(study, True), expected, tolerance=1e-4, metrics="")


@pytest.mark.slow
@pytest.mark.parametrize("name", partly(CASES, 2, 1))
def test_a_device_has_work_while_the_host_waits(device, asked, told, name):
    """Unless another evaluation is due, or a trial has made its last step."""
    study = asked(name)
    curves(replace(study, budget=Budget(epochs=0, steps=80), evaluation=replace(study.evaluation, first=0.1)), True)
    assert told.count("wait") > 20
    assert idle(told) <= 0.4 * told.count("wait")


@pytest.mark.slow
def test_little_is_trained_in_vain(device, asked, told):
    study = asked("goal")
    curves(study, False)
    needed, before = told.count("train"), len(told)
    curves(study, True)
    made = told[before:].count("train")
    assert needed < made <= needed + 6 * 3  # a step for the errors of each split where a trial ends


def test_checkpoints_are_those_of_an_evaluation(device, asked, told):
    curves(asked("goal"), True, minutes=0.0)
    assert idle(told) == told.count("wait") > 10


def test_a_gpu_copies_errors_behind_its_work_and_is_not_waited_for(monkeypatch):
    """The host waits for an event behind the copy, and not for what the GPU is given later."""
    done: list[str] = []
    event = mock.Mock(synchronize=lambda: done.append("waited"))
    stream = mock.Mock(record_event=lambda: done.append("recorded") or event)
    there = mock.Mock(spec=Tensor, device=torch.device("cuda:1"), shape=(2,), dtype=torch.float64)
    kept = mock.Mock(copy_=lambda tensor, non_blocking: done.append(f"copied {tensor is there} {non_blocking}"))
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, pin_memory: kept if pin_memory else None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream if device.index == 1 else None)
    arrived = memory.fetched(there)
    assert done == ["copied True True", "recorded"]
    assert arrived() is kept
    assert done[2:] == ["waited"]
