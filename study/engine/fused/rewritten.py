"""Changes to the graph of an update before it is compiled: forms of the same sums that the compiler can fuse."""

from functools import reduce

import torch
from torch.fx import GraphModule, Node

MOST_TERMS = 4
"""Products with at most this many terms in a sum are written out: the compiler writes longer sums to memory."""
LEAST_SUMS = 2**16
"""Products with fewer sums in a matrix take no time worth saving."""

aten = torch.ops.aten


def written_out(graph: GraphModule) -> GraphModule:
    """The graph with sums of few products of numbers in place of products of matrices.

    At small batch sizes the gradient of a layer's weights is such a product: as many terms as examples, and as many
    sums as weights. A library writes it to memory, from where the optimizer reads it again. Written out, it becomes a
    part of the compiled update, which then reads and writes nothing but weights and optimizer state.
    """
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target in (aten.bmm.default, aten.bmm.out) and _is_outer(node):
            with graph.graph.inserting_before(node):
                found = _sum(node)
                if node.target is aten.bmm.out:
                    found = graph.graph.call_function(aten.copy_.default, (node.kwargs["out"], found))
            node.replace_all_uses_with(found)
            graph.graph.erase_node(node)
    graph.recompile()
    return graph


def _is_outer(product: Node) -> bool:
    (_, sums, terms), (_, _, more) = (given.meta["val"].shape for given in _factors(product))
    return terms <= MOST_TERMS and sums * more >= LEAST_SUMS


def _factors(product: Node) -> list[Node]:
    """The two nodes that a product multiplies."""
    return [given for given in product.args if isinstance(given, Node)]


def _sum(product: Node) -> Node:
    """Nodes for the terms of a product of [l, H, k] and [l, k, D], and their sum."""
    call, (first, second) = product.graph.call_function, _factors(product)
    terms = []
    for k in range(first.meta["val"].shape[2]):
        column, row = (call(aten.slice.Tensor, (factor, axis, k, k + 1)) for factor, axis in ((first, 2), (second, 1)))
        terms.append(call(aten.mul.Tensor, (column, row)))
    return reduce(lambda total, term: call(aten.add.Tensor, (total, term)), terms)
