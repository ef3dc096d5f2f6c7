"""Data that does not fit on the device: read batch by batch through torch's DataLoader, in the same order.

The order of examples is a pure function of (seed, step), so reading can start at any step: at a checkpoint, or again
at the same step when an optimizer asks for a batch twice.

Shapes: B examples in a micro-batch, N examples in a split.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from study.data.order import Batches
from study.data.resident import Data, Reader, Source, channels_last, in_chunks
from study.devices.distributed import Team
from study.devices.memory import device_bytes
from study.devices.signals import die_with
from workloads.base import Splits

DATA_SHARE = 0.5
"""Default share of the device's memory that the data of one process may take."""

Request = tuple[str, Sequence[int]]
"""(split, indices [B])."""


class Examples(Dataset):
    """All splits as one map-style data set, whose items are whole batches: inputs [B, ...] and targets [B, ...]."""

    def __init__(self, splits: Splits) -> None:
        # Loader processes read host memory, not GPU memory.
        self.splits = {
            name: tuple(tensor.cpu() for tensor in split) if isinstance(split, tuple) else split
            for name, split in splits._asdict().items()
        }

    def __getitem__(self, request: Request) -> tuple[Tensor, Tensor]:
        split, indices = request
        held = self.splits[split]
        if isinstance(held, tuple):
            inputs, targets = (tensor[torch.as_tensor(indices)] for tensor in held)
            return inputs, targets
        fetch = getattr(held, "__getitems__", None)
        inputs, targets = default_collate(fetch(list(indices)) if fetch else [held[index] for index in indices])
        return inputs, targets

    def count(self, split: str) -> int:
        """Number of examples of a split."""
        held = self.splits[split]
        return len(held[1]) if isinstance(held, tuple) else len(held)


class Order:
    """A sampler whose requests can be replaced while the DataLoader lives."""

    requests: Iterable[Request] = ()

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)


class Stream:
    """Reads requested batches ahead of time, in order, in `loaders` persistent processes."""

    def __init__(self, examples: Examples, device: torch.device, loaders: int) -> None:
        self.order = Order()
        self.loader = DataLoader(
            examples,
            batch_size=None,  # a request is a batch already
            sampler=self.order,
            num_workers=loaders,
            persistent_workers=loaders > 0,
            pin_memory=device.type == "cuda",
            # A mapped file stays mapped in a fork; a spawned process would be sent a copy of all of it.
            multiprocessing_context="fork" if loaders else None,
            worker_init_fn=partial(_begin, os.getpid()),
            generator=torch.Generator(),  # otherwise the loader draws from torch's global generator
        )

    def read(self, requests: Iterable[Request]) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the batches of these requests; earlier requests are dropped."""
        self.order.requests = requests
        return iter(self.loader)


def _begin(parent: int, number: int) -> None:
    die_with(parent)


@dataclass(frozen=True)
class Streamed:
    """A `study.data.resident.Source` that reads batches from host memory or disk.

    Attributes:
        training, evaluation: two independent readers of `stored`.
        images: inputs are [N, C, H, W].
    """

    stored: Examples
    device: torch.device
    training: Stream
    evaluation: Stream
    images: bool
    team: Team = field(default_factory=Team)

    @property
    def examples(self) -> int:
        """Size of the training set."""
        return self.stored.count("train")

    @property
    def counts(self) -> dict[str, int]:
        """Number of evaluated examples of each split; training errors use as many examples as validation errors."""
        val = self.stored.count("val")
        return {"val": val, "train": min(val, self.examples), "test": self.stored.count("test")}

    def shared(self, team: Team) -> Streamed:
        """The same data for another team."""
        return replace(self, team=team)

    def reader(self, batches: Batches, parts: Sequence[slice]) -> Reader:
        """The reader of one trial's micro-batches; a request out of order restarts the stream."""
        order = Batches(batches.seed, batches.examples, batches.batch_size, torch.device("cpu"))
        latest: tuple[Tensor, Tensor] | None = None
        coming: Iterator[tuple[Tensor, Tensor]] = iter(())
        place = -1

        def requests(first: int) -> Iterator[Request]:
            for number in itertools.count(first):
                step, part = divmod(number, len(parts))
                yield "train", order(step)[parts[part]].tolist()

        def read(step: int, part: int) -> tuple[Tensor, Tensor]:
            nonlocal latest, place, coming
            wanted = step * len(parts) + part
            if latest is None or wanted != place:
                if wanted != place + 1 or latest is None:
                    coming = self.training.read(requests(wanted))
                latest, place = self._on_device(next(coming)), wanted
            return latest

        return read

    def chunks(self, split: str, examples: range) -> Iterator[tuple[Tensor, Tensor]]:
        """Consecutive examples of a split in chunks, in the model's layout."""
        requests = [(split, list(chunk)) for chunk in in_chunks(examples)]
        return map(self._on_device, self.evaluation.read(requests))

    def _on_device(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        inputs, targets = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        # The layout of resident images, so that torch chooses the same kernels.
        return channels_last(inputs).movedim(-1, -3) if self.images else inputs, targets


def needed(splits: Splits, device: str, gigabytes: float | None) -> bool:
    """True if the data must be streamed: always for data sets, and for tensors larger than `gigabytes` GiB.

    Arguments:
        gigabytes: None: DATA_SHARE of the device's memory.
    """
    tensors = [tensor for split in splits if isinstance(split, tuple) for tensor in split]
    most = DATA_SHARE * device_bytes(device) if gigabytes is None else gigabytes * 2**30
    return len(tensors) < 2 * len(splits) or sum(tensor.nbytes for tensor in tensors) > most


def source(splits: Splits, device: str, gigabytes: float | None, loaders: int) -> Source:
    """The data for the engines: on the device if they fit, otherwise streamed to it."""
    there = torch.device(device)
    if not needed(splits, device, gigabytes):
        return Data.of(splits, there)
    stored = Examples(splits)
    inputs, _ = stored["train", [0]]
    training, evaluation = (Stream(stored, there, loaders) for _ in range(2))
    return Streamed(stored, there, training, evaluation, images=inputs.dim() == 4)
