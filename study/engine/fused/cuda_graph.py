"""Functions of tensors that a GPU is handed whole: recorded once, then launched as one.

An update of small models is some tens of kernels that take microseconds each, and the host takes longer to launch them
one by one, through `torch.vmap` and autograd, than the device to run them. A recorded one is replayed by a single
launch: the same kernels on the same addresses, hence the same bits.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from study.devices.memory import out_of_memory


class CudaGraph:
    """A `torch.cuda.CUDAGraph`, recorded on another stream than the usual one, as CUDA wants it.

    One at a time: libraries keep memory for each stream, and some versions of torch free it with any of its graphs.
    """

    def __init__(self, device: torch.device) -> None:
        self._graph, self._stream = torch.cuda.CUDAGraph(), _stream(device)

    def run(self, function: Callable[[], Tensor]) -> Tensor:
        """Call it, where it will be recorded: libraries make ready at a first call, which cannot be recorded."""
        with self._aside():
            return function()

    def record(self, function: Callable[[], Tensor]) -> Tensor:
        """Call it without running what it launches; returns where each replay leaves its result. Raises RuntimeError if
        it asks the host, or takes from it."""
        with self._aside(), torch.cuda.graph(self._graph, stream=self._stream), _never_waiting():
            return function()

    def replay(self) -> None:
        """Launch what was recorded."""
        with torch.cuda.device(self._stream.device):
            self._graph.replay()

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """On the other stream, which is left even where torch stumbles over a recording that failed."""
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
    """Waiting for the device is an error of torch's; one of CUDA's would leave torch recording for good."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Synchronization debug mode")  # is a prototype, it says once
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


GRAPHS: dict[str, Callable[[torch.device], CudaGraph]] = {"cuda": CudaGraph}
"""What records on each type of device; a CPU has nothing to launch."""


def replayed(function: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
    """The same function of tensors, by replays where the device knows how. All that it reads besides its arguments, and
    writes, must stay where it is; the shapes of its arguments settle what it does."""
    graph = GRAPHS.get(device.type)
    return function if graph is None else Replayed(function, graph(device))


class Replayed:
    """A function made and recorded at its first call, and replayed at those that follow."""

    def __init__(self, function: Callable[..., Tensor], graph: CudaGraph) -> None:
        self._function = function
        self._graph: CudaGraph | None = graph
        self._found: Tensor | None = None
        self._held: Sequence[Tensor] = ()
        """Where the recorded arguments are, each a copy of the latest given."""
        self._latest: Sequence[Tensor] = ()

    def __call__(self, *arguments: Tensor) -> Tensor:
        if self._graph is None:
            return self._function(*arguments)
        if self._found is None:
            return self._record(self._graph, arguments)
        for held, given, before in zip(self._held, arguments, self._latest, strict=True):
            if given is not before:  # some stay the same for many calls
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
            chain = list(_with_what_came_before(error))  # leaving a recording that failed is an error, too
            if full := next(filter(out_of_memory, chain), None):
                raise full from None
            self._graph = None
            reason = str(chain[-1]).partition("\n")[0]
            warnings.warn(f"updates are launched kernel by kernel, as they cannot be recorded: {reason}", stacklevel=2)
        return found


def _with_what_came_before(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that were being handled when it was raised."""
    while error is not None:
        yield error
        error = error.__context__
