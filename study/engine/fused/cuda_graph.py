"""CUDA graphs: a function of tensors is recorded once, then replayed with one launch.

An update of small models consists of tens of kernels that take microseconds each. Launching them one by one, through
`torch.vmap` and autograd, takes the host longer than running them takes the GPU. A replay launches the same kernels on
the same addresses at once, so the bits are the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TypeVar, cast

import torch
from torch import Tensor

from study.data import trees
from study.data.trees import Tree
from study.devices.memory import out_of_memory


class CannotRecord(Exception):
    """A function cannot be recorded; the process must end.

    After some failed recordings torch's allocator frees no memory any more (https://github.com/pytorch/pytorch/pull/180395
    cures it), and the memory of the recording is lost (https://github.com/pytorch/pytorch/pull/190308 is open).
    """


class CudaGraph:
    """A `torch.cuda.CUDAGraph`, recorded on a stream of its own, because CUDA cannot record the default stream.

    Graphs of one purpose share a stream. Free them together: libraries keep memory per stream, and some versions of
    torch free it with any of its graphs.

    Arguments:
        purpose: what the recorded functions do, as text.
        beside: a graph of the same purpose that is never replayed at the same time: both compute in the same memory.
    """

    def __init__(self, device: torch.device, purpose: str, beside: CudaGraph | None = None) -> None:
        self._graph, self._stream = torch.cuda.CUDAGraph(), _stream(device, purpose)
        self._pool = None if beside is None else beside._graph.pool()

    def run(self, function: Callable[[], Tree]) -> Tree:
        """Call `function` on the recording stream: libraries initialise at a first call, which cannot be recorded."""
        with self._aside():
            return function()

    def record(self, function: Callable[[], Tree]) -> Tree:
        """Record the kernels that `function` launches, without running them; returns the tensors into which each replay
        writes the result. Raises RuntimeError if `function` waits for the GPU or copies between host and GPU."""
        with self._aside(), torch.cuda.graph(self._graph, self._pool, self._stream), _never_waiting():
            return function()

    def replay(self) -> None:
        """Launch the recorded kernels."""
        with torch.cuda.device(self._stream.device):
            self._graph.replay()

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Run the block on the recording stream, and leave that stream even if the recording fails."""
        here = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(here)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            here.wait_stream(self._stream)


@cache
def _stream(device: torch.device, purpose: str) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@contextmanager
def _never_waiting() -> Iterator[None]:
    """Let torch raise if the block waits for the GPU: an error from CUDA would leave torch recording forever."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Synchronization debug mode")  # a notice that it is a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


GRAPHS: dict[str, Callable[[torch.device, str, CudaGraph | None], CudaGraph]] = {"cuda": CudaGraph}
"""Device type -> class that records; a CPU launches no kernels."""

F = TypeVar("F", bound=Callable[..., Tree])


@contextmanager
def recording(allowed: bool) -> Iterator[None]:
    """A block in which `replayed` records functions, or leaves them as they are."""
    before = dict(GRAPHS)
    if not allowed:
        GRAPHS.clear()
    try:
        yield
    finally:
        GRAPHS.update(before)


def replayed(function: F, device: torch.device, purpose: str, others: Iterable[Callable[..., Tree]] = ()) -> F:
    """The same function, replayed from a recording if the device supports it.

    Other tensors that it reads or writes must keep their addresses, and the kernels that it launches must depend on
    nothing but the shapes of its arguments.

    Arguments:
        purpose: what it does, as text.
        others: replayed functions of the same purpose that are never called at the same time.
    """
    if device.type not in GRAPHS:
        return function
    beside = next((other.graph for other in others if isinstance(other, Replayed)), None)
    return cast(F, Replayed(function, GRAPHS[device.type](device, purpose, beside), purpose))


class Replayed:
    """A function that runs and is recorded at its first call, and is replayed at later calls.

    Attributes:
        graph: the recording.

    Raises:
        CannotRecord: at the first call.
    """

    def __init__(self, function: Callable[..., Tree], graph: CudaGraph, purpose: str) -> None:
        self._function, self._purpose, self.graph = function, purpose, graph
        self._found: Tree | None = None
        self._held: Sequence[Tensor] = ()
        """The tensors that the recorded kernels read; `__call__` copies its arguments into them."""
        self._latest: Sequence[Tensor] = ()

    def __call__(self, *arguments: Tensor) -> Tree:
        if self._found is None:
            return self._record(arguments)
        for held, given, before in zip(self._held, arguments, self._latest, strict=True):
            if given is not before:  # some arguments are the same tensor in many calls
                held.copy_(given)
        self._latest = arguments
        self.graph.replay()
        return trees.cloned(self._found)

    def _record(self, arguments: Sequence[Tensor]) -> Tree:
        found = self.graph.run(lambda: self._function(*arguments))
        held = [argument.clone() for argument in arguments]
        try:
            self._found = self.graph.record(lambda: self._function(*held))
            self._held, self._latest = held, arguments
        except RuntimeError as error:
            chain = list(_with_contexts(error))  # ending a failed recording raises again
            if full := next(filter(out_of_memory, chain), None):
                raise full from None
            reason = str(chain[-1]).partition("\n")[0]
            raise CannotRecord(f"{self._purpose} cannot be recorded as a CUDA graph: {reason}") from error
        return found


def _with_contexts(error: BaseException | None) -> Iterator[BaseException]:
    """An error, then its context, and so on to the first error."""
    while error is not None:
        yield error
        error = error.__context__
