"""The kernels that a GPU would launch, counted on tensors without values (`meta`), which any machine has.

A dispatch mode sees each operation after autograd and `torch.vmap`. Views cost nothing. Any other operation is one
kernel that reads its inputs and writes its outputs once, with the exceptions below. FLOP are those of products and
convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")

FREE = {"_unsafe_view", "_reshape_alias", "detach", "alias", "lift_fresh"}
FREE |= {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
PRODUCTS = {"mm", "bmm", "addmm", "baddbmm"}
SUMS = {"sum", "mean", "amax", "linalg_vector_norm"}
COPIES = {"clone", "cat", "stack", "copy_", "_to_copy", "constant_pad_nd", "index_select", "gather", "embedding"}
UNREAD = {
    **dict.fromkeys(("copy_", "fill_", "zero_", "full_like", "zeros_like", "ones_like", "new_zeros"), "self"),
    **dict.fromkeys(("avg_pool2d_backward", "max_pool2d_with_indices_backward", "nll_loss_backward"), "self"),
}
"""Operation -> an argument that it needs for its shape or address alone."""
GATHERING = {
    "index_select": "self",
    "gather": "self",
    "index": "self",
    "embedding": "weight",
    "nll_loss_forward": "self",
}
"""Operation -> a table from which it reads only as many numbers as its first result has."""

MOST_TENSORS, MOST_BLOCKS, CHUNK = (110, 64, 48, 36, 30), 320, 65536
"""Limits of one launch of torch's multi-tensor kernels (ATen/native/cuda/MultiTensorApply.cuh): tensors of 1 to 5
lists, blocks, and numbers of a block."""


class Kernel(NamedTuple):
    """One launch. `kind`: convolution, product, sum, pool, copy or element-wise. `read`, `written`: bytes."""

    name: str
    kind: str
    read: int
    written: int
    flop: int = 0

    @property
    def bytes(self) -> int:
        return self.read + self.written


@dataclass
class Counts:
    """Attributes:
    kernels: what was launched, with the kernels of replayed graphs.
    launches: launches from Python; a replayed graph is one.
    meetings: how often the host waits for the device: it reads a value, or copies a tensor.
    """

    kernels: list[Kernel] = field(default_factory=list)
    launches: int = 0
    meetings: int = 0


class Counter(TorchDispatchMode):
    """Counts operations on `meta` tensors in its block."""

    _active: ClassVar[list[Counter]] = []

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()
        self._recording: list[Kernel] | None = None

    def __enter__(self) -> Counter:
        self._active.append(self)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._active.pop()
        super().__exit__(*error)

    @classmethod
    def active(cls) -> Counter:
        """The counter of the innermost block."""
        return cls._active[-1]

    def counted(self, work: Callable[[], object]) -> Counts:
        """The counts of some work."""
        before, self.counts = self.counts, Counts()
        work()
        found, self.counts = self.counts, before
        return found

    def record(self, function: Callable[[], Tensor]) -> tuple[Tensor, list[Kernel]]:
        """Call a function as if a CUDA graph recorded it; returns its result and the kernels of the graph."""
        kernels: list[Kernel] = []
        self._recording = kernels
        try:
            return function(), kernels
        finally:
            self._recording = None

    def replay(self, kernels: Sequence[Kernel]) -> None:
        """Launch a recorded graph."""
        self.counts.launches += 1
        self.counts.kernels += kernels

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        keywords = keywords or {}
        given = _tensors((arguments, keywords))
        there = [tensor.device == META for tensor in given]
        name = function._opname
        if any(there) and name in MEETINGS:
            self.counts.meetings += 1
            return MEETINGS[name](given[0])
        if name == "_to_copy" and there[0] and not _stays(keywords):
            self.counts.meetings += 1
            return torch.zeros(given[0].shape, dtype=keywords.get("dtype") or given[0].dtype)
        if name == "copy_" and there[0] != there[1]:
            self.counts.meetings += there[1]
            return arguments[0]
        found = None if name.startswith("_fused_") and any(there) else function(*arguments, **keywords)
        uploads = name == "_to_copy" and not there[0]
        if not uploads and any(tensor.device == META for tensor in [*given, *_tensors(found)]):
            made = list(kernels_of(function, arguments, keywords, found))
            if self._recording is None:
                self.counts.launches += len(made)
                self.counts.kernels += made
            else:
                self._recording += made
        return found


MEETINGS: dict[str, Callable[[Tensor], Any]] = {
    "_local_scalar_dense": lambda tensor: torch.zeros((), dtype=tensor.dtype).item(),
    "nonzero": lambda tensor: torch.empty(0, tensor.dim(), dtype=torch.int64, device=META),
    "masked_select": lambda tensor: tensor.new_empty(0),
    "equal": lambda tensor: True,
}
"""Operations for which the host waits -> a stand-in for what it would learn."""


def kernels_of(function: Any, arguments: Sequence[Any], keywords: dict[str, Any], found: Any) -> Iterator[Kernel]:
    """The kernels of one operation."""
    name = function._opname
    if function.is_view or name in FREE:
        return
    reads, writes = _read(function, arguments, keywords, found), _written(function, arguments, keywords, found)
    read, written = sum(map(touched, _distinct(reads))), sum(map(touched, _distinct(writes)))
    if read + written == 0:
        return
    if name in OURS:
        yield from convolution_of_lanes(
            name, [*map(touched, _tensors(arguments))], written, _flop_of_lanes(name, arguments, found)
        )
    elif name == "convolution":
        x, weight, bias, *_ = arguments
        yield from _forward(x, weight, bias, found)
    elif name == "convolution_backward":
        dy, x, weight, *_ = arguments
        yield from _backward(dy, x, weight, found)
    elif name in PRODUCTS:
        *added, a, _ = (tensor for tensor in arguments if isinstance(tensor, Tensor))
        out = writes[0]
        if name == "baddbmm":  # torch copies the summand into the result, to which the product is added
            yield Kernel("copy_", "copy", touched(added[0]), touched(out))
            read += touched(out) - touched(added[0])
        yield Kernel(name, "product", read, written, 2 * out.numel() * a.shape[-1])
    elif name.startswith(("_foreach_", "_fused_")):
        lists = [value for value in arguments if isinstance(value, list | tuple) and _tensors(value)]
        count = multi_tensor_launches(lists)
        yield from [Kernel(name, "element-wise", read // count, written // count)] * count
    else:
        yield Kernel(name, _kind(name), read, written)


def _kind(name: str) -> str:
    if "pool" in name:
        return "pool"
    return "sum" if name in SUMS else "copy" if name in COPIES else "element-wise"


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor) -> Iterator[Kernel]:
    flop = convolution_flop(y, weight)
    yield Kernel("convolution", "convolution", touched(x) + touched(weight), touched(y), flop)
    if bias is not None:  # cuDNN's convolution has none
        yield Kernel("add_", "element-wise", touched(y) + touched(bias), touched(y))


def _backward(dy: Tensor, x: Tensor, weight: Tensor, found: Sequence[Tensor | None]) -> Iterator[Kernel]:
    dx, dw, db = found
    flop = convolution_flop(dy, weight)
    if dx is not None:
        yield Kernel("convolution_input", "convolution", touched(dy) + touched(weight), touched(dx), flop)
    if dw is not None:
        yield Kernel("convolution_weight", "convolution", touched(dy) + touched(x), touched(dw), flop)
    if db is not None:
        yield Kernel("sum", "sum", touched(dy), touched(db))


OURS = {"filtered", "spread", "differentiated"}
"""Operations of `study.engine.fused.convolution`."""


def convolution_of_lanes(name: str, read: Sequence[int], written: int, flop: int) -> Iterator[Kernel]:
    """The kernels of one of OURS, which reads and writes these bytes."""
    if name != "differentiated":  # it copies filters to their layout
        yield Kernel("clone", "copy", read[1], read[1])
    yield Kernel(name, "convolution", sum(read), written, flop)


def _flop_of_lanes(name: str, arguments: Sequence[Any], found: Any) -> int:
    if name == "differentiated":
        return flop_of_lanes(arguments[1].numel(), arguments[0].shape[2], arguments[2])
    results = found if name == "filtered" else arguments[0]
    return flop_of_lanes(results.numel(), arguments[1].shape[2], arguments[1].shape[3:])


def flop_of_lanes(results: int, channels: int, kernel: Sequence[int]) -> int:
    """FLOP of a convolution with this many numbers in its results, or of one of its gradients."""
    return 2 * results * channels * math.prod(kernel)


def convolution_flop(y: Tensor, weight: Tensor) -> int:
    """FLOP of a convolution with these outputs [B, O, ...] and weights [O, inputs of a group, ...]."""
    return 2 * y.numel() * math.prod(weight.shape[1:])


def multi_tensor_launches(lists: Sequence[Sequence[Tensor]]) -> int:
    """The launches of torch's multi-tensor kernel for lists of equally many tensors: one when a launch is full."""
    most = MOST_TENSORS[min(len(lists), len(MOST_TENSORS)) - 1]
    launches = tensors = blocks = 0
    for tensor in lists[0]:
        chunks = -(-tensor.numel() // CHUNK)
        tensors += chunks > 0
        for chunk in range(1, chunks + 1):
            blocks += 1
            if blocks == MOST_BLOCKS or (tensors == most and chunk == chunks):
                launches, blocks, tensors = launches + 1, 0, int(chunk < chunks)
    return launches + (blocks > 0)


def touched(tensor: Tensor) -> int:
    """The bytes of a tensor in memory: repeated numbers of an expanded or unfolded view count once."""
    numbers = math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not size)
    return min(numbers * tensor.itemsize, tensor.untyped_storage().nbytes())


def _read(function: Any, arguments: Sequence[Any], keywords: dict[str, Any], found: Any) -> list[Tensor]:
    name = function._opname
    tensors = []
    for argument, value in _named(function, arguments, keywords):
        if argument.is_out or argument.name == UNREAD.get(name):
            continue
        if argument.name == GATHERING.get(name):
            value = torch.empty(_tensors(found)[0].shape, dtype=value.dtype, device=META)
        tensors += _tensors(value)
    return tensors


def _written(function: Any, arguments: Sequence[Any], keywords: dict[str, Any], found: Any) -> list[Tensor]:
    changed = [value for argument, value in _named(function, arguments, keywords) if argument.is_write]
    if function._opname.startswith("_fused_"):  # gradients are written only to unscale them
        changed = [value for argument, value in _named(function, arguments, keywords) if argument.name != "grads"]
        changed = [value for value in changed if isinstance(value, list | tuple)]
    returns = found if isinstance(found, list | tuple) else [found]
    fresh = [value for each, value in zip(function._schema.returns, returns, strict=False) if each.alias_info is None]
    return _tensors((changed, fresh))


def _named(function: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    for number, argument in enumerate(function._schema.arguments):
        yield argument, arguments[number] if number < len(arguments) else keywords.get(argument.name)


def _distinct(tensors: Sequence[Tensor]) -> list[Tensor]:
    keys = [(t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride()) for t in tensors]
    return list(dict(zip(keys, tensors, strict=True)).values())


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _stays(keywords: dict[str, Any]) -> bool:
    device = keywords.get("device")
    return device is None or torch.device(device) == META
