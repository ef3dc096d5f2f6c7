"""Gradients of max pooling in the graph of an update, in forms that the compiler can fuse.

The compiler adds the gradient of each maximum to zeros, in passes of their own. Where windows do not overlap, a pixel
has one window, and takes its gradient or 0: this choice is fused with the operations beside it.

Shapes: N images with C channels of H x W pixels, pooled to h x w.
"""

from collections.abc import Callable
from functools import partial
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from study.engine.fused.convolution.folded import calls, readers_of
from study.engine.fused.convolution.shapes import Sizes

aten = torch.ops.aten
FORWARD, BACKWARD = aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices_backward.default
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.detach.default, aten.alias.default)
"""Operations whose results have the numbers of their input in the same order."""


def pooled(graph: GraphModule) -> GraphModule:
    """The graph with gradients of ReLUs before max pooling taken at the maxima, and with choices in place of sums.

    Before its end, no operation of the graph may change a tensor (`torch.func.functionalize`). Tensors are fakes, whose
    mode is active.
    """
    for gradient in calls(graph, aten.threshold_backward.default):
        _take_at_maxima(gradient)
    for gradient in calls(graph, BACKWARD):
        _choose(gradient)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _take_at_maxima(gradient: Node) -> None:
    """Take the gradient of a ReLU before max pooling at the maxima: a maximum has the sign of its pixel."""
    arguments: Any = gradient.args
    slopes, signs, least = arguments
    pooling = _origins(slopes)[-1]
    if pooling.target is not BACKWARD or least != 0 or [each for each, _ in readers_of(pooling)] != [gradient]:
        return
    arguments = pooling.args
    of_maxima, images, *_, indices = arguments
    forward = indices.args[0] if indices.target is getitem else indices
    if forward.target is not FORWARD or len({_origins(each)[-1] for each in (signs, images, forward.args[0])}) > 1:
        return
    if slopes.meta["val"].stride() != gradient.meta["val"].stride():  # views may rely on it
        return
    # Before views that put lanes and images in one dimension: there it may be folded into a convolution.
    size = of_maxima.meta["val"].shape
    given = [each for each in _origins(of_maxima) if each.meta["val"].shape[-3:] == size[-3:]][-1]
    with gradient.graph.inserting_before(pooling):
        maxima = gradient.graph.call_function(getitem, (forward, 0))
        maxima.meta["val"] = forward.meta["val"][0]
    pooling.update_arg(0, _inlined(pooling, partial(_masked, size=size), given, maxima))
    gradient.replace_all_uses_with(slopes)
    gradient.graph.erase_node(gradient)


def _masked(slopes: Tensor, signs: Tensor, size: torch.Size) -> Tensor:
    """The slopes where the signs are above 0, else 0."""
    return aten.threshold_backward(slopes, signs.reshape(slopes.shape), 0).reshape(size)


def _choose(gradient: Node) -> None:
    """Let each pixel take the gradient of its window, or 0, if windows neither overlap nor leave pixels out."""
    arguments: Any = gradient.args
    slopes, images, window, stride, padding, dilation, _, indices = arguments
    size, reduced = (each.meta["val"].shape for each in (images, slopes))
    tiled = [length * step for length, step in zip(reduced[-2:], window, strict=True)] == [*size[-2:]]
    if len(size) < 4 or not tiled or (stride or window) != window or any(padding) or {*dilation} != {1}:
        return
    expected = gradient.meta["val"]
    by_pixels = expected.is_contiguous(memory_format=torch.channels_last)
    found = _inlined(gradient, partial(_chosen, window=window, by_pixels=by_pixels), slopes, indices)
    if found.meta["val"].stride() == expected.stride():  # views may rely on it
        gradient.replace_all_uses_with(found)


def _chosen(slopes: Tensor, indices: Tensor, window: Sizes, by_pixels: bool) -> Tensor:
    """Gradients [N, C, H, W] of max pooling from those of its results [N, C, h, w] and the places of maxima among the
    H * W pixels, in memory by pixels or by channels."""
    height, width = (length * step for length, step in zip(slopes.shape[-2:], window, strict=True))
    places = torch.arange(height * width, device=slopes.device).view(-1, window[0], slopes.shape[-1], window[1], 1)
    given = [each.permute(0, 2, 3, 1) if by_pixels else each.flatten(0, 1).unsqueeze(3) for each in (slopes, indices)]
    slope, index = (each.unsqueeze(2).unsqueeze(4) for each in given)  # [N, h, 1, w, 1, C] or [N * C, h, 1, w, 1, 1]
    found = torch.where(index == places, slope, 0.0).reshape(len(given[0]), height, width, -1)
    return found.permute(0, 3, 1, 2) if by_pixels else found.view(*slopes.shape[:2], height, width)


def _inlined(before: Node, function: Callable[..., Tensor], *given: Node) -> Node:
    """The operations of a function of these nodes, in the graph before a node."""
    part = make_fx(function, tracing_mode="fake")(*(each.meta["val"] for each in given)).graph
    with before.graph.inserting_before(before):
        found = before.graph.graph_copy(part, dict(zip(part.find_nodes(op="placeholder"), given, strict=True)))
    assert isinstance(found, Node)
    return found


def _origins(node: Node) -> list[Node]:
    """The node, what it is a view of, and so on, while the numbers have the same order."""
    found = [node]
    while node.target in VIEWS or _keeps_order(node):
        node = node.all_input_nodes[0]
        found.append(node)
    return found


def _keeps_order(node: Node) -> bool:
    return node.target is aten.permute.default and node.args[1] == [*range(node.meta["val"].dim())]
