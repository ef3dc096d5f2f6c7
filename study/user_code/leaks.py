"""Finds examples of a split that are training examples, too, and windows that overlap with training windows.

Shapes: N examples in a split, B examples in a batch, T steps of a window, K consecutive steps of it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from study.data import trees
from study.data.digest import spaced
from study.data.examples import Examples
from study.data.single_pass import alike
from study.data.trees import Tree

COLUMNS = 64
"""Most numbers of each tensor of an example by which it is compared with others."""
ROWS = 2**16
"""Examples that are hashed at once, which takes several times their memory."""
CHANCE = 5
"""Examples of a split that may equal training examples beyond twice as many as by chance."""
WINDOWS, STEPS = 64, 2**20
"""Windows of a split that are compared, and steps of training windows that they are compared with."""
ITEMS = 2**14
"""Most of them that are read one by one."""
REAL, WHOLE = 8, 32
"""K, the steps at each end of a window that are compared: of real numbers, and of whole ones such as tokens."""
DISTINCT = 6
"""Fewest different steps among them: constant stretches are alike everywhere."""
MANY = 0.2
"""Share of overlapping windows that is no accident of the data."""


def of_split(workload: str, examples: Examples, name: str) -> str | None:
    """A note if a split holds training examples, or windows of a series that overlap with training windows."""
    if count := _shared(examples, name):
        return (
            f"{count:,} of {examples.count(name):,} examples in the {name} split of {workload} are in its "
            f"training split, too, so {name}/ errors are partly those of training; if this is not meant, look at how "
            "it is split."
        )
    if _overlaps(examples, name):
        return (
            f"windows in the {name} split of {workload} overlap at both ends with training windows, so {name}/ errors "
            "are partly those of training; if this is not meant, cut the series into splits before its windows."
        )
    return None


def _overlaps(examples: Examples, name: str) -> bool:
    """Whether the first and the last steps of many windows are elsewhere in training windows. After a split in time,
    training windows share one end at most."""
    split = examples.splits[name]
    if isinstance(split, tuple) and not _is_dense(split):
        return False
    if _steps(examples.read(name, [0])[0]) is None:  # other items may take long to read
        return False
    chosen = spaced(examples.count(name), WINDOWS)
    own = _steps(inputs := examples.read(name, chosen)[0])
    are_whole = (not leaf.is_complex() and bool((leaf.double() % 1 == 0).all()) for leaf in trees.leaves(inputs))
    size = WHOLE if all(are_whole) else REAL
    if own is None or own.shape[1] <= size:
        return False
    least, ends = MANY * len(own), torch.stack([own[:, :size], own[:, -size:]])
    overlap = ((ends.sort(2).values.diff(dim=2) != 0).sum(2) + 1 >= DISTINCT).all(0)  # windows that may overlap, so far
    if overlap.sum() <= least or not (others := _compared(examples, name, chosen, own.shape[1])):
        return False
    train = _steps(examples.read("train", others)[0])
    if train is None or train.shape[1] <= size:
        return False
    stretches, training = _stretches(own, size), _stretches(train, size)
    overlap &= torch.isin(stretches[:, 0], training[:, 1:])
    if overlap.sum() > least:
        overlap &= torch.isin(stretches[:, -1], training[:, :-1])
    return bool(overlap.sum() > least)


def _is_dense(tree: Tree) -> bool:
    return all(leaf.layout == torch.strided for leaf in trees.leaves(tree))


def _steps(inputs: Tree) -> Tensor | None:
    """A hash of each step [N, T] of windows [N, T], [N, T, ...] or [N, ..., T], with T the longest axis; None of other
    inputs."""
    leaves = [each for each in trees.leaves(inputs) if each.dim() in (2, 3)]
    if not leaves or (length := max(leaves[0].shape[1:])) <= REAL:
        return None
    along = [each.movedim(each.shape.index(length, 1), 1) for each in leaves if length in each.shape[1:]]
    return _hashed([each.flatten(0, 1) for each in along]).view(-1, length)


def _stretches(steps: Tensor, size: int) -> Tensor:
    """A hash of each K = `size` consecutive steps [N, T - K + 1]."""
    factors = torch.randint(2**62, (size,), generator=torch.Generator().manual_seed(1)) * 2 + 1
    count = steps.shape[1] - size + 1
    total = torch.zeros(len(steps), count, dtype=torch.int64)
    for place, factor in enumerate(factors):
        total += steps[:, place : place + count] * factor
    return total


def _compared(examples: Examples, name: str, chosen: Sequence[int], length: int) -> list[int]:
    """Training examples that may overlap with the chosen examples: of one data set their neighbours, of data in memory
    some at random; none of others."""
    (train, train_numbers), (own, numbers) = (_indexed(examples.splits[each]) for each in ("train", name))
    if isinstance(train, tuple | TensorDataset) or train is list:
        most = STEPS // length if isinstance(train, tuple) else min(ITEMS, STEPS // length)
        return torch.randperm(examples.count("train"), generator=torch.Generator().manual_seed(0))[:most].tolist()
    if isinstance(own, tuple) or not _same_items(train, own):
        return []
    order = np.argsort(train_numbers)
    places = np.searchsorted(np.asarray(train_numbers)[order], [numbers[index] for index in chosen])
    return sorted({int(order[each]) for place in places for each in (place - 1, place) if 0 <= each < len(order)})


def _shared(examples: Examples, name: str) -> int:
    """The number of examples of a split that are training examples, too: the same items of one data set, or equal rows
    of tensors, unless training examples equal each other about as often, as discrete ones do."""
    (train, train_numbers), (own, numbers) = (_indexed(examples.splits[each]) for each in ("train", name))
    if not isinstance(own, tuple) and _same_items(train, own):
        again = [examples.items(name, [0], key) for key in (0, 1)]
        return len({*train_numbers} & {*numbers}) if alike(*again) else 0  # random examples are others at each reading
    train_hashes, hashes = _hashes(train, train_numbers), _hashes(own, numbers)
    if train_hashes is None or hashes is None:
        return 0
    _, copies = train_hashes.unique(return_counts=True)
    by_chance = float(copies[copies > 1].sum()) / len(train_hashes) * len(hashes)
    count = int(torch.isin(hashes, train_hashes).sum())
    return count if count > 2 * by_chance + CHANCE else 0


def _indexed(split: Any) -> tuple[Any, Sequence[int]]:
    """The data set below a split and its subsets, and the numbers of its items; for a list, their identities."""
    numbers: Sequence[int] = () if isinstance(split, tuple) else range(len(split))
    while isinstance(split, Subset):
        numbers, split = [int(split.indices[number]) for number in numbers], split.dataset
    if type(split) is list:
        return list, [id(split[number]) for number in numbers if not isinstance(split[number], str | int | float)]
    return split, numbers


def _same_items(one: Any, other: Any) -> bool:
    """Whether two data sets hold the same items, as two of one folder do that differ in their transforms alone."""
    if one is other or type(one) is not type(other) or isinstance(one, TensorDataset):
        return one is other
    attributes, others = (getattr(each, "__dict__", {}) for each in (one, other))
    plain = [key for key, value in attributes.items() if isinstance(value, str | Path | int | float)]
    lists = [key for key, value in attributes.items() if _distinct(value, len(one))]
    return bool(lists) and all(_equal(attributes[key], others.get(key)) for key in (*plain, *lists))


def _distinct(value: Any, count: int) -> bool:
    """Whether this holds something else for most examples of a data set, such as files, rather than labels."""
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim > 1 and len(value) == count
    if not isinstance(value, list | tuple) or len(value) != count:
        return False
    some = value[:: -(-count // 1000)]
    return 2 * len({*map(str, some)}) > len(some)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor | np.ndarray):
        return alike(one, other)
    try:
        return bool(one == other)
    except Exception:  # lists of tensors have no single answer
        return False


def _hashes(source: Any, numbers: Sequence[int]) -> Tensor | None:
    """A hash of each example in tensors [N]; None for other data sets, and for sparse tensors. It has no rounding: sums
    of integers."""
    rows = source.tensors if isinstance(source, TensorDataset) else source
    if not isinstance(rows, tuple) or not _is_dense(rows):
        return None
    parts = (trees.part(rows, slice(at, at + ROWS)) for at in range(0, trees.count(rows), ROWS))
    hashes = torch.cat([_hashed(trees.leaves(part)) for part in parts])
    return hashes[torch.as_tensor(numbers)] if isinstance(source, TensorDataset) else hashes


def _hashed(leaves: Sequence[Tensor]) -> Tensor:
    """A hash of each row [B] of tensors [B, ...]."""
    generator, total = torch.Generator().manual_seed(0), torch.zeros(len(leaves[0]), dtype=torch.int64)
    for leaf in leaves:
        real = torch.view_as_real(leaf) if leaf.is_complex() else leaf
        flat = real.flatten(1) if real.dim() > 1 else real.unsqueeze(1)
        bits = flat[:, :: -(-flat.shape[1] // COLUMNS) or 1].cpu().double().contiguous().view(torch.int64)
        factors = torch.randint(2**62, bits.shape[1:], generator=generator) * 2 + 1
        total += ((bits ^ (bits >> 32)) * factors).sum(1)
    return total
