"""Whether a model or its loss may draw from the global random generators."""

from collections.abc import Callable
from typing import Any

from torch import nn

from workloads.base import Workload, optional

TORCH = ("torch.nn.modules.",)
OURS = ("workloads.",)
NOT_OURS = ("workloads.adapters.",)
"""Beginnings of the names of modules: layers of torch, code that draws nothing in training, and its exception: models
of other packages."""
DRAWING = (
    nn.modules.dropout._DropoutNd,
    nn.RReLU,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
    nn.MultiheadAttention,
    nn.RNNBase,
)
"""Layers of torch that may draw, with their subclasses."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def may_draw(workload: Workload, model: nn.Module) -> bool:
    """Whether a forward pass of the model, the loss or the weights of examples may draw from a global generator.

    False only for code that is known to draw nothing: workloads and layers of this package, whose random numbers are
    functions of keys, and layers of torch without random numbers.
    """
    functions = [workload.loss, optional(workload, "weights")]
    known = _is_ours(type(workload)) and all(function is None or _is_ours(function) for function in functions)
    return not known or any(map(_layer_may_draw, model.modules())) or nn.modules.module._has_any_global_hook()


def _layer_may_draw(layer: nn.Module) -> bool:
    kind = type(layer)
    known = _is_ours(kind) or (kind.__module__.startswith(TORCH) and not isinstance(layer, DRAWING))
    return not known or "forward" in vars(layer) or any(getattr(layer, name) for name in HOOKS)


def _is_ours(code: type | Callable[..., Any]) -> bool:
    """Whether a class or function is of this package, and not of a model from another one."""
    module = getattr(code, "__module__", None) or ""
    return module.startswith(OURS) and not module.startswith(NOT_OURS)
