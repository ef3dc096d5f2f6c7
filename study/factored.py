"""Gradients of large linear layers, held as their factors until the update.

The gradient of a weight is a sum of outer products, one for each example. Where those are few it is written out for
nothing: as large as the weight, it goes to memory and comes back from there, and the update takes as long as memory
does. Here the factors are kept, and some rows of the gradient at a time are made, which stay in cache, and used up.
The weights are those that the gradient written out would make, but for rounding on processors where kernels differ.

Shapes: n examples of a batch, [H, D] a weight, h rows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from study.forms import CACHE_LINE, is_plain_sequence

MOST_EXAMPLES = 8
"""With more, products take what memory did before: by a layer of 3.2 million weights nothing is won at 32."""
LEAST_WEIGHTS = 2**20
"""4 MB, which a core's own caches do not hold; smaller ones were not measured."""
ROWS_OF = 2**18
"""Numbers in the rows that are updated together: 1 MB, and as much of weights and of each memory of the optimizer."""

Update = Callable[[slice, Tensor], None]
"""Update these rows by their gradient [h, D]."""


class Factored:
    """A linear layer that keeps the factors of its weight's gradient, for this to update the weight by.

    Attributes:
        held: since the latest backward pass: gradients of outputs [n, H] and inputs [n, D].
    """

    def __init__(self, layer: nn.Linear) -> None:
        self.weight = layer.weight
        self.held: list[Tensor] = []
        # Not a method of the layer: a cycle would keep models of ended trials alive.
        layer.forward = partial(_keeping, layer.weight, layer.bias, self.held)  # type: ignore[method-assign]

    @torch.no_grad()
    def update_(
        self, optimizer: torch.optim.Optimizer, penalise: Callable[[list[tuple[Tensor, Tensor]]], None]
    ) -> None:
        """Do to the weight what this optimizer does to others.

        Arguments:
            penalise: adds what is no business of the optimizer's, to (weights, gradient) of the same rows.
        """
        if not self.held:
            return
        weight = self.weight.detach()
        update = RULES[type(optimizer)](optimizer.param_groups[0], optimizer.state[self.weight], weight)
        for rows, gradient in self._parts():
            penalise([(weight[rows], gradient)])
            update(rows, gradient)
        self.held.clear()

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        """The gradient, some rows at a time.

        Kernels treat the ends of what they are given otherwise than the rest, and products of few rows otherwise than
        those of many: parts are of whole multiples of CACHE_LINE rows, and the last one is no smaller.
        """
        dy, x = self.held
        rows, inputs = self.weight.shape
        height = max(1, ROWS_OF // inputs // CACHE_LINE) * CACHE_LINE
        edges = [*range(0, max(1, rows - CACHE_LINE + 1), height), rows]
        buffer = x.new_empty(height + CACHE_LINE, inputs)  # one for all, or each would push the one before out of cache
        for start, stop in pairwise(edges):
            yield slice(start, stop), torch.mm(dy[:, start:stop].mT, x, out=buffer[: stop - start])


def factored(model: nn.Module, optimizer: torch.optim.Optimizer, batch_size: int) -> list[Factored]:
    """The layers of a model that gain from it, which change now.

    That is on a CPU, by an optimizer that is known here, in a sequence of layers of which none can do anything to
    another's weight or see its gradient.
    """
    if batch_size > MOST_EXAMPLES or not (_fused(optimizer) and _known(model)):
        return []
    layers, used = list(model.children()), [id(p) for m in model.modules() for p in m._parameters.values()]
    return [
        Factored(layer)
        for layer in layers
        if type(layer) is nn.Linear
        and layer.weight.numel() >= LEAST_WEIGHTS
        and layer.weight.requires_grad
        and layer.weight.is_contiguous()
        and layer.weight.device.type == "cpu"
        and not layer.weight._backward_hooks
        and used.count(id(layer.weight)) == 1
    ]


def _fused(optimizer: torch.optim.Optimizer) -> bool:
    groups = optimizer.param_groups
    return type(optimizer) in RULES and len(groups) == 1 and bool(groups[0]["fused"])


def _known(model: nn.Module) -> bool:
    """Whether a model is a plain sequence of torch's layers and this project's own."""
    known = ("torch.nn.modules.", "workloads.layers.")
    return is_plain_sequence(model) and all(f"{type(layer).__module__}.".startswith(known) for layer in model.modules())


def _sgd(group: dict[str, Any], state: dict[str, Any], weight: Tensor) -> Update:
    """As `torch.optim.SGD(fused=True)`, with its memory."""
    first = group["momentum"] != 0 and "momentum_buffer" not in state
    if first:
        state["momentum_buffer"] = torch.empty_like(weight)

    def update(rows: slice, gradient: Tensor) -> None:
        torch._fused_sgd_(
            [weight[rows]],
            [gradient],
            [state["momentum_buffer"][rows]] if group["momentum"] else [],
            **{name: group[name] for name in ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")},
            is_first_step=first,
        )

    return update


def _adam(group: dict[str, Any], state: dict[str, Any], weight: Tensor) -> Update:
    """As `torch.optim.Adam(fused=True)` or AdamW, with its memory."""
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
    state["step"] += 1
    kernel = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_

    def update(rows: slice, gradient: Tensor) -> None:
        kernel(
            [weight[rows]],
            [gradient],
            [state["exp_avg"][rows]],
            [state["exp_avg_sq"][rows]],
            [],
            [state["step"]],
            **{name: group[name] for name in ("lr", "weight_decay", "eps", "amsgrad", "maximize")},
            beta1=group["betas"][0],
            beta2=group["betas"][1],
        )

    return update


RULES = {torch.optim.SGD: _sgd, torch.optim.Adam: _adam, torch.optim.AdamW: _adam}
"""Optimizer -> (its group, its memory of a weight, the weight) -> how rows of it are updated."""


def _keeping(weight: Tensor, bias: Tensor | None, held: list[Tensor], x: Tensor) -> Tensor:
    return _Kept.apply(x, weight, bias, held)


class _Kept(torch.autograd.Function):
    """x W^T + b, which leaves behind the factors of W's gradient where the rows of x are few."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, held: list[Tensor]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.held = held
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        rows, inputs = gradients[0].flatten(0, -2), x.detach().flatten(0, -2)
        needs_x, _, needs_bias, _ = ctx.needs_input_grad
        few = len(rows) <= MOST_EXAMPLES
        if few:
            ctx.held[:] = rows, inputs
        dx = gradients[0] @ weight if needs_x else None
        return dx, None if few else rows.mT @ inputs, rows.sum(0) if needs_bias else None, None
