"""Microseconds of the convolutions of 100 lanes on a GPU: our kernels, those of cuDNN, and what their bytes take.

    python -m benchmarks.gpu.convolutions [--batch-size 8] [--lanes 100] [--precision tf32] [--layers 16-16,32-64]
        [--tune]

For each layer of ResNet-8 and of the Simple CNN, and for the convolution, the gradient of its images and that of its
filters: our Triton kernel (`study.engine.fused.convolution`), cuDNN's convolution of groups in the same layout, and
images and results read and written once at 3 TB/s. Beside them, our largest error against float64. `--tune` also
measures our kernels with other VARIANTS of the constants in `launch`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple
from unittest import mock

import torch
from torch import Tensor

from study.devices.placement import settle_arithmetic
from study.devices.precision import settle
from study.engine.fused.convolution import operations
from study.engine.fused.convolution.shapes import by_pixels
from study.records import PRECISIONS

BANDWIDTH = 3.0e12
"""Bytes a second of an H100's memory (a measured copy); an H200 has 4.2e12."""
CALLS, TIMES = 5, 3
VARIANTS: dict[str, dict[str, dict[str, int]]] = {
    "rows, one warp": {"ROWS": {"warps": 1}},
    "rows, 128 pixels": {"ROWS": {"pixels": 128, "stages": 3}},
    "rows, plain loads": {"ROWS": {"stages": 1}, "ROWS_OF_GRADIENTS": {"stages": 1}},
    "rows, 32 numbers": {"ROWS": {"numbers": 32}, "ROWS_OF_GRADIENTS": {"numbers": 32}},
    "patches, two stages": {"PATCHES": {"stages": 2}},
    "patches, 64 numbers": {"PATCHES": {"numbers": 64}, "PATCHES_OF_GRADIENTS": {"numbers": 64, "stages": 1}},
}
"""Name -> constants of `study.engine.fused.convolution.launch` -> other sizes of these blocks."""


class Layer(NamedTuple):
    """A convolution of square images with padding that keeps their size, or halves it with stride 2."""

    channels: int
    filters: int
    size: int
    kernel: int
    stride: int


LAYERS = {
    "3-16": Layer(3, 16, 32, 3, 1),
    "16-16": Layer(16, 16, 32, 3, 1),
    "16-32": Layer(16, 32, 32, 3, 2),
    "32-32": Layer(32, 32, 16, 3, 1),
    "32-64": Layer(32, 64, 16, 3, 2),
    "64-64": Layer(64, 64, 8, 3, 1),
    "1-32": Layer(1, 32, 28, 5, 1),
    "cnn 32-64": Layer(32, 64, 14, 5, 1),
}


def microseconds(call: Callable[[], object]) -> float:
    """The least time of a call, replayed in a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS):
            call()
    least = float("inf")
    for _ in range(TIMES):
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        least = min(least, (time.perf_counter() - start) / CALLS)
    return 1e6 * least


class Measured(NamedTuple):
    """One operation of a layer: microseconds of ours, of cuDNN and of its bytes, our error, and microseconds of ours by
    the name of a variant; None: it does not fit in shared memory."""

    operation: str
    ours: float
    theirs: float
    bytes: float
    error: float
    variants: dict[str, float | None]


def with_variants(call: Callable[[], object]) -> dict[str, float | None]:
    """Variant -> microseconds of a call; None where its blocks need more shared memory than there is."""
    from triton.runtime.errors import OutOfResources

    found: dict[str, float | None] = {}
    for name, constants in VARIANTS.items():
        with changed(constants):
            try:
                found[name] = microseconds(call)
            except OutOfResources:
                found[name] = None
    return found


@contextmanager
def changed(constants: Mapping[str, Mapping[str, int]]) -> Iterator[None]:
    """A block in which these constants of `launch`, which imports Triton, have other sizes."""
    from study.engine.fused.convolution import launch

    with ExitStack() as stack:
        for name, sizes in constants.items():
            stack.enter_context(mock.patch.object(launch, name, getattr(launch, name)._replace(**sizes)))
        yield


def rows(layer: Layer, lanes: int, batch_size: int, dtype: torch.dtype, tune: bool = False) -> list[Measured]:
    """The operations of one layer."""
    drawn = partial(torch.randn, device="cuda", dtype=dtype)
    x = by_pixels(drawn(lanes, batch_size, layer.channels, layer.size, layer.size))
    weight = drawn(lanes, layer.filters, layer.channels, layer.kernel, layer.kernel)
    bias = drawn(lanes, layer.filters)
    how = [layer.stride] * 2, [layer.kernel // 2] * 2
    y = operations.filtered(x, weight, bias, *how)
    dy, size, kernel = torch.randn_like(y), [layer.size] * 2, [layer.kernel] * 2
    ours: dict[str, Callable[[], Tensor]] = {
        "outputs": lambda: operations.filtered(x, weight, bias, *how),
        "images": lambda: operations.spread(dy, weight, size, *how),
        "filters": lambda: operations.differentiated(x, dy, kernel, *how, True),
    }
    theirs = of_groups(x, weight, dy, how)
    exact = in_double(x[0], weight[0], bias[0], dy[0], how)
    bytes_taken = (x.nbytes + y.nbytes) / BANDWIDTH * 1e6
    found = []
    for name, call in ours.items():
        got = call()[0].double().flatten()
        error = float((got - exact[name].flatten()).norm() / exact[name].norm())
        times = microseconds(call), microseconds(theirs[name]), bytes_taken
        found.append(Measured(name, *times, error, with_variants(call) if tune else {}))
    return found


def of_groups(
    x: Tensor, weight: Tensor, dy: Tensor, how: tuple[list[int], list[int]]
) -> dict[str, Callable[[], object]]:
    """cuDNN's convolutions, of one group for each lane."""
    images, slopes = (
        each.movedim(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last) for each in (x, dy)
    )
    filters = weight.flatten(0, 1).contiguous(memory_format=torch.channels_last)

    def backward(wanted: list[bool]) -> object:
        rest = [1, 1], False, [0, 0], len(weight), wanted
        return torch.ops.aten.convolution_backward(slopes, images, filters, None, *how, *rest)

    return {
        "outputs": lambda: torch.nn.functional.conv2d(images, filters, None, *how, groups=len(weight)),
        "images": lambda: backward([True, False, False]),
        "filters": lambda: backward([False, True, False]),
    }


def in_double(
    x: Tensor, weight: Tensor, bias: Tensor, dy: Tensor, how: tuple[list[int], list[int]]
) -> dict[str, Tensor]:
    """What float64 finds for one lane, in the layout of our results."""
    images, filters, biases = (each.double().requires_grad_() for each in (x, weight, bias))
    y = torch.nn.functional.conv2d(images, filters, biases, *how)
    of_images, of_filters, of_biases = torch.autograd.grad(y, [images, filters, biases], dy.double())
    laid = torch.cat([of_filters.permute(2, 3, 1, 0).flatten(0, 2), of_biases.unsqueeze(0)])
    return {"outputs": y.detach(), "images": of_images, "filters": laid}


def line(layer: str, row: Measured) -> str:
    """A line of the table."""
    times = "".join(f"{each:10.1f}" for each in (row.ours, row.theirs, row.bytes))
    others = [f"{name}: {'does not fit' if each is None else f'{each:.1f}'}" for name, each in row.variants.items()]
    return " ".join([f"{layer:10} {row.operation:10}{times} {row.error:8.1e}", ", ".join(others)])


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lanes", type=int, default=100)
    parser.add_argument("--precision", choices=PRECISIONS, default="tf32")
    parser.add_argument("--layers", default=",".join(LAYERS))
    parser.add_argument("--tune", action="store_true")
    chosen = parser.parse_args()
    settle_arithmetic()
    settle(chosen.precision)
    dtype = torch.bfloat16 if chosen.precision == "bf16" else torch.float32
    print(torch.cuda.get_device_name(), torch.__version__, f"{chosen.lanes} lanes, B = {chosen.batch_size}")
    print("layer      of           ours us  cuDNN us  bytes us    error")
    for name in chosen.layers.split(","):
        for each in rows(LAYERS[name], chosen.lanes, chosen.batch_size, dtype, chosen.tune):
            print(line(name, each), flush=True)


if __name__ == "__main__":
    main()
