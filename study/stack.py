"""Many models as one: the parameters of L lanes stacked along a leading axis, and their gradients computed at once.

Shapes: L lanes, B examples in a batch, P parameters of one model, I and O features of a linear layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from study.optimizers import Optimizer
from study.records import Study
from workloads.layers import Dropout, dropout_layers, keep_mask

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [L, B, ...], targets [L, B]) -> mean loss of each lane [L]."""

_CACHE_LINE = 16  # floats
VMAP_BATCH_SIZE = 4
"""Convolutions gain from lanes up to this batch size on a CPU; beyond it grouped kernels lose to the library's own."""


def arithmetic(model: nn.Module, study: Study, device: str, forced: bool = False) -> str:
    """The arithmetic that a study of this model is computed in; part of its question.

    `plain`, one model at a time, where batches are accumulated or in bf16; else `bmm` for chains of linear layers, and
    `vmap` where one model alone would leave the device idle. A rule and no measurement, since each differs from the
    others in the last bits. `forced` lanes (`engine=lanes`) are taken wherever the model allows them.
    """
    frozen = not all(parameter.requires_grad for parameter in model.parameters())
    if study.micro_batch is not None or study.precision != "fp32" or frozen:
        return "plain"
    if is_linear_chain(model):
        return "bmm"
    if torch.device(device).type == "cpu" and study.batch_size > VMAP_BATCH_SIZE and not forced:
        return "plain"
    return "vmap" if can_vmap(model) else "plain"


def is_linear_chain(model: nn.Module) -> bool:
    """Whether `bmm` knows every layer of the model."""
    known = (nn.Linear, nn.ReLU, nn.Flatten, Dropout)
    return (
        isinstance(model, nn.Sequential)
        and all(type(layer) in known for layer in model)
        and all(layer.bias is not None for layer in model if isinstance(layer, nn.Linear))
        and len({id(layer) for layer in model}) == len(model)  # a layer used twice shares its parameters
    )


def can_vmap(model: nn.Module) -> bool:
    """Whether the model is a function of its parameters and keys alone: no running statistics, no global randomness."""
    ours = {id(layer.key) for layer in dropout_layers(model)}
    stateless = all(id(buffer) in ours for buffer in model.buffers())
    random = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.RNNBase)
    return stateless and not any(isinstance(module, random) for module in model.modules())


class Stack:
    """L models of one kind and the state of their optimizer, a row each.

    Attributes:
        weights, gradients: [L, P], a model's parameters side by side in a row, padded to cache lines.
        state: name -> [L, P], the optimizer's memory.
        views: parameter name -> [L, *shape], into `weights`.
    """

    def __init__(self, template: nn.Module, optimizer: Optimizer, lanes: int, how: str) -> None:
        self.optimizer, self.lanes = optimizer, lanes
        shapes = {name: p.shape for name, p in template.named_parameters()}
        device = next(template.parameters()).device
        size = sum(_aligned(shape.numel()) for shape in shapes.values())
        self.weights, self.gradients = (torch.zeros(lanes, size, device=device) for _ in range(2))
        self.state = {name: torch.zeros(lanes, size, device=device) for name in optimizer.state}
        self.views, self.gradient_views = _views(self.weights, shapes), _views(self.gradients, shapes)
        self.backward: _LinearChain | _Vmapped = _LinearChain(template) if how == "bmm" else _Vmapped(template)

    @property
    def bytes(self) -> int:
        """Of weights, gradients and state together."""
        tensors = (self.weights, self.gradients, *self.state.values())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def load(self, row: int, model: nn.Module) -> None:
        """Start a row anew from a freshly initialised model."""
        for name, parameter in model.named_parameters():
            self.views[name][row].copy_(parameter.detach())
        for tensor in self.state.values():
            tensor[row].zero_()

    def move(self, source: int, target: int) -> None:
        """Copy one row over another."""
        for tensor in (self.weights, *self.state.values()):
            tensor[target].copy_(tensor[source])

    def step(
        self,
        inputs: Tensor,
        loss: Loss,
        targets: Tensor,
        keys: Tensor,
        learning_rates: Tensor,
        hyperparameters: Mapping[str, Tensor],
        steps: Tensor,
    ) -> Tensor:
        """One update of the first l = len(inputs) rows; returns their losses [l] from before it.

        Arguments:
            inputs, targets: [l, B, ...].
            keys: of each dropout layer [l, layers].
            learning_rates, hyperparameters, steps: [l, 1]; steps count this update, from 1.
        """
        rows = len(inputs)
        losses = self.backward(
            {name: view[:rows] for name, view in self.views.items()},
            {name: view[:rows] for name, view in self.gradient_views.items()},
            inputs,
            lambda outputs: loss(outputs, targets),
            keys,
        )
        state = {name: tensor[:rows] for name, tensor in self.state.items()}
        self.optimizer.update_(
            self.weights[:rows], self.gradients[:rows], state, learning_rates, hyperparameters, steps
        )
        return losses


class _LinearChain:
    """Linear layers by batched matrix products, with the chain rule written out: no graph, gradients in place."""

    def __init__(self, template: nn.Module) -> None:
        assert isinstance(template, nn.Sequential)
        self.layers = list(template.named_children())

    def __call__(
        self,
        weights: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        x: Tensor,
        loss: Callable[[Tensor], Tensor],
        keys: Tensor,
    ) -> Tensor:
        seen: list[Any] = []  # what each layer's backward needs
        dropouts = 0
        for name, layer in self.layers:
            if isinstance(layer, nn.Linear):
                seen.append(x)
                x = torch.baddbmm(weights[f"{name}.bias"].unsqueeze(1), x, weights[f"{name}.weight"].mT)
            elif isinstance(layer, nn.ReLU):
                x = x.relu_() if seen else x.relu()
                seen.append(x)
            elif isinstance(layer, Dropout):
                scale = keep_mask(x.shape[1:], keys[:, dropouts], layer.p).to(x.dtype) / (1 - layer.p)
                seen.append(scale)
                dropouts += 1
                x = x * scale
            else:
                seen.append(None)
                x = x.flatten(2)
        outputs = x.requires_grad_()
        with torch.enable_grad():
            losses = loss(outputs)
            (dx,) = torch.autograd.grad(losses.sum(), outputs)
        first = next(name for name, layer in self.layers if isinstance(layer, nn.Linear))
        for (name, layer), memory in zip(reversed(self.layers), reversed(seen), strict=True):
            if isinstance(layer, nn.Linear):
                torch.bmm(dx.mT, memory, out=gradients[f"{name}.weight"])
                torch.sum(dx, dim=1, out=gradients[f"{name}.bias"])
                if name == first:
                    break
                dx = torch.bmm(dx, weights[f"{name}.weight"])
            elif isinstance(layer, nn.ReLU):
                dx = torch.ops.aten.threshold_backward(dx, memory, 0)
            elif isinstance(layer, Dropout):
                dx = dx * memory
        return losses.detach()


class _Vmapped:
    """Any module, through `torch.vmap` of its forward pass; autograd sees one graph for all lanes."""

    def __init__(self, template: nn.Module) -> None:
        self.template = template.train()
        self.keys = [name for name, b in template.named_buffers() if name.endswith("key")]

    def __call__(
        self,
        weights: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        x: Tensor,
        loss: Callable[[Tensor], Tensor],
        keys: Tensor,
    ) -> Tensor:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in weights.items()}
        buffers = {name: keys[:, number] for number, name in enumerate(self.keys)}

        def forward(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(self.template, (parameters, buffers), (x,))

        with torch.enable_grad():
            losses = loss(torch.vmap(forward)(leaves, buffers, x))
            found = torch.autograd.grad(losses.sum(), list(leaves.values()))
        for name, gradient in zip(leaves, found, strict=True):
            gradients[name].copy_(gradient)
        return losses.detach()


def _aligned(count: int) -> int:
    """Floats rounded up to whole cache lines: kernels peel unaligned heads, which would make bits depend on the row."""
    return -(-count // _CACHE_LINE) * _CACHE_LINE


def _views(rows: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Cut rows [L, P] into [L, *shape] views, in the order of the shapes, each at the start of a cache line."""
    parts = rows.split([_aligned(shape.numel()) for shape in shapes.values()], dim=1)
    return {
        name: part[:, : shape.numel()].view(-1, *shape)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }
