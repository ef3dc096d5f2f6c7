"""The examples as engines read them, all on one device.

Shapes: B examples in a batch, N examples in a split."""

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
"""Examples per forward pass of an evaluation; fixed, since another size changes the last bits."""


Reader = Callable[[int, int], tuple[Tensor, Tensor]]
"""(step, number of a part of its batch) -> inputs [B, ...] and targets [B, ...] of that part, on the device."""


class Source(Protocol):
    """What the serial engine asks of the examples, wherever they are; for its members see `Data`."""

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
    """The examples as the engines read them, all on one device: training data, and what each split is evaluated on.

    Attributes:
        inputs: [N, ...]; images [N, H, W, C], the layout that CPU convolutions are fastest in.
        evaluated: split -> (inputs, targets); `train` is the fixed subset that training errors are measured on.
        team: who trains on them together, each with a copy.
    """

    inputs: Tensor
    targets: Tensor
    evaluated: Mapping[str, tuple[Tensor, Tensor]]
    images: bool
    team: Team = field(default_factory=Team)

    @classmethod
    def of(cls, splits: Splits, device: torch.device | None = None) -> Data:
        """The training set is itself a fixed permutation: its first examples, as many as validate, are the subset.

        Arguments:
            splits: tensors, none of them a data set.
            device: where they go; None: they stay where they are.
        """
        held = (split for split in splits if isinstance(split, tuple))
        # Laid out before they are moved: a device that holds them need not hold them twice.
        train, val, test = ((channels_last(inputs).to(device), targets.to(device)) for inputs, targets in held)
        subset = len(val[1])
        evaluated = {"val": val, "train": (train[0][:subset], train[1][:subset]), "test": test}
        return cls(*train, evaluated, images=train[0].dim() == 4)

    @property
    def device(self) -> torch.device:
        """Where they are, and are trained on."""
        return self.inputs.device

    @property
    def examples(self) -> int:
        """Of the training set."""
        return len(self.targets)

    @property
    def counts(self) -> dict[str, int]:
        """How many examples each split is measured on."""
        return {split: len(targets) for split, (_, targets) in self.evaluated.items()}

    def shared(self, team: Team) -> Data:
        """The same, trained on with these."""
        return replace(self, team=team)

    def reader(self, batches: Batches, parts: Sequence[slice]) -> Reader:
        """What a trial reads its micro-batches through."""
        return lambda step, part: self.examples_of(batches(step)[parts[part]])

    def chunks(self, split: str, examples: range) -> Iterator[tuple[Tensor, Tensor]]:
        """These consecutive examples of a split in chunks, as the model wants them."""
        inputs, targets = self.evaluated[split]
        for chunk in in_chunks(examples):
            yield self.as_model_wants(inputs[chunk.start : chunk.stop]), targets[chunk.start : chunk.stop]

    def examples_of(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [B, ...] and targets [B, ...] of these training examples."""
        return self.gather(index), self.targets[index]

    def gather(self, index: Tensor, lanes: int | None = None) -> Tensor:
        """The inputs of these examples: [B, ...] for index [B], [l, B, ...] for l lanes and index [l * B].

        Images come as a [..., B, C, H, W] view in channels-last format.
        """
        inputs = self.inputs.index_select(0, index)
        return self.as_model_wants(inputs if lanes is None else inputs.unflatten(0, (lanes, -1)))

    def as_model_wants(self, inputs: Tensor) -> Tensor:
        """Images [..., B, H, W, C] in memory -> a [..., B, C, H, W] view in channels-last format; else as they are."""
        return inputs.movedim(-1, -3) if self.images else inputs


def in_chunks(examples: range) -> Iterator[range]:
    """The chunks that these examples are measured in."""
    return (examples[first : first + EVALUATION_CHUNK] for first in range(0, len(examples), EVALUATION_CHUNK))


def channels_last(inputs: Tensor) -> Tensor:
    """[N, C, H, W] images -> contiguous [N, H, W, C]; anything else as it is."""
    return inputs.permute(0, 2, 3, 1).contiguous() if inputs.dim() == 4 else inputs
