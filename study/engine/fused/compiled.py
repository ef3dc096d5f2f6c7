"""One compiled update: the whole step of a stack's rows as one graph of tensors, fused by torch's compiler.

Forward and backward pass, clipping, decay, optimizer and averages are traced once. Weights, optimizer state and the
arguments of an update are inputs of the graph, so it holds no value of a step. The compiler then makes one kernel of
neighbouring element-wise operations, which reads and writes each number once.

The update as it is (`Step`) stays the oracle: it makes the first update, and the compiled one must agree with it on a
copy of the rows. An update that cannot be compiled, does not agree or, on a GPU, takes longer, stays as it is.

Shapes: l rows in a step, P numbers in a row, B examples in a batch.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from timeit import repeat
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils._pytree import tree_flatten, tree_unflatten

from study.devices.cores import cores
from study.devices.memory import out_of_memory, release_cached_memory
from study.engine.fused.convolution.folded import folded
from study.engine.fused.convolution.pooled import pooled
from study.engine.fused.rewritten import written_out
from study.engine.fused.stack import Stack, Step

MOST_OPERATIONS = 3000
"""Largest graph that is compiled, in some minutes: 500 operations take about half a minute on one core. ResNet-8 has
500 with momentum, a small Transformer 1,500 with Adam, and an LSTM, which computes 64 tokens one by one, 4,000."""

TIMINGS = 5
"""Of a compiled update and of the update as it is: the shortest count, after one more."""

ROUNDING = torch.finfo(torch.float32).eps


class Compiled:
    """An update of some rows of a stack that is compiled at its first call.

    The first call makes the update as it is. If later ones cannot be compiled, a warning says why. The faster stays.

    Arguments:
        rows: the update is that of the first `rows` rows.
        update: (update of the rows, as `Step`; other tensors) -> losses before the update [l * B].
        tolerance: largest distance between the two, relative to the distance that the update moves a row (see
            `study.devices.precision.TOLERANCE`).
    """

    def __init__(self, stack: Stack, rows: int, update: Callable[..., Tensor], tolerance: float) -> None:
        self._stack, self._rows, self._update, self._tolerance = stack, rows, update, tolerance
        self._later: Callable[..., Tensor] | None = None

    def __call__(self, *arguments: Tensor) -> Tensor:
        if self._later is not None:
            return self._later(*arguments)
        function, held = as_function(self._stack, self._rows, self._update)
        before: list[Tensor] = []
        after: list[Tensor] = []
        try:
            before, after = copies(held), copies(held)
            later, losses = self._compiled(function, after, arguments)
            refused = ""
        except Exception as error:  # code of users and compilers may raise any
            before, after = [], []  # the update as it is needs memory, too
            if out_of_memory(error):
                release_cached_memory()
            refused = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        expected = function(*held, *arguments)
        if not refused:
            apart = self._apart([losses, *after], [expected, *held], [torch.zeros_like(expected), *before])
            if not apart <= self._tolerance:
                refused = (
                    f"a compiled one ends {apart:.2g} of its way from one as it is; allowed are {self._tolerance:g}"
                )
        if refused:
            warnings.warn(f"updates are not compiled, as with engine.compile=false: {refused}", stacklevel=2)
        if refused or slower([partial(each, *after, *arguments) for each in (later, function)], expected.device):
            self._later = self._as_it_is
        else:
            self._later = partial(later, *held)
        return expected

    def _as_it_is(self, *arguments: Tensor) -> Tensor:
        """The update as it is. Only the stack keeps its step, which may hold memory of a recording."""
        return self._update(self._stack.step(self._rows), *arguments)

    def _compiled(
        self, function: Callable[..., Tensor], rows: Sequence[Tensor], arguments: Sequence[Tensor]
    ) -> tuple[Callable[..., Tensor], Tensor]:
        """(the compiled function, its losses); makes one update of `rows`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # compilers warn of their own affairs
            graph = traced(function, [*rows, *arguments])
            if (count := sum(node.op == "call_function" for node in graph.graph.nodes)) > MOST_OPERATIONS:
                raise ValueError(f"its graph has {count:,} operations, and at most {MOST_OPERATIONS:,} are compiled")
            found = inductor(graph, [*rows, *arguments])
            return found, found(*rows, *arguments)

    def _apart(self, found: Sequence[Tensor], expected: Sequence[Tensor], before: Sequence[Tensor]) -> float:
        triples = zip(found, expected, before, strict=True)
        rows = ([each.reshape(self._rows, -1).float() for each in triple] for triple in triples)
        return max(_apart(*triple) for triple in rows)


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of tensors."""
    return [tensor.clone() for tensor in tensors]


def as_function(stack: Stack, rows: int, update: Callable[..., Tensor]) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """(an update of the first `rows` rows as a function of tensors alone, the first of these tensors).

    The first tensors are weights [l, P] and optimizer state [l, ...] of the rows, which the function updates in place.
    The others are the arguments of `update`, which is as for `Compiled`.
    """
    held, shape = tree_flatten(stack.first(rows))

    def function(*tensors: Tensor) -> Tensor:
        weights, state = tree_unflatten(tensors[: len(held)], shape)
        return update(Step(stack, weights, state, compiled=True), *tensors[len(held) :])

    return function, held


def traced(function: Callable[..., Tensor], tensors: Sequence[Tensor]) -> GraphModule:
    """The operations of `function`, on tensors like these, as a graph. Nothing is computed, and no tensor changes.

    Raises:
        RuntimeError: the operations depend on values, such as `if loss > 1`.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # torch's compiler takes seconds to import
    from torch.fx.experimental.proxy_tensor import make_fx

    # Constants, such as frozen parameters, are no fakes. Without an environment of shapes, values cannot be symbols.
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        graph = make_fx(function, tracing_mode="fake")(*tensors)
        # Once more, without changes in place, which would hide what reads what.
        graph = make_fx(torch.func.functionalize(graph), tracing_mode="fake")(*tensors)
        return written_out(folded(pooled(graph)))


def inductor(graph: GraphModule, tensors: Sequence[Tensor]) -> Callable[..., Tensor]:
    """The graph compiled by torch's Inductor, for tensors like these. What it compiles, it keeps on disk."""
    from torch import _inductor
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from workloads.data.fetching import cache_folder

    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder("compiled")))
    # Inductor's cache on disk asks for an environment of shapes, although they are fixed.
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True)
    return _inductor.compile(graph, [mode.from_tensor(tensor) for tensor in tensors], _options(tensors[0].device))


def slower(calls: Sequence[Callable[[], object]], device: torch.device) -> bool:
    """Whether the first of two calls takes longer on a GPU than the second. A CPU compiles in tests alone: False."""
    if device.type == "cpu":
        return False

    def seconds(call: Callable[[], object]) -> float:
        def ended() -> None:
            call()
            torch.cuda.synchronize(device)

        ended()
        return min(repeat(ended, number=1, repeat=TIMINGS))

    first, second = map(seconds, calls)
    return first > second


def _options(device: torch.device) -> dict[str, Any]:
    """Options of the compiler. It does not choose by the clock among kernels of libraries and its own: on an H100, that
    took minutes, its convolutions of many groups took 30 times as long as cuDNN's, and its products gained little."""
    options: dict[str, Any] = {"triton.cudagraphs": False}  # `cuda_graph.replayed` records the update
    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        processes = torch.cuda.device_count() if device.type == "cuda" else cores()  # that train on this machine
        options["compile_threads"] = max(1, cores() // processes)
    return options


def _apart(found: Tensor, expected: Tensor, before: Tensor) -> float:
    """The largest distance of rows [l, p] from the expected ones, without rounding, as a share of their distance from
    `before`. Rows with numbers that are not finite prove nothing: their trials have diverged."""
    finite = expected.isfinite().all(dim=1)
    apart, moved, size = (
        torch.linalg.vector_norm(each, dim=1)[finite] for each in (found - expected, expected - before, expected)
    )
    beyond = (apart - ROUNDING * size).clamp(min=0)  # NaN stays NaN
    shares = torch.where(beyond == 0, 0.0, beyond / moved)
    return float(shares.max()) if len(shares) else 0.0
