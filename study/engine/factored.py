"""Large linear layers that are updated in their backward pass, by gradients that are never there as a whole.

The gradient of a weight is a sum of outer products, one for each example. Where those are few it is written out for
nothing: as large as the weight, it goes to memory and comes back from there, and the update takes as long as memory
does. Here the weight is gone through once, some rows at a time, which stay in cache: their part of the gradient of the
inputs is taken, that of their own made, and used up. The weights are those that the gradient written out would make,
but for rounding.

Shapes: n examples of a batch, [H, D] a weight, h rows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from study.engine.fused.layout import CACHE_LINE, is_plain_sequence, is_watched

MOST_EXAMPLES = 8
"""With more, products take what memory did before: by a layer of 3.2 million weights nothing is won at 32."""
LEAST_WEIGHTS = 2**20
"""4 MB, which a core's own caches do not hold; smaller ones were not measured."""
ROWS_OF = 2**19
"""Numbers in the rows that are updated together: 2 MB, and as much of each memory of the optimizer."""

Penalise = Callable[[Iterable[tuple[Tensor, Tensor]]], None]
"""Adds what is no business of the optimizer's, to (weights, gradient) of the same rows."""
Update = Callable[[slice, Tensor, Tensor], None]
"""Update these rows by their gradient, the product of [h, n] and [n, D]."""
Kernel = Callable[[slice, Tensor], None]
"""The same, by their gradient [h, D]."""


class Factored:
    """A linear layer whose weight the next backward pass updates, once somebody has prepared that."""

    def __init__(self, layer: nn.Linear) -> None:
        self.weight = layer.weight
        self.prepared: tuple[torch.optim.Optimizer, Penalise] | None = None
        # Not a method of the layer: a cycle would keep models of ended trials alive.
        layer.forward = partial(_forward, self, layer.weight, layer.bias)  # type: ignore[method-assign]

    def prepare(self, optimizer: torch.optim.Optimizer, penalise: Penalise) -> None:
        """Have the next backward pass do to the weight what this optimizer does to others."""
        self.prepared = optimizer, penalise

    def descend(self, dy: Tensor, x: Tensor, wanted: bool) -> tuple[Tensor | None, Tensor | None]:
        """(the gradient of the weight [H, D] if that is left to others, the gradient of the inputs [n, D] if `wanted`).

        Arguments:
            dy: gradient of the outputs [n, H].
            x: inputs [n, D].
        """
        prepared, self.prepared = self.prepared, None
        weight = self.weight.detach()
        if prepared is None or len(x) > MOST_EXAMPLES:
            return dy.mT @ x, dy @ weight if wanted else None
        optimizer, penalise = prepared
        rule = RULES[type(optimizer)]
        update = rule(optimizer.param_groups[0], optimizer.state[self.weight], weight, penalise)
        dx = torch.zeros_like(x) if wanted else None
        # The last rows first: they are what the passes before, forwards through the rows, have left in cache.
        for rows in reversed(_parts(*weight.shape)):
            if dx is not None:
                dx.addmm_(dy[:, rows], weight[rows])
            update(rows, dy[:, rows].mT, x)
        return None, dx


def _parts(rows: int, inputs: int) -> list[slice]:
    """The rows that are updated together.

    Kernels treat the ends of what they are given otherwise than the rest, and products of few rows otherwise than those
    of many: parts are of whole multiples of CACHE_LINE rows, and the last one is no smaller.
    """
    height = max(1, ROWS_OF // inputs // CACHE_LINE) * CACHE_LINE
    return [slice(*edges) for edges in pairwise([*range(0, max(1, rows - CACHE_LINE + 1), height), rows])]


def factored(model: nn.Module, optimizer: torch.optim.Optimizer, batch_size: int) -> list[Factored]:
    """The layers of a model that gain from it, which change now.

    That is on a CPU, by an optimizer that is known here, in a sequence of layers of which none can do anything to
    another's weight or see its gradient.
    """
    if batch_size > MOST_EXAMPLES or not (_fused(optimizer) and _known(model)):
        return []
    modules = [module for _, module in model.named_modules(remove_duplicate=False)]
    used = [id(parameter) for module in modules for parameter in module._parameters.values()]
    return [
        Factored(layer)
        for layer in model.children()
        if type(layer) is nn.Linear
        and layer.weight.numel() >= LEAST_WEIGHTS
        and layer.weight.requires_grad
        and layer.weight.is_contiguous()
        and layer.weight.device.type == "cpu"
        and not is_watched(layer.weight)
        and used.count(id(layer.weight)) == 1
    ]


def _fused(optimizer: torch.optim.Optimizer) -> bool:
    groups = optimizer.param_groups
    return type(optimizer) in RULES and len(groups) == 1 and bool(groups[0]["fused"])


def _known(model: nn.Module) -> bool:
    """Whether a model is a plain sequence of torch's layers and this project's own."""
    known = ("torch.nn.modules.", "workloads.layers.")
    return is_plain_sequence(model) and all(f"{type(layer).__module__}.".startswith(known) for layer in model.modules())


def _sgd(group: dict[str, Any], state: dict[str, Any], weight: Tensor, penalise: Penalise) -> Update:
    """As `torch.optim.SGD(fused=True)`, with its memory."""
    first = group["momentum"] != 0 and "momentum_buffer" not in state
    if first:
        state["momentum_buffer"] = torch.zeros_like(weight)
    if group["momentum"] and not any(group[name] for name in ("nesterov", "dampening", "weight_decay", "maximize")):
        return _momentum(group["momentum"], group["lr"], state["momentum_buffer"], weight, penalise)

    def kernel(rows: slice, gradient: Tensor) -> None:
        torch._fused_sgd_(
            [weight[rows]],
            [gradient],
            [state["momentum_buffer"][rows]] if group["momentum"] else [],
            **{name: group[name] for name in ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")},
            is_first_step=first,
        )

    return _written(kernel, weight, penalise)


def _momentum(momentum: float, learning_rate: float, velocity: Tensor, weight: Tensor, penalise: Penalise) -> Update:
    """Momentum wants the gradient for nothing but its velocity, to which the factors can be added as they are."""

    def update(rows: slice, left: Tensor, right: Tensor) -> None:
        moved = _with_product(velocity[rows], momentum, left, right)
        penalise([(weight[rows], moved)])
        weight[rows].add_(moved, alpha=-learning_rate)

    return update


def _adam(group: dict[str, Any], state: dict[str, Any], weight: Tensor, penalise: Penalise) -> Update:
    """As `torch.optim.Adam(fused=True)` or AdamW, with its memory."""
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
    state["step"] += 1
    fused = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_

    def kernel(rows: slice, gradient: Tensor) -> None:
        fused(
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

    return _written(kernel, weight, penalise)


def _written(kernel: Kernel, weight: Tensor, penalise: Penalise) -> Update:
    """An update by the gradient of some rows, written out."""
    most = max(rows.stop - rows.start for rows in _parts(*weight.shape))
    buffer = weight.new_empty(most, weight.shape[1])  # one for all, or each would push the one before out of cache

    def update(rows: slice, left: Tensor, right: Tensor) -> None:
        gradient = torch.mm(left, right, out=buffer[: len(left)])
        penalise([(weight[rows], gradient)])
        kernel(rows, gradient)

    return update


RULES: dict[type, Callable[[dict[str, Any], dict[str, Any], Tensor, Penalise], Update]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
}
"""Optimizer -> (its group, its memory of a weight, the weight, penalties) -> how rows of it are updated."""


def _forward(layer: Factored, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    if x.dim() == 2:
        return _Updated.apply(layer, weight, bias, x)
    # Made here, for views of a function's own may not be changed in place.
    return _Updated.apply(layer, weight, bias, x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], len(weight))


def _outputs(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b; of few examples in few rows of the weight at a time, for which libraries have better kernels."""
    if len(x) > MOST_EXAMPLES or len(weight) % CACHE_LINE:
        return nn.functional.linear(x, weight, bias)
    parts = weight.unflatten(0, (-1, CACHE_LINE))
    y = torch.bmm(x.expand(len(parts), *x.shape), parts.mT).transpose(0, 1).flatten(1)
    return y.clone() if bias is None else y + bias


def _with_product(weight: Tensor, share: float, left: Tensor, right: Tensor) -> Tensor:
    """This share of the weight [h, D] and the product of [h, n] and [n, D], in place; in few rows at a time, too."""
    if len(weight) % CACHE_LINE:
        return weight.addmm_(left, right, beta=share)
    parts = weight.unflatten(0, (-1, CACHE_LINE))
    parts.baddbmm_(left.reshape(len(parts), CACHE_LINE, -1), right.expand(len(parts), *right.shape), beta=share)
    return weight


class _Updated(torch.autograd.Function):
    """x W^T + b for x [n, D], whose backward pass is `Factored.descend`."""

    @staticmethod
    def forward(ctx: Any, layer: Factored, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return _outputs(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor | None, Tensor | None, Tensor | None]:
        x, _ = ctx.saved_tensors  # which would tell if the weight had changed since
        [dy] = gradients
        _, _, needs_bias, needs_x = ctx.needs_input_grad
        gradient, dx = ctx.layer.descend(dy, x.detach(), needs_x)
        return None, gradient, dy.sum(0) if needs_bias else None, dx
