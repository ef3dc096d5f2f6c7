"""The arithmetics `linear_chain_onednn` and `linear_blocks_onednn`: as their namesakes, with large products by oneDNN.

On a CPU, torch multiplies float32 matrices by MKL, which uses AVX-512 on Intel's processors alone. On AMD's from Zen 5
on, which compute 512 bits at once, oneDNN, a part of torch, is up to 2.2 times as fast (see docs/speed.md). torch has
its products as the operator that `torch.compile` emits for linear layers; a call takes longer, so small products stay
with MKL.

Shapes: as in `linear_chain` and `linear_blocks`.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from study.engine.fused import linear_blocks, linear_chain
from study.engine.fused.linear_blocks import LinearBlocks
from study.engine.fused.linear_chain import Linear, LinearChain, is_linear_chain
from study.engine.fused.stack import Stack
from study.optimizers.per_parameter import Treatments
from study.records import Study

LEAST = 2**21
"""Multiplications of a product from which oneDNN is faster: a call of it takes about 20 microseconds longer."""
EVALUATED = 64
"""Examples that an evaluation measures at once, or more."""
CPUINFO = Path("/proc/cpuinfo")
AMD, ZEN_5 = "AuthenticAMD", 26
"""The maker of a processor, and the least of its families with arithmetic units of 512 bits."""


@lru_cache
def faster() -> bool:
    """Whether large products are faster by oneDNN on this processor."""
    return available() and torch.backends.cpu.get_cpu_capability() == "AVX512" and _is_zen_5()


def available() -> bool:
    """Whether this torch has the operator."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _is_zen_5() -> bool:
    """Whether the system names a processor of AMD's Zen 5 or later."""
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    about = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    family = about.get("cpu family", "")
    return about.get("vendor_id") == AMD and family.isdecimal() and int(family) >= ZEN_5


def product(x: Tensor, y: Tensor, bias: Tensor | None = None) -> Tensor:
    """x y^T + bias [n, m], of x [n, k], y [m, k] and a bias [m], all on a CPU."""
    made: Tensor = torch.ops.mkldnn._linear_pointwise(x, y, bias, "none", [], "")
    return made


def can_chain(model: nn.Module, study: Study) -> bool:
    """Whether the model is a linear chain in float32."""
    return is_linear_chain(model) and study.precision != "bf16"


def chain_pays(model: nn.Module, study: Study, device: str) -> bool:
    """Whether some products are large, and oneDNN is faster on this processor."""
    sizes = [layer.weight.numel() for layer in model.children() if isinstance(layer, nn.Linear)]
    large = max(sizes) * max(study.batch_size, EVALUATED) >= LEAST
    return large and torch.device(device).type == "cpu" and faster()


def chain(template: nn.Module, study: Study, rows: int, special: Treatments, apart: Collection[str]) -> Stack:
    """A stack with room for `rows` trials. Where there is no oneDNN, it computes as `linear_chain`."""
    if not _here(template):
        return linear_chain.stack(template, study, rows, special, apart)
    return Stack(template, study.algorithm, rows, OneDnnChain, study.averages, special)


def blocks_pay(model: nn.Module, study: Study, device: str) -> bool:
    """Whether blocks pay, and oneDNN is faster on this processor."""
    return linear_blocks.pays(model, study, device) and chain_pays(model, study, device)


def blocks(template: nn.Module, study: Study, rows: int, special: Treatments, apart: Collection[str]) -> Stack:
    """A stack with room for `rows` trials. Where there is no oneDNN, it computes as `linear_blocks`."""
    if not _here(template):
        return linear_blocks.stack(template, study, rows, special, apart)
    return OneDnnBlocks(template, study.algorithm, rows, study.batch_size, special)


def _here(template: nn.Module) -> bool:
    return available() and next(template.parameters()).device.type == "cpu"


class OneDnnLinear(Linear):
    """One linear layer of every lane. oneDNN multiplies lane by lane, so no other lane can change a lane's bits."""

    def forward(self, x: Tensor, keys: Tensor | None) -> Tensor:
        if not self._large(x):
            return super().forward(x, keys)
        self.x = x
        each = zip(x, self.weight, self.bias, strict=True)
        return torch.stack([product(inputs, weight, bias[0]) for inputs, weight, bias in each])

    def backward(self, dy: Tensor) -> Tensor:
        if not self._large(dy):
            return super().backward(dy)
        self.write_gradients(dy)
        return torch.stack([product(outputs, weight.mT) for outputs, weight in zip(dy, self.weight, strict=True)])

    def write_gradients(self, dy: Tensor) -> None:
        if not self._large(dy):
            super().write_gradients(dy)
            return
        for gradient, outputs, inputs in zip(self.gradients["weight"], dy, self.x, strict=True):
            gradient.copy_(product(outputs.mT, inputs.mT))
        torch.sum(dy, dim=1, out=self.gradients["bias"])

    def _large(self, x: Tensor) -> bool:
        """Whether products of these examples [l, B, ...] are large."""
        return x.shape[1] * self.weight[0].numel() >= LEAST


class OneDnnChain(LinearChain):
    """`LinearChain` with large products by oneDNN."""

    layer = OneDnnLinear


class OneDnnBlocks(LinearBlocks):
    """`LinearBlocks` with large products by oneDNN."""

    form_of = OneDnnChain

    def _multiply(self, x: Tensor, y: Tensor, out: Tensor) -> None:
        out.copy_(product(x, y))

    def _combine(self, row: int, mixes: Sequence[Sequence[float]]) -> None:
        coordinates = torch.cat([part.coordinates[row] for part in self.parts])
        sums = product(coordinates, self.examples[row].mT).chunk(len(self.parts))
        now = [part.matrix[row] for part in self.parts]
        later = [any(mix[number] for mix in mixes[number + 1 :]) for number in range(len(now))]
        then = [matrix.clone() if needed else matrix for matrix, needed in zip(now, later, strict=True)]
        for number, (matrix, mix) in enumerate(zip(now, mixes, strict=True)):
            torch.add(sums[number], then[number], alpha=mix[number], out=matrix)
            for other, share in enumerate(mix):
                if share and other != number:
                    matrix.add_(then[other], alpha=share)
