"""The order of the training examples, a pure function of (seed, step).

Batches are consecutive slices of concatenated per-epoch permutations. A batch may straddle two epochs, and every
update sees exactly B examples; under a batch-size schedule, as many as its phase has.
"""

from __future__ import annotations

import hashlib
import itertools

import torch
from torch import Tensor

from analysis.question.phases import Phases
from study.devices.memory import sent


class Batches:
    """The batches of one trial, each of B = `batch_size` out of N = `examples` training examples.

    Any step can be asked for at any time. Only the permutations of the latest batch stay in memory.

    Arguments:
        phases: of a batch size that changes; B is then that of one phase. None: it does not change.
    """

    def __init__(
        self, seed: int, examples: int, batch_size: int, device: torch.device, phases: Phases | None = None
    ) -> None:
        if not 1 <= batch_size <= examples:
            raise ValueError(f"`1 <= batch_size <= {examples}` (examples) must hold, but got {batch_size}.")
        self.seed, self.examples, self.batch_size, self.device = seed, examples, batch_size, device
        self.phases = phases or Phases((0,), (batch_size,), 0)
        self._epochs: dict[int, Tensor] = {}

    def __call__(self, step: int) -> Tensor:
        """Indices [b] of the examples of update number `step`, counted from 0; b: its batch size."""
        return self.range(step, 1)[0]

    def range(self, step: int, count: int) -> Tensor:
        """The indices [count, b] of `count` consecutive updates of one batch size."""
        size, place = self.phases.size(step), self.place(step)
        pieces, end = [], place + count * size
        while place < end:
            epoch, offset = divmod(place, self.examples)
            pieces.append(self._permutation(epoch)[offset : offset + end - place])
            place += len(pieces[-1])
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).view(count, size)

    def place(self, step: int) -> int:
        """The number of examples in all updates before number `step`."""
        return self.phases.examples(step)

    def on(self, device: torch.device) -> Batches:
        """The same batches with indices on another device."""
        return Batches(self.seed, self.examples, self.batch_size, device, self.phases)

    def _permutation(self, epoch: int) -> Tensor:
        if epoch not in self._epochs:
            # A batch that straddles two epochs also reads the previous one, but no older one.
            self._epochs = {e: p for e, p in self._epochs.items() if e == epoch - 1}
            self._epochs[epoch] = sent(epoch_permutation(self.seed, epoch, self.examples), self.device)
        return self._epochs[epoch]


def places(batch_size: int, devices: int, micro_batch: int | None = None, together: int = 1) -> list[list[slice]]:
    """For each device, its micro-batches as slices of the global batch.

    Global batch = devices x per-device batch x accumulation steps. If a division leaves a remainder, parts differ in
    size. If the batch has fewer groups than devices, the list is shorter than `devices`.

    Arguments:
        micro_batch: most examples in one forward pass; None: the whole share of a device.
        together: size of the groups of consecutive examples that stay in one slice; the remainder joins the last group.

    >>> places(10, devices=2, micro_batch=3)
    [[slice(0, 3, None), slice(3, 5, None)], [slice(5, 8, None), slice(8, 10, None)]]
    """
    groups = max(1, batch_size // together)
    edges = [together * group for group in range(groups)] + [batch_size]
    most = groups if micro_batch is None else max(1, micro_batch // together)
    devices = min(devices, groups)
    bounds = [groups * device // devices for device in range(devices + 1)]
    found = [
        [slice(edges[first], edges[min(first + most, stop)]) for first in range(start, stop, most)]
        for start, stop in itertools.pairwise(bounds)
    ]
    assert sum(part.stop - part.start for parts in found for part in parts) == batch_size
    return found


def epoch_permutation(seed: int, epoch: int, examples: int) -> Tensor:
    """The order of one epoch: a permutation of range(examples), int64 [N]. The CPU draws it: equal on all devices."""
    # Hash the pair: generators with neighbouring seeds are not guaranteed to be independent.
    digest = hashlib.sha256(f"{seed}:{epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.randperm(examples, generator=generator)
