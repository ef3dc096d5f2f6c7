"""The arithmetic `linear_chain`: linear layers as batched matrix products, with the chain rule written out.

At small batch sizes the number of calls dominates the cost of a step. So autograd sees only the loss, layers write
gradients in place, and every transpose is taken once.

Shapes: l lanes, B examples in a batch, P numbers in a row with the parameters of one model, D inputs and H outputs of a
layer; n and S as in `linear_blocks`.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn

from study.engine.fused.layout import Layout, Loss, differentiated, is_plain_sequence
from study.engine.fused.stack import Stack
from study.optimizers.per_parameter import Treatments
from study.records import Study
from workloads.layers import Dropout, keep_mask

SMALL, FEW = 2**12, 32
"""Most weights and examples of a layer on a CPU whose gradients are faster computed apart and then copied."""


def is_linear_chain(model: nn.Module) -> bool:
    """Whether the model is a plain sequence of trained layers supported here, with at least one linear layer."""
    known = (nn.Linear, nn.ReLU, nn.Flatten, Dropout)
    return (
        is_plain_sequence(model)
        and all(parameter.requires_grad for parameter in model.parameters())
        and all(type(layer) in known for layer in model.children())
        and any(isinstance(layer, nn.Linear) for layer in model.children())
        and all(layer.bias is not None for layer in model.children() if isinstance(layer, nn.Linear))
        and all(
            (layer.start_dim, layer.end_dim) == (1, -1) for layer in model.children() if isinstance(layer, nn.Flatten)
        )
    )


def first_linear(chain: nn.Module) -> nn.Linear | None:
    """The linear layer of a chain that reads the examples directly; None if a ReLU or dropout comes before it."""
    first = next(layer for layer in chain.children() if not isinstance(layer, nn.Flatten))
    return first if isinstance(first, nn.Linear) else None


def can(model: nn.Module, study: Study) -> bool:
    """Whether the model is a linear chain."""
    return is_linear_chain(model)


def pays(model: nn.Module, study: Study, device: str) -> bool:
    """Whether it is the fastest: at every batch size on CPUs and GPUs, but not in bf16 on a CPU."""
    return study.precision != "bf16" or torch.device(device).type != "cpu"


def stack(template: nn.Module, study: Study, rows: int, special: Treatments, apart: Collection[str]) -> Stack:
    """A stack with room for `rows` trials."""
    return Stack(template, study.algorithm, rows, LinearChain, study.averages, special, half=study.precision == "bf16")


class _Layer(Protocol):
    def forward(self, x: Tensor, keys: Tensor | None) -> Tensor:
        """Outputs [l, B, ...]; stores what `backward` needs. `keys` [l, layers]; None: evaluation, without dropout."""
        ...

    def backward(self, dy: Tensor) -> Tensor:
        """The gradient of the latest inputs, given the gradient of the outputs."""
        ...


class Linear:
    """One linear layer of every lane. `own`: name -> parameter [l, *shape]; `gradients`: name -> view into which its
    gradient is written."""

    def __init__(self, own: Mapping[str, Tensor]) -> None:
        self.weight, self.gradients = own["weight"], dict[str, Tensor]()
        self.transposed, self.bias = self.weight.mT, own["bias"].unsqueeze(1)
        self.small = self.weight.device.type == "cpu" and self.weight.shape[1:].numel() <= SMALL

    def forward(self, x: Tensor, keys: Tensor | None) -> Tensor:
        self.x = x
        return torch.baddbmm(self.bias, x, self.transposed)

    def backward(self, dy: Tensor) -> Tensor:
        self.write_gradients(dy)
        return torch.bmm(dy, self.weight)

    def write_gradients(self, dy: Tensor) -> None:
        gradient = self.gradients["weight"]
        if self.small and dy.shape[1] <= FEW:  # into rows that are not side by side torch multiplies one by one
            gradient.copy_(torch.bmm(dy.mT, self.x))
        else:
            torch.bmm(dy.mT, self.x, out=gradient)
        torch.sum(dy, dim=1, out=self.gradients["bias"])


class _Half(Linear):
    """The same with products in bfloat16, as under autocast: the weights are rounded at each step."""

    def forward(self, x: Tensor, keys: Tensor | None) -> Tensor:
        self.x, self.rounded = x.bfloat16(), self.weight.bfloat16()
        return torch.baddbmm(self.bias.bfloat16(), self.x, self.rounded.mT)

    def backward(self, dy: Tensor) -> Tensor:
        self.write_gradients(dy)
        return torch.bmm(dy, self.rounded)

    def write_gradients(self, dy: Tensor) -> None:
        self.gradients["weight"].copy_(torch.bmm(dy.mT, self.x))
        torch.sum(dy, dim=1, dtype=torch.float32, out=self.gradients["bias"])


class LinearChain:
    """Linear layers as batched matrix products, with one buffer for the gradients of all parameters.

    Arguments:
        template: a model for which `is_linear_chain` holds, or one that begins with a `Combination`.
        weights: rows [l, P].
        half: compute products in bfloat16.
    """

    columns = (slice(None),)
    layer = Linear

    @staticmethod
    def predicts_alone(device: torch.device) -> bool:
        return False

    def __init__(self, template: nn.Module, weights: Tensor, layout: Layout, half: bool = False) -> None:
        self.weights, self.layout = weights, layout
        parameters = layout.views(weights)
        self.layers: list[_Layer] = []
        self.linear: dict[str, Linear] = {}
        dropouts = 0
        for name, layer in template.named_children():
            if isinstance(layer, nn.Linear | Combination):
                own = {key: parameters[f"{name}.{key}"] for key in layer._parameters}
                kind = _Combination if isinstance(layer, Combination) else _Half if half else self.layer
                self.linear[name] = kind(own)
                self.layers.append(self.linear[name])
            elif isinstance(layer, Dropout):
                self.layers.append(_Dropout(layer.p, dropouts))
                dropouts += 1
            else:
                self.layers.append(_ReLU() if isinstance(layer, nn.ReLU) else _Flatten())

    def separate(self) -> None:
        """Layers write gradients side by side, without a copy."""

    def outputs(self, inputs: Tensor) -> Tensor:
        x = inputs.expand(len(self.weights), *inputs.shape)
        for layer in self.layers:
            x = layer.forward(x, None)
        return x.float()

    def backward(self, inputs: Tensor, loss: Loss, keys: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        gradients, first = self.gradients, next(iter(self.linear.values()))
        x = inputs
        for layer in self.layers:
            x = layer.forward(x, keys)
        y = x.float()
        losses, [dx] = differentiated(loss, y.requires_grad_(), [y])
        dx = dx.to(x.dtype)
        for layer in reversed(self.layers):
            if layer is first:
                first.write_gradients(dx)
                break
            dx = layer.backward(dx)
        return losses, (gradients,)

    @cached_property
    def gradients(self) -> Tensor:
        """The buffer [l, P] into which layers write gradients. Built on first use: evaluation does not need it."""
        gradients = torch.zeros_like(self.weights)
        for name, view in self.layout.views(gradients).items():
            layer, _, key = name.rpartition(".")
            self.linear[layer].gradients[key] = view
        return gradients


class Combination(nn.Module):
    """A linear layer whose weight is `mix` [S] times S known matrices plus `weight` [H, n] times n known inputs.

    For each example, its inputs [B, 2 n + S H] hold the one-hot index among the n known inputs, the products with each
    of them, and the outputs of each of the S matrices. The gradient of its parameters is the gradient of the summed
    matrix in the same coordinates. This module only holds parameters; `LinearChain` computes with them.
    """

    def __init__(self, inputs: int, matrices: int, bias: nn.Parameter) -> None:
        super().__init__()
        self.weight = nn.Parameter(bias.new_zeros(len(bias), inputs))
        self.mix = nn.Parameter(bias.new_zeros(matrices))
        self.bias = bias


class _Combination(Linear):
    """One `Combination` of every lane."""

    def __init__(self, own: Mapping[str, Tensor]) -> None:
        super().__init__(own)
        self.mix = own["mix"][:, :, None, None].unbind(1)
        [_, outputs, inputs] = self.weight.shape
        self.widths = [inputs, inputs, *[outputs] * len(self.mix)]

    def forward(self, x: Tensor, keys: Tensor | None) -> Tensor:
        self.x, products, *made = x.split(self.widths, dim=2)
        y = torch.baddbmm(self.bias, products, self.transposed)
        for share, by_matrix in zip(self.mix, made, strict=True):
            y.addcmul_(by_matrix, share)
        return y

    def write_gradients(self, dy: Tensor) -> None:
        super().write_gradients(dy)
        self.gradients["mix"].zero_()  # the penalty and the rule may have changed it in place


class _ReLU:
    def forward(self, x: Tensor, keys: Tensor | None) -> Tensor:
        self.y = torch.relu(x)
        return self.y

    def backward(self, dy: Tensor) -> Tensor:
        return torch.ops.aten.threshold_backward(dy, self.y, 0)


class _Dropout:
    def __init__(self, p: float, number: int) -> None:
        self.p, self.number = p, number

    def forward(self, x: Tensor, keys: Tensor | None) -> Tensor:
        if keys is None:
            return x
        self.scale = keep_mask(x.shape[1:], keys[:, self.number], self.p).to(x.dtype) / (1 - self.p)
        return x * self.scale

    def backward(self, dy: Tensor) -> Tensor:
        return dy * self.scale


class _Flatten:
    def forward(self, x: Tensor, keys: Tensor | None) -> Tensor:
        return x.flatten(2)

    def backward(self, dy: Tensor) -> Tensor:
        return dy
