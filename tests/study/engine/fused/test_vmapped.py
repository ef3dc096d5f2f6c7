"""Fused forms of a model: lanes have the outputs, losses and gradients of models that are alone."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from study.engine.fused import vmapped
from study.engine.fused.layout import Layout
from study.engine.fused.vmapped import OWN_RULE_WEIGHTS, Vmapped

LANES, EXAMPLES = 3, 4


class Between(nn.Module):
    """Linear layers of inputs of several shapes."""

    def __init__(self, shape: tuple[int, ...], bias: bool) -> None:
        super().__init__()
        self.shape = shape
        self.first, self.second = nn.Linear(5, 6, bias=bias), nn.Linear(6, 2, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x.view(len(x), *self.shape, 5)).tanh()).flatten(1)


class ByExample(nn.Module):
    """Gives its layer one example after the other, without a dimension for them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(30, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.layer(example) for example in x.unbind(0)])


class OfNoInput(nn.Module):
    """Its first layer has the same inputs in all lanes."""

    def __init__(self) -> None:
        super().__init__()
        self.constant, self.layer = nn.Linear(7, 30), nn.Linear(30, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self.constant(torch.ones(2, 7)).mean(0))


class OverAxis(nn.Module):
    """Maps its layer over an axis of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(15, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.vmap(self.first, in_dims=1, out_dims=1)(x.unflatten(1, (5, 6))).flatten(1))


class OfSlopes(nn.Module):
    """Takes gradients itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(30, 4), nn.Linear(30, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.func.grad(lambda z: self.first(z).tanh().sum())(x))


class InHalf(nn.Module):
    """Computes in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(30, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.second(self.first(x).tanh()).float()


def of_images(*layers: nn.Module) -> nn.Module:
    """Of inputs as images of one channel."""
    return nn.Sequential(nn.Unflatten(1, (1, 5, 6)), *layers, nn.Flatten())


MODELS = {
    "rows": lambda: Between((6,), bias=True),
    "without biases": lambda: Between((6,), bias=False),
    "more dimensions": lambda: Between((2, 3), bias=True),
    "one to an example": lambda: nn.Sequential(nn.Linear(30, 4), nn.GELU(), nn.Linear(4, 2)),
    "no dimension for examples": ByExample,
    "the same in all lanes": OfNoInput,
    "a vmap of its own": OverAxis,
    "gradients of its own": OfSlopes,
    "autocast": InHalf,
    "one channel": lambda: of_images(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU()),
    "one channel, unlike sides": lambda: of_images(nn.Conv2d(1, 2, (2, 3), stride=(1, 2), bias=False)),
    "one channel in between": lambda: of_images(nn.Conv2d(1, 1, 1), nn.Tanh(), nn.Conv2d(1, 2, 3, padding="same")),
    "one channel, far apart": lambda: of_images(nn.Conv2d(1, 2, 2, dilation=2)),
}


def loss(outputs: Tensor) -> Tensor:
    return outputs.square().sum(-1).flatten()


@pytest.fixture(params=[0, 2**15], ids=["own rule", "torch's rule"])
def rule(request, monkeypatch):
    monkeypatch.setattr(vmapped, "OWN_RULE_WEIGHTS", request.param)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_lanes_under_vmap_have_the_gradients_of_models_that_are_alone(rule, name, flat):
    torch.manual_seed(0)
    model = MODELS[name]()
    layout = Layout(model)
    rows, inputs = torch.randn(LANES, layout.width), torch.randn(LANES, EXAMPLES, 30)
    form = Vmapped(MODELS[name](), rows, layout, flat)
    losses, found = form.backward(inputs, loss, torch.zeros(LANES, 0, dtype=torch.int32))
    gradients = torch.zeros_like(rows)
    for columns, gradient in zip(form.columns, found, strict=True):
        gradients[:, columns] = gradient
    views = layout.views(gradients)
    for lane in range(LANES):
        alone = {key: view[lane].clone().requires_grad_() for key, view in layout.views(rows).items()}
        expected = loss(functional_call(model, alone, (inputs[lane],)))
        near = {"rtol": 0.05, "atol": 0.05} if name == "autocast" else {}
        torch.testing.assert_close(losses.view(LANES, -1)[lane], expected, **near)
        expected.mean().backward()
        for key, parameter in alone.items():
            torch.testing.assert_close(views[key][lane], parameter.grad, **near)
    outputs = form.outputs(inputs[0])
    torch.testing.assert_close(
        outputs[0], functional_call(model, {k: v[0] for k, v in layout.views(rows).items()}, (inputs[0],))
    )


def test_a_form_that_is_let_go_leaves_no_model_behind(monkeypatch):
    """On a device, until somebody collects garbage."""
    monkeypatch.setattr(vmapped, "OWN_RULE_WEIGHTS", 0)
    model = of_images(nn.Conv2d(1, 2, 3), nn.Tanh())
    form = Vmapped(model, torch.randn(LANES, Layout(model).width), Layout(model), flat=True)
    held = weakref.ref(model)
    gc.disable()
    try:
        del form, model
        assert held() is None
    finally:
        gc.enable()


def test_gradients_of_large_linear_layers_lie_as_their_weights_do():
    model = nn.Sequential(nn.Linear(30, OWN_RULE_WEIGHTS // 16), nn.Tanh(), nn.Linear(OWN_RULE_WEIGHTS // 16, 16))
    layout = Layout(model)
    form = Vmapped(model, torch.randn(LANES, layout.width), layout)
    found = []
    for weight in form.weights.values():
        weight.register_hook(found.append)
    form.backward(torch.randn(LANES, EXAMPLES, 30), loss, torch.zeros(LANES, 0, dtype=torch.int32))
    assert len(found) == 4
    assert all(gradient.is_contiguous() for gradient in found)
