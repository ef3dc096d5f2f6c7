"""Gradients of many models of one kind at once: what all forms of them (`linear_chain`, `vmapped`) share.

Shapes: l lanes, B examples in a batch, N inputs that all lanes share, P parameters of one model, p of some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor], Tensor]
"""Outputs [l, B, ...] -> the loss of every example [l * B]."""

CACHE_LINE = 16
"""Floats."""


class Form(Protocol):
    """The models of l lanes, their parameters cut out of rows [l, P]."""

    def __init__(self, template: nn.Module, weights: Tensor, layout: Layout) -> None: ...

    @staticmethod
    def predicts_alone(device: torch.device) -> bool:
        """Whether `outputs` runs one model after another, so that nothing beside a model can touch its bits."""
        ...

    @property
    def columns(self) -> Sequence[slice]:
        """The parts of the rows that `backward` has gradients of."""
        ...

    def outputs(self, inputs: Tensor) -> Tensor:
        """What each model computes of the same inputs [N, ...], dropout off: [l, N, ...]."""
        ...

    def backward(self, inputs: Tensor, loss: Loss, keys: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """(losses [l * B], the gradients [l, p] of each lane's mean loss over its inputs [l, B, ...], by columns);
        `keys`: of each keyed layer [l, layers]."""
        ...


class Layout:
    """Where each parameter of a model lies in a row [P] of its parameters side by side.

    Each starts at a cache line: kernels peel unaligned heads, which would make bits depend on the row.

    Attributes:
        columns: of each parameter.
        gaps: how many floats come after each, up to the next cache line.
    """

    def __init__(self, model: nn.Module) -> None:
        self.shapes = {name: p.shape for name, p in model.named_parameters()}
        ends = list(accumulate(-(-shape.numel() // CACHE_LINE) * CACHE_LINE for shape in self.shapes.values()))
        self.width = ends[-1]
        self.columns = [
            slice(start, start + shape.numel()) for start, shape in zip([0, *ends], self.shapes.values(), strict=False)
        ]
        self.gaps = [end - columns.stop for end, columns in zip(ends, self.columns, strict=True)]

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Rows [l, P] as parameter name -> [l, *shape]."""
        parts = zip(self.shapes.items(), self.columns, strict=True)
        return {name: rows[:, columns].unflatten(1, shape) for (name, shape), columns in parts}


def differentiated(loss: Loss, outputs: Tensor, wanted: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
    """(losses [l * B], the gradients of each lane's mean loss with respect to `wanted`), from outputs [l, B, ...]."""
    with torch.enable_grad():
        losses = loss(outputs)
        gradients = torch.autograd.grad(losses, wanted, torch.full_like(losses, 1 / outputs.shape[1]))
    return losses.detach(), gradients


def is_watched(parameter: Tensor) -> bool:
    """True if the parameter has gradient hooks; fused models have no per-parameter gradient to give them."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def is_plain_sequence(model: nn.Module) -> bool:
    """Whether the model is one layer after the other, each used once and as it was made, and nothing else happens."""
    return (
        type(model) is nn.Sequential  # a class of its own may do more than one layer after the other
        and len({id(layer) for layer in model}) == len(model)  # a layer used twice shares its parameters
        and not has_hooks(model)
    )


def has_hooks(model: nn.Module) -> bool:
    """Whether layers do something besides what the `forward` of their class does."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return nn.modules.module._has_any_global_hook() or any(
        "forward" in vars(module)
        or type(module).__call__ is not nn.Module.__call__
        or any(getattr(module, name) for name in hooks)
        for module in model.modules()
    )
