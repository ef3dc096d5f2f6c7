"""Gradients held as their factors: the weights they make are those of gradients written out."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from blobs import Blobs
from torch import Tensor, nn

from study import checkpoints, serial
from study.checkpoints import Checkpoint
from study.evaluation import Data
from study.factored import MOST_EXAMPLES
from study.optimizers import OPTIMIZERS
from study.records import Evaluation
from study.serial import Run

SIDE = 1024
FIXED = {"learning_rate": 0.01, "momentum": 0.9, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-6, "weight_decay": 0.1}
STEPS = 5


class Large(nn.Module):
    """A large layer, of which no whole number of parts is made, between two small ones.

    Arguments:
        passes: how often inputs go through it.
        besides: its weight is used outside of it, too.
        places: of each example, which all go through it.
    """

    def __init__(self, passes: int, besides: bool, places: int) -> None:
        super().__init__()
        self.passes, self.besides, self.places = passes, besides, places
        self.first, self.large = nn.Linear(24 // places, SIDE), nn.Linear(SIDE, SIDE)
        self.last = nn.Linear(SIDE, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.unflatten(1, (self.places, -1))).relu()
        for _ in range(self.passes):
            x = self.large(x).relu()
        if self.besides:
            x = nn.functional.linear(x, self.large.weight)
        return self.last(x.sum(1))


@dataclass
class Workload(Blobs):
    passes: int = 1
    besides: bool = False
    places: int = 1

    def model(self) -> nn.Module:
        return Large(self.passes, self.besides, self.places)


@pytest.fixture
def begun(make_study, monkeypatch):
    """A trial of a Workload; `written`: whose gradients are written out."""

    def begin(workload=None, optimizer="momentum", batch_size=2, written=False, **space) -> Run:
        workload = workload or Workload()
        fixed = {name: FIXED[name] for name in OPTIMIZERS[optimizer].hyperparameters} | space
        asked = {"batch_size": batch_size, "arithmetic": "plain", "evaluation": Evaluation(first=1.0)}
        study = make_study(optimizer=optimizer, space=fixed, **asked)
        with monkeypatch.context() as patch:
            if written:
                patch.setattr(serial, "factored", lambda *_: [])
            return Run(study, workload, Data.of(workload.splits(torch.device("cpu"))), study.trial(0, fixed))

    return begin


def advanced(run: Run, steps: int = STEPS) -> Run:
    run.advance(steps)
    assert run.log.first_bad_step is None
    return run


def assert_same(a: Run, b: Run) -> None:
    assert a.weights.keys() == b.weights.keys()
    for name, tensor in a.weights.items():
        torch.testing.assert_close(
            tensor, b.weights[name], rtol=1e-5, atol=1e-7, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.mark.parametrize("decays", [{}, {"l2": 0.01, "weight_decay": 0.1}])
@pytest.mark.parametrize("batch_size", [1, 2, MOST_EXAMPLES])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "adam", "adamw"])
def test_the_weights_are_those_of_gradients_written_out(begun, optimizer, batch_size, decays):
    held = begun(optimizer=optimizer, batch_size=batch_size, **decays)
    [layer] = held.factored
    assert layer.weight is held.model.large.weight
    before = layer.weight.detach().clone()
    advanced(held)
    assert layer.weight.grad is None
    assert not torch.equal(layer.weight, before)
    assert_same(held, advanced(begun(optimizer=optimizer, batch_size=batch_size, written=True, **decays)))


@pytest.mark.parametrize(
    "workload", [Workload(passes=2), Workload(besides=True), Workload(passes=2, besides=True), Workload(places=3)]
)
def test_however_the_layer_is_used(begun, workload):
    held = begun(workload)
    assert held.factored
    assert_same(advanced(held), advanced(begun(workload, written=True)))


def test_the_average_of_the_weights_sees_them(begun):
    held, written = (advanced(begun(ema_decay=0.9, written=written)) for written in (False, True))
    assert held.factored
    assert any(name.startswith("ema.") for name in held.weights)
    assert_same(held, written)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_checkpoint_holds_what_the_rest_depends_on(begun, optimizer):
    whole, first, second = (begun(optimizer=optimizer) for _ in range(3))
    advanced(first)
    held = first.optimizer.state_dict()
    groups = [{k: v for k, v in group.items() if k != "params"} for group in held["param_groups"]]
    state = {"state": held["state"], "groups": groups}
    second.restore(checkpoints.pack(first.log, Checkpoint(first.step, first.weights, state)))
    assert second.step == STEPS
    advanced(second)
    advanced(whole, 2 * STEPS)
    for name, tensor in whole.weights.items():
        assert torch.equal(tensor, second.weights[name]), name


def test_nothing_is_held_between_steps(begun):
    held = advanced(begun())
    assert not held.factored[0].held
    held.predict(torch.zeros(3, 24))
    assert not held.factored[0].held


@pytest.mark.parametrize(("optimizer", "batch_size"), [("momentum", MOST_EXAMPLES + 1), ("lion", 2), ("kfac", 2)])
def test_gradients_are_written_out_elsewhere(begun, monkeypatch, optimizer, batch_size):
    monkeypatch.setitem(FIXED, "damping", 0.1)
    monkeypatch.setitem(FIXED, "factor_decay", 0.9)
    monkeypatch.setitem(FIXED, "inverse_frequency", 3)
    assert not begun(optimizer=optimizer, batch_size=batch_size).factored


def test_small_and_shared_weights_are_left_alone(begun):
    class Shared(Workload):
        def model(self) -> nn.Module:
            model = super().model()
            model.again = nn.Linear(SIDE, SIDE)
            model.again.weight = model.large.weight
            return model

    assert not begun(Shared()).factored
    assert [layer.weight.shape for layer in begun().factored] == [(SIDE, SIDE)]  # of three layers
