"""Data that fits on the device, and the interface through which engines read any data.

Shapes: B examples in a batch, N examples in a split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from study.data.order import Batches
from study.devices.distributed import Team
from workloads.base import Splits

EVALUATION_CHUNK = 1024
"""Examples per forward pass of an evaluation; fixed, because another size changes the last bits."""

Reader = Callable[[int, int], tuple[Tensor, Tensor]]
"""(step, index of a micro-batch) -> its inputs [B, ...] and targets [B, ...] on the device."""


class Source(Protocol):
    """How the serial engine reads examples, resident or streamed; `Data` documents the members."""

    @property
    def team(self) -> Team: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def examples(self) -> int: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    def shared(self, team: Team) -> Source: ...
    def reader(self, batches: Batches, parts: Sequence[slice]) -> Reader: ...
    def chunks(self, split: str, examples: range) -> Iterator[tuple[Tensor, Tensor]]: ...


@dataclass(frozen=True)
class Data:
    """All examples on one device: the training data and the evaluated examples of each split.

    Attributes:
        inputs: [N, ...]; images are [N, H, W, C], the fastest layout for CPU convolutions.
        evaluated: split -> (inputs, targets); `train` is the fixed subset on which training errors are measured.
        team: the processes that train together, each with its own copy of the data.
    """

    inputs: Tensor
    targets: Tensor
    evaluated: Mapping[str, tuple[Tensor, Tensor]]
    images: bool
    team: Team = field(default_factory=Team)

    @classmethod
    def of(cls, splits: Splits, device: torch.device | None = None) -> Data:
        """Place splits of tensors on the device; None: leave them in place.

        Training errors use the first len(val) examples of the training set, which is already permuted.
        """
        held = (split for split in splits if isinstance(split, tuple))
        # Change the layout before the move, so that the device never holds two copies.
        train, val, test = ((channels_last(inputs).to(device), targets.to(device)) for inputs, targets in held)
        subset = len(val[1])
        evaluated = {"val": val, "train": (train[0][:subset], train[1][:subset]), "test": test}
        return cls(*train, evaluated, images=train[0].dim() == 4)

    @property
    def device(self) -> torch.device:
        """The device that holds the data and trains on them."""
        return self.inputs.device

    @property
    def examples(self) -> int:
        """Size of the training set."""
        return len(self.targets)

    @property
    def counts(self) -> dict[str, int]:
        """Number of evaluated examples of each split."""
        return {split: len(targets) for split, (_, targets) in self.evaluated.items()}

    def shared(self, team: Team) -> Data:
        """The same data for another team."""
        return replace(self, team=team)

    def reader(self, batches: Batches, parts: Sequence[slice]) -> Reader:
        """The reader of one trial's micro-batches."""
        return lambda step, part: self.examples_of(batches(step)[parts[part]])

    def chunks(self, split: str, examples: range) -> Iterator[tuple[Tensor, Tensor]]:
        """Consecutive examples of a split in chunks, in the model's layout."""
        inputs, targets = self.evaluated[split]
        for chunk in in_chunks(examples):
            yield self.as_model_wants(inputs[chunk.start : chunk.stop]), targets[chunk.start : chunk.stop]

    def examples_of(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [B, ...] and targets [B, ...] of these training examples."""
        return self.gather(index), self.targets[index]

    def gather(self, index: Tensor, lanes: int | None = None) -> Tensor:
        """Inputs of the indexed examples: [B, ...] for index [B]; [l, B, ...] for l lanes and index [l * B].

        Images come as a [..., B, C, H, W] view in channels-last format.
        """
        inputs = self.inputs.index_select(0, index)
        return self.as_model_wants(inputs if lanes is None else inputs.unflatten(0, (lanes, -1)))

    def as_model_wants(self, inputs: Tensor) -> Tensor:
        """Images [..., B, H, W, C] -> a [..., B, C, H, W] view in channels-last format; other inputs unchanged."""
        return inputs.movedim(-1, -3) if self.images else inputs


def in_chunks(examples: range) -> Iterator[range]:
    """Split a range of examples into chunks of at most EVALUATION_CHUNK."""
    return (examples[first : first + EVALUATION_CHUNK] for first in range(0, len(examples), EVALUATION_CHUNK))


def channels_last(inputs: Tensor) -> Tensor:
    """[N, C, H, W] images -> contiguous [N, H, W, C]; other inputs unchanged."""
    return inputs.permute(0, 2, 3, 1).contiguous() if inputs.dim() == 4 else inputs
