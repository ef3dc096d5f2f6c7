"""Curves whose steps rise with the batch size, beyond their scatter: a well-tuned larger batch needs no more steps.

The scatter about the constrained curve (`analysis.estimates.convex`) cannot judge this: it holds the rise itself. Here
each point is compared with a straight line between its neighbours.

Shapes: M batch sizes with known steps. All logarithms are natural.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.estimates import tuned
from analysis.load import CURVE

RISE = 1.3
"""A smaller rise is not named."""
ENOUGH = 5
"""The fewest batch sizes whose scatter is judged; with fewer, the intervals of the two points must lie apart."""
DRAWS = 4000
SURE = 0.975


class Rise(NamedTuple):
    """Steps at a batch size and more of them at a larger one."""

    smaller: int
    larger: int
    fewer: float
    more: float


def rise(curve: pd.DataFrame) -> Rise | None:
    """The largest rise of one curve; None if it is small or not shown.

    Arguments:
        curve: its rows from `analysis.estimates.tuned.table`.

    >>> rows = {"batch_size": [1, 4, 16, 64, 256, 1024], "steps_to_result": [900, 300, 200, 260, 500, 990]}
    >>> curve = pd.DataFrame({**rows, "read_from": "search", "low": np.nan, "high": np.nan})
    >>> rise(curve)
    Rise(smaller=16, larger=1024, fewer=200.0, more=990.0)
    >>> rise(curve.assign(steps_to_result=[900, 300, 200, 215, 190, 210]))
    """
    points = {size: steps for size, steps in sorted(tuned.points(curve).items()) if np.isfinite(steps)}
    if len(points) < 2:
        return None
    sizes, y = np.array([*points], dtype=float), np.log([*points.values()])
    rises = y - np.minimum.accumulate(y)
    last = int(rises.argmax())
    first = int(y[: last + 1].argmin())
    smaller, larger = (int(sizes[place]) for place in (first, last))
    if rises[last] < np.log(RISE) or not (_beyond_scatter(sizes, y) or _apart(curve, smaller, larger, len(sizes))):
        return None
    return Rise(smaller, larger, points[smaller], points[larger])


def withheld(limits: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Limits without the estimates of curves that rise: these come from curves that cannot.

    Arguments:
        limits, steps: from `analysis.estimates.limits.table` and `analysis.estimates.tuned.table`.

    Returns:
        `limits` with NaN in the numbers of such estimates, and with the bound `=`.

    >>> limits, steps = (pd.read_csv(f"{published}/tables/{name}.csv") for name in ("scaling", "steps_to_result"))
    >>> withheld(limits, steps)["estimate"].count() == limits["estimate"].count()
    np.True_
    """
    rising = [key for key, curve in steps.groupby(CURVE) if rise(curve) is not None]
    mine = limits.set_index(CURVE).index.isin(rising)
    numbers = [name for name in limits if name.startswith("estimate") and name != "estimate_bound"]
    return limits.assign(
        **{name: limits[name].mask(mine) for name in numbers}, estimate_bound=limits["estimate_bound"].mask(mine, "=")
    )


def _beyond_scatter(sizes: np.ndarray, y: np.ndarray) -> bool:
    """Whether curves that are flat but for noise rise so much in less than 2.5 % of cases."""
    return len(sizes) >= ENOUGH and bool(_statistic(sizes, y[None])[0] > _critical(tuple(sizes.tolist())))


def _statistic(sizes: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The largest rise of each curve over its scatter [R]; infinite without scatter.

    Arguments:
        y: log steps [R, M].
    """
    before, here, after = (np.log(sizes)[k : len(sizes) - 2 + k] for k in range(3))
    share = (after - here) / (after - before)
    off = y[:, 1:-1] - share * y[:, :-2] - (1 - share) * y[:, 2:]
    scatter = np.sqrt((off**2 / (1 + share**2 + (1 - share) ** 2)).mean(axis=1))
    rises = (y - np.minimum.accumulate(y, axis=1)).max(axis=1)
    return np.divide(rises, scatter, out=np.full(len(y), np.inf), where=scatter > 0)


@cache
def _critical(sizes: tuple[float, ...]) -> float:
    """The statistic that flat curves of these batch sizes with normal noise exceed in 2.5 % of cases."""
    noise = np.random.default_rng(0).standard_normal((DRAWS, len(sizes)))
    return float(np.quantile(_statistic(np.array(sizes), noise), SURE))


def _apart(curve: pd.DataFrame, smaller: int, larger: int, count: int) -> bool:
    """Whether the intervals of two batch sizes lie apart. Those of searches include the scatter of tuning. Those of
    fresh seeds do not: they count only with too few batch sizes for a scatter, and must lie apart by RISE."""
    by_seeds = tuned.reads_seeds(curve)
    if by_seeds and count >= ENOUGH:
        return False
    low, high = (f"tuned_{end}" if by_seeds else end for end in ("low", "high"))
    rows = curve.set_index("batch_size")
    least, most = rows[low].astype("float64")[larger], rows[high].astype("float64")[smaller]
    return bool(least > (RISE if by_seeds else 1.0) * most)
