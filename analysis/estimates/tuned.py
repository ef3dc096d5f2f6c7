"""Estimates of S(B): the steps of each tuned configuration with fresh seeds, with two intervals.

S(B), the fewest steps of a search, is lucky: its seed is a part of what made it the fewest. Seeds that had no part in
choosing the configuration are not. Definitions: docs/methods.md.

Shapes: M batch sizes of one curve, K fresh seeds of one batch size. Steps are infinite where the goal was missed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from analysis.estimates import convex
from analysis.intervals import cell_width, grid_error, left_censored, median, with_before, without_grid
from analysis.load import ANSWER, CURVE
from analysis.tables import fits
from analysis.tables.scaling import FEWEST

MEDIAN = 1.25
"""The standard error of the median of normal numbers over that of their mean."""
ENOUGH = 6
"""The fewest batch sizes from which the scatter about the curve is estimated."""
SPENT = 4
"""The degrees of freedom that the curve takes."""
NORMAL = 10**9
"""Degrees of freedom with which Student's t is normal."""
FAR = 3.0
"""A batch size whose residual exceeds this many standard errors is named."""
SEEDS, SEARCH = "fresh seeds", "search"
"""The points of a curve: medians over fresh seeds, or the fewest steps of each search."""
COLUMNS = [
    *("seeds", "missed", "tuned_steps", "tuned_low", "tuned_high", "optimum_low", "optimum_high", "luck"),
    "tuned_for",
    *("seed_sd", "residual_sd", "grid_error", "read_from", "curve_steps"),
]


def table(steps: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Add the estimates to a table of steps-to-result.

    Arguments:
        steps: from `analysis.tables.steps_to_result.table`.
        runs: from `analysis.tables.answers.rerun_steps`, for the same goals.

    Returns:
        `steps` with further columns. Of a batch size: seeds (K) and missed (how many missed the goal); tuned_steps, the
        median of the fresh seeds on a log scale (infinite if half or more missed; NaN without any), with two 95 %
        intervals: tuned_low and tuned_high hold the steps of this configuration, optimum_low and optimum_high those of
        a perfectly tuned one, up to what all batch sizes fall short by; luck, tuned_steps / steps_to_result; tuned_for,
        the goal that the configuration was tuned for if it is not this one (else None); and curve_steps, the
        constrained curve (`analysis.estimates.convex`; NaN if the goal was missed). Left-censored steps
        (`analysis.intervals.left_censored`) have no intervals and no part in the curve. grid_error is the standard
        error of log tuned_steps, or without fresh seeds of log steps_to_result, that the steps between evaluations
        leave (`analysis.intervals.grid_error`; NaN if the goal was missed). Of a curve: seed_sd, the standard deviation
        of log steps over seeds, pooled over the batch sizes where no seed's steps are left-censored; residual_sd, the
        scatter of the log estimates about the curve (NaN with fewer than six batch sizes); read_from, the points that
        the curve runs through: `fresh seeds` if all batch sizes that reached the goal have some, else `search`.

    >>> steps, runs = (pd.read_csv(f"{published}/tables/{name}.csv") for name in ("steps_to_result", "rerun_steps"))
    >>> found = table(steps, runs).set_index(["optimizer", "batch_size"]).loc[("momentum", 512)]
    >>> found[["steps_to_result", "tuned_steps", "tuned_low", "tuned_high"]].astype(float).round(1).to_dict()
    {'steps_to_result': 10.0, 'tuned_steps': 13.0, 'tuned_low': 10.2, 'tuned_high': 16.6}
    """
    steps = steps.drop(columns=[name for name in COLUMNS if name in steps])
    taken = {name: with_before(part) for name, part in runs.groupby(ANSWER, sort=False)}
    others = runs.drop_duplicates(ANSWER).set_index(ANSWER)["tuned_for"].to_dict() if "tuned_for" in runs else {}
    parts = []
    for _, curve in steps.groupby(CURVE, sort=False):
        names = list(curve[ANSWER].itertuples(index=False, name=None))
        found = _curve(curve, [taken.get(name, np.empty((2, 0))) for name in names])
        parts.append(curve.assign(**found, tuned_for=[others.get(name) for name in names]))
    return pd.concat(parts).loc[steps.index] if parts else steps.assign(**dict.fromkeys(COLUMNS, np.nan))


def _curve(curve: pd.DataFrame, runs: Sequence[np.ndarray]) -> dict[str, Any]:
    seeds = [steps for steps, _ in runs]
    counts = np.array([len(each) for each in seeds])
    missed = np.array([int(np.isinf(each).sum()) for each in seeds])
    tuned = np.array([median(*each) for each in runs])
    first = curve.get("first_evaluation")
    censored = left_censored(tuned, first)
    seed_sd, free = pooled([each[0] for each in runs if not left_censored(each[0], before=each[1]).any()])
    with np.errstate(divide="ignore", invalid="ignore"):
        by_seed = np.where(np.isfinite(tuned) & ~censored, MEDIAN * seed_sd / np.sqrt(counts - missed), np.nan)
    of_search = curve["steps_to_result"].astype("float64").to_numpy()
    by_seeds = bool(counts.any() and counts[np.isfinite(of_search)].all())
    grid = np.where(counts > 0, _of_seeds(runs, seed_sd), _of_search(curve))
    points = np.where(np.isfinite(tuned), tuned, np.nan) if by_seeds else of_search
    points = np.where(left_censored(points, first), np.nan, points)
    fitted, residual_sd = _constrained(curve["batch_size"].to_numpy(dtype=float), points)
    own = np.hypot(half_width(by_seed, free), half_width(grid, NORMAL))
    by_residual = half_width(residual_sd, int(np.isfinite(points).sum()) - SPENT) if by_seeds else np.nan
    optimum = np.where(residual_sd <= np.hypot(by_seed, grid), own, by_residual)  # NaN without a scatter
    return {
        "seeds": counts,
        "missed": missed,
        "tuned_steps": tuned,
        **dict(zip(("tuned_low", "tuned_high"), _around(tuned, own), strict=True)),
        **dict(zip(("optimum_low", "optimum_high"), _around(np.where(censored, np.nan, tuned), optimum), strict=True)),
        "luck": np.where(np.isfinite(tuned), tuned / of_search, np.nan),
        "seed_sd": seed_sd,
        "residual_sd": residual_sd,
        "grid_error": grid,
        "read_from": SEEDS if by_seeds else SEARCH,
        "curve_steps": fitted,
    }


def _of_seeds(runs: Sequence[np.ndarray], seed_sd: float) -> np.ndarray:
    """`grid_error` of the median of each batch size's fresh seeds [M]; NaN if it missed the goal, or without any."""
    middle = [each[:, np.argsort(each[0])[(each.shape[1] - 1) // 2 : each.shape[1] // 2 + 1]] for each in runs]
    known = [each.size > 0 and np.isfinite(each[0]).all() for each in middle]
    squares = [np.mean(cell_width(*each) ** 2) if met else np.nan for each, met in zip(middle, known, strict=True)]
    widths = np.sqrt(squares)
    counts = np.array([max(1, np.isfinite(steps).sum()) for steps, _ in runs])
    return grid_error(widths, MEDIAN / np.sqrt(counts) * without_grid(seed_sd, widths))


def _of_search(curve: pd.DataFrame) -> np.ndarray:
    """`grid_error` of the fewest steps of each search [M], which are those of one trial: no noise averages it out."""
    steps, before = curve.reindex(columns=["steps_to_result", "step_before"]).astype("float64").to_numpy().T
    return grid_error(np.where(np.isnan(steps), np.nan, cell_width(steps, before)), 0.0)


def pooled(seeds: Sequence[np.ndarray]) -> tuple[float, int]:
    """(the standard deviation of log steps over seeds, pooled over batch sizes; its degrees of freedom).

    Missed goals are left out. NaN without degrees of freedom.

    >>> deviation, free = pooled([np.array([100.0, 110.0, np.inf]), np.array([50.0, 60.0, 55.0])])
    >>> round(deviation, 3), free
    (0.084, 3)
    """
    logs = [np.log(steps[np.isfinite(steps)]) for steps in seeds]
    free = sum(max(0, len(each) - 1) for each in logs)
    squares = sum(float(((each - each.mean()) ** 2).sum()) for each in logs if len(each))
    return (float(np.sqrt(squares / free)) if free else np.nan), free


def half_width(error: Any, free: int, confidence: float = 0.95) -> Any:
    """Half of Student's t-interval with this standard error; NaN without degrees of freedom.

    >>> round(float(half_width(0.1, 7)), 3)
    0.236
    """
    return error * (stdtrit(free, (1 + confidence) / 2) if free > 0 else np.nan)


def _around(steps: np.ndarray, half: Any) -> tuple[np.ndarray, np.ndarray]:
    """(low, high); NaN where there are no finite steps."""
    finite = np.where(np.isfinite(steps), steps, np.nan)
    return finite * np.exp(-half), finite * np.exp(half)


def _constrained(sizes: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, float]:
    """(the constrained curve [M], NaN where the goal was missed; the scatter about it, or NaN if it is unknown)."""
    known, fitted = np.isfinite(points), np.full(len(points), np.nan)
    order = np.argsort(sizes[known])
    if len(order) < FEWEST:
        return fitted, np.nan
    log_steps = np.log(points[known])
    curve = np.empty(len(order))
    curve[order] = convex.fit(np.log(sizes[known])[order], log_steps[order])
    fitted[known] = np.exp(curve)
    spread = ((log_steps - curve) ** 2).sum()
    return fitted, float(np.sqrt(spread / (len(order) - SPENT))) if len(order) >= ENOUGH else np.nan


def nothing_feasible(row: Mapping[str, Any]) -> bool:
    """Whether trials ended and none was feasible; `row`: of `analysis.tables.steps_to_result.table`.

    >>> nothing_feasible({"complete": 0, "infeasible": 80}), nothing_feasible({"complete": 0, "infeasible": 0})
    (True, False)
    """
    return bool(row["complete"] == 0 and row["infeasible"] > 0)


def reads_seeds(rows: pd.DataFrame) -> bool:
    """Whether the points of all these rows are those of fresh seeds; `rows`: with the column read_from of `table`.

    >>> reads_seeds(pd.DataFrame({"read_from": [SEEDS, SEEDS]})), reads_seeds(pd.DataFrame({"read_from": [SEARCH]}))
    (True, False)
    """
    return bool((rows["read_from"] == SEEDS).all())


def interval(rows: Any) -> tuple[Any, Any]:
    """(low, high): the steps of a perfectly tuned configuration, or where they are unknown those of the tuned one.

    Arguments:
        rows: of `table`, a frame or a single row; ends of intervals that it lacks are NaN.

    >>> rows = {"optimum_low": [9, np.nan], "optimum_high": [16, np.nan], "tuned_low": 10, "tuned_high": 15}
    >>> interval(pd.DataFrame(rows))
    (array([ 9., 10.]), array([16., 15.]))
    """
    low, high = (
        np.where(pd.isna(optimum := rows.get(f"optimum_{end}", np.nan)), rows.get(f"tuned_{end}", np.nan), optimum)
        for end in ("low", "high")
    )
    return low, high


def points(curve: pd.DataFrame) -> dict[int, float]:
    """Batch size -> the steps that the curve is fitted to; infinite if the goal was missed, NaN if left-censored.

    Arguments:
        curve: the rows of one curve, from `table`.

    >>> steps, runs = (pd.read_csv(f"{published}/tables/{name}.csv") for name in ("steps_to_result", "rerun_steps"))
    >>> found = table(steps, runs)
    >>> points(found[found["optimizer"] == "sgd"])[1024]
    21.0
    """
    steps = curve["tuned_steps" if reads_seeds(curve) else "steps_to_result"].astype("float64").fillna(np.inf)
    steps = steps.mask(left_censored(steps, curve.get("first_evaluation")))
    return dict(zip(curve["batch_size"].tolist(), steps.tolist(), strict=True))


def with_points(curve: pd.DataFrame) -> pd.DataFrame:
    """The rows of one curve that have a finite point (`points`).

    >>> curve = pd.DataFrame({"batch_size": [8, 16], "steps_to_result": [20, None], "read_from": SEARCH})
    >>> with_points(curve)["batch_size"].tolist()
    [8]
    """
    return curve[np.isfinite(list(points(curve).values()))]


def left_censored_sizes(curve: pd.DataFrame) -> list[int]:
    """The batch sizes of one curve whose point is left-censored (`points`).

    >>> curve = {"batch_size": [8, 16], "steps_to_result": 20, "read_from": SEARCH, "first_evaluation": [20, 10]}
    >>> left_censored_sizes(pd.DataFrame(curve))
    [8]
    """
    return [size for size, steps in points(curve).items() if np.isnan(steps)]


def log_errors(curve: pd.DataFrame) -> dict[int, float]:
    """Batch size -> the standard error of log steps; missing where it is unknown.

    It is the half-width of the widest known interval over 1.96, so that normal draws spread like Student's t. Without
    fresh seeds, that is the one from the residuals about the constrained curve or about the hyperbola or from the
    evaluation grid, the largest.

    Arguments:
        curve: the rows of one curve, from `table`.

    >>> steps, runs = (pd.read_csv(f"{published}/tables/{name}.csv") for name in ("steps_to_result", "rerun_steps"))
    >>> found = table(steps, runs)
    >>> round(log_errors(found[found["optimizer"] == "sgd"])[1024], 3)
    0.097
    """
    if reads_seeds(curve):
        of_points = np.log(interval(curve)[1] / curve["tuned_steps"])
    else:
        of_points = half_width(curve["residual_sd"], int(curve["curve_steps"].notna().sum()) - SPENT)
        if of_points.notna().any():  # where batch sizes lie far apart, the curve goes through all points
            of_points = np.maximum(of_points, fits.hyperbola(points(curve)).reach)
        of_points = np.maximum(of_points, half_width(_of_search(curve), NORMAL))  # unknown where one of them is
    errors = of_points / half_width(1.0, NORMAL)
    return {size: error for size, error in zip(curve["batch_size"].tolist(), errors, strict=True) if np.isfinite(error)}


def far_off(curve: pd.DataFrame) -> dict[int, float]:
    """Batch size -> its estimate over the curve, where they differ by more than three standard errors.

    The residual is compared with the scatter of the others: among M residuals one outlier would hide in its own.

    >>> steps, runs = (pd.read_csv(f"{published}/tables/{name}.csv") for name in ("steps_to_result", "rerun_steps"))
    >>> found = table(steps, runs)
    >>> far_off(found[found["optimizer"] == "sgd"])
    {}
    """
    known = curve[curve["curve_steps"].notna()]
    steps = points(known)
    ratios = np.array(list(steps.values())) / known["curve_steps"].to_numpy(dtype=float)
    squares = np.log(ratios) ** 2
    free = len(known) - SPENT - 1
    if len(known) < ENOUGH:
        return {}
    others = np.sqrt((squares.sum() - squares) / free)
    by_seed = MEDIAN * known["seed_sd"] / np.sqrt(known["seeds"] - known["missed"]) if known["seeds"].all() else 0.0
    far = np.abs(np.log(ratios)) > FAR * np.fmax(others, by_seed)
    return {size: float(ratio) for size, ratio, is_far in zip(steps, ratios, far, strict=True) if is_far}
