"""Examples from token shards: windows of T + 1 tokens, as inputs and their next tokens.

Shapes: D documents, N windows, T tokens of context, B windows that are read at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from workloads.base import IGNORED
from workloads.data.datasets import permutation
from workloads.data.text.shards import Shard

CHUNK = 4096
"""Windows that are read at once into tensors."""


@dataclass(frozen=True)
class Parts:
    """Numbers of the documents of each split, int64, in the order in which windows are cut."""

    train: NDArray[np.int64]
    val: NDArray[np.int64]
    test: NDArray[np.int64]


def part(sizes: NDArray[np.int64], least: int, split_seed: int) -> Parts:
    """Divide documents: one permutation gives validation, then test, then training documents.

    Arguments:
        sizes: of each document [D].
        least: size of the validation documents together, and of the test documents.

    Raises:
        ValueError: nothing would be left for training; the message states the sizes.
    """
    order = permutation(len(sizes), split_seed)
    ends = np.cumsum(sizes[order])
    first = int(np.searchsorted(ends, least)) + 1
    second = int(np.searchsorted(ends, (ends[first - 1] if first <= len(ends) else 0) + least)) + 1
    if second >= len(order):
        raise ValueError(f"{2 * least:,} of {ends[-1]:,} in {len(order)} documents")
    return Parts(order[second:], order[:first], order[first:second])


class Windows(Dataset):
    """The windows of some documents, read from the shard when they are asked for.

    Packed, the documents follow each other in one stream, each with its end, which is cut into windows that do not
    overlap; the last T or fewer tokens are left out. Otherwise each document has one window: its first T + 1 tokens,
    padded with ends whose targets are -100.

    Arguments:
        documents: their numbers, in the order of the stream.
        context: T.
        most: number of windows that are kept, the first ones of `total`.
        spread: keep windows at even distances instead, from all documents.
        padding: the token that pads.
    """

    def __init__(
        self,
        shard: Shard,
        documents: NDArray[np.int64],
        context: int,
        packed: bool,
        most: int,
        spread: bool,
        padding: int,
    ) -> None:
        starts, lengths = shard.offsets[documents], shard.offsets[documents + 1] - shard.offsets[documents]
        ends = np.cumsum(lengths) if packed else np.arange(1, len(documents) + 1) * (context + 1)
        self.total = int(ends[-1]) // (context + 1)
        self.count = min(most, self.total)
        self.among = self.total if spread else self.count
        held = int(np.searchsorted(ends, self.among * (context + 1))) + 1  # documents that the kept windows reach
        self.tokens, self.context, self.packed, self.padding = shard.tokens, context, packed, padding
        self.starts, self.lengths, self.ends = starts[:held], lengths[:held], ends[:held]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        return list(zip(*self.read(np.asarray(indices, dtype=np.int64)), strict=True))

    def read(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these windows, int64 [B, T] each."""
        if len(indices) and not -1 < indices.min() <= indices.max() < self.count:
            raise IndexError(f"windows are numbered 0 to {self.count - 1}, but got {indices.tolist()}")
        width = self.context + 1
        places = (indices * self.among // self.count)[:, None] * width + np.arange(width)
        document = np.searchsorted(self.ends, places, side="right")
        begins = self.ends - (self.lengths if self.packed else width)
        within = places - begins[document]
        inside = within < self.lengths[document]
        found = self.tokens[self.starts[document] + np.where(inside, within, 0)].astype(np.int64)
        inputs = torch.from_numpy(np.where(inside, found, self.padding))
        targets = torch.from_numpy(np.where(inside, found, IGNORED))
        return inputs[:, :-1].contiguous(), targets[:, 1:].contiguous()

    def tensors(self, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """Inputs and targets of all windows, int64 [N, T] each."""
        inputs, targets = torch.empty(2, self.count, self.context, dtype=torch.int64)
        for start in range(0, self.count, CHUNK):
            chunk = slice(start, min(start + CHUNK, self.count))
            inputs[chunk], targets[chunk] = self.read(np.arange(chunk.start, chunk.stop))
        return inputs.to(device), targets.to(device)
