"""ReLUs and sums in the graph of an update become parts of the convolutions beside them.

A ReLU between two convolutions reads and writes all images once, and so does its gradient. As a part of a convolution
it takes no memory: the next convolution and the gradient of its filters rectify the images that they read, and the
gradient of the images is 0 where they are not above 0. A sum with the results of a convolution is added before these
are written.
"""

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import Argument

from study.engine.fused.convolution import operations

aten = torch.ops.aten
FILTERED, SPREAD, DIFFERENTIATED = (
    each._opoverload for each in (operations.filtered, operations.spread, operations.differentiated)
)
RECTIFIED = {FILTERED: 5, DIFFERENTIATED: 6}
"""Operations that can rectify their images -> the place of that argument."""
SIGNS, PLUS = 5, 6
"""Places of these arguments: of SPREAD, and of both operations that can add."""


def folded(graph: GraphModule) -> GraphModule:
    """The graph with ReLUs, their gradients and sums as parts of convolutions, wherever nothing else reads them.

    Before its end, no operation of the graph may change a tensor (`torch.func.functionalize`).
    """
    for relu in calls(graph, aten.relu.default):
        _fold_relu(relu)
    for gradient in calls(graph, aten.threshold_backward.default):
        _fold_gradient(gradient)
    for total in calls(graph, aten.add.Tensor):
        _fold_sum(total)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _fold_relu(relu: Node) -> None:
    """Let the readers of a ReLU read its input, if all can rectify it or need its signs alone, which are the same."""
    images = relu.all_input_nodes[0]
    readers = list(readers_of(relu))
    if _form(images) != _form(relu) or not all(_reads_images(reader, named, relu) for reader, named in readers):
        return
    for reader, _ in readers:
        if reader.target in RECTIFIED:
            reader.args = _with(reader, RECTIFIED[reader.target], True)
        reader.update_arg(_place(reader), images)


def _reads_images(reader: Node, named: Node, relu: Node) -> bool:
    """Whether a node reads the results of a ReLU, which it names so, as its images or for their signs."""
    if reader.target not in (*RECTIFIED, aten.threshold_backward.default) or _same(named) is not relu:
        return False
    return [place for place, each in enumerate(reader.args) if each is named] == [_place(reader)]


def _place(reader: Node) -> int:
    """The place of the argument with the images, or with their signs."""
    return 1 if reader.target is aten.threshold_backward.default else 0


def _fold_gradient(gradient: Node) -> None:
    """The gradient of a ReLU of images from that of a convolution of them."""
    slopes, signs, least = gradient.args
    spread = _alone(slopes, SIGNS, SPREAD)
    if spread is not None and least == 0 and _form(signs) == _form(spread) == _form(gradient):
        _replace(gradient, spread, SIGNS, signs)


def _fold_sum(total: Node) -> None:
    """A sum with the results of a convolution, or with the gradient of its images."""
    if total.kwargs or not all(isinstance(each, Node) and _form(each) == _form(total) for each in total.args):
        return
    for part, other in (total.args, total.args[::-1]):
        convolution = _alone(part, PLUS, FILTERED, SPREAD)
        if convolution is not None:
            _replace(total, convolution, PLUS, other)
            return


def _replace(node: Node, convolution: Node, place: int, argument: Argument) -> None:
    """Compute a node by a convolution that takes one more argument, whose own results nothing else reads."""
    with node.graph.inserting_before(node):
        found = node.graph.call_function(_operation(convolution), _with(convolution, place, argument))
    found.meta = dict(node.meta)
    node.replace_all_uses_with(found)
    node.graph.erase_node(node)


def _with(node: Node, place: int, argument: Argument) -> tuple[Argument, ...]:
    """The arguments of a node, with another one in this place behind them."""
    absent = [each.default_value for each in _operation(node)._schema.arguments[len(node.args) : place]]
    return (*node.args, *absent, argument)


def _operation(node: Node) -> torch._ops.OpOverload:
    assert isinstance(node.target, torch._ops.OpOverload)
    return node.target


def calls(graph: GraphModule, target: object) -> list[Node]:
    """The calls of an operation, in their order."""
    return [node for node in graph.graph.nodes if node.op == "call_function" and node.target is target]


def _is_view(node: object) -> bool:
    return isinstance(node, Node) and isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def readers_of(node: Node) -> Iterator[tuple[Node, Node]]:
    """(an operation that reads a node or a view of it, the node or view that it names)."""
    for user in node.users:
        if _is_view(user):
            yield from readers_of(user)
        else:
            yield user, node


def _same(node: Node) -> Node:
    """The node that a chain of views ends in, if the last view has its shape and memory; else this node."""
    first = node
    while _is_view(node):
        node = node.all_input_nodes[0]
    offsets = (each.meta["val"].storage_offset() for each in (first, node))
    return node if _form(node) == _form(first) and len(set(offsets)) == 1 else first


def _alone(node: object, place: int, *targets: object) -> Node | None:
    """The operation, one of `targets` without an argument in this place, whose results this node is, if nothing else
    reads them."""
    if not isinstance(node, Node):
        return None
    found = _same(node)
    ours = found.target in targets and len(found.args) <= place
    return found if ours and len(list(readers_of(found))) == 1 else None


def _form(node: object) -> object:
    """Type, shape and strides of a node's tensor."""
    tensor = node.meta["val"] if isinstance(node, Node) else node
    return (tensor.dtype, tensor.shape, tensor.stride()) if isinstance(tensor, torch.Tensor) else node
