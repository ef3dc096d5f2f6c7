"""CUDA graphs: a function of tensors is recorded once, then replayed with one launch.

An update of small models consists of tens of kernels that take microseconds each. Launching them one by one, through
`torch.vmap` and autograd, takes the host longer than running them takes the GPU. A replay launches the same kernels on
the same addresses at once, so the bits are the same.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from study.devices.memory import out_of_memory


class CudaGraph:
    """A `torch.cuda.CUDAGraph`, recorded on a stream of its own, because CUDA cannot record the default stream.

    Keep one at a time: libraries keep memory per stream, and some versions of torch free it with any of its graphs.
    """

    def __init__(self, device: torch.device) -> None:
        self._graph, self._stream = torch.cuda.CUDAGraph(), _stream(device)

    def run(self, function: Callable[[], Tensor]) -> Tensor:
        """Call `function` on the recording stream: libraries initialise at a first call, which cannot be recorded."""
        with self._aside():
            return function()

    def record(self, function: Callable[[], Tensor]) -> Tensor:
        """Record the kernels that `function` launches, without running them; returns the tensor into which each replay
        writes the result. Raises RuntimeError if `function` waits for the GPU or copies between host and GPU."""
        with self._aside(), torch.cuda.graph(self._graph, stream=self._stream), _never_waiting():
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
def _stream(device: torch.device) -> torch.cuda.Stream:
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


GRAPHS: dict[str, Callable[[torch.device], CudaGraph]] = {"cuda": CudaGraph}
"""Device type -> class that records; a CPU launches no kernels."""


def replayed(function: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
    """The same function, replayed from a recording if the device supports it.

    Other tensors that it reads or writes must keep their addresses, and the kernels that it launches must depend on
    nothing but the shapes of its arguments.
    """
    graph = GRAPHS.get(device.type)
    return function if graph is None else Replayed(function, graph(device))


class Replayed:
    """A function that runs and is recorded at its first call, and is replayed at later calls."""

    def __init__(self, function: Callable[..., Tensor], graph: CudaGraph) -> None:
        self._function = function
        self._graph: CudaGraph | None = graph
        self._found: Tensor | None = None
        self._held: Sequence[Tensor] = ()
        """The tensors that the recorded kernels read; `__call__` copies its arguments into them."""
        self._latest: Sequence[Tensor] = ()

    def __call__(self, *arguments: Tensor) -> Tensor:
        if self._graph is None:
            return self._function(*arguments)
        if self._found is None:
            return self._record(self._graph, arguments)
        for held, given, before in zip(self._held, arguments, self._latest, strict=True):
            if given is not before:  # some arguments are the same tensor in many calls
                held.copy_(given)
        self._latest = arguments
        self._graph.replay()
        return self._found.clone()

    def _record(self, graph: CudaGraph, arguments: Sequence[Tensor]) -> Tensor:
        found = graph.run(lambda: self._function(*arguments))
        held = [argument.clone() for argument in arguments]
        try:
            self._found = graph.record(lambda: self._function(*held))
            self._held, self._latest = held, arguments
        except RuntimeError as error:
            chain = list(_with_contexts(error))  # ending a failed recording raises again
            if full := next(filter(out_of_memory, chain), None):
                raise full from None
            self._graph = None
            reason = str(chain[-1]).partition("\n")[0]
            warnings.warn(f"updates are launched kernel by kernel, as they cannot be recorded: {reason}", stacklevel=2)
        return found


def _with_contexts(error: BaseException | None) -> Iterator[BaseException]:
    """An error, then its context, and so on to the first error."""
    while error is not None:
        yield error
        error = error.__context__
