"""Training data that are read once, in order: streams, such as an `IterableDataset`, under `budget.single_pass`.

A step takes the next B examples, so the batch of a step is a pure function of the stream, the trial's data order and
the step. Reading can start at any step: at a state that the stream saved, or by skipping the examples before.

Shapes: B examples in a micro-batch, N examples in the training set.
"""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from study.data import trees
from study.data.order import Batches
from study.data.trees import Tree
from study.devices import generators
from study.errors import Failed

HEAD = 64
"""This number of first examples of a stream, or that of the validation set if it is larger, is kept."""
COMPARED = 16
"""Most examples that are compared between two readings."""
STATE_SECONDS = 1.0
"""A stream is asked for its state at most this often; examples since then are skipped by count."""
FIRST_ORDER = 0
"""The data order of the first examples, which checks and training errors use."""

Saved = Mapping[str, Any]
"""`place`, the number of examples read, and `state`, that of the stream after them."""


class Request(NamedTuple):
    """The `size` examples from number `place` on, in the data order `order`; `saved`: an earlier place to start at."""

    order: int
    place: int
    size: int
    saved: Saved | None = None


def is_stream(split: Any) -> bool:
    """True for an object that gives its examples in an order of its own, not by index."""
    if isinstance(split, DataLoader | Mapping | set | frozenset):
        return False
    return isinstance(split, IterableDataset) or (hasattr(split, "__iter__") and not hasattr(split, "__getitem__"))


class SinglePass(Dataset):
    """A stream of training examples. Its first examples, `reach` of them, can be read by index, too.

    Only one iteration of the stream is alive at a time.

    Arguments:
        stream: `iter(stream)` starts at its first example. It may have `set_epoch(number)`, which chooses an order, and
            `state_dict()` and `load_state_dict(state)`: how far the latest iteration has come, and where the next one
            starts. A state that does not bring back the same examples is not used.
        examples: N; the stream must have as many, or more.
        reach: number of first examples that are kept.
    """

    def __init__(self, stream: Any, examples: int, reach: int) -> None:
        self.stream, self.examples, self.reach = stream, examples, min(examples, reach)
        self.has_state = all(hasattr(stream, name) for name in ("state_dict", "load_state_dict"))
        self._first: list[Any] | None = None
        self._initial: Any = None
        self._loaded = False
        self._iterator: Iterator[Any] | None = None
        self._order, self.place = FIRST_ORDER, 0

    def __len__(self) -> int:
        return self.examples

    def __getitem__(self, index: int) -> Any:
        return self.first[index]

    @property
    def first(self) -> list[Any]:
        """The first examples, in FIRST_ORDER; fewer than `reach` if the stream ends."""
        if self._first is None:
            self._first = self._read_first()
        return self._first

    def read(self, request: Request) -> list[Any]:
        """The requested examples; fewer if the stream ends."""
        with generators.restored():
            if self._iterator is None or request.order != self._order or request.place < self.place:
                self._start(request.order, request.saved)
            self._next(request.place - self.place)
            return self._next(request.size)

    def state(self) -> bytes:
        """The pickled `Saved` of the current iteration."""
        return pickle.dumps({"place": self.place, "state": self.stream.state_dict()})

    def starts_alike(self) -> bool:
        """Whether two iterations give the same examples."""
        expected, self._iterator = self.first[:COMPARED], None
        return alike(self.read(Request(FIRST_ORDER, 0, len(expected))), expected)

    def _read_first(self) -> list[Any]:
        half, self._iterator = self.reach // 2, None
        found = self.read(Request(FIRST_ORDER, 0, half))
        saved = pickle.loads(self.state()) if self.has_state else None
        found += self.read(Request(FIRST_ORDER, half, self.reach - half))
        self._iterator = None
        if saved is not None:
            expected = found[half : half + COMPARED]
            self.has_state = alike(self.read(Request(FIRST_ORDER, half, len(expected), saved)), expected)
            self._iterator = None
        return found

    def _start(self, order: int, saved: Saved | None) -> None:
        generators.seed(generators.key_of("stream", order))
        if saved is None and self._loaded:
            self.stream.load_state_dict(self._initial)  # before `set_epoch`: a state may hold the order of FIRST_ORDER
        if hasattr(self.stream, "set_epoch"):
            self.stream.set_epoch(order)
        if saved is not None:
            self.stream.load_state_dict(saved["state"])
            self._loaded = True
        elif self.has_state and self._initial is None:
            self._initial = pickle.loads(pickle.dumps(self.stream.state_dict()))
        self._iterator, self._order = iter(self.stream), order
        self.place = 0 if saved is None else saved["place"]

    def _next(self, count: int) -> list[Any]:
        """At most `count` next examples, each with the random numbers of its place."""
        found: list[Any] = []
        assert self._iterator is not None
        for place in range(self.place, self.place + count):
            generators.seed(generators.key_of("example", self._order, place))
            try:
                found.append(next(self._iterator))
            except StopIteration:
                break
            except Exception as error:
                error.add_note(f"(in example {place} of the train split)")
                raise
        self.place += len(found)
        return found


class InOrder(Dataset):
    """Batches of a stream for a loader: request -> inputs and targets [B, ...], and a pickled `Saved` or nothing.

    Where the stream ends too early, there are no inputs, and the number of examples stands in place of the targets.
    """

    def __init__(self, stream: SinglePass, collate: Callable[[list[Any]], Any]) -> None:
        self.stream, self.collate = stream, collate
        self._asked = -float("inf")

    def __getitem__(self, request: Request) -> tuple[Tree, Tree, bytes]:
        items = self.stream.read(request)
        if len(items) < request.size:
            return None, self.stream.place, b""
        with generators.seeded(generators.key_of("collate", request.order, request.place)):
            inputs, targets = self.collate(items)
        if not self.stream.has_state or time.monotonic() < self._asked + STATE_SECONDS:
            return inputs, targets, b""
        self._asked = time.monotonic()
        return inputs, targets, self.stream.state()


class StreamReader:
    """A `study.data.resident.Reader` of one trial's micro-batches from a stream.

    Attributes:
        saved: where the stream was at or before the latest batch, for a checkpoint; None: unknown, so that the examples
            before are skipped by count.
    """

    def __init__(
        self,
        read: Callable[[Iterator[Request]], Iterator[Any]],
        batches: Batches,
        parts: Sequence[slice],
        placed: Callable[[tuple[Tree, Tree]], tuple[Tree, Tree]],
    ) -> None:
        self._read, self._batches, self._parts, self._placed = read, batches, parts, placed
        self.saved: Saved | None = None
        self._coming: Iterator[Any] = iter(())
        self._number, self._step = -2, -1
        self._held: dict[int, tuple[Tree, Tree]] = {}

    def __call__(self, step: int, part: int) -> tuple[Tree, Tree]:
        if step != self._step:
            self._step, self._held = step, {}
        if part not in self._held:
            self._held[part] = self._next(step, part)
        inputs, targets = self._held[part]
        return trees.cloned(inputs), trees.cloned(targets)  # an optimizer may ask for the same batch again

    def _next(self, step: int, part: int) -> tuple[Tree, Tree]:
        number = step * len(self._parts) + part
        if number != self._number + 1:
            self._coming = self._read(_requests(self._batches, self._parts, number, self.saved))
        self._number = number
        inputs, targets, saved = next(self._coming)
        if inputs is None:
            raise Failed(ended(int(targets), self._batches.examples))
        if saved:
            self.saved = pickle.loads(saved)
        return self._placed((inputs, targets))


def _requests(batches: Batches, parts: Sequence[slice], first: int, saved: Saved | None) -> Iterator[Request]:
    """The requests of a trial's micro-batches from number `first` on.

    Not a method: a reader in a circle with the loader that holds its requests would be left to the garbage collector,
    which takes a loader's queues apart first, so that its processes are not told to end and are waited for in vain.
    """
    size = batches.batch_size
    whole = batches.examples // size  # more steps are only timed, so that they may see examples again
    for number in itertools.count(first):
        step, part = divmod(number, len(parts))
        place = batches.place(step) % (whole * size) + parts[part].start
        known = saved if saved is not None and saved["place"] <= place else None
        yield Request(batches.seed, place, parts[part].stop - parts[part].start, known)


def ended(got: int, needed: int) -> str:
    """The message for a stream that has fewer examples than `workload.train_examples` states."""
    return (
        f"the training stream ended after {got:,} examples, but workload.train_examples={needed} says that it has "
        f"{needed:,}, and budget.single_pass=true starts it only once; let it give more, or set "
        f"workload.train_examples={got}."
    )


def alike(one: Any, other: Any) -> bool:
    """Whether two readings gave the same examples. Objects that are neither numbers, texts nor trees count as equal."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    if isinstance(one, np.ndarray | np.generic) and isinstance(other, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    texts = int | float | str | bytes
    return type(one) is type(other) and (one == other or one != one or not isinstance(one, texts))
