"""Gradients of many models of one kind at once, in the two forms that were measured to pay.

`LinearChain` (the arithmetic `bmm`) writes the chain rule out: no autograd graph beyond the loss, gradients in place,
every transpose taken once, since at small batch sizes the calls themselves are what a step costs. `Vmapped` takes any
module that `torch.vmap` does.

Shapes: l lanes, B examples in a batch, N inputs that all lanes share, I and O features of a linear layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from workloads.layers import Dropout, dropout_layers, keep_mask

Rows = Mapping[str, Tensor]
Loss = Callable[[Tensor], Tensor]
"""Outputs [l, B, ...] -> the loss of every example [l * B]."""


class Form(Protocol):
    """The models of l lanes."""

    def outputs(self, inputs: Tensor) -> Tensor:
        """What each model computes of the same inputs [N, ...], dropout off: [l, N, ...]."""
        ...

    def backward(self, inputs: Tensor, loss: Loss, keys: Tensor) -> Tensor:
        """Write the gradients of each lane's mean loss over its inputs [l, B, ...]; returns the losses [l * B].

        Arguments:
            keys: of each dropout layer [l, layers].
        """
        ...


def can_vmap(model: nn.Module) -> bool:
    """Whether the model is a function of its parameters and keys alone: no running statistics, no global randomness."""
    ours = {id(layer.key) for layer in dropout_layers(model)}
    stateless = all(id(buffer) in ours for buffer in model.buffers())
    random = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.RNNBase)
    return stateless and not any(isinstance(module, random) for module in model.modules())


class Vmapped:
    """Any module, through `torch.vmap` of its forward pass; autograd sees one graph for all lanes.

    Arguments:
        template: a module for which `can_vmap` holds.
        weights, gradients: parameter name -> [l, *shape].
    """

    def __init__(self, template: nn.Module, weights: Rows, gradients: Rows) -> None:
        self.template = template
        self.weights = {name: tensor.detach().requires_grad_() for name, tensor in weights.items()}
        self.gradients = list(gradients.values())
        self.keys = [name for name, _ in template.named_buffers() if name.endswith("key")]

    def outputs(self, inputs: Tensor) -> Tensor:
        self.template.eval()
        if inputs.device.type == "cpu":  # whose grouped convolutions are slow on large batches
            lanes = [dict(zip(self.weights, lane, strict=True)) for lane in zip(*self.weights.values(), strict=True)]
            found = torch.stack([functional_call(self.template, lane, (inputs,)) for lane in lanes])
        else:
            found = torch.vmap(lambda w: functional_call(self.template, w, (inputs,)))(self.weights)
        self.template.train()
        return found

    def backward(self, inputs: Tensor, loss: Loss, keys: Tensor) -> Tensor:
        buffers = {name: keys[:, number] for number, name in enumerate(self.keys)}

        def forward(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(self.template, (parameters, buffers), (x,))

        with torch.enable_grad():
            outputs = torch.vmap(forward)(self.weights, buffers, inputs)
        losses, gradients = differentiated(loss, outputs, list(self.weights.values()))
        torch._foreach_copy_(self.gradients, list(gradients))
        return losses


def is_linear_chain(model: nn.Module) -> bool:
    """Whether every layer of the model is known here."""
    known = (nn.Linear, nn.ReLU, nn.Flatten, Dropout)
    return (
        isinstance(model, nn.Sequential)
        and all(type(layer) in known for layer in model)
        and any(isinstance(layer, nn.Linear) for layer in model)
        and all(layer.bias is not None for layer in model if isinstance(layer, nn.Linear))
        and all((layer.start_dim, layer.end_dim) == (1, -1) for layer in model if isinstance(layer, nn.Flatten))
        and len({id(layer) for layer in model}) == len(model)  # a layer used twice shares its parameters
    )


class LinearChain:
    """The models of l lanes.

    Arguments:
        template: a model for which `is_linear_chain` holds.
        weights, gradients: parameter name -> [l, *shape].
    """

    def __init__(self, template: nn.Module, weights: Rows, gradients: Rows) -> None:
        self.lanes = len(next(iter(weights.values())))
        self.layers: list[_Layer] = []
        self.first: _Linear | None = None
        dropouts = 0
        for name, layer in template.named_children():
            if isinstance(layer, nn.Linear):
                names = f"{name}.weight", f"{name}.bias"
                linear = _Linear(*(weights[n] for n in names), *(gradients[n] for n in names))
                self.first = self.first or linear
                self.layers.append(linear)
            elif isinstance(layer, Dropout):
                self.layers.append(_Dropout(layer.p, dropouts))
                dropouts += 1
            else:
                self.layers.append(_ReLU() if isinstance(layer, nn.ReLU) else _Flatten())

    def outputs(self, inputs: Tensor) -> Tensor:
        x = inputs.expand(self.lanes, *inputs.shape)
        for layer in self.layers:
            x = layer.forward(x, None)
        return x

    def backward(self, inputs: Tensor, loss: Loss, keys: Tensor) -> Tensor:
        x = inputs
        for layer in self.layers:
            x = layer.forward(x, keys)
        losses, [dx] = differentiated(loss, x.requires_grad_(), [x])
        for layer in reversed(self.layers):
            if layer is self.first:
                self.first.write_gradients(dx)
                break
            dx = layer.backward(dx)
        return losses


class _Layer(Protocol):
    def forward(self, x: Tensor, keys: Tensor | None) -> Tensor:
        """Outputs, remembering what `backward` needs; without keys as in evaluation."""
        ...

    def backward(self, dy: Tensor) -> Tensor:
        """The gradient of the latest inputs, given that of the outputs."""
        ...


class _Linear:
    def __init__(self, weight: Tensor, bias: Tensor, weight_gradient: Tensor, bias_gradient: Tensor) -> None:
        self.weight, self.transposed, self.bias = weight, weight.mT, bias.unsqueeze(1)
        self.weight_gradient, self.bias_gradient = weight_gradient, bias_gradient

    def forward(self, x: Tensor, keys: Tensor | None) -> Tensor:
        self.x = x
        return torch.baddbmm(self.bias, x, self.transposed)

    def backward(self, dy: Tensor) -> Tensor:
        self.write_gradients(dy)
        return torch.bmm(dy, self.weight)

    def write_gradients(self, dy: Tensor) -> None:
        torch.bmm(dy.mT, self.x, out=self.weight_gradient)
        torch.sum(dy, dim=1, out=self.bias_gradient)


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


def differentiated(loss: Loss, outputs: Tensor, wanted: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
    """(losses [l * B], the gradients of each lane's mean loss with respect to `wanted`), from outputs [l, B, ...]."""
    with torch.enable_grad():
        losses = loss(outputs)
        gradients = torch.autograd.grad(losses, wanted, torch.full_like(losses, 1 / outputs.shape[1]))
    return losses.detach(), gradients
