"""The numbers behind statements: ratios of critical batch sizes, and slopes against the batch size.

Shapes: n points of a line.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from analysis.claims.evidence import Curve
from analysis.claims.statement import Statement
from analysis.estimates import limits, tuned
from analysis.tables.scaling import CRITICAL

SAME = 2.0
"""Batch sizes within this factor, one step of the usual grid of batch sizes, are the same."""
EQUAL = 1.5
"""Steps within this factor, which a default sweep of five batch sizes can show, are equal."""
FEWEST = 4
"""The fewest points of a slope."""


class Line(NamedTuple):
    """The slope of a line, its standard error, and the degrees of freedom of the error."""

    slope: float
    error: float
    free: int

    def statement(self, subject: str, quantity: str, floor: float = -np.inf, ceiling: float = np.inf) -> Statement:
        """The slope as a statement whose range is between floor and ceiling.

        >>> Line(0.5, 0.1, 9).statement("digits", "slope", floor=0.0).text
        'digits: slope 0.500 (95%: 0.274 to 0.726), claimed above 0'
        """
        ends = self.slope, np.nan, np.nan
        made = Statement(subject, quantity, *ends, floor, ceiling, log=False, free=self.free, by_trials=True)
        half = tuned.half_width(self.error, self.free)
        return made._replace(low=float(self.slope - half), high=float(self.slope + half))


def line(x: Sequence[float], y: Sequence[float], errors: Sequence[float] | None = None) -> Line | None:
    """The least-squares line through points [n]; None with fewer than FEWEST.

    Arguments:
        errors: standard errors of y [n], which weigh the points; the error of the slope is then never less than they
            say, and grows with the scatter about the line.

    >>> [round(number, 3) for number in line([0, 1, 2, 3], [0.0, 1.1, 1.9, 3.0])]
    [0.98, 0.042, 2]
    """
    known = np.isfinite(x) & np.isfinite(y)
    if known.sum() < FEWEST or np.ptp(np.asarray(x)[known]) == 0:
        return None
    at, value = np.asarray(x, dtype=float)[known], np.asarray(y, dtype=float)[known]
    weights = np.ones(len(at)) if errors is None else 1 / np.asarray(errors, dtype=float)[known] ** 2
    centred = at - np.average(at, weights=weights)
    squares = (weights * centred**2).sum()
    slope = (weights * centred * value).sum() / squares
    rest = value - np.average(value, weights=weights) - slope * centred
    scatter = (weights * rest**2).sum() / (len(at) - 2)
    return Line(float(slope), float(np.sqrt(max(scatter, 0.0 if errors is None else 1.0) / squares)), len(at) - 2)


def has_critical(curve: Curve) -> bool:
    """True if the critical batch size of a curve is an estimate or a bound.

    >>> from analysis.gallery import gather
    >>> [has_critical(curve) for curve in gather.one(published).curves]
    [True, True]
    """
    return CRITICAL in curve.limits.index and bool(np.isfinite(curve.limits.loc[CRITICAL, "estimate"]))


def critical_ratio(
    one: Curve, other: Curve, subject: str, floor: float = 0.0, ceiling: float = np.inf, inside: bool = True
) -> Statement:
    """The critical batch size of one curve over that of another.

    >>> from analysis.gallery import gather
    >>> evidence = gather.one(published)
    >>> momentum, sgd = evidence.curves
    >>> critical_ratio(momentum, sgd, "momentum over sgd", floor=1.0).text
    'momentum over sgd: ratio of critical batch sizes 1.69 (95%: 1.20 to 2.38), claimed above 1'
    """
    found = limits.ratio(one.limits.loc[CRITICAL], other.limits.loc[CRITICAL])
    return Statement.of(subject, "ratio of critical batch sizes", found, floor=floor, ceiling=ceiling, inside=inside)


def log_error(curve: Curve) -> float:
    """The standard error of the log of the critical batch size; NaN if its interval is open.

    >>> from analysis.gallery import gather
    >>> evidence = gather.one(published)
    >>> [round(log_error(curve), 2) for curve in evidence.curves]
    [0.15, 0.08]
    """
    low, high = (float(curve.limits.loc[CRITICAL, f"estimate_{end}"]) for end in ("low", "high"))
    if not (low > 0 and np.isfinite(high)) or curve.limits.loc[CRITICAL, "estimate_bound"] != "=":
        return np.nan
    return float(np.log(high / low) / 2 / tuned.half_width(1.0, tuned.NORMAL))
