"""Limits of scaling as estimates with intervals, read from the constrained curve and from fits to its points."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.estimates import convex, tuned
from analysis.intervals import left_censored, quotient
from analysis.load import CURVE
from analysis.tables import fits
from analysis.tables.scaling import FEWEST, Limit, critical_batch_sizes
from analysis.units import TOKENS

IN_TOKENS = "estimate_tokens"
COLUMNS = ["estimate", "estimate_low", "estimate_high", "estimate_bound", "read_from"]


def table(limits: pd.DataFrame, steps: pd.DataFrame, base: float | None = None) -> pd.DataFrame:
    """Add the estimates to a table of limits.

    Arguments:
        limits: from `analysis.tables.scaling.table`.
        steps: from `analysis.estimates.tuned.table`, for the same studies and goals.
        base: base batch size of the perfect-scaling limit and of `critical_batch_size_zhang`; default: the smallest.

    Returns:
        `limits` with the columns estimate (batch size, examples; NaN if fewer than three batch sizes reached the goal),
        estimate_low and estimate_high (95 % interval, 0 and infinite where it is open, NaN if there is none),
        estimate_bound (`=`, `<` or `>`) and read_from (`fresh seeds` or `search`); for workloads with tokens also
        estimate_tokens, the estimate in tokens.

    >>> steps, runs, limits = (
    ...     pd.read_csv(f"{published}/tables/{name}.csv") for name in ("steps_to_result", "rerun_steps", "scaling"))
    >>> found = table(limits, tuned.table(steps, runs))
    >>> found[["definition", "estimate", "estimate_low", "estimate_high"]].head(1).round(0)
                           definition  estimate  estimate_low  estimate_high
    0  critical_batch_size_mccandlish      62.0          46.0           84.0
    """
    found = {key: estimates(curve, base) for key, curve in steps.groupby(CURVE, sort=False)}
    read_from = {key: curve["read_from"].iloc[0] for key, curve in steps.groupby(CURVE, sort=False)}
    rows = []
    for *key, definition in limits[[*CURVE, "definition"]].itertuples(index=False, name=None):
        limit = found[tuple(key)][definition]
        rows.append((limit.value, limit.low, limit.high, limit.bound, read_from[tuple(key)]))
    found_limits = limits.assign(**pd.DataFrame(rows, columns=COLUMNS, index=limits.index))
    if TOKENS not in steps:
        return found_limits
    each = steps.groupby(CURVE, sort=False)[TOKENS].first().astype("float64")
    per_row = [each[key] for key in limits[CURVE].itertuples(index=False, name=None)]
    return found_limits.assign(**{IN_TOKENS: found_limits["estimate"] * np.array(per_row, dtype=float)})


def estimates(curve: pd.DataFrame, base: float | None = None) -> dict[str, Limit]:
    """Definition -> limit of one curve, from its rows in `analysis.estimates.tuned.table`.

    The interval of a critical batch size comes from the residuals of its fit, or from the standard errors of the points
    if these are larger: points that lie by chance close to a hyperbola are no better known for it.

    >>> steps = pd.read_csv(f"{published}/tables/steps_to_result.csv")
    >>> curve = tuned.table(steps[steps["optimizer"] == "sgd"], pd.DataFrame(columns=[*steps, "steps"]))
    >>> round(estimates(curve)["critical_batch_size_mccandlish"].value)  # from the fewest steps of each search
    33
    """
    points, errors = tuned.points(curve), tuned.log_errors(curve)
    return convex.limits(points, errors, base or 0.0) | critical(points, errors, base)


def critical(
    points: Mapping[int, float], errors: Mapping[int, float], base: float | None = None, shoulder: bool = True
) -> dict[str, Limit]:
    """The critical batch size by each definition, as in `estimates`.

    Arguments:
        points: batch size -> steps, infinite if the goal was missed.
        errors: batch size -> standard error of log steps; empty if it is unknown.
        shoulder: see `analysis.tables.scaling.critical_batch_sizes`.

    >>> steps = {size: 100 * (1 + 64 / size) for size in (4, 16, 64, 256, 1024)}
    >>> found = critical(steps, dict.fromkeys(steps, 0.1))["critical_batch_size_mccandlish"]
    >>> round(found.low), round(found.value), round(found.high)
    (49, 64, 83)
    """
    reached = {size: steps for size, steps in points.items() if np.isfinite(steps)}
    if not errors or len(reached) < FEWEST:
        found = critical_batch_sizes(reached, base, shoulder)
    else:
        fit = fits.hyperbola(reached)
        by_points = float(tuned.half_width(np.mean(list(errors.values())), tuned.NORMAL))
        found = critical_batch_sizes(reached, base, shoulder, np.fmax(fit.reach, by_points))
        if min(reached) <= fit.critical <= max(reached):
            found = {name: _widened(limit, by_points / max(fit.reach, 1e-9)) for name, limit in found.items()}
    return {name: _opened(limit, reached) for name, limit in found.items()}


def fitted(steps: pd.DataFrame) -> pd.DataFrame:
    """The fits through the points that limits are read from, and beside them those through the fewest steps.

    Arguments:
        steps: from `analysis.estimates.tuned.table`.

    Returns:
        `analysis.tables.fits.table` with the column read_from: `fresh seeds`, which critical batch sizes are read from
        where it exists, then `search`.

    >>> steps = pd.read_csv(f"{published}/tables/steps_to_result.csv")
    >>> found = fitted(steps[steps["optimizer"] == "sgd"])
    >>> found[["fit", "read_from", "critical_batch_size"]].round(1)
             fit    read_from  critical_batch_size
    0  hyperbola  fresh seeds                 36.7
    1   shoulder  fresh seeds                 36.7
    2  hyperbola       search                 33.1
    3   shoulder       search                 33.1
    """
    seeds = steps[steps["read_from"] == tuned.SEEDS]
    reached = np.isfinite(seeds["tuned_steps"].astype(float))
    through = {
        tuned.SEEDS: seeds.assign(steps_to_result=seeds["tuned_steps"], reached=reached),
        tuned.SEARCH: steps.assign(reached=steps["reached"].astype(bool)),
    }
    each = [
        fits.table(rows[~left_censored(rows["steps_to_result"], rows.get("first_evaluation"))]).assign(read_from=name)
        for name, rows in through.items()
    ]
    found = pd.concat([table for table in each if len(table)] or each)
    order = {key: number for number, key in enumerate(steps.groupby(CURVE, sort=False).groups)}
    keys = pd.Series([order[key] for key in found[CURVE].itertuples(index=False, name=None)], found.index, dtype=int)
    return found.iloc[np.argsort(keys.to_numpy(), kind="stable")].reset_index(drop=True)


def ratio(one: pd.Series, other: pd.Series) -> tuple[float, float, float]:
    """(one limit over another, with the ends of its 95 % interval), the errors taken as independent.

    An end is 0 or infinite where an interval is open, or where a limit is a bound on that side; NaN without intervals.

    Arguments:
        one, other: rows of `table`.

    >>> found = pd.read_csv(f"{published}/tables/scaling.csv").query("definition == 'critical_batch_size_mccandlish'")
    >>> [round(number, 2) for number in ratio(*found.iloc[[0, 1]].to_dict("records"))]
    [1.69, 1.2, 2.38]
    """
    value, low, high = quotient(*((row["estimate"], row["estimate_low"], row["estimate_high"]) for row in (one, other)))
    bounds = (one["estimate_bound"], other["estimate_bound"])
    low = 0.0 if bounds[0] == "<" or bounds[1] == ">" else low
    high = np.inf if bounds[0] == ">" or bounds[1] == "<" else high
    return value, low, high


def _widened(limit: Limit, factor: float) -> Limit:
    """Widen an interval on a log scale; a factor below 1 changes nothing."""
    with np.errstate(over="ignore"):
        ends = np.array([limit.low, limit.high]) / limit.value
        low, high = (limit.value * ends ** max(1.0, factor)).tolist()
    return replace(limit, low=low, high=high)


def _opened(limit: Limit, reached: Mapping[int, float]) -> Limit:
    """Open the ends of an interval that lie outside the measured batch sizes: nothing is known there."""
    low, high = limit.low, limit.high
    if low < min(reached, default=0):
        low = 0.0
    if high > max(reached, default=np.inf):
        high = np.inf
    return replace(limit, low=low, high=high)
