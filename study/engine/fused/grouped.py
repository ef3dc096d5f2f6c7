"""The arithmetic `grouped`: convolutional networks of several lanes as one network, with a group of channels a lane.

A CPU's convolutions are oneDNN's, which computes in blocks of channels: before each call torch brings tensors into that
layout, and back into order after it. Here they stay in blocks from one convolution to the next, with what lies between.
What `torch.vmap` does to a model is done to the graph of its operations, each of which must be known. In blocks ReLU
and maxima drop NaN, and infinite gradients differ: a lane that has come so far is computed as a model alone.

Shapes: l lanes in a step, B examples in a batch, C channels, F features. Images are [B, l * C, height, width], in order
or in blocks (`torch._mkldnn`), and vectors [l, B, F].
"""

from __future__ import annotations

import operator
import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.func import functional_call

from study.engine.fused.layout import Layout, Loss, differentiated, has_hooks
from study.engine.fused.vmapped import Vmapped, can_vmap
from workloads.layers import Dropout, GlobalMeanPool, keep_mask, keyed_layers

BLOCK = 16
"""Channels; for groups that do not fill them oneDNN has no such layout."""
RELU = (F.relu, torch.relu, "relu", "relu_")
SUM = (operator.add, torch.add, "add", "add_")
"""As functions and as methods."""
ALIASES = (nn.Identity, nn.Flatten, Dropout)
"""What they return is their input, at times."""


@dataclass(frozen=True)
class Lanes:
    """What operations are made with, besides their inputs.

    Attributes:
        weights: parameter name -> [l, *shape].
        keys: of each keyed layer [l, layers].
        seen: sums for each lane [l] of what went into operations that drop NaN.
    """

    count: int
    weights: Mapping[str, Tensor]
    keys: Tensor
    seen: list[Tensor]


Operation = Callable[..., Tensor]
"""(lanes, *inputs) -> output; images or vectors."""


class Grouped(Vmapped):
    """Models for which `can_group` holds, their lanes as groups of channels.

    Arguments:
        template: one of them.
        weights: rows [l, P].
    """

    def __init__(self, template: nn.Module, weights: Tensor, layout: Layout) -> None:
        super().__init__(template, weights, layout)
        self.names = list(self.weights)

    @cached_property
    def operations(self) -> dict[fx.Node, Operation | None]:
        """Those of the model, of which evaluations have no need."""
        return _operations(self.template)

    @cached_property
    def telling(self) -> list[int]:
        """Of each layer that takes the inputs the last parameter, a bias where it has one: what is not finite in the
        gradients of blocks gets there, through all that lies between."""
        layers = [str(node.target) for node in self.operations if node.op == "call_module" and _is_first(node)]
        last = {name.rpartition(".")[0]: number for number, name in enumerate(self.names)}
        return [last[layer] for layer in layers if layer in last] or list(last.values())

    def backward(self, inputs: Tensor, loss: Loss, keys: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        lanes = Lanes(len(inputs), self.weights, keys, [])
        with torch.enable_grad():
            outputs = self._outputs(inputs, lanes)
        losses, found = differentiated(loss, outputs, list(self.weights.values()))
        gradients = [gradient.flatten(1) for gradient in found]
        sums = torch.stack([*lanes.seen, *(gradients[number].sum(1) for number in self.telling)])
        for lane in () if sums.isfinite().all() else sums.isfinite().all(0).logical_not().nonzero().flatten().tolist():
            alone = {name: weight[lane].detach().requires_grad_() for name, weight in self.weights.items()}
            buffers = {name: keys[lane, number] for number, name in enumerate(self.keys)}
            mixed = list(outputs.detach())
            with torch.enable_grad():
                mixed[lane] = functional_call(self.template, (alone, buffers), (inputs[lane].clone(),))
                each, slopes = differentiated(loss, torch.stack(mixed), list(alone.values()))
            losses.view(lanes.count, -1)[lane] = each.view(lanes.count, -1)[lane]
            for gradient, slope in zip(gradients, slopes, strict=True):
                gradient[lane] = slope.flatten()
        return losses, gradients

    def _outputs(self, inputs: Tensor, lanes: Lanes) -> Tensor:
        """What each model computes of its own inputs [l, B, C, H, W]: [l, B, ...]."""
        if inputs.dim() != 5:
            raise NotImplementedError(f"`grouped` takes images [B, C, H, W], but got inputs {list(inputs.shape[1:])}.")
        values: dict[fx.Node, Tensor] = {}
        for node, operation in self.operations.items():
            assert operation is not None
            given = [values[each] for each in _inputs(node)] or [inputs.transpose(0, 1).flatten(1, 2)]
            values[node] = operation(lanes, *given)
        return values[node]


def has_blocks() -> bool:
    """Whether this machine's convolutions are oneDNN's."""
    return torch.backends.mkldnn.is_available()


def can_group(model: nn.Module) -> bool:
    """Whether this is a convolutional network all of whose operations are known here.

    What a graph does not show (gradients switched off, other precisions) is for a comparison with models alone to find
    (`study.engine.can_fuse.lanes_can`).
    """
    if not has_blocks() or has_hooks(model) or not can_vmap(model):
        return False
    before = _drawn()
    try:
        with torch.random.fork_rng(devices=[]):
            operations = _operations(model)
            if _drawn() != before:
                return False
    except Exception:  # a model that looks at its inputs refuses stand-ins by whatever error it likes
        return False
    layers = {str(node.target): _layer(node, model) for node in operations if node.op == "call_module"}
    used = {f"{name}.{own}" for name, layer in layers.items() for own, _ in layer.named_parameters()}
    return (
        all(operation is not None for operation in operations.values())
        and sum(node.op == "placeholder" for node in operations) == 1
        and any(isinstance(layer, nn.Conv2d) for layer in layers.values())
        and used == {name for name, _ in model.named_parameters()}  # none is tied to another, or left over
    )


def _drawn() -> tuple[object, ...]:
    """Where the generators stand that a model may draw from."""
    return torch.get_rng_state().tolist(), random.getstate(), pickle.dumps(np.random.get_state())  # noqa: NPY002


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Dropout | GlobalMeanPool) or super().is_leaf_module(m, module_qualified_name)


def _operations(model: nn.Module) -> dict[fx.Node, Operation | None]:
    """What a model does, in order, and how lanes do it; None: that is not known."""
    return {node: _operation(node, model) for node in _Tracer().trace(model).nodes}


def _inputs(node: fx.Node) -> list[fx.Node]:
    return [each for each in node.args if isinstance(each, fx.Node)]


def _layer(node: fx.Node, model: nn.Module) -> nn.Module:
    return model.get_submodule(str(node.target))


def _operation(node: fx.Node, model: nn.Module) -> Operation | None:
    inputs, target = _inputs(node), node.target
    further: tuple[Any, ...] = node.args[len(inputs) :]
    if node.op in ("placeholder", "output"):
        return None if further or node.kwargs else _same
    if not inputs or _spoils(node, model):
        return None
    if node.op == "call_module":
        return _of_layer(node, model)
    if target in RELU and not further:
        return partial(_relu, _is_watched(node))
    if target in SUM and len(inputs) == 2 and not further and not node.kwargs:
        return _sum
    if target is F.avg_pool2d and len(further) in (1, 2) and not node.kwargs:
        return partial(_pooled, F.avg_pool2d, further[0], further[-1], False)
    if target is F.pad and node.kwargs == {"mode": "constant", "value": None}:
        [padding] = further
        only_channels = len(padding) == 6 and not any(padding[:5]) and padding[5] >= 0
        return partial(_padded, padding[5]) if only_channels else None
    return None


def _spoils(node: fx.Node, model: nn.Module) -> bool:
    """Whether it overwrites what another operation sees, which nothing does here."""
    [first, *_] = _inputs(node)
    if node.op == "call_module":
        inplace = getattr(_layer(node, model), "inplace", False)
    else:
        inplace = node.kwargs.get("inplace", False) or str(node.target).endswith("_")
    anew = first.op != "placeholder" and not (first.op == "call_module" and isinstance(_layer(first, model), ALIASES))
    return bool(inplace) and (len(first.users) > 1 or not anew)


def _of_layer(node: fx.Node, model: nn.Module) -> Operation | None:
    layer, name, [source, *_] = _layer(node, model), str(node.target), _inputs(node)
    if type(layer) is nn.Conv2d:
        fills = layer.out_channels % BLOCK == 0 and (layer.in_channels % BLOCK == 0 or source.op == "placeholder")
        usual = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
        return partial(_convolution, layer, name) if fills and usual and not isinstance(layer.padding, str) else None
    if type(layer) is nn.AvgPool2d:
        usual = layer.padding == 0 and not layer.ceil_mode and layer.divisor_override is None
        return partial(_pooled, F.avg_pool2d, layer.kernel_size, layer.stride, False) if usual else None
    if type(layer) is nn.MaxPool2d:
        usual = layer.padding == 0 and layer.dilation == 1 and not layer.ceil_mode and not layer.return_indices
        watched = _is_watched(node)
        return partial(_pooled, F.max_pool2d, layer.kernel_size, layer.stride, watched) if usual else None
    if type(layer) is nn.Flatten:
        return partial(_vectors, layer) if (layer.start_dim, layer.end_dim) == (1, -1) else None
    if type(layer) is Dropout:
        return partial(_dropout, layer.p, keyed_layers(model).index(layer))
    others: dict[Any, Operation] = {
        nn.AdaptiveAvgPool2d: partial(_channelwise, layer),
        nn.ReLU: partial(_relu, _is_watched(node)),
        nn.Linear: partial(_linear, name),
        GlobalMeanPool: partial(_vectors, layer),
        nn.Identity: _same,
    }
    return others.get(type(layer))


def _same(lanes: Lanes, x: Tensor) -> Tensor:
    return x


def _is_first(node: fx.Node) -> bool:
    return _inputs(node)[0].op == "placeholder"


def _is_watched(node: fx.Node) -> bool:
    """Whether nothing else is sure to keep what an operation drops, as a sum does; windows may leave some out."""
    return not any(user.target in SUM for user in _inputs(node)[0].users)


def _watch(lanes: Lanes, x: Tensor) -> None:
    """Note what goes into an operation that drops NaN."""
    if x.is_mkldnn:
        means = F.avg_pool2d(x.detach(), x.shape[2:], 1).to_dense()
        lanes.seen.append(means.view(len(x), lanes.count, -1).sum((0, 2)))


def _relu(watched: bool, lanes: Lanes, x: Tensor) -> Tensor:
    if watched:
        _watch(lanes, x)
    return torch.relu(x)


def _sum(lanes: Lanes, x: Tensor, y: Tensor) -> Tensor:
    if x.shape != y.shape:
        x, y = _in_order(x), _in_order(y)
    elif x.is_mkldnn or y.is_mkldnn:
        x, y = _in_blocks(x), _in_blocks(y)
    return x + y


def _pooled(pool: Callable[..., Tensor], size: Any, stride: Any, watched: bool, lanes: Lanes, x: Tensor) -> Tensor:
    if watched:
        _watch(lanes, x)
    return pool(x, size, stride or size)


def _channelwise(layer: nn.Module, lanes: Lanes, x: Tensor) -> Tensor:
    """By a layer that takes each channel for itself, and in order."""
    return layer(_in_order(x))


def _padded(channels: int, lanes: Lanes, x: Tensor) -> Tensor:
    """With further channels, of zeros: a convolution by ones and zeros leaves in blocks what is in blocks."""
    if not x.is_mkldnn:
        return F.pad(x.unflatten(1, (lanes.count, -1)), (0, 0, 0, 0, 0, channels)).flatten(1, 2)
    own = x.shape[1] // lanes.count
    kept = torch.eye(own + channels, own).repeat(lanes.count, 1)
    return F.conv2d(x, kept[:, :, None, None], groups=lanes.count)


def _convolution(layer: nn.Conv2d, name: str, lanes: Lanes, x: Tensor) -> Tensor:
    weight, bias = lanes.weights[f"{name}.weight"], lanes.weights.get(f"{name}.bias")
    biases = None if bias is None else bias.flatten()
    if not x.requires_grad:  # a batch, whose few channels fill no blocks, but its windows do
        windows, filters = _windows(layer, lanes, x), weight.flatten(2)
        spare = windows.shape[1] // lanes.count - filters.shape[2]
        pointwise = F.pad(filters, (0, spare)).flatten(0, 1)[:, :, None, None]
        return F.conv2d(_in_blocks(windows), pointwise, biases, groups=lanes.count)
    return F.conv2d(_in_blocks(x), weight.flatten(0, 1), biases, layer.stride, layer.padding, groups=lanes.count)


def _windows(layer: nn.Conv2d, lanes: Lanes, x: Tensor) -> Tensor:
    """What each filter is multiplied with, its C * k * k numbers as channels, filled up with zeros."""
    (down, across), (high, wide) = layer.stride, layer.kernel_size
    [high_padding, wide_padding] = (int(width) for width in layer.padding)
    sides = (wide_padding, wide_padding, high_padding, high_padding)
    images = F.pad(x.unflatten(1, (lanes.count, -1)), sides)
    windows = images.unfold(3, high, down).unfold(4, wide, across).permute(0, 1, 2, 5, 6, 3, 4)
    own = windows.shape[2:5].numel()
    filled = x.new_zeros(*windows.shape[:2], own + -own % BLOCK, *windows.shape[5:])
    filled[:, :, :own].view(windows.shape).copy_(windows)
    return filled.flatten(1, 2)


def _linear(name: str, lanes: Lanes, x: Tensor) -> Tensor:
    if x.dim() != 3:
        raise NotImplementedError(f"`grouped` takes linear layers of vectors, but {name} is one of images.")
    weight, bias = lanes.weights[f"{name}.weight"], lanes.weights.get(f"{name}.bias")
    return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight.mT)


def _vectors(layer: nn.Module, lanes: Lanes, x: Tensor) -> Tensor:
    """Of images by a layer that takes each channel for itself; vectors are vectors."""
    return x if x.dim() == 3 else _channelwise(layer, lanes, x).view(len(x), lanes.count, -1).transpose(0, 1)


def _dropout(p: float, number: int, lanes: Lanes, x: Tensor) -> Tensor:
    each = x if x.dim() == 3 else _in_order(x).unflatten(1, (lanes.count, -1)).transpose(0, 1)
    kept = each * (keep_mask(each.shape[1:], lanes.keys[:, number], p).to(x.dtype) / (1 - p))
    return kept if x.dim() == 3 else kept.transpose(0, 1).flatten(1, 2)


def _in_order(x: Tensor) -> Tensor:
    return x.to_dense() if x.is_mkldnn else x


def _in_blocks(x: Tensor) -> Tensor:
    """Or on the way there: the next convolution brings it into blocks."""
    return x if x.is_mkldnn else x.to_mkldnn()
