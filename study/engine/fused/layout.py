"""The parts that `linear_chain` and `vmapped` share to compute the gradients of many equal models at once.

Shapes: l lanes, B examples in a batch, N inputs that all lanes share, P numbers in a row with the parameters of one
model, p in a part of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor, nn

from study.data.trees import Tree
from study.engine.fused.cross_entropy import CrossEntropy
from workloads.layers import GhostBatchNorm

Loss = Callable[[Tree], Tensor]
"""Outputs [l, B, ...], a tensor or a tree of tensors -> the loss of every example [l * B]."""

CACHE_LINE = 16
"""The number of float32 in a cache line of 64 bytes."""


class Form(Protocol):
    """The models of l lanes, whose parameters are views of rows [l, P]. `half`: products are computed in bfloat16."""

    def __init__(self, template: nn.Module, weights: Tensor, layout: Layout, half: bool = False) -> None: ...

    @staticmethod
    def predicts_alone(device: torch.device) -> bool:
        """Whether `outputs` runs one model after another, so that no other lane can change its bits."""
        ...

    @property
    def columns(self) -> Sequence[slice]:
        """The parts of a row, one for each gradient that `backward` returns."""
        ...

    def separate(self) -> None:
        """From now on, do not copy the gradients of parameters side by side. The copy saves launches, which a compiler
        saves without it."""
        ...

    def outputs(self, inputs: Tree) -> Tree:
        """The outputs [l, N, ...] of each model for the same inputs [N, ...], dropout off."""
        ...

    def backward(self, inputs: Tree, loss: Loss, keys: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """The losses of all examples [l * B], and the gradients of each lane's mean loss: [l, p] for each of `columns`.

        Arguments:
            inputs: each lane's own inputs [l, B, ...].
            keys: keys of the keyed layers [l, layers].
        """
        ...


class Layout:
    """The place of each parameter in a row [P] that holds the parameters of one model.

    Each starts at a cache line: kernels handle an unaligned start separately, so bits would depend on the row. The
    trained parameters come first, then the frozen ones that differ between models, then the running averages of ghost
    batch norms. All other frozen parameters are in no row: models share them.

    Arguments:
        apart: the frozen parameters that differ between models.

    Attributes:
        width: P.
        trained: the trained parameters.
        trained_width: the length of the part of a row that holds them.
        ghosts: the prefixes of the names of each ghost batch norm's buffers.
        columns: for each trained parameter, its part of a row.
        gaps: for each trained parameter, the number of unused floats after it, up to the next cache line.
    """

    def __init__(self, model: nn.Module, apart: Collection[str] = ()) -> None:
        named = tensors(model)
        self.trained = [name for name, tensor in named.items() if tensor.requires_grad]
        ghosts = [name for name, layer in model.named_modules() if isinstance(layer, GhostBatchNorm)]
        self.ghosts = [f"{name}." if name else "" for name in ghosts]
        running = [f"{name}running_{each}" for name in self.ghosts for each in ("mean", "variance")]
        self._shapes = {name: named[name].shape for name in [*self.trained, *apart, *running]}
        ends = list(accumulate(-(-shape.numel() // CACHE_LINE) * CACHE_LINE for shape in self._shapes.values()))
        self._places = [
            slice(start, start + shape.numel()) for start, shape in zip([0, *ends], self._shapes.values(), strict=False)
        ]
        count = len(self.trained)
        self.width, self.trained_width, self.columns = ends[-1], ends[count - 1], self._places[:count]
        self.gaps = [end - columns.stop for end, columns in zip(ends, self.columns, strict=False)]

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Rows [l, P] as parameter name -> [l, *shape]."""
        parts = zip(self._shapes.items(), self._places, strict=True)
        return {name: rows[:, columns].view(len(rows), *shape) for (name, shape), columns in parts}


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a model by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def frozen_apart(model: nn.Module, other: Callable[[], nn.Module]) -> list[str]:
    """The names of the frozen parameters that differ between two initial models. `other`: makes the second one."""
    frozen = {name: parameter for name, parameter in model.named_parameters() if not parameter.requires_grad}
    values = dict(other().named_parameters()) if frozen else {}
    return [name for name, parameter in frozen.items() if not torch.equal(parameter, values[name])]


def differentiated(loss: Loss, outputs: Tree, wanted: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
    """(losses [l * B] of outputs [l, B, ...], gradients of each lane's mean loss with respect to `wanted`)."""
    if isinstance(loss, CrossEntropy) and wanted[0] is outputs:
        losses, gradient = loss.differentiated(outputs, len(outputs) / loss.targets.numel())
        return losses, [gradient]
    with torch.enable_grad():
        losses = loss(outputs)
        gradients = torch.autograd.grad(losses, wanted, torch.full_like(losses, len(wanted[0]) / len(losses)))
    return losses.detach(), gradients


def is_watched(parameter: Tensor) -> bool:
    """True if the parameter has gradient hooks; fused models have no per-parameter gradient to give them."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def watched(model: nn.Module) -> str | None:
    """The name of a trained parameter with gradient hooks; None if there is none."""
    return next((name for name, each in model.named_parameters() if each.requires_grad and is_watched(each)), None)


def is_plain_sequence(model: nn.Module) -> bool:
    """Whether the model only applies its layers one after the other, each once and without hooks."""
    return (
        type(model) is nn.Sequential  # a subclass may compute more
        and len({id(layer) for layer in model}) == len(model)  # a layer used twice shares its parameters
        and not has_hooks(model)
    )


def has_hooks(model: nn.Module) -> bool:
    """Whether hooks, or a replaced `forward` or `__call__` of a module, may do more than the class of the module."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return nn.modules.module._has_any_global_hook() or any(
        "forward" in vars(module)
        or type(module).__call__ is not nn.Module.__call__
        or any(getattr(module, name) for name in hooks)
        for module in model.modules()
    )
