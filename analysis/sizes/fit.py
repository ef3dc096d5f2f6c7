"""A power law of the critical batch size, B_crit = a N^b, in the size N of the model or the data (Zhang et al. 2024).

Shapes: M sizes.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtrc, stdtrit

from analysis.sizes.columns import check_confidence, check_positive, columns

NORMAL = 10**9
"""Degrees of freedom at which Student's t is normal."""
SCATTERED = 0.05
"""If intervals explain the scatter of critical batch sizes with less than this probability, it gives the error."""


class PowerLaw(NamedTuple):
    """A fitted power law B_crit = coefficient N^exponent.

    Attributes:
        exponent: b, with the ends of its interval; NaN with two sizes and no intervals of their own.
        coefficient: a, the critical batch size at N = 1 [examples].
        centre: the size at which the law is known best, where errors of level and exponent are independent.
        at_centre: the critical batch size there.
        centre_half, exponent_half: half of the intervals of log at_centre and of the exponent.
        weighted: each critical batch size counts by its interval; else all count alike.
        residual: root mean square of log B_crit about the law, per degree of freedom; NaN with two sizes.
        points: M.
    """

    exponent: float
    low: float
    high: float
    coefficient: float
    centre: float
    at_centre: float
    centre_half: float
    exponent_half: float
    weighted: bool
    residual: float
    points: int

    def predict(self, size: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(the critical batch size at other sizes, and the ends of the interval of the law there).

        The interval is that of the law. A single measurement scatters about it, by `residual` on its logarithm.

        Raises:
            ValueError: a size is not above 0.

        >>> law = power_law([1, 10, 100, 1000], [20, 65, 190, 640])
        >>> [round(float(each)) for each in law.predict(10_000)]
        [1973, 1588, 2451]
        """
        sizes = np.asarray(size, dtype=float)
        check_positive(sizes=sizes.ravel())
        away = np.log(sizes / self.centre)
        value = self.at_centre * np.exp(self.exponent * away)
        half = np.sqrt(self.centre_half**2 + (self.exponent_half * away) ** 2)
        return value, value * np.exp(-half), value * np.exp(half)


def power_law(
    sizes: Iterable[Any],
    critical: Iterable[Any],
    low: Iterable[Any] | None = None,
    high: Iterable[Any] | None = None,
    confidence: float = 0.95,
) -> PowerLaw:
    """Fit B_crit = a N^b by least squares of log B_crit on log N.

    With 95 % intervals of all critical batch sizes, each counts by the inverse square of its half-width on a log scale
    (of the wider side; of the only one if an end is open). The intervals of the law then follow from these widths by
    the normal distribution, unless the points scatter more than the widths explain (chi-squared, p < 0.05). Then, and
    without intervals, they follow from the residuals by Student's t with M - 2 degrees of freedom.

    Arguments:
        sizes: N of the model or the data, in any unit [M]; one may come more than once.
        critical: critical batch sizes [M]; those that are not finite are left out. Bounds are no values: make them NaN.
        low, high: ends of 95 % intervals [M]; 0, infinite or NaN where an end is open.

    Raises:
        ValueError: there are fewer than two sizes, a value is not above 0, an interval is upside down, or the columns
            have different lengths.

    >>> law = power_law([1, 10, 100, 1000], [20, 65, 190, 640])
    >>> round(law.exponent, 3), round(law.low, 2), round(law.high, 2), round(law.coefficient, 1)
    (0.498, 0.46, 0.53, 20.1)
    >>> power_law([1, 10, 100], [20, 65, 190], low=[18, 60, 80], high=[22, 70, 450]).weighted
    True
    """
    check_confidence(confidence)
    n, b = columns(sizes=sizes, critical=critical)
    check_positive(sizes=n, critical=b)
    ends = None if low is None or high is None else columns(critical=b, low=low, high=high)[1:]
    if ends is not None and (ends[0] > ends[1]).any():
        at = int(np.argmax(ends[0] > ends[1]))
        raise ValueError(f"low <= high must hold, but got low={ends[0][at]:g}, high={ends[1][at]:g}.")
    kept = np.isfinite(n) & np.isfinite(b)
    if len(np.unique(n[kept])) < 2:
        raise ValueError(f"a power law needs two sizes with a critical batch size, but got {n[kept]}.")
    errors = None if ends is None else log_errors(b[kept], ends[0][kept], ends[1][kept])
    return _fitted(np.log(n[kept]), np.log(b[kept]), errors, confidence)


def _fitted(x: np.ndarray, y: np.ndarray, errors: np.ndarray | None, confidence: float) -> PowerLaw:
    """The line through log sizes and log critical batch sizes [M]; `errors`: standard errors of the latter [M]."""
    weights = np.ones(len(x)) if errors is None else errors**-2
    centre, level = np.average(x, weights=weights), np.average(y, weights=weights)
    squares = (weights * (x - centre) ** 2).sum()
    exponent = float((weights * (x - centre) * (y - level)).sum() / squares)
    left, spare = y - level - exponent * (x - centre), len(x) - 2
    quantile = _quantile((weights * left**2).sum(), spare, errors is not None, confidence)
    centre_half, exponent_half = (quantile / np.sqrt([weights.sum(), squares])).tolist()
    return PowerLaw(
        exponent=exponent,
        low=exponent - exponent_half,
        high=exponent + exponent_half,
        coefficient=float(np.exp(level - exponent * centre)),
        centre=float(np.exp(centre)),
        at_centre=float(np.exp(level)),
        centre_half=centre_half,
        exponent_half=exponent_half,
        weighted=errors is not None,
        residual=float(np.sqrt((left**2).sum() / spare)) if spare else np.nan,
        points=len(x),
    )


def _quantile(scatter: float, spare: int, known: bool, confidence: float) -> float:
    """The half-width of an interval in units of the standard error that weights alone give.

    Arguments:
        scatter: the weighted sum of squared residuals.
        spare: degrees of freedom.
        known: weights are those of known errors.
    """
    normal, by_residual = (
        float(stdtrit(free, (1 + confidence) / 2)) if free else np.nan for free in (NORMAL, max(spare, 0))
    )
    explained = spare == 0 or float(chdtrc(spare, scatter)) >= SCATTERED
    return normal if known and explained else by_residual * np.sqrt(scatter / spare) if spare else np.nan


def log_errors(critical: np.ndarray, low: ArrayLike | None, high: ArrayLike | None) -> np.ndarray | None:
    """Standard errors of log critical batch sizes from 95 % intervals [M]; None if one of them has no end.

    Arguments:
        critical: [M].
        low, high: as in `power_law`.

    >>> log_errors(np.array([64.0, 100.0]), [32, 0], [128, 200]).round(3)
    array([0.354, 0.354])
    >>> log_errors(np.array([64.0, 100.0]), [32, 0], [128, np.inf]) is None
    True
    """
    if low is None or high is None:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        sides = np.log([critical / np.asarray(low, dtype=float), np.asarray(high, dtype=float) / critical])
    sides[~np.isfinite(sides)] = -np.inf
    widest = sides.max(0)
    if not (np.isfinite(widest) & (widest > 0)).all():
        return None
    return widest / float(stdtrit(NORMAL, 0.975))
