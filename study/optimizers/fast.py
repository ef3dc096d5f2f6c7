"""Faster forms of some rules, each justified by measurement: in-place updates of many lanes, and fused kernels."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from study.optimizers.base import Scalars, State, Values
from study.optimizers.elementwise import started
from study.optimizers.layerwise import ratio
from study.optimizers.per_parameter import ALL_USUAL, Treatments, param_groups


def sgd_(w: Tensor, g: Tensor, state: State, h: Scalars, steps: Tensor) -> None:
    """`elementwise.sgd` in place."""
    w.addcmul_(g, h["learning_rate"], value=-1)


def momentum_(w: Tensor, g: Tensor, state: State, h: Scalars, steps: Tensor) -> None:
    """`elementwise.momentum` in place."""
    v = state["velocity"]
    torch.addcmul(g, v, h["momentum"], out=v)  # one pass over memory, not two
    w.addcmul_(v, h["learning_rate"], value=-1)


def nesterov_(w: Tensor, g: Tensor, state: State, h: Scalars, steps: Tensor) -> None:
    """`elementwise.nesterov` in place."""
    v = state["velocity"]
    torch.addcmul(g, v, h["momentum"], out=v)  # one pass over memory, not two
    w.addcmul_(g.addcmul_(v, h["momentum"]), h["learning_rate"], value=-1)


def adam_(w: Tensor, g: Tensor, state: State, h: Scalars, steps: Tensor) -> None:
    """`elementwise.adam` in place; on a CPU a fused kernel per lane: one pass over memory instead of nine."""
    if w.device.type == "cpu":
        _fused(w, g, state, h, steps, ("learning_rate", "beta1", "beta2", "epsilon"))
        return
    beta1, beta2 = h["beta1"], h["beta2"]
    mean, square = state["mean"].lerp_(g, 1 - beta1), state["square"].mul_(beta2).addcmul_(g * g, 1 - beta2)
    size = h["learning_rate"] / started(beta1, steps)
    deviation = (square / started(beta2, steps)).sqrt_().add_(h["epsilon"])
    w.addcdiv_(mean * size, deviation, value=-1)


def adamw_(w: Tensor, g: Tensor, state: State, h: Scalars, steps: Tensor) -> None:
    """`elementwise.adamw` in place."""
    if w.device.type == "cpu":
        _fused(w, g, state, h, steps, ("learning_rate", "beta1", "beta2", "epsilon", "weight_decay"))
        return
    w.mul_(1 - h["learning_rate"] * h["weight_decay"])
    adam_(w, g, state, h, steps)


def _fused(w: Tensor, g: Tensor, state: State, h: Scalars, steps: Tensor, names: Sequence[str]) -> None:
    """Update each lane with the kernel of `torch.optim.AdamW(fused=True)`; without decay it is Adam's."""
    for lane, (rate, beta1, beta2, epsilon, *decay) in enumerate(torch.cat([h[name] for name in names], 1).tolist()):
        tensors = [w[lane]], [g[lane]], [state["mean"][lane]], [state["square"][lane]]
        how: dict[str, Any] = {"lr": rate, "beta1": beta1, "beta2": beta2, "weight_decay": sum(decay), "eps": epsilon}
        torch._fused_adamw_(*tensors, [], [steps[lane, 0]], **how, amsgrad=False, maximize=False)


def lamb_(w: Tensor, g: Tensor, state: State, h: Scalars, steps: Tensor) -> None:
    """`layerwise.lamb` in place. Adam's update of zero weights at learning rate 1 is its direction, negated."""
    weights, gradient = w.view(len(w), -1), g.view(len(g), -1)
    moments = {name: tensor.view(len(w), -1) for name, tensor in state.items()}
    d = torch.zeros_like(weights)
    adam_(d, gradient, moments, {**h, "learning_rate": torch.ones_like(h["learning_rate"])}, steps)
    d.addcmul_(weights, h["weight_decay"], value=-1)
    norm, size = (torch.linalg.vector_norm(each, dim=1, keepdim=True) for each in (weights, d))
    weights.addcmul_(d, h["learning_rate"] * ratio(norm, size))


class Sgd(torch.optim.SGD):
    """`torch.optim.SGD` whose fused kernel takes parameters that get their first gradient later than others.

    A model may leave out layers at random. Torch gives the kernel no velocity for their parameters, and the kernel
    fails (torch 2.13). A velocity of 0 makes the same update as none.
    """

    def _init_group(self, group: Any, params: Any, grads: Any, momentum_buffer_list: Any) -> bool:
        is_sparse = super()._init_group(group, params, grads, momentum_buffer_list)
        if group["fused"] and any(held is not None for held in momentum_buffer_list):
            pairs = zip(momentum_buffer_list, grads, strict=True)
            momentum_buffer_list[:] = [torch.zeros_like(g) if held is None else held for held, g in pairs]
        return bool(is_sparse)


def torch_sgd(model: nn.Module, h: Values, treatments: Treatments = ALL_USUAL) -> torch.optim.Optimizer:
    """SGD, or heavy-ball momentum if `momentum` is given."""
    groups = param_groups(model, h["learning_rate"], treatments)
    return Sgd(groups, lr=h["learning_rate"], momentum=h.get("momentum", 0.0), fused=_has_kernel(model))


def torch_nesterov(model: nn.Module, h: Values, treatments: Treatments = ALL_USUAL) -> torch.optim.Optimizer:
    """Nesterov momentum; plain SGD at momentum 0, where torch refuses Nesterov."""
    groups, m = param_groups(model, h["learning_rate"], treatments), h["momentum"]
    return Sgd(groups, lr=h["learning_rate"], momentum=m, nesterov=m > 0, fused=_has_kernel(model))


def torch_adam(model: nn.Module, h: Values, treatments: Treatments = ALL_USUAL) -> torch.optim.Optimizer:
    """Adam."""
    return torch.optim.Adam(param_groups(model, h["learning_rate"], treatments), **_adam(model, h))


def torch_adamw(model: nn.Module, h: Values, treatments: Treatments = ALL_USUAL) -> torch.optim.Optimizer:
    """AdamW."""
    groups = param_groups(model, h["learning_rate"], treatments)
    return torch.optim.AdamW(groups, **_adam(model, h), weight_decay=h["weight_decay"])


def _adam(model: nn.Module, h: Values) -> dict[str, Any]:
    betas = h["beta1"], h["beta2"]
    return {"lr": h["learning_rate"], "betas": betas, "eps": h["epsilon"], "fused": _has_kernel(model)}


def _has_kernel(model: nn.Module) -> bool:
    """Whether torch's fused kernels are right for these parameters: that of SGD on CPUs loses the momentum of weights
    in half precision (torch 2.13), and none takes complex ones."""
    return all(parameter.dtype in (torch.float32, torch.float64) for parameter in model.parameters())
