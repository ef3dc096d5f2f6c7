"""Lanes as groups of channels: the gradients of models that are alone, for models whose operations are all known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.networks import (
    CHANNELS,
    EXAMPLES,
    KNOWN,
    LANES,
    SIDE,
    UNKNOWN,
    Images,
    InHalf,
    NeverDropping,
    Spoiling,
    WithoutGradient,
    between,
    deep,
    resnet_8,
)
from torch import Tensor, nn
from torch.func import functional_call

from analysis.counting import Goal
from study.data.resident import Data
from study.engine import can_fuse, lanes, serial
from study.engine.fused import stack
from study.engine.fused.grouped import Grouped, can_group
from study.engine.fused.layout import Layout
from study.records import Budget, Evaluation
from workloads.layers import Dropout, keyed_layers, layer_key


def loss(outputs: Tensor) -> Tensor:
    return outputs.square().sum(-1).flatten()


@pytest.mark.parametrize("name", KNOWN)
def test_lanes_have_the_gradients_of_models_that_are_alone(name: str) -> None:
    torch.manual_seed(0)
    model = KNOWN[name]()
    assert can_group(model)
    layout = Layout(model)
    rows, inputs = torch.randn(LANES, layout.width) / 4, torch.randn(LANES, EXAMPLES, CHANNELS, SIDE, SIDE)
    layers = keyed_layers(model)
    keys = [[layer_key(lane, 1, number) for number in range(len(layers))] for lane in range(LANES)]
    form = Grouped(model, rows, layout)
    losses, found = form.backward(inputs, loss, torch.tensor(keys, dtype=torch.int32).view(LANES, len(layers)))
    for lane in range(LANES):
        for layer, key in zip(layers, keys[lane], strict=True):
            layer.key.fill_(key)
        alone = {key: view[lane].clone().requires_grad_() for key, view in layout.views(rows).items()}
        expected = loss(functional_call(model, alone, (inputs[lane].clone(),)))
        torch.testing.assert_close(losses.view(LANES, -1)[lane], expected, rtol=1e-4, atol=1e-5)
        expected.mean().backward()
        for gradient, parameter in zip(found, alone.values(), strict=True):
            assert parameter.grad is not None
            near = {"rtol": 0, "atol": 1e-5 * float(parameter.grad.abs().max())}
            torch.testing.assert_close(gradient[lane].view(parameter.shape), parameter.grad, **near)


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_models_are_not_grouped(name: str) -> None:
    assert not can_group(UNKNOWN[name]())


def test_machines_without_the_library_group_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_group(resnet_8())
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not can_group(resnet_8())


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (between(), (CHANNELS, SIDE)),  # a convolution takes it for one image
        (nn.Sequential(nn.Conv2d(CHANNELS, 16, 3), nn.Linear(6, 5)), (CHANNELS, SIDE, SIDE)),
    ],
)
def test_what_is_no_image_or_vector_is_refused(model: nn.Module, shape: tuple[int, ...]) -> None:
    assert can_group(model)
    layout = Layout(model)
    form = Grouped(model, torch.randn(LANES, layout.width), layout)
    with pytest.raises(NotImplementedError, match="`grouped` takes"):
        form.backward(torch.randn(LANES, EXAMPLES, *shape), loss, torch.zeros(LANES, 0, dtype=torch.int32))


def test_global_hooks_are_hooks() -> None:
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not can_group(resnet_8())
    finally:
        handle.remove()
    assert can_group(resnet_8())


@pytest.mark.parametrize(
    ("model", "can"),
    [
        (resnet_8, True),
        (KNOWN["dropout"], True),
        (WithoutGradient, False),
        (InHalf, False),
        (lambda: NeverDropping(nn.Conv2d(CHANNELS, 16, 3), Dropout(0.5), nn.Flatten(), nn.Linear(576, 5)), False),
        (Spoiling, False),
    ],
)
def test_what_the_graph_does_not_show_is_found_by_comparison(make_study, model, can) -> None:
    workload = Images(model)
    assert can_group(model())
    data = Data.of(workload.splits(torch.device("cpu")))
    assert can_fuse.lanes_can(make_study(arithmetic="grouped", examples=64, batch_size=4), workload, data) is can


@pytest.mark.parametrize(
    ("model", "momentum", "rate"),
    [
        (lambda: deep(3, biases=True, maxima=True), 0.0, 1e5),
        (lambda: deep(8, biases=True, maxima=True), 0.0, 1e12),
        (lambda: deep(8, biases=False, maxima=False), 0.0, 1e3),
        (lambda: deep(5, biases=False, maxima=False), 0.0, 1e7),
        (lambda: deep(3, biases=True, maxima=False), 0.9, 1e5),
        (lambda: deep(8, biases=True, maxima=True), 0.9, 1e12),
        (lambda: deep(5, biases=False, maxima=False), 0.9, 1e3),
        (lambda: deep(5, biases=False, maxima=True), 0.9, 1e9),
        # Sums keep what ReLU drops; further channels, which are made by a convolution, mix what a model alone does not.
        *((resnet_8, momentum, rate) for momentum in (0.0, 0.9) for rate in (1e2, 1e3, 1e4, 1e5, 1e7, 1e9, 1e12)),
    ],
)
def test_lanes_diverge_where_models_alone_do(make_study, model, momentum, rate) -> None:
    """In blocks, ReLU and maxima make numbers of NaN, and NaN of infinite gradients."""
    fixed = {"learning_rate": rate, "momentum": momentum}
    study = make_study(
        space={name: {"choices": [value]} for name, value in fixed.items()},
        arithmetic="grouped",
        examples=64,
        batch_size=4,
        budget=Budget(epochs=0, steps=25),
        evaluation=Evaluation(first=0.4, ratio=2.0),
        goal=Goal("val/loss", 1e-9),
        stopping="budget",
    )
    workload = Images(model)
    data = Data.of(workload.splits(torch.device("cpu")))

    class One(serial.Proposals):
        def __init__(self) -> None:
            self.left = [study.trial(0, fixed)]

        def ask(self, wait):
            return self.left.pop() if self.left else None

        def step_limit(self, index):
            return 25

    [alone] = serial.train(replace(study, arithmetic="plain"), workload, data, One())
    [lane] = lanes.train(study, workload, data, One(), [4], 1)
    assert lane.first_bad_step == alone.first_bad_step
    np.testing.assert_allclose(lane.errors["val/loss"], alone.errors["val/loss"], rtol=1e-3)


def test_a_study_that_was_begun_elsewhere_goes_on_without_the_library(
    monkeypatch: pytest.MonkeyPatch, make_study
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    held = stack.Stack(resnet_8(), make_study().algorithm, 2, "grouped")
    assert type(held.form(held.weights)) is stack.Vmapped
