"""The critical batch size at one checkpoint, from the losses of branches at several batch sizes (Merrill et al. 2025).

Shapes: S seeds; K batch sizes.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95


class Excess(NamedTuple):
    """By how much the loss at a batch size is beyond what the tolerance allows, as a share of the small batch's loss.

    Attributes:
        loss: mean loss over the seeds; infinite if a branch diverged.
        excess: mean of (loss - small batch's loss) / mean loss of the small batch, less the tolerance.
        low, high: its interval. Without finite losses, both are infinite.
    """

    loss: float
    excess: float
    low: float
    high: float


class Critical(NamedTuple):
    """The critical batch size at one checkpoint.

    Attributes:
        batch_size: the largest batch size below `high` whose mean loss is within the tolerance.
        low: the largest batch size up to which the losses are within the tolerance for certain.
        high: the smallest batch size whose loss is beyond the tolerance for certain; infinite if none is.
        bound: `>` if this is the largest batch size that was tried, `<` if it is the smallest, else `=`.
    """

    batch_size: int
    low: float
    high: float
    bound: str


def excess(losses: np.ndarray, small: np.ndarray, tolerance: float) -> Excess:
    """Compare the losses of one batch size with those of the smallest, seed by seed.

    The interval is Student's with S - 1 degrees of freedom: branches with the same seed see the same examples in the
    same order, so that differences vary less than losses.

    Arguments:
        losses, small: [S] of the same seeds, after the same number of examples; infinite where a branch diverged.
        tolerance: share of the small batch's mean loss.

    >>> found = excess(np.array([1.03, 1.05, 1.04]), np.array([1.0, 1.02, 1.0]), tolerance=0.01)
    >>> [round(float(value), 3) for value in found]
    [1.04, 0.023, 0.009, 0.037]
    """
    scale = abs(float(np.mean(small)))
    if not np.isfinite(losses).all() or not np.isfinite(scale):
        return Excess(np.inf, np.inf, np.inf, np.inf)
    over = (losses - small) / scale - tolerance
    free = len(over) - 1
    half = float(stdtrit(free, (1 + CONFIDENCE) / 2) * np.std(over, ddof=1) / np.sqrt(len(over)))
    mean = float(np.mean(over))
    return Excess(float(np.mean(losses)), mean, mean - half, mean + half)


def critical(found: Mapping[int, Excess]) -> Critical:
    """The critical batch size from the comparison at each batch size, the smallest among them.

    >>> rows = {8: (1.0, -0.01, -0.01, -0.01), 16: (1.0, -0.01, -0.02, 0.0), 32: (1.02, 0.01, -0.01, 0.03)}
    >>> critical({size: Excess(*row) for size, row in rows.items()})
    Critical(batch_size=16, low=16.0, high=inf, bound='=')
    >>> critical({8: Excess(*rows[8]), 64: Excess(1.3, 0.3, 0.2, 0.4)})
    Critical(batch_size=8, low=8.0, high=64.0, bound='<')
    """
    sizes = sorted(found)
    high = next((size for size in sizes[1:] if found[size].low > 0), np.inf)
    best = max(size for size in sizes if size == sizes[0] or (size < high and found[size].excess <= 0))
    low = next((place for place, size in enumerate(sizes) if place and found[size].high > 0), len(sizes))
    bound = ">" if best == sizes[-1] else "<" if best == sizes[0] else "="
    return Critical(best, float(sizes[low - 1]), float(high), bound)
