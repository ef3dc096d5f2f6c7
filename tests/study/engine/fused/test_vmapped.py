"""Fused forms of a model: lanes have the outputs, losses and gradients of models that are alone."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from study.engine.fused import vmapped
from study.engine.fused.layout import Layout
from study.engine.fused.vmapped import OWN_RULE_WEIGHTS, Vmapped

LANES, EXAMPLES = 3, 4


class Made(nn.Module):
    """Layers and a function of them and of the inputs."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.of = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.of(self, x)


def between(*shape: int, bias: bool = True) -> nn.Module:
    """Linear layers of inputs of this shape."""
    layers = nn.Linear(5, 6, bias=bias), nn.Tanh(), nn.Linear(6, 2, bias=bias)
    return nn.Sequential(nn.Unflatten(1, (*shape, 5)), *layers, nn.Flatten())


def over_axis(own: Any, x: Tensor) -> Tensor:
    return own.second(torch.vmap(own.first, in_dims=1, out_dims=1)(x.unflatten(1, (5, 6))).flatten(1))


def of_slopes(own: Any, x: Tensor) -> Tensor:
    return own.second(torch.func.grad(lambda z: own.first(z).tanh().sum())(x))


def in_half(own: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return own.second(own.first(x).tanh()).float()


def by_example(own: Any, x: Tensor) -> Tensor:
    return torch.stack([own.layer(example) for example in x.unbind(0)])


def of_no_input(own: Any, x: Tensor) -> Tensor:
    return own.layer(x + own.constant(torch.ones(2, 7)).mean(0))


def attending(own: Any, x: Tensor) -> Tensor:
    y = own.first(x).unflatten(1, (2, 3, 4))
    return own.second(nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True).flatten(1))


def of_a_transformer(own: Any, x: Tensor) -> Tensor:
    return own.second(own.first(x.unflatten(1, (5, 6))).flatten(1))


def writing(own: Any, x: Tensor) -> Tensor:
    x -= 1
    return own.layer(x)


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)


def of_images(*layers: nn.Module) -> nn.Module:
    """Of inputs as images of one channel."""
    return nn.Sequential(nn.Unflatten(1, (1, 5, 6)), *layers, nn.Flatten())


MODELS = {
    "rows": lambda: between(6),
    "without biases": lambda: between(6, bias=False),
    "more dimensions": lambda: between(2, 3),
    "one to an example": lambda: nn.Sequential(nn.Linear(30, 4), nn.GELU(), nn.Linear(4, 2)),
    "no dimension for examples": lambda: Made(by_example, layer=nn.Linear(30, 2)),
    "the same in all lanes": lambda: Made(of_no_input, constant=nn.Linear(7, 30), layer=nn.Linear(30, 2)),
    "a vmap of its own": lambda: Made(over_axis, first=nn.Linear(6, 3), second=nn.Linear(15, 2)),
    "gradients of its own": lambda: Made(of_slopes, first=nn.Linear(30, 4), second=nn.Linear(30, 2)),
    "autocast": lambda: Made(in_half, first=nn.Linear(30, 4), second=nn.Linear(4, 2)),
    "attention": lambda: Made(attending, first=nn.Linear(30, 24), second=nn.Linear(24, 2)),
    "transformer": lambda: Made(of_a_transformer, first=encoder(), second=nn.Linear(30, 2)),
    "writes into its inputs": lambda: Made(writing, layer=nn.Linear(30, 2)),
    "one channel": lambda: of_images(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU()),
    "one channel, unlike sides": lambda: of_images(nn.Conv2d(1, 2, (2, 3), stride=(1, 2), bias=False)),
    "one channel in between": lambda: of_images(nn.Conv2d(1, 1, 1), nn.Tanh(), nn.Conv2d(1, 2, 3, padding="same")),
    "one channel, far apart": lambda: of_images(nn.Conv2d(1, 2, 2, dilation=2)),
}


NEAR = {
    "autocast": {"rtol": 0.05, "atol": 0.05},
    "attention": {"rtol": 0.003, "atol": 1e-3},
    "transformer": {"rtol": 0.003, "atol": 1e-3},
}
"""Model -> tolerances. Large random weights saturate attention."""


def loss(outputs: Tensor) -> Tensor:
    return outputs.square().sum(-1).flatten()


@pytest.fixture(params=[0, 2**15], ids=["own rule", "torch's rule"])
def rule(request, monkeypatch):
    monkeypatch.setattr(vmapped, "OWN_RULE_WEIGHTS", request.param)


@pytest.mark.parametrize(("flat", "lanes"), [(False, LANES), (True, LANES), (True, 1)])
@pytest.mark.parametrize("name", MODELS)
def test_lanes_under_vmap_have_the_gradients_of_models_that_are_alone(rule, name, flat, lanes):
    torch.manual_seed(0)
    model = MODELS[name]()
    layout = Layout(model)
    rows, inputs = torch.randn(lanes, layout.width), torch.randn(lanes, EXAMPLES, 30)
    form = Vmapped(MODELS[name](), rows, layout, flat=flat)
    losses, found = form.backward(inputs.clone(), loss, torch.zeros(lanes, 0, dtype=torch.int32))
    gradients = torch.zeros_like(rows)
    for columns, gradient in zip(form.columns, found, strict=True):
        gradients[:, columns] = gradient
    views = layout.views(gradients)
    for lane in range(lanes):
        alone = {key: view[lane].clone().requires_grad_() for key, view in layout.views(rows).items()}
        expected = loss(functional_call(model, alone, (inputs[lane].clone(),)))
        near = NEAR.get(name, {})
        torch.testing.assert_close(losses.view(lanes, -1)[lane], expected, **near)
        expected.mean().backward()
        for key, parameter in alone.items():
            torch.testing.assert_close(views[key][lane], parameter.grad, **near)
    given = inputs[0].clone()
    outputs = form.outputs(given)
    assert torch.equal(given, inputs[0])
    for lane in range(lanes):
        alone = {key: view[lane] for key, view in layout.views(rows).items()}
        expected = functional_call(model.eval(), alone, (inputs[0].clone(),))
        torch.testing.assert_close(outputs[lane], expected, **NEAR.get(name, {}))


def test_a_compiler_gets_the_gradient_of_each_parameter():
    torch.manual_seed(0)
    model = MODELS["rows"]()
    layout = Layout(model)
    rows, inputs = torch.randn(LANES, layout.width), torch.randn(LANES, EXAMPLES, 30)
    form = Vmapped(model, rows, layout, flat=True)
    _, [together] = form.backward(inputs, loss, torch.zeros(LANES, 0, dtype=torch.int32))
    form.separate()
    _, apart = form.backward(inputs, loss, torch.zeros(LANES, 0, dtype=torch.int32))
    assert len(form.columns) == len(apart) == 4
    for columns, gradient in zip(form.columns, apart, strict=True):
        assert torch.equal(together[:, columns], gradient)


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
