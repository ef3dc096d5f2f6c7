"""Layers updated in the backward pass: their weights become those that gradients written out would make."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest
import torch
from helpers.blobs import Blobs
from torch import nn

from study.data.resident import Data
from study.engine import checkpoints, serial
from study.engine.checkpoints import Checkpoint
from study.engine.evaluation import initial_model
from study.engine.factored import MOST_EXAMPLES, Factored, _parts
from study.engine.fused.layout import CACHE_LINE
from study.engine.serial import Run
from study.optimizers import OPTIMIZERS
from study.records import Evaluation
from workloads.layers import Dropout

INPUTS, OUTPUTS = 1000, 1066  # in parts of 512 rows the last one is ragged
FIXED = {"learning_rate": 0.01, "momentum": 0.9, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-6, "weight_decay": 0.1}
FIXED |= {"damping": 0.1, "factor_decay": 0.9, "inverse_frequency": 3}
STEPS = 5


class Own(nn.Sequential):
    """Might do anything."""


def rotated(layers: list[nn.Module]) -> nn.Module:
    """A model whose large weight [OUTPUTS, INPUTS] lies column by column in memory."""
    layers[4].weight = nn.Parameter(layers[4].weight.detach().T.contiguous().T)
    return nn.Sequential(*layers)


def shared(layers: list[nn.Module]) -> nn.Module:
    again = nn.Linear(INPUTS, OUTPUTS)
    again.weight = layers[4].weight
    return nn.Sequential(*layers, nn.Flatten(), nn.Sequential(nn.Linear(5, INPUTS), again, nn.Linear(OUTPUTS, 5)))


def hooked(layers: list[nn.Module]) -> nn.Module:
    layers[4].register_forward_hook(lambda layer, inputs, output: 2 * output)
    return nn.Sequential(*layers)


def watched(layers: list[nn.Module]) -> nn.Module:
    layers[4].weight.register_hook(lambda gradient: 2 * gradient)
    return nn.Sequential(*layers)


def told(layers: list[nn.Module]) -> nn.Module:
    layers[4].weight.register_post_accumulate_grad_hook(lambda weight: weight.grad.mul_(2))
    return nn.Sequential(*layers)


def nested(layers: list[nn.Module]) -> nn.Module:
    square = nn.Linear(OUTPUTS, OUTPUTS)
    return nn.Sequential(
        *layers[:4],
        nn.Linear(INPUTS, OUTPUTS // 2),
        nn.Linear(OUTPUTS // 2, OUTPUTS),
        square,
        nn.Sequential(square),
        *layers[5:],
    )


def unbatched(layers: list[nn.Module]) -> nn.Module:
    """Of one example at a time."""
    return nn.Sequential(*layers[:4], nn.Flatten(0), layers[4], layers[5], nn.Unflatten(0, (1, -1)), *layers[6:])


def replaced(layers: list[nn.Module]) -> nn.Module:
    layers[4].forward = lambda x, layer=layers[4]: nn.functional.linear(3 * x, layer.weight)
    return nn.Sequential(*layers)


@dataclass
class Workload(Blobs):
    """A chain with a large layer between two small ones.

    Arguments:
        places: of each example, which all go through it.
        outputs: of the large layer.
        chain: makes the model of its layers.
    """

    places: int = 1
    outputs: int = OUTPUTS
    chain: Callable[[list[nn.Module]], nn.Module] = lambda layers: nn.Sequential(*layers)

    def model(self) -> nn.Module:
        places, first = nn.Unflatten(1, (self.places, -1)), nn.Linear(24 // self.places, INPUTS)
        last = [nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(self.places * self.outputs, 5)]
        return self.chain([places, first, nn.ReLU(), Dropout(0.2), nn.Linear(INPUTS, self.outputs), *last])


@pytest.fixture
def begun(make_study, monkeypatch):
    """A trial of a Workload; `written`: whose gradients are written out."""

    def begin(
        workload=None, optimizer="momentum", batch_size=2, written=False, precision="fp32", micro_batch=None, **space
    ):
        workload = workload or Workload()
        fixed = {name: FIXED[name] for name in OPTIMIZERS[optimizer].hyperparameters} | space
        asked = {
            "batch_size": batch_size,
            "arithmetic": "plain",
            "precision": precision,
            "evaluation": Evaluation(first=1.0),
        }
        study = make_study(optimizer=optimizer, space=fixed, **asked)
        with monkeypatch.context() as patch:
            if written:
                patch.setattr(serial, "factored", lambda *_: [])
            return Run(
                study, workload, Data.of(workload.splits(torch.device("cpu"))), study.trial(0, fixed), micro_batch
            )

    return begin


def advanced(run: Run, steps: int = STEPS) -> Run:
    run.advance(steps)
    assert run.log.first_bad_step is None
    return run


def assert_same(a: Run, b: Run) -> None:
    """By norms: Adam makes whole updates of gradients that are nothing but rounding."""
    start = initial_model(a.workload, a.trial, torch.device("cpu")).state_dict()
    assert a.weights.keys() == b.weights.keys()
    for name, tensor in a.weights.items():
        moved = (tensor - start[name.removeprefix("ema.")]).norm()
        assert (tensor - b.weights[name]).norm() <= 1e-4 * moved, name


@pytest.mark.parametrize("decays", [{}, {"l2": 0.01, "weight_decay": 0.1}])
@pytest.mark.parametrize("batch_size", [1, 2, MOST_EXAMPLES])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "adam", "adamw"])
def test_the_weights_are_those_of_gradients_written_out(begun, optimizer, batch_size, decays):
    held = begun(optimizer=optimizer, batch_size=batch_size, **decays)
    [layer] = held.factored
    assert layer.weight is held.model[4].weight
    before = layer.weight.detach().clone()
    advanced(held)
    assert layer.weight.grad is None
    assert not torch.equal(layer.weight, before)
    assert_same(held, advanced(begun(optimizer=optimizer, batch_size=batch_size, written=True, **decays)))


@pytest.mark.parametrize("batch_size", [1, 2, MOST_EXAMPLES])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_rows_that_fill_cache_lines_are_taken_few_at_a_time(begun, monkeypatch, optimizer, batch_size):
    workload, asked = Workload(outputs=67 * CACHE_LINE), {"optimizer": optimizer, "batch_size": batch_size}
    written, linear = advanced(begun(workload, written=True, **asked)), nn.functional.linear
    held = begun(workload, **asked)
    assert held.factored

    def few(x, weight, bias=None):
        assert weight is not held.factored[0].weight
        return linear(x, weight, bias)

    monkeypatch.setattr(nn.functional, "linear", few)
    assert_same(advanced(held), written)


@pytest.mark.parametrize("batch_size", [2, 4])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_rows_of_inputs_count_and_not_examples(begun, optimizer, batch_size):
    held = advanced(begun(Workload(places=3), optimizer, batch_size))
    assert held.factored
    assert (held.factored[0].weight.grad is None) == (3 * batch_size <= MOST_EXAMPLES)
    assert_same(held, advanced(begun(Workload(places=3), optimizer, batch_size, written=True)))


def test_a_layer_may_see_an_example_without_its_batch(begun):
    held = advanced(begun(Workload(chain=unbatched), batch_size=1))
    assert held.factored
    assert_same(held, advanced(begun(Workload(chain=unbatched), batch_size=1, written=True)))


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
    assert held.factored[0].prepared is None
    held.predict(torch.zeros(3, 24))
    assert held.factored[0].prepared is None


@pytest.mark.parametrize(
    "asked",
    [
        *(
            {"workload": Workload(chain=chain)}
            for chain in (lambda x: Own(*x), rotated, shared, nested, hooked, watched, told, replaced)
        ),
        {"batch_size": MOST_EXAMPLES + 1},
        {"micro_batch": 1},
        {"precision": "bf16"},
        {"optimizer": "lion"},
        {"optimizer": "kfac"},
    ],
)
def test_elsewhere_gradients_are_written_out(begun, asked):
    assert not begun(**asked).factored


def test_a_trial_that_ended_leaves_no_model_behind(begun):
    held = advanced(begun())
    assert held.factored
    model = weakref.ref(held.model)
    gc.disable()
    try:
        del held
        assert model() is None
    finally:
        gc.enable()


def test_a_trial_that_failed_leaves_no_model_behind(begun):
    class Loss(Workload):
        def loss(self, outputs, targets, **hyperparameters):
            raise RuntimeError("no")

    held = begun(Loss())
    model = weakref.ref(held.model)
    gc.disable()
    try:
        with suppress(RuntimeError):
            held.advance(1)
        assert held.factored[0].prepared is not None
        del held
        assert model() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("inputs", [1, INPUTS, 2**20])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 262, 1030, 1041])
def test_parts_make_up_the_rows(rows, inputs):
    parts = _parts(rows, inputs)
    assert [row for part in parts for row in range(rows)[part]] == list(range(rows))
    assert len(parts) == 1 or all(part.start % CACHE_LINE == 0 for part in parts)
    assert min(part.stop - part.start for part in parts) >= min(rows, CACHE_LINE)


def test_a_layer_that_nobody_prepared_leaves_its_gradient_behind():
    torch.manual_seed(0)
    layer, x = nn.Linear(INPUTS, OUTPUTS), torch.randn(3, INPUTS, requires_grad=True)
    layer(x).square().sum().backward()
    expected = layer.weight.grad, layer.bias.grad, x.grad
    layer.weight.grad = layer.bias.grad = x.grad = None
    before = layer.weight.detach().clone()
    Factored(layer)
    layer(x).square().sum().backward()
    assert torch.equal(layer.weight, before)
    for found, gradient in zip((layer.weight.grad, layer.bias.grad, x.grad), expected, strict=True):
        torch.testing.assert_close(found, gradient)
