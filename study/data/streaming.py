"""Data that does not fit on the device: read batch by batch through torch's DataLoader, in the same order.

The order of examples is a pure function of (seed, step), so reading can start at any step: at a checkpoint, or again
at the same step when an optimizer asks for a batch twice.

Shapes: B examples in a micro-batch, N examples in a split.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from study.data import digest, trees
from study.data.examples import Examples, Request, splits_of
from study.data.hardest import Hardest
from study.data.order import Batches
from study.data.resident import (
    Augment,
    AugmentedParts,
    Data,
    Reader,
    Source,
    are_images,
    channels_last,
    in_chunks,
    placed,
)
from study.data.single_pass import InOrder, SinglePass, StreamReader
from study.data.trees import Tree
from study.devices import generators
from study.devices.distributed import Team
from study.devices.memory import device_bytes
from study.devices.signals import die_with
from workloads.base import Splits, Workload, optional

SAME = 1e-3
"""Largest distance between outputs in two layouts, relative to the outputs."""
DATA_SHARE = 0.5
"""Default share of the device's memory that the data of one process may take."""


class Order:
    """A sampler whose requests can be replaced while the DataLoader lives."""

    requests: Iterable[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.requests)


class Stream:
    """Reads requested batches ahead of time, in order, in `loaders` persistent processes."""

    def __init__(self, examples: Dataset, device: torch.device, loaders: int) -> None:
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
        # Fork now, before training starts threads: a fork of a process with threads may hang (CPython gh-112275).
        self.read(())

    def read(self, requests: Iterable[Any]) -> Iterator[Any]:
        """Iterate over the batches of these requests; earlier requests are dropped."""
        self.order.requests = requests
        return iter(self.loader)


def _begin(parent: int, number: int) -> None:
    die_with(parent)


@dataclass(frozen=True)
class Streamed:
    """A `study.data.resident.Source` that reads batches from host memory or disk.

    Attributes:
        training, evaluation: two independent readers of `stored`, or of its stream.
        images, layout, hardest: as in `study.data.resident.Data`.
    """

    stored: Examples
    device: torch.device
    training: Stream
    evaluation: Stream
    images: bool
    team: Team = field(default_factory=Team)
    layout: torch.memory_format = torch.channels_last
    hardest: dict[Any, Hardest] = field(default_factory=dict, compare=False, repr=False)

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

    def reader(self, batches: Batches, parts: Sequence[slice], augment: Augment | None = None) -> Reader:
        """The reader of one trial's micro-batches; a request out of order restarts the stream."""
        order = batches.on(torch.device("cpu"))
        if augment is not None:
            whole = self._reader(order, [slice(0, batches.batch_size)])
            return AugmentedParts(whole, parts, augment)
        return self._reader(order, parts)

    def _reader(self, order: Batches, parts: Sequence[slice]) -> Reader:
        if isinstance(self.stored.splits["train"], SinglePass):
            return StreamReader(self.training.read, order, parts, self._on_device)
        latest: tuple[Tree, Tree] | None = None
        coming: Iterator[tuple[Tree, Tree]] = iter(())
        place = -1

        def requests(first: int) -> Iterator[Request]:
            for number in itertools.count(first):
                step, part = divmod(number, len(parts))
                key = generators.key_of("example", order.seed, step)
                yield "train", order(step)[parts[part]].tolist(), key

        def read(step: int, part: int) -> tuple[Tree, Tree]:
            nonlocal latest, place, coming
            wanted = step * len(parts) + part
            if latest is None or wanted != place:
                if wanted != place + 1 or latest is None:
                    coming = self.training.read(requests(wanted))
                latest, place = self._on_device(next(coming)), wanted
            inputs, targets = latest
            return trees.cloned(inputs), trees.cloned(targets)  # an optimizer may ask for the same batch again

        return read

    def chunks(self, split: str, examples: Sequence[int], size: int) -> Iterator[tuple[Tree, Tree]]:
        """These examples of a split in chunks of at most `size`, in the model's layout."""
        requests: list[Request] = [(split, list(chunk)) for chunk in in_chunks(examples, size)]
        return map(self._on_device, self.evaluation.read(requests))

    def _on_device(self, batch: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        inputs, targets = (
            trees.mapped(lambda tensor: tensor.to(self.device, non_blocking=True), tree) for tree in batch
        )
        # The layout of resident images, so that torch chooses the same kernels.
        return channels_last(inputs).movedim(-1, -3) if self.images else inputs, targets


def needed(splits: Splits, device: str, gigabytes: float | None) -> bool:
    """True if the data must be streamed: always for data sets, and for tensors larger than `gigabytes` GiB.

    Arguments:
        gigabytes: None: DATA_SHARE of the device's memory.
    """
    held = [split for split in splits if isinstance(split, tuple)]
    most = DATA_SHARE * device_bytes(device) if gigabytes is None else gigabytes * 2**30
    return len(held) < len(splits) or sum(map(trees.nbytes, held)) > most


def of_workload(
    workload: Workload, device: str, gigabytes: float | None, loaders: int, expected: Mapping[str, float] | None = None
) -> Source:
    """The data of a workload for the engines, in the layout that its model takes. Raises Refused if their digest is not
    the `expected` one of another process; None: any."""
    # Make the splits on the CPU, because they may not fit on the device. Keep no local variable of them, which would
    # hold their memory beside the source made of them.
    return source(digest.checked(workload, splits_of(workload), expected or {}), device, gigabytes, loaders, workload)


def source(
    splits: Splits, device: str, gigabytes: float | None, loaders: int, workload: Workload | None = None
) -> Source:
    """The data for the engines: on the device if they fit, otherwise streamed to it.

    Arguments:
        workload: gives `collate`, and the model that determines the layout; None: as for models of any layout.
    """
    there = torch.device(device)
    stored = Examples(splits, optional(workload, "collate") if workload else None)
    first = stored.read("train", range(min(2, stored.count("train"))))
    layout = layout_for(workload, first[0]) if workload else torch.channels_last
    if not needed(splits, device, gigabytes):
        del stored
        return Data.of(splits, there, layout)
    evaluation = Stream(stored, there, loaders)
    if isinstance(once := stored.splits["train"], SinglePass):  # a second loader would read the whole stream, too
        training = Stream(InOrder(once, stored.collate), there, min(loaders, 1))
    else:
        training = Stream(stored, there, loaders)
    images = are_images(first[0]) and layout == torch.channels_last
    return Streamed(stored, there, training, evaluation, images, layout=layout)


def layout_for(workload: Workload, inputs: Tree) -> torch.memory_format:
    """Channels-last, the fastest layout of images; contiguous if the model fails with it on these examples [B, ...] but
    works without, such as with `x.view(len(x), -1)` after a convolution, if it computes something else, as code that
    reads strides does, or if it `overruns`."""
    with generators.seeded(0):
        model = workload.model()
        if not (are_images(inputs) or any(parameter.dim() == 4 for parameter in model.parameters())):
            return torch.channels_last
        if overruns(model):
            return torch.contiguous_format

        def laid_out(layout: torch.memory_format) -> tuple[nn.Module, Tree]:
            given = inputs.contiguous(memory_format=layout) if are_images(inputs) else inputs
            return placed(copy.deepcopy(model), layout), trees.cloned(given)

        def works(layout: torch.memory_format) -> bool:
            tried, given = laid_out(layout)
            try:
                for training in (False, True):
                    outputs = trees.call(tried.train(training), trees.cloned(given))
                ends = [leaf.sum() for leaf in trees.leaves(outputs) if leaf.requires_grad]
                torch.autograd.backward(ends)  # of numbers: for gradients of tensors torch imports SymPy
            except Exception:  # user code may raise anything; the check tells the cause
                return False
            return True

        def evaluated(layout: torch.memory_format) -> list[torch.Tensor]:
            tried, given = laid_out(layout)
            with generators.seeded(0), torch.no_grad():
                return [*trees.leaves(trees.call(tried.eval(), given))]

        if works(torch.channels_last):
            try:
                alike = _alike(*map(evaluated, (torch.channels_last, torch.contiguous_format)))
            except Exception:  # the model takes images in channels-last alone
                return torch.channels_last
            return torch.channels_last if alike else torch.contiguous_format
        return torch.contiguous_format if works(torch.contiguous_format) else torch.channels_last


def _alike(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether outputs are the same but for rounding."""
    pairs = ([leaf.to(torch.complex128) for leaf in pair] for pair in zip(some, others, strict=True))
    return all((one - other).norm() <= SAME * other.norm() for one, other in pairs)


def overruns(model: nn.Module) -> bool:
    """Whether a gradient of the model in channels-last may write outside of its memory on a CPU and crash.

    That of a 1x1 convolution with a stride and fewer than 16 inputs does, in torch 2.13
    (https://github.com/uxlfoundation/oneDNN/issues/6035).
    """
    return any(
        isinstance(layer, nn.Conv2d)
        and max(layer.kernel_size) == 1
        and max(layer.stride) > 1
        and layer.in_channels // layer.groups < 16
        for layer in model.modules()
    )
