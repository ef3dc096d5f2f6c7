"""The graph of an update, rewritten for the compiler, computes the same update."""

from collections.abc import Callable

import pytest
import torch
from helpers.blobs import WORKLOADS
from helpers.desks import assert_near
from helpers.fused import Queue
from torch import Tensor

from study.engine import lanes
from study.engine.fused import compiled, rewritten

aten = torch.ops.aten
PRODUCTS = (aten.bmm.default, aten.bmm.out)


def product(first: Tensor, second: Tensor) -> Tensor:
    return 2 * torch.bmm(first, second)


def into(first: Tensor, second: Tensor) -> Tensor:
    """Into a part of a larger tensor."""
    found = first.new_zeros(len(first), 2, first.shape[1] * second.shape[2])
    torch.bmm(first, second, out=found[:, 1].view(len(first), first.shape[1], second.shape[2]))
    return found


@pytest.mark.parametrize(("terms", "sums", "left"), [(1, 300, 0), (2, 300, 0), (4, 300, 0), (5, 300, 1), (2, 200, 1)])
@pytest.mark.parametrize("function", [product, into])
def test_small_products_are_written_out(function: Callable[..., Tensor], terms: int, sums: int, left: int) -> None:
    first, second = torch.randn(3, sums, terms), torch.randn(3, terms, 256)
    graph = compiled.traced(function, [first, second])
    assert sum(node.target in PRODUCTS for node in graph.graph.nodes) == left
    torch.testing.assert_close(graph(first, second), function(first, second))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["linear_chain", "vmap"])
def test_lanes_train_as_they_are(question, monkeypatch, how):
    """Where every product of few terms is written out."""
    monkeypatch.setattr(rewritten, "LEAST_SUMS", 1)
    written = []

    def backend(graph, tensors):
        written.append(sum(node.target in PRODUCTS for node in graph.graph.nodes))
        return graph

    monkeypatch.setattr(compiled, "inductor", backend)
    study = question(how, steps=12, batch_size=2)
    curves = [
        {
            curve.trial.index: curve
            for curve in lanes.train(
                study, WORKLOADS[how], WORKLOADS[how].data(), Queue(study, range(4)), (1, 2, 4), 4, compiles
            )
        }
        for compiles in (True, False)
    ]
    assert_near(*curves, tolerance=1e-4)
    assert written
