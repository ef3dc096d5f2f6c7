"""The least time that named cards need for kernels: the longest of their bytes, their FLOP and their launch."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.trace.counter import Kernel

PRECISIONS = ("fp32", "tf32", "bf16")


@dataclass(frozen=True)
class Card:
    """What kernels reach on a card, not its peak on paper.

    Attributes:
        bandwidth: bytes a second of a copy.
        convolutions, products: precision -> FLOP a second.
        node: seconds of the shortest kernel of a graph.
        launch: seconds of a launch from Python.
    """

    bandwidth: float
    convolutions: Mapping[str, float]
    products: Mapping[str, float]
    node: float = 2e-6
    launch: float = 6e-6

    def seconds(self, kernels: Iterable[Kernel], precision: str, launches: int = 0) -> float:
        """The sum over kernels, or the time of the launches from Python if that is longer."""
        rates = {"convolution": self.convolutions[precision], "product": self.products[precision]}
        each = (
            max(self.node, kernel.bytes / self.bandwidth, kernel.flop / rates.get(kernel.kind, math.inf))
            for kernel in kernels
        )
        return max(sum(each), launches * self.launch)


CONVOLUTIONS = {"fp32": 40e12, "tf32": 150e12, "bf16": 200e12}
PRODUCTS = {"fp32": 60e12, "tf32": 150e12, "bf16": 200e12}
CARDS = {
    "H100": Card(3.0e12, CONVOLUTIONS, PRODUCTS),
    "H200": Card(4.3e12, CONVOLUTIONS, PRODUCTS),
    "A100": Card(1.8e12, {"fp32": 12e12, "tf32": 47e12, "bf16": 63e12}, {"fp32": 17e12, "tf32": 47e12, "bf16": 63e12}),
}
"""Assumed for the H100 SXM, of 67, 495 and 989 TFLOP/s and 3.35 TB/s on paper. Those of the other cards are scaled by
their figures on paper: the H200 has 4.8 TB/s; the A100 19.5, 156 and 312 TFLOP/s and 2.04 TB/s."""
