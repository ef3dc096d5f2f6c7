"""How well a protocol answers: errors of S(B), coverage of intervals, limits of scaling, and power, over many curves.

Shapes: C simulated curves, M batch sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from analysis.estimates import limits, pairs, tuned
from analysis.load import GOAL, STUDY
from analysis.tables.scaling import Limit
from benchmarks.power.protocols import Found, Protocol
from benchmarks.power.surfaces import Surface

FACTORS = (1.0, 1.25, 1.5, 2.0, 3.0)
"""True ratios of the steps of two optimizers."""
PARTNERS = 4
"""Pairs that each curve takes part in."""
DEFINITIONS = ("critical_batch_size_mccandlish", "perfect_scaling_limit", "maximum_useful_batch_size")
NORMAL = 1.96
"""Half of a 95 % interval in standard errors, as `analysis.estimates.tuned.log_errors` states them."""


@dataclass(frozen=True)
class Curves:
    """The curves that a protocol finds on a surface, one for each search seed; each is estimated as in a report."""

    surface: Surface
    protocol: Protocol
    found: Sequence[Mapping[int, Found]]

    @classmethod
    def of(cls, surface: Surface, protocol: Protocol, seeds: Sequence[int]) -> Curves:
        """Search the surface with each seed."""
        return cls(surface, protocol, [protocol(surface, seed) for seed in seeds])

    @cached_property
    def optima(self) -> np.ndarray:
        """The tuned optimum at each batch size [M]."""
        return np.array([self.surface.optimum(size) for size in self.surface.batch_sizes])

    @cached_property
    def costs(self) -> np.ndarray:
        """Steps trained, in units of the optimum: the mean over batch sizes [C]."""
        return (
            np.array([[each.cost for each in curve.values()] for curve in self.found])
            @ (1 / self.optima)
            / len(self.optima)
        )

    @cached_property
    def tables(self) -> list[pd.DataFrame]:
        """The rows of `analysis.estimates.tuned.table` of each curve [C]."""
        key = ["power", "", 0, "", 0.0]
        steps, runs = [], []
        for number, curve in enumerate(self.found):
            for size, found in curve.items():
                mine = dict(zip([*STUDY, *GOAL], ["power", str(number), size, *key[3:]], strict=True))
                reached = None if np.isinf(found.fewest) else found.fewest
                steps.append(mine | {"steps_to_result": reached})
                runs += [mine | {"rerun": k, "steps": value} for k, value in enumerate(found.seeds)]
        columns = [*STUDY, *GOAL, "rerun", "steps"]
        made = tuned.table(pd.DataFrame(steps), pd.DataFrame(runs, columns=columns))
        return [made[made["optimizer"] == str(number)] for number in range(len(self.found))]

    @cached_property
    def log_ratios(self) -> np.ndarray:
        """log of the estimate over the optimum [C, M]; infinite where the goal was missed."""
        with np.errstate(divide="ignore"):
            return np.log([list(tuned.points(table).values()) for table in self.tables]) - np.log(self.optima)

    @cached_property
    def log_errors(self) -> np.ndarray:
        """Standard errors of the log estimates [C, M]; NaN without an interval."""
        found = [tuned.log_errors(table) for table in self.tables]
        return np.array([[errors.get(size, np.nan) for size in self.surface.batch_sizes] for errors in found])


@dataclass(frozen=True)
class Accuracy:
    """Errors of S(B) against the tuned optimum, over curves and batch sizes that reached the goal.

    Attributes:
        curves: C.
        bias, rmse: of log S(B).
        rmse_error: standard error of rmse; curves are independent, batch sizes of one curve are not.
        coverage, coverage_error: share of the intervals of the tuned optimum that hold it.
        width: the median of upper over lower end.
        cost: steps trained, in units of the optimum's steps.
        missed: estimates without a finite number of steps.
    """

    curves: int
    bias: float
    rmse: float
    rmse_error: float
    coverage: float
    coverage_error: float
    width: float
    cost: float
    missed: int


def accuracy(curves: Curves) -> Accuracy:
    """The accuracy of the curves of one protocol on one surface."""
    errors = np.ma.masked_invalid(curves.log_ratios)
    widths = np.ma.masked_invalid(np.where(errors.mask, np.nan, NORMAL * curves.log_errors))
    squares = (errors**2).mean(axis=1)
    rmse = float(np.sqrt((errors**2).mean()))
    held = (abs(errors) <= widths).mean(axis=1)
    count = len(curves.found)
    return Accuracy(
        count,
        float(errors.mean()),
        rmse,
        _standard_error(squares) / (2 * rmse),
        float(np.ma.filled(held.mean(), np.nan)),
        _standard_error(held),
        float(np.exp(2 * np.ma.filled(np.ma.median(widths), np.nan))),
        float(curves.costs.mean()),
        int(np.isinf(curves.log_ratios).sum()),
    )


def _standard_error(values: np.ma.MaskedArray) -> float:
    """Of the mean of independent values [C]."""
    known = np.ma.compressed(values)
    return float(known.std(ddof=1) / np.sqrt(len(known))) if len(known) > 1 else np.nan


@dataclass(frozen=True)
class LimitFound:
    """How a limit of scaling is estimated on a planted curve.

    Attributes:
        definition: as in scaling.csv.
        truth, bound: the limit of the planted curve itself.
        median: of the estimates.
        error: root mean square of log estimate over truth, where both are numbers; NaN if they never are.
        coverage: share of intervals that hold the truth.
        width: the median of upper over lower end.
        wrong_kind: share of estimates that are a number where the truth is a bound, or a bound where it is a number.
    """

    definition: str
    truth: float
    bound: str
    median: float
    error: float
    coverage: float
    width: float
    wrong_kind: float


def limits_found(curves: Curves) -> list[LimitFound]:
    """The estimates of each limit over the curves of one protocol on a planted surface."""
    exact = pd.DataFrame({"steps_to_result": curves.optima, "batch_size": curves.surface.batch_sizes})
    truths = limits.estimates(exact.assign(read_from=tuned.SEARCH, residual_sd=np.nan, curve_steps=curves.optima))
    made = [limits.estimates(table) for table in curves.tables]
    return [_limit(name, truths[name], [each[name] for each in made], curves) for name in DEFINITIONS]


def _limit(name: str, truth: Limit, found: Sequence[Limit], curves: Curves) -> LimitFound:
    both = [np.log(each.value / truth.value) for each in found if each.bound == truth.bound == "="]
    spans = [each.high / each.low if each.low > 0 else np.inf for each in found if not np.isnan(each.low)]
    return LimitFound(
        name,
        truth.value,
        truth.bound,
        float(np.median([each.value for each in found])),
        float(np.sqrt(np.mean(np.square(both)))) if both else np.nan,
        float(np.mean([_holds(each, truth, curves.surface.batch_sizes) for each in found])),
        float(np.median(spans)) if spans else np.nan,
        float(np.mean([each.bound != truth.bound for each in found])),
    )


def _holds(found: Limit, truth: Limit, sizes: Sequence[int]) -> bool:
    """Whether the interval holds the truth; a truth beyond an end of the batch sizes needs an interval up to there."""
    if truth.bound == ">":
        return found.bound == ">" or found.high >= sizes[-1]
    if truth.bound == "<":
        return found.bound == "<" or found.low <= sizes[0]
    return bool(found.low <= truth.value <= found.high)


@dataclass(frozen=True)
class Power:
    """How often a difference between two optimizers is shown.

    Attributes:
        factor: the true ratio of steps; at 1, what is shown is a false alarm.
        pairs: compared pairs of curves.
        over_range, at_one: shares of the statements over all batch sizes, and at one batch size, that are shown with
            the right sign (at 1: with either sign). NaN for the latter with fewer than six batch sizes.
        range_error: standard error of `over_range`.
    """

    factor: float
    pairs: int
    over_range: float
    range_error: float
    at_one: float


def power(a: Curves, b: Curves) -> list[Power]:
    """The power between the optimizers of two sets of curves, whose optima are made equal and then moved apart by each
    factor. Curves of one seed are not compared: they share points."""
    first, found = _measured(a, 1.0), []
    for factor in FACTORS:
        second = _measured(b, factor)
        made = [
            pairs.statements(one, second[(number + shift) % len(second)])
            for number, one in enumerate(first)
            for shift in range(1, PARTNERS + 1)
            if (number + shift) % len(second) != number
        ]
        found.append(_power(factor, made, len(first)))
    return found


def _power(factor: float, made: Sequence[Sequence[pairs.Statement]], curves: int) -> Power:
    def shown(statement: pairs.Statement) -> bool:
        return statement.shown and (factor == 1 or statement.ratio > 1)

    whole = [shown(each) for statements in made for each in statements if each.kind == pairs.ALL]
    one = [shown(each) for statements in made for each in statements if each.kind == pairs.ONE]
    share = float(np.mean(whole)) if whole else np.nan
    # Pairs share curves: as many are independent as there are curves.
    error = float(np.sqrt(max(share * (1 - share), 1 / curves / 4) / curves))
    return Power(factor, len(made), share, error, float(np.mean(one)) if one else np.nan)


def _measured(curves: Curves, factor: float) -> list[pairs.SeededCurve]:
    """The curves in units of their optimum, times a factor [C]."""
    made = []
    for table, found in zip(curves.tables, curves.found, strict=True):
        ends = {}
        for (size, each), optimum in zip(found.items(), curves.optima, strict=True):
            steps = np.array(each.seeds if len(each.seeds) else [each.fewest]) / optimum * factor
            ends[size] = pairs.ends(pd.DataFrame({"rerun": range(len(steps)), "steps": steps}))
        free = int(table["curve_steps"].notna().sum()) - tuned.SPENT
        made.append(pairs.SeededCurve(ends, float(table["residual_sd"].iloc[0]), free, np.nan))
    return made
