"""A workload's splits, and the reading of their examples, with random numbers that depend on nothing but the reading.

Shapes: B examples in a batch, N examples in a split.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from study.data import trees
from study.data.single_pass import HEAD, SinglePass, is_stream
from study.data.trees import Tree
from study.devices import generators
from workloads.base import Splits, Workload

SPLITS_SEED = 0
"""The global generators start from it in every call of `splits()`."""

EVALUATED = 0
"""The key of evaluations: a random `__getitem__` gives an index the same example at every evaluation."""

Request = tuple[str, Sequence[int]] | tuple[str, Sequence[int], int]
"""(split, indices [B], key of the random numbers of this reading; by default EVALUATED)."""

Collate = Callable[[list[Any]], Any]
"""Examples of a data set -> (inputs [B, ...], targets [B, ...])."""


class Examples(Dataset):
    """All splits as one map-style data set, whose items are whole batches: inputs [B, ...] and targets [B, ...].

    Arguments:
        collate: joins the examples of a data set; None: torch's `default_collate`.
    """

    def __init__(self, splits: Splits, collate: Collate | None = None) -> None:
        # Loader processes read host memory, not GPU memory.
        self.splits = {
            name: trees.mapped(Tensor.cpu, split) if isinstance(split, tuple) else split
            for name, split in splits._asdict().items()
        }
        self.collate = collate or default_collate
        self._random: set[str] = set()
        """Splits whose `__getitems__` draws random numbers; their examples are read one by one."""

    def __getitem__(self, request: Request) -> tuple[Tree, Tree]:
        return self.read(*request)

    def read(self, split: str, indices: Sequence[int], key: int = EVALUATED) -> tuple[Tree, Tree]:
        """Inputs [B, ...] and targets [B, ...] of these examples; see `Request`."""
        held = self.splits[split]
        if isinstance(held, tuple):
            chosen = torch.as_tensor(indices)
            inputs, targets = (trees.part(tree, chosen) for tree in held)
            return inputs, targets
        items = self.items(split, indices, key)
        if self.collate is default_collate:  # draws no random numbers
            inputs, targets = self.collate(items)
        else:
            with generators.seeded(generators.key_of("collate", key, *indices)):
                inputs, targets = self.collate(items)
        return inputs, targets

    def items(self, split: str, indices: Sequence[int], key: int = EVALUATED) -> list[Any]:
        """Examples of a data set as it gives them, each with the random numbers of its index, whatever is read beside
        it. The global generators are put back."""
        with generators.restored():
            return self._items(split, self.splits[split], list(indices), key)

    def _items(self, split: str, held: Any, indices: list[int], key: int) -> list[Any]:
        if hasattr(held, "__getitems__") and split not in self._random:
            generators.seed(key)
            before = generators.states()
            fetched = held.__getitems__(indices)
            if generators.states() == before:
                return fetched
            self._random.add(split)
        found = []
        for index in indices:
            generators.seed(generators.key_of(key, index))
            try:
                found.append(held[index])
            except Exception as error:
                error.add_note(f"(in example {index} of the {split} split)")
                raise
        return found

    def count(self, split: str) -> int:
        """Number of examples of a split."""
        held = self.splits[split]
        return trees.count(held[1]) if isinstance(held, tuple) else len(held)

    def reach(self, split: str) -> int:
        """Number of its first examples that can be read by index: of a stream only some, otherwise all."""
        held = self.splits[split]
        return held.reach if isinstance(held, SinglePass) else self.count(split)


def splits_of(workload: Workload) -> Splits:
    """The workload's splits on the CPU: equal in every process if they draw only from the global generators.

    A training split that is a stream becomes a `SinglePass`.
    """
    with generators.seeded(SPLITS_SEED):
        splits = workload.splits(torch.device("cpu"))
        if not isinstance(splits, Splits) or not is_stream(splits.train):
            return splits  # the check before a sweep judges it
        examples = min(workload.train_examples, operator.length_hint(splits.train, workload.train_examples))
        val = next(iter(trees.leaves(splits.val)), ()) if isinstance(splits.val, tuple) else splits.val
        reach = max(HEAD, operator.length_hint(val))
        return splits._replace(train=SinglePass(splits.train, examples, reach))
