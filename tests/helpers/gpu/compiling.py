"""Compiles our kernels for a GPU that is not there: `python -m helpers.gpu.compiling` prints the bytes of shared memory
that each takes, as JSON.

Triton comes with NVIDIA's assembler, which needs no GPU. Launches are those of the room; kernels are not started.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from benchmarks.gpu.convolutions import changed
from study.engine.fused.convolution import kernels, launch, row_kernels
from study.engine.fused.convolution.shapes import by_pixels

TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}
SHARED = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024, 120: 99 * 1024}
"""Compute capability times ten -> most bytes of shared memory in a block (CUDA's programming guide)."""


class Layer(NamedTuple):
    """A convolution of three lanes with two images each; the kernel does not depend on these."""

    channels: int
    filters: int
    size: int
    kernel: int = 3
    stride: int = 1


class Compiling:
    """Stands for a kernel, and compiles it for a card when it is launched."""

    def __init__(self, kernel: Any, capability: int, found: list[int]) -> None:
        self._kernel, self._target, self._found = kernel, GPUTarget("cuda", capability, 32), found

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launched(*arguments: Any, **options: int) -> None:
            signature, constants, attributes = {}, {}, {}
            for number, (parameter, value) in enumerate(zip(self._kernel.params, arguments, strict=True)):
                if parameter.is_constexpr:
                    signature[parameter.name], constants[(number,)] = "constexpr", value
                    continue
                signature[parameter.name] = TYPES[value.dtype] if isinstance(value, Tensor) else "i32"
                if isinstance(value, Tensor) or value % 16 == 0:
                    attributes[(number,)] = [["tt.divisibility", 16]]
            source = ASTSource(self._kernel, signature, constants, attributes)
            self._found.append(compile(source, self._target, options).metadata.shared)

        return launched


@contextmanager
def compiling(capability: int) -> Iterator[list[int]]:
    """A block in which launches compile; yields the bytes of shared memory that each would take."""
    found: list[int] = []
    with ExitStack() as stack:
        for module in (kernels, row_kernels):
            names = "filtered", "differentiated"
            made = {name: Compiling(getattr(module, name), capability, found) for name in names}
            stack.enter_context(mock.patch.multiple(module, **made))
        yield found


def launched(layer: Layer, dtype: torch.dtype) -> None:
    """Launch the kernels of a layer's outputs, gradients of images and gradients of filters."""
    lanes, images = 3, 600  # enough for large blocks
    made = {"dtype": dtype, "device": "cpu"}
    x = by_pixels(torch.empty(lanes, images, layer.channels, layer.size, layer.size, **made))
    y = by_pixels(torch.empty(lanes, images, layer.filters, *[layer.size // layer.stride] * 2, **made))
    weight = torch.empty(lanes, layer.filters, layer.channels, layer.kernel, layer.kernel, **made)
    how = [layer.stride] * 2, [layer.kernel // 2] * 2
    launch.filtered(y, x, weight, weight[:, :, 0, 0, 0].contiguous(), *how, True, y)
    launch.spread(x, y, weight, *how, x, x)
    launch.differentiated(x, y, [layer.kernel] * 2, *how, True, True)


LAYERS = [Layer(16, 16, 32), Layer(32, 64, 16, stride=2), Layer(3, 16, 32), Layer(32, 64, 14, kernel=5)]


def main() -> None:
    """Compile for the card and with the constants of `launch` that the command line has."""
    torch.backends.cudnn.allow_tf32 = True
    capability, constants = int(sys.argv[1]), json.loads(sys.argv[2])
    with compiling(capability) as found, changed(constants):
        for layer, dtype in product(LAYERS, TYPES):
            launched(layer, dtype)
    print(json.dumps({"most": max(found), "allowed": SHARED[capability], "kernels": len(found)}))


if __name__ == "__main__":
    main()
