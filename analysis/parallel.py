"""Apply a function to many items in several processes."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from joblib import Parallel, cpu_count, delayed

Item = TypeVar("Item")
Result = TypeVar("Result")
MOST = 4
"""The most processes; each needs about 200 MB for the libraries."""

# From a thread of joblib, which then starts another process. An error would end that thread, and all would wait.
warnings.filterwarnings("ignore", "A worker stopped while some jobs were given to the executor", UserWarning)


def spread(function: Callable[[Item], Result], items: Sequence[Item], if_at_least: int, size: int) -> Iterator[Result]:
    """Apply `function` to each item; the results in order, when they are asked for: meanwhile this process is free.

    Arguments:
        if_at_least: the size from which several processes pay for their start (2 s); smaller work runs in this one.
        size: the size of the work, in the same unit.

    >>> list(spread(abs, [-1, 2], if_at_least=10, size=2))
    [1, 2]
    """
    jobs = min(MOST, cpu_count()) if size >= if_at_least else 1
    # Each item goes to one process: files to share its arrays would only be hashed and written for nothing.
    return Parallel(n_jobs=jobs, max_nbytes=None, return_as="generator")(delayed(function)(item) for item in items)
