"""The counter of kernels knows what operations cost, and no update costs more than was recorded."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.trace.counter import META, Counter, Kernel, multi_tensor_launches
from benchmarks.trace.roofline import CARDS, Card
from benchmarks.trace.updates import traced

RECORDED = json.loads((Path(__file__).parents[3] / "benchmarks/measured/trace.json").read_text())
F = nn.functional


def there(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device=META)


def backward(x, weight):
    mask = [True, True, True]
    y = there(8, 16, 6, 6)
    return torch.ops.aten.convolution_backward(y, x, weight, [16], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)


INDEX = there(2, dtype=torch.int64)
A, B, X, W = there(3, 5), there(5, 7), there(8, 4, 6, 6), there(16, 4, 3, 3)
IMAGES, FILTERS, MAPS = 4 * 8 * 4 * 36, 4 * 16 * 4 * 9, 4 * 8 * 16 * 36
"""Bytes of inputs, weights and outputs of the convolution."""
FLOP = 2 * 8 * 16 * 36 * 4 * 9
KNOWN = {
    "matrix product": (lambda: A @ B, [Kernel("mm", "product", 4 * (15 + 35), 4 * 21, 2 * 3 * 5 * 7)]),
    "products": (lambda: there(2, 3, 5) @ there(2, 5, 7), [Kernel("bmm", "product", 400, 168, 420)]),
    "product and sum": (
        lambda: torch.baddbmm(there(2, 1, 7), there(2, 3, 5), there(2, 5, 7)),
        [Kernel("copy_", "copy", 56, 168), Kernel("baddbmm", "product", 400 + 168, 168, 420)],
    ),
    "convolution": (
        lambda: F.conv2d(X, W, there(16), padding=1),
        [
            Kernel("convolution", "convolution", IMAGES + FILTERS, MAPS, FLOP),
            Kernel("add_", "element-wise", MAPS + 64, MAPS),
        ],
    ),
    "grouped convolution": (
        lambda: F.conv2d(X, there(16, 1, 3, 3), padding=1, groups=4),
        [Kernel("convolution", "convolution", IMAGES + 4 * 16 * 9, MAPS, FLOP // 4)],
    ),
    "gradients of a convolution": (
        lambda: backward(X, W),
        [
            Kernel("convolution_input", "convolution", MAPS + FILTERS, IMAGES, FLOP),
            Kernel("convolution_weight", "convolution", MAPS + IMAGES, FILTERS, FLOP),
            Kernel("sum", "sum", MAPS, 64),
        ],
    ),
    "element-wise": (lambda: A + A.new_empty(3, 1), [Kernel("add", "element-wise", 60 + 12, 60)]),
    "the same input twice": (lambda: A * A, [Kernel("mul", "element-wise", 60, 60)]),
    "broadcast": (lambda: A * A.new_empty(5).expand(3, 5), [Kernel("mul", "element-wise", 60 + 20, 60)]),
    "in place": (lambda: A.add_(there(3, 5)), [Kernel("add_", "element-wise", 120, 60)]),
    "into a result": (
        lambda: torch.addcmul(A, there(3, 5), there(3, 5), out=there(3, 5)),
        [Kernel("addcmul", "element-wise", 180, 60)],
    ),
    "fill": (lambda: A.zero_(), [Kernel("zero_", "element-wise", 0, 60)]),
    "copy": (lambda: A.copy_(there(3, 5)), [Kernel("copy_", "copy", 60, 60)]),
    "transposing copy": (lambda: A.T.contiguous(), [Kernel("clone", "copy", 60, 60)]),
    "views": (lambda: A.T.unsqueeze(0).expand(4, 5, 3)[1:, :2].detach(), []),
    "no numbers": (lambda: there(0, 3) + 1, []),
    "rows of a table": (lambda: there(9, 5).index_select(0, INDEX), [Kernel("index_select", "copy", 40 + 16, 40)]),
    "sum": (lambda: A.sum(1), [Kernel("sum", "sum", 60, 12)]),
    "foreach": (lambda: torch._foreach_add_([A, B], 1.0), [Kernel("_foreach_add_", "element-wise", 200, 200)]),
    "fused update": (
        lambda: torch._fused_sgd_(
            [A], [there(3, 5)], [there(3, 5)], weight_decay=0, momentum=0.9, lr=0.1, dampening=0, nesterov=False,
            maximize=False, is_first_step=False,
        ),
        [Kernel("_fused_sgd_", "element-wise", 180, 120)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_kernels_of_operations(name):
    run, expected = KNOWN[name]
    with Counter() as counter:
        found = counter.counted(run)
    assert found.kernels == expected
    assert (found.launches, found.meetings) == (len(expected), 0)


def test_operations_on_the_host_cost_nothing():
    with Counter() as counter:
        found = counter.counted(lambda: (torch.ones(3) + 1).sum().item())
    assert (found.kernels, found.meetings) == ([], 0)


MEETINGS = {
    "item": lambda: A.sum().item(),
    "cpu": lambda: A.cpu(),
    "tolist": lambda: A.tolist(),
    "condition": lambda: bool(A.sum() > 0),
    "nonzero": lambda: A.nonzero(),
    "copy to the host": lambda: torch.ones(3, 5).copy_(A),
}


@pytest.mark.parametrize("name", MEETINGS)
def test_meetings(name):
    with Counter() as counter:
        assert counter.counted(MEETINGS[name]).meetings == 1


def test_the_host_does_not_wait_for_copies_to_the_device():
    with Counter() as counter:
        found = counter.counted(lambda: (A.copy_(torch.ones(3, 5)), torch.ones(3).to(META)))
    assert (found.kernels, found.meetings) == ([], 0)


@pytest.mark.parametrize(
    ("tensors", "numbers", "lists", "launches"),
    [(1, 5, 1, 1), (110, 5, 1, 1), (111, 5, 1, 2), (65, 5, 2, 2), (1, 320 * 65536, 3, 1), (1, 320 * 65536 + 1, 3, 2)],
)
def test_launches_of_many_tensors(tensors, numbers, lists, launches):
    assert multi_tensor_launches([[there(numbers)] * tensors] * lists) == launches


def test_a_replayed_graph_is_one_launch_of_its_kernels():
    with Counter() as counter:
        _, kernels = counter.record(lambda: A.mul_(2).add_(1))
        assert not counter.counts.kernels
        found = counter.counted(lambda: counter.replay(kernels))
    assert (found.launches, [kernel.name for kernel in found.kernels]) == (1, ["mul_", "add_"])


def test_the_roofline_is_the_longest_of_bytes_arithmetic_and_launch():
    card = Card(1e9, {"fp32": 1e12}, {"fp32": 2e12}, node=1e-6, launch=5e-6)
    kernels = [
        Kernel("clone", "copy", 3000, 1000),  # 4 us
        Kernel("convolution", "convolution", 1000, 1000, 8_000_000),  # 8 us, and 2 for bytes
        Kernel("mm", "product", 1000, 1000, 8_000_000),  # 4 us
        Kernel("relu", "element-wise", 10, 10),  # 1 us, a node
    ]
    assert card.seconds(kernels, "fp32") == pytest.approx(17e-6)
    assert card.seconds(kernels, "fp32", launches=4) == pytest.approx(20e-6)
    assert CARDS["H100"].seconds(kernels, "fp32") == pytest.approx(8e-6)


def recorded(model: str, batch_size: int, precision: str, arithmetic: str) -> dict[str, Any]:
    asked = {"model": model, "batch_size": batch_size, "precision": precision, "arithmetic": arithmetic}
    return next(row for row in RECORDED["rows"] if asked.items() <= row.items())


@pytest.mark.parametrize(
    ("model", "batch_size", "precision", "arithmetic"),
    [
        ("softmax", 2, "fp32", "linear_chain"),
        ("mlp1024", 2, "fp32", "linear_chain"),
        pytest.param("mlp1024", 2, "fp32", "plain", marks=pytest.mark.slow),
        ("cnn", 2, "fp32", "vmap"),
        ("cnn", 2, "bf16", "vmap"),
        pytest.param("cnn", 2, "fp32", "plain", marks=pytest.mark.slow),
        pytest.param("cnn", 2, "bf16", "plain", marks=pytest.mark.slow),
        pytest.param("resnet8", 2, "fp32", "vmap", marks=pytest.mark.slow),
        ("resnet8", 128, "fp32", "vmap"),
        ("resnet8", 128, "bf16", "vmap"),
        pytest.param("resnet8", 128, "fp32", "plain", marks=pytest.mark.slow),
        pytest.param("resnet8", 128, "bf16", "plain", marks=pytest.mark.slow),
        ("transformer", 2, "fp32", "vmap"),
        pytest.param("lstm", 2, "fp32", "vmap", marks=pytest.mark.release),
    ],
)
def test_updates_cost_no_more_than_was_recorded(model, batch_size, precision, arithmetic):
    """After a change that saves kernels or bytes, record them: `python -m benchmarks.trace --compiled --json FILE`."""
    if torch.__version__.split(".")[:2] != RECORDED["versions"]["torch"].split(".")[:2]:
        pytest.skip("recorded with another version of torch")
    row = recorded(model, batch_size, precision, arithmetic)
    found = traced(model, batch_size, row["optimizer"], arithmetic, row["lanes"], precision).row()
    costs = ("kernels", "bytes", "flop", "launches", "meetings")
    grown = {cost: (row[cost], found[cost]) for cost in costs if found[cost] > row[cost]}
    assert not grown, f"(recorded, now): {grown}"
