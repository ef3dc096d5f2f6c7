"""Compare pairs of curves by fresh seeds, from the strongest statement to the weakest; every row is one statement.

Equal numbers are equal seeds, so steps are compared seed by seed: d is the log of the steps of b over those of a. Where
d > 0, a needs fewer steps. Left-censored steps are only an upper bound, so d lies somewhere between two ends.
Definitions: docs/methods.md.

Shapes: K seeds that both curves have at a batch size, n batch sizes. Steps are infinite where the goal was missed.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import bdtr

from analysis.estimates import tuned
from analysis.intervals import SAWTOOTH, fewest, with_before
from analysis.load import GOAL, rows_with
from analysis.tables.compare import FIXED
from analysis.tables.scaling import CRITICAL

ALL, UP_TO, BEYOND = "all batch sizes", "up to the critical batch size", "beyond the critical batch size"
ONE, CONFIGURATIONS, SEARCHES = "one batch size", "two configurations", "two searches"
KINDS = (ALL, UP_TO, BEYOND, ONE, CONFIGURATIONS, SEARCHES)
"""Kinds of statements, the strongest first. The last one needs no fresh seeds: it compares S_n."""
FEWEST = 3
"""The fewest batch sizes that a statement about a range needs."""
NUMBERS = ["smallest_batch_size", "largest_batch_size", "ratio", "low", "high", "shown"]


class SeededCurve(NamedTuple):
    """One curve of a pair.

    Attributes:
        seeds: batch size -> by number of the seed, the ends `least` and `most` of the steps of the tuned configuration,
            which are equal if the steps are known; without those batch sizes whose median is left-censored.
        residual_sd, free: scatter about the constrained curve and its degrees of freedom; NaN if unknown.
        critical: the critical batch size by McCandlish et al.; NaN unless it is inside the measured range.
        smaller_up_to: the largest critical batch size of another curve that is the smaller of the two: the
            bound of its own if that lies beyond the measured range; 0 if that lies below it; else infinite.
        grid: batch size -> the standard error of log steps that the evaluation grid leaves; 0 where it is missing.
    """

    seeds: Mapping[int, pd.DataFrame]
    residual_sd: float
    free: int
    critical: float
    smaller_up_to: float = np.inf
    grid: Mapping[int, float] = MappingProxyType({})


class Statement(NamedTuple):
    """How many times the steps of a b needs, with a confidence interval."""

    kind: str
    smallest_batch_size: int
    largest_batch_size: int
    ratio: float
    low: float
    high: float

    @property
    def shown(self) -> bool:
        return self.low > 1 or self.high < 1


def table(
    searches: pd.DataFrame, steps: pd.DataFrame, limits: pd.DataFrame, runs: pd.DataFrame, by: str = "optimizer"
) -> pd.DataFrame:
    """Every statement about every pair of curves.

    Arguments:
        searches: from `analysis.tables.compare.table`; it names the pairs.
        steps, limits: from `analysis.estimates.tuned.table` and `analysis.estimates.limits.table`.
        runs: from `analysis.tables.answers.rerun_steps`.
        by: as in `analysis.tables.compare.table`.

    Returns:
        A row for each statement, the strongest kind first: kind, workload (or optimizer), a and b (the pair), the goal,
        smallest_batch_size and largest_batch_size, ratio (the steps of b over those of a), low and high (its 95 %
        interval; with more than two optimizers the level is 1 - 0.05 / pairs, except for searches) and shown (True if
        the interval excludes 1).

    >>> names = ("steps_to_result", "scaling", "rerun_steps")
    >>> steps, limits, runs = (pd.read_csv(f"{published}/tables/{name}.csv") for name in names)
    >>> searches = pd.DataFrame({"workload": "mlp_digits", "goal_metric": "val/cross_entropy_error",
    ...     "goal_threshold": 0.2, "optimizer": "momentum", "against": "sgd", "batch_size": [512], "speed_up": 1.8,
    ...     "low": 0.9, "high": 1.8})
    >>> found = table(searches, steps, limits, runs).set_index("kind")
    >>> found.loc[BEYOND, ["smallest_batch_size", "ratio", "low", "high"]].astype(float).round(2).to_dict()
    {'smallest_batch_size': 64.0, 'ratio': 1.51, 'low': 1.12, 'high': 2.03}
    """
    fixed = FIXED[by]
    rows: list[tuple[Any, ...]] = []
    for key, several in searches.groupby([fixed, *GOAL], sort=False):
        curves = {name: seeded_curve(dict(zip([fixed, *GOAL, by], (*key, name), strict=True)), steps, limits, runs)
                  for name in {*several[by], *several["against"]}}  # fmt: skip
        pairs = several.groupby([by, "against"], sort=False)
        for (a, b), pair in pairs:
            found = [*statements(curves[a], curves[b], 1 - 0.05 / pairs.ngroups), *_of_searches(pair)]
            rows += [(each.kind, key[0], a, b, *key[1:], *each[1:], each.shown) for each in found]
    columns = ["kind", fixed, "a", "b", *GOAL, *NUMBERS]
    made = pd.DataFrame(rows, columns=columns)
    ranks = made["kind"].map({kind: rank for rank, kind in enumerate(KINDS)})
    order = [fixed, *GOAL, "a", "b", "rank", "smallest_batch_size"]
    return made.assign(rank=ranks).sort_values(order, ignore_index=True).drop(columns="rank")


def seeded_curve(
    names: Mapping[str, object], steps: pd.DataFrame, limits: pd.DataFrame, runs: pd.DataFrame
) -> SeededCurve:
    """One curve as the statements take it.

    Arguments:
        names: column -> value, which choose the rows of the curve.
        steps, limits, runs: as for `table`.

    >>> names = ("steps_to_result", "scaling", "rerun_steps")
    >>> tables = [pd.read_csv(f"{published}/tables/{name}.csv") for name in names]
    >>> found = seeded_curve({"optimizer": "sgd"}, *tables)
    >>> sorted(found.seeds)[:3], found.free, round(found.critical)
    ([1, 2, 4], 7, 37)
    """
    curve, mine, again = (rows_with(table, [*names], [*names.values()]) for table in (steps, limits, runs))
    [bound, critical] = _critical(mine)
    by_seeds = len(curve) and tuned.reads_seeds(curve)
    censored = tuned.left_censored_sizes(curve)
    return SeededCurve(
        {int(size): ends(part) for size, part in again[~again["batch_size"].isin(censored)].groupby("batch_size")},
        float(curve["residual_sd"].iloc[0]) if by_seeds else np.nan,
        int(curve["curve_steps"].notna().sum()) - tuned.SPENT,
        critical if bound == "=" else np.nan,
        {"<": 0.0, ">": critical}.get(bound, np.inf),
        curve.reindex(columns=["batch_size", "grid_error"]).dropna().set_index("batch_size")["grid_error"].to_dict(),
    )


def ends(runs: pd.DataFrame) -> pd.DataFrame:
    """The least and most steps that each seed can have needed, by its number; equal where they are known.

    Arguments:
        runs: with the columns rerun and steps, and step_before if it is known, as in `SeededCurve`.

    >>> ends(pd.DataFrame({"rerun": [0, 1], "steps": [20.0, 22.0], "step_before": [0, 20]})).values.tolist()
    [[1.0, 20.0], [22.0, 22.0]]
    """
    steps, before = with_before(runs)
    return pd.DataFrame({"least": fewest(steps, before), "most": steps}, index=runs["rerun"])


def _critical(limits: pd.DataFrame) -> tuple[str, float]:
    """(bound, value) of the critical batch size by McCandlish et al. of one curve; ("=", NaN) if it is unknown."""
    known = limits[limits["definition"] == CRITICAL].dropna(subset="estimate")
    return (known["estimate_bound"].iloc[0], float(known["estimate"].iloc[0])) if len(known) else ("=", np.nan)


def _of_searches(pair: pd.DataFrame) -> list[Statement]:
    rows = pair[["batch_size", "batch_size", "speed_up", "low", "high"]].itertuples(index=False, name=None)
    return [Statement(SEARCHES, *row) for row in rows]


def statements(a: SeededCurve, b: SeededCurve, confidence: float = 0.95) -> list[Statement]:
    """The statements that fresh seeds allow about two curves; none without common seeds.

    >>> steps = pd.Series([100.0, 110.0, 90.0])
    >>> seeds = {size: pd.DataFrame({"least": steps / size, "most": steps / size}) for size in (1, 2, 4)}
    >>> half = {size: steps / 2 for size, steps in seeds.items()}
    >>> found = statements(SeededCurve(half, np.nan, 0, np.nan), SeededCurve(seeds, np.nan, 0, np.nan))
    >>> [(each.kind, round(each.ratio, 3)) for each in found][:2]
    [('all batch sizes', 2.0), ('two configurations', 2.0)]
    """
    paired = {size: _paired(a.seeds[size], b.seeds[size]) for size in sorted({*a.seeds} & {*b.seeds})}
    paired = {size: d for size, d in paired.items() if len(d)}
    critical = np.fmin(a.critical, b.critical)
    critical = critical if critical <= min(a.smaller_up_to, b.smaller_up_to) else np.nan
    middles = {size: _middle(d) for size, d in paired.items()}
    ranges = {ALL: list(paired), UP_TO: [size for size in paired if size <= critical]}
    ranges[BEYOND] = [size for size in paired if size > critical]
    found = [
        (kind, sizes, _of_range([middles[size] for size in sizes], _grid(sizes, a, b), confidence))
        for kind, sizes in ranges.items()
        if len(sizes) >= FEWEST
    ]
    found += [(ONE, [size], _tuned(paired, size, a, b, confidence)) for size in paired]
    found += [(CONFIGURATIONS, [size], _of_seeds(d, _grid([size], a, b), confidence)) for size, d in paired.items()]
    with np.errstate(over="ignore"):
        return [
            Statement(kind, sizes[0], sizes[-1], *np.exp(interval).tolist())
            for kind, sizes, interval in found
            if not np.isnan(interval).any()
        ]


Interval = tuple[float, float, float]
"""(value, low, high) on a log scale."""


def _paired(a: pd.DataFrame, b: pd.DataFrame) -> np.ndarray:
    """The ends of d for each seed that both have [K, 2]; infinite if one missed the goal, left out if both did."""
    both = a.index.intersection(b.index)
    a, b = np.log(a.loc[both]), np.log(b.loc[both])
    with np.errstate(invalid="ignore"):
        d = np.stack([b["least"] - a["most"], b["most"] - a["least"]], axis=1)
    return d[~np.isnan(d).any(axis=1)]


def _known(d: np.ndarray) -> bool:
    """Whether every d [K, 2] is known and finite, so that it has a mean and a variance."""
    return bool(np.isfinite(d).all() and (d[:, 0] == d[:, 1]).all())


def _middle(d: np.ndarray) -> tuple[float, float]:
    """The mean of d [K, 2], or the median if a seed missed the goal or is not known, and how far it may be off: half
    the distance of the medians of both ends."""
    if _known(d):
        return float(d[:, 0].mean()), 0.0
    least, most = (_median(ends) for ends in d.T)
    return (least, 0.0) if least == most else ((least + most) / 2, (most - least) / 2)


def _median(values: np.ndarray) -> float:
    """The median; infinite halves have no middle, and 0 takes its place."""
    middle = np.sort(values)[[(len(values) - 1) // 2, len(values) // 2]]
    return float(middle.sum() / 2) if np.isfinite(middle).any() or middle[0] == middle[1] else 0.0


def _grid(sizes: Sequence[int], a: SeededCurve, b: SeededCurve) -> float:
    """The most by which the evaluation grid moves the mean of d over these batch sizes.

    It does not fall with their number: where budgets and steps are both in proportion to 1/B, a curve lies at the same
    place in a cell at all batch sizes.
    """
    return float(SAWTOOTH * np.mean([a.grid.get(size, 0.0) + b.grid.get(size, 0.0) for size in sizes]))


def _of_range(middles: Sequence[tuple[float, float]], grid: float, confidence: float) -> Interval:
    """The mean of the middles of several batch sizes, wider by how far these may be off on average."""
    values, off = np.array(middles).T
    middle, low, high = _mean(values, grid, confidence)
    return middle, low - float(off.mean()), high + float(off.mean())


def _of_seeds(d: np.ndarray, grid: float, confidence: float) -> Interval:
    """The mean of d [K, 2] at one batch size; where it is not known, its median, and a sign test of both ends."""
    if _known(d):
        return _mean(d[:, 0], grid, confidence)
    (low, _), (_, high) = (sign_interval(ends, confidence) for ends in d.T)
    return _middle(d)[0], low - grid, high + grid


def _mean(values: np.ndarray, grid: float, confidence: float) -> Interval:
    """The mean of values [n] with Student's t, or their median with the interval of a sign test if any is infinite.

    Arguments:
        grid: from `_grid`; the values do not show it.
    """
    if not np.isfinite(values).all():
        low, high = sign_interval(values, confidence)
        return _median(values), low - grid, high + grid
    middle = float(values.mean())
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan
    half = float(np.hypot(tuned.half_width(error, len(values) - 1, confidence), grid))
    return middle, middle - half, middle + half


def sign_interval(values: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """The medians that a two-sided sign test of these values [n] does not reject; open with fewer than six at 95 %.

    >>> sign_interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0, np.inf]))
    (1.0, inf)
    >>> sign_interval(np.array([1.0, 2.0, 3.0, 4.0, np.inf]))
    (-inf, inf)
    """
    n = len(values)
    rank = int(
        (2 * bdtr(np.arange(n), n, 0.5) <= 1 - confidence).sum()
    )  # how many of the smallest values may lie outside
    ranked = np.concatenate([[-np.inf], np.sort(values), [np.inf]])
    return float(ranked[rank]), float(ranked[n + 1 - rank])


def _tuned(paired: Mapping[int, np.ndarray], size: int, a: SeededCurve, b: SeededCurve, confidence: float) -> Interval:
    """The mean of d at one batch size, with the noise of seeds, the scatter of both curves and the evaluation grid.

    The median with its larger error takes the place of the mean if the steps of a seed are left-censored, wider by
    how far it may be off. NaN if a seed missed the goal, or if a scatter is unknown. Student's t has the degrees of
    freedom of the largest term.
    """
    d = paired[size]
    known = [each[:, 0] for each in paired.values() if _known(each) and len(each) > 1]
    free = sum(len(each) - 1 for each in known)
    spread = sum(float(((each - each.mean()) ** 2).sum()) for each in known) / free if free else np.nan
    of_seeds = (1.0 if _known(d) else tuned.MEDIAN**2) * spread / len(d)
    terms = [(of_seeds, free), (a.residual_sd**2, a.free), (b.residual_sd**2, b.free)]
    middle, off = _middle(d) if np.isfinite(d).all() else (np.nan, 0.0)
    variances = [variance for variance, _ in terms]
    half = tuned.half_width(np.sqrt(sum(variances)), terms[int(np.argmax(variances))][1], confidence)
    half = np.hypot(half, _grid([size], a, b)) + off
    return middle, middle - float(half), middle + float(half)
