"""Data that fits on the device, and the interface through which engines read any data.

Shapes: B examples in a batch, N examples in a split. Inputs and targets are trees of tensors (`study.data.trees`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from study.data import trees
from study.data.hardest import Hardest
from study.data.order import Batches
from study.data.trees import Tree
from study.devices import generators
from study.devices.distributed import Team
from study.devices.memory import sent
from workloads.base import Splits, optional

EVALUATION_CHUNK = 1024
"""Most examples per forward pass of an evaluation, if memory suffices; recorded, because another size changes the last
bits."""

Reader = Callable[[int, int], tuple[Tree, Tree]]
"""(step, index of a micro-batch) -> its inputs [B, ...] and targets [B, ...] on the device, for the caller to keep."""

Augment = Callable[[Tree, int], Tree]
"""(inputs [B, ...] of a whole batch, step) -> the augmented inputs [B, ...]."""


class Source(Protocol):
    """How the serial engine reads examples, resident or streamed; `Data` documents the members."""

    @property
    def team(self) -> Team: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def layout(self) -> torch.memory_format: ...
    @property
    def examples(self) -> int: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def hardest(self) -> dict[Any, Hardest]: ...
    def shared(self, team: Team) -> Source: ...
    def reader(self, batches: Batches, parts: Sequence[slice], augment: Augment | None = None) -> Reader: ...
    def chunks(self, split: str, examples: Sequence[int], size: int) -> Iterator[tuple[Tree, Tree]]: ...


@dataclass(frozen=True)
class Data:
    """All examples on one device: the training data and the evaluated examples of each split.

    Attributes:
        inputs: [N, ...]; images are [N, H, W, C], the fastest layout for CPU convolutions.
        evaluated: split -> (inputs, targets); `train` is the fixed subset on which training errors are measured.
        images: inputs are one tensor of images.
        team: the processes that train together, each with its own copy of the data.
        layout: of images and of the weights of convolutions (see `study.data.streaming.layout_for`).
        hardest: (error, number of evaluated examples, their part) -> which of them earlier models missed most.
    """

    inputs: Tree
    targets: Tree
    evaluated: Mapping[str, tuple[Tree, Tree]]
    images: bool
    team: Team = field(default_factory=Team)
    layout: torch.memory_format = torch.channels_last
    hardest: dict[Any, Hardest] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(
        cls, splits: Splits, device: torch.device | None = None, layout: torch.memory_format = torch.channels_last
    ) -> Data:
        """Place splits of tensors on the device; None: leave them in place.

        Training errors use the first len(val) examples of the training set, which is already permuted.
        """
        held = [split for split in splits if isinstance(split, tuple)]
        images = are_images(held[0][0]) and layout == torch.channels_last

        def placed(tree: Tree) -> Tree:
            return trees.mapped(lambda tensor: tensor.to(device), tree)

        # Change the layout before the move, so that the device never holds two copies.
        train, val, test = (
            (placed(channels_last(inputs) if images else inputs), placed(targets)) for inputs, targets in held
        )
        first = slice(trees.count(val[1]))
        evaluated = {"val": val, "train": (trees.part(train[0], first), trees.part(train[1], first)), "test": test}
        return cls(*train, evaluated, images, layout=layout)

    @property
    def device(self) -> torch.device:
        """The device that holds the data and trains on them."""
        return trees.device_of(self.inputs)

    @property
    def examples(self) -> int:
        """Size of the training set."""
        return trees.count(self.targets)

    @property
    def counts(self) -> dict[str, int]:
        """Number of evaluated examples of each split."""
        return {split: trees.count(targets) for split, (_, targets) in self.evaluated.items()}

    def shared(self, team: Team) -> Data:
        """The same data for another team."""
        return replace(self, team=team)

    def reader(self, batches: Batches, parts: Sequence[slice], augment: Augment | None = None) -> Reader:
        """The reader of one trial's micro-batches."""
        if augment is not None:
            return AugmentedParts(lambda step, _: self.examples_of(batches(step)), parts, augment)
        return lambda step, number: self.examples_of(batches(step)[parts[number]])

    def chunks(self, split: str, examples: Sequence[int], size: int) -> Iterator[tuple[Tree, Tree]]:
        """These examples of a split in chunks of at most `size`, in the model's layout."""
        inputs, targets = self.evaluated[split]
        for chunk in in_chunks(examples, size):
            index = slice(chunk.start, chunk.stop) if isinstance(chunk, range) else self._index(chunk)
            yield self.as_model_wants(trees.part(inputs, index)), trees.part(targets, index)

    def _index(self, examples: Sequence[int]) -> Tensor:
        return sent(torch.tensor(examples), self.device)

    def examples_of(self, index: Tensor) -> tuple[Tree, Tree]:
        """Inputs [B, ...] and targets [B, ...] of these training examples."""
        return self.gather(index), self.gather_targets(index)

    def gather(self, index: Tensor, lanes: int | None = None) -> Tree:
        """Inputs of the indexed examples: [B, ...] for index [B]; [l, B, ...] for l lanes and index [l * B].

        Images come as a [..., B, C, H, W] view in channels-last format.
        """
        inputs = trees.mapped(lambda tensor: tensor.index_select(0, index), self.inputs)
        if lanes is not None:
            inputs = trees.mapped(lambda tensor: tensor.unflatten(0, (lanes, -1)), inputs)
        return self.as_model_wants(inputs)

    def gather_targets(self, index: Tensor) -> Tree:
        """Targets [B, ...] of the indexed training examples [B]."""
        return trees.mapped(lambda tensor: tensor.index_select(0, index), self.targets)

    def as_model_wants(self, inputs: Tree) -> Tree:
        """Images [..., B, H, W, C] -> a [..., B, C, H, W] view in channels-last format; other inputs unchanged."""
        return inputs.movedim(-1, -3) if self.images else inputs


class AugmentedParts:
    """A `Reader` of the parts of augmented batches. The whole batch is augmented at once, so parts change nothing.

    Arguments:
        whole: the reader of whole batches.
    """

    def __init__(self, whole: Reader, parts: Sequence[slice], augment: Augment) -> None:
        self.whole, self._parts, self._augment = whole, parts, augment
        self._latest: tuple[int, Tree, Tree] | None = None

    def __call__(self, step: int, number: int) -> tuple[Tree, Tree]:
        if self._latest is None or self._latest[0] != step:
            inputs, targets = self.whole(step, 0)
            self._latest = step, self._augment(inputs, step), targets
        _, inputs, targets = self._latest
        of_part = self._parts[number]
        return trees.cloned(trees.part(inputs, of_part)), trees.cloned(trees.part(targets, of_part))


def augmentation(workload: Any, order_seed: int, device: torch.device) -> Augment | None:
    """The workload's `augment` for one trial, with a generator for each step; None if the workload has none."""
    if (augment := optional(workload, "augment")) is None:
        return None

    def augmented(inputs: Tree, step: int) -> Tree:
        key = generators.key_of("augment", order_seed, step)
        with generators.seeded(key, device):
            return augment(inputs, torch.Generator(device).manual_seed(key))

    return augmented


def in_chunks(examples: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Split a sequence of examples into chunks of at most `size`; a range into ranges."""
    return (examples[first : first + size] for first in range(0, len(examples), size))


def are_images(inputs: Tree) -> bool:
    """Whether inputs [N, C, H, W] are one tensor of images."""
    return isinstance(inputs, Tensor) and inputs.dim() == 4


def channels_last(inputs: Tensor) -> Tensor:
    """[N, C, H, W] images -> contiguous [N, H, W, C]."""
    return inputs.permute(0, 2, 3, 1).contiguous()


def placed(model: nn.Module, layout: torch.memory_format, device: torch.device | None = None) -> nn.Module:
    """The model on a device, where it is if None, with weights [O, C, H, W] in this layout. It keeps its own layout if
    one of its tensors has five axes, as of `nn.Conv3d`: torch refuses to move these to a layout of images."""
    five = any(each.dim() == 5 for each in itertools.chain(model.parameters(), model.buffers()))
    return model.to(device) if five else model.to(device, memory_format=layout)  # type: ignore[call-overload]
