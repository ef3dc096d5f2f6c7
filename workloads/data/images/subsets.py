"""Which images belong to which split, and which classes are kept: nested choices by fixed permutations."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.data.datasets import check_count, permutation

Numbers = NDArray[np.int64]
"""Numbers of images in a part, or of classes."""


@dataclass(frozen=True)
class Asked:
    """The numbers of training and validation examples, and the seed of the split."""

    train: int
    validation: int
    split_seed: int


def chosen_classes(total: int, count: int | None) -> Numbers:
    """The classes that are kept, in their order; None: all. Fewer are some of the more, whatever the split seed."""
    if count is None:
        return np.arange(total)
    check_count("workload.class_count", count, total, f"there are {total} classes")
    return np.sort(permutation(total, seed=0)[:count])


def renumbered(total: int, classes: Numbers) -> Numbers:
    """The number of each class [total] among those that are kept; -1: it is not."""
    number = np.full(total, -1)
    number[classes] = np.arange(len(classes))
    return number


def divided(kept: Mapping[str, Numbers], asked: Asked, where: str) -> dict[str, tuple[str, Numbers]]:
    """Split -> its part and the numbers of its images there; see `workloads.data.images.splits`.

    Arguments:
        kept: the images of each part that may be taken: `train` or `all`, and `val` and `test` if they are there.
        where: the folder, for messages.
    """
    pool = "train" if "train" in kept else "all"
    source = "val" if "val" in kept else pool
    tested = "test" in kept
    order = {part: kept[part][permutation(len(kept[part]), asked.split_seed)] for part in (pool, source)}
    validation = asked.validation
    apart = source != pool
    shares = 1 if apart or tested else 2
    spare = 0 if apart and tested else 1
    least = {(True, False): " (one is left for the test set)", (False, False): " (as many are the test set)"}
    why = f"{where} has {len(order[source]):,} for it{least.get((apart, tested), '')}"
    check_count("workload.validation_examples", validation, (len(order[source]) - spare) // shares, why)
    taken = 0 if apart else shares * validation
    why = f"{where} has {len(order[pool]):,} for training" + (f", less {taken:,} held out" if taken else "")
    check_count("workload.train_examples", asked.train, len(order[pool]) - taken, why)
    rest = order[source][validation : None if apart else taken]
    return {
        "train": (pool, order[pool][taken:][: asked.train]),
        "val": (source, order[source][:validation]),
        "test": ("test", kept["test"]) if tested else (source, rest),
    }
