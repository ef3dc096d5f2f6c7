"""What is shown about pairs of curves, in sentences; the widest statement first, and ties with what could be seen."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from analysis.estimates.limits import ratio
from analysis.estimates.pairs import ALL, BEYOND, CONFIGURATIONS, ONE, SEARCHES, UP_TO
from analysis.intervals import PART
from analysis.labels import bounded, goal_text, listed
from analysis.load import GOAL, rows_with
from analysis.question.stages import FRESH_SEEDS
from analysis.tables.compare import FIXED
from analysis.tables.scaling import CRITICAL

RANGES = (ALL, UP_TO, BEYOND)


def sentences(pairs: pd.DataFrame, limits: pd.DataFrame, by: str = "optimizer", cure: bool = True) -> list[str]:
    """Sentences for each pair that is shown to differ, one about all others, and one about critical batch sizes.

    A pair without a known ratio is left out.

    Arguments:
        pairs, limits: from `analysis.estimates.pairs.table` and `analysis.estimates.limits.table`.
        by: as in `analysis.estimates.pairs.table`.
        cure: say which trainings would compare searches without fresh seeds; False for imported ones.

    >>> pairs, limits = (pd.read_csv(f"{published}/tables/{name}.csv") for name in ("compare", "scaling"))
    >>> for part in sentences(pairs, limits)[0].replace("0.2: ", "0.2:; ").split("; "):
    ...     print(part)
    mlp_digits to validation cross entropy < 0.2:
    momentum needs 1.25 times (95%: 1.05 to 1.48) fewer steps than sgd over batch sizes 1 to 1,024
    momentum and sgd are tied up to the critical batch size, over 1 to 32 (a factor of 1.1 would have shown)
    momentum needs 1.51 times (95%: 1.12 to 2.03) fewer steps than sgd beyond the critical batch size, over 64 to 1,024.
    """
    found: list[str] = []
    columns = [FIXED[by], *GOAL]
    for key, group in pairs.groupby(columns, sort=True):
        subject = f"{key[0]} to {goal_text(*key[1:])}"
        names, before = sorted({*group["a"], *group["b"]}), len(found)
        tied: list[pd.DataFrame] = []
        inconclusive: list[pd.DataFrame] = []
        for _, pair in group.groupby(["a", "b"], sort=True):
            if pair["shown"].any():
                parts = [*_ranges(pair)], [*_single(pair), *_configurations(pair), *_searches(pair)]
                found += [f"{subject}: {'; '.join(part)}." for part in parts if part]
            elif (alone := _alone(pair)) is not None:
                found.append(f"{subject}: {alone}.")
            elif pair["ratio"].notna().any():  # else nothing can be compared: one has no known steps
                (inconclusive if _inconclusive(_strongest(pair)) else tied).append(pair)
        if tied:
            who = _who(tied, names, len(found) > before, len(tied) == group.groupby(["a", "b"]).ngroups)
            found.append(f"{subject}: {who}, {_visible_by(tied, cure)}.")
        found += [f"{subject}: {_unknown(inconclusive, cure)}."] if inconclusive else []
        found += [f"{subject}: {words}" for words in critical(names, rows_with(limits, columns, key), by)]
    return found


def _alone(pair: pd.DataFrame) -> str | None:
    """The sentence about two searches, one with known steps and one without: they are not tied. None if both
    have, or neither, or if there are fresh seeds."""
    ratios = pair["ratio"].dropna()
    if ratios.empty or (pair["kind"] != SEARCHES).any():
        return None
    for ahead, behind, missed in (("a", "b", np.isinf(ratios)), ("b", "a", ratios == 0)):
        if missed.all():
            names = f"{pair[ahead].iloc[0]} and {pair[behind].iloc[0]}"
            return f"{names} have no ratio, as only {pair[ahead].iloc[0]} has known steps to the goal"
    return None


def _ranges(pair: pd.DataFrame) -> Iterator[str]:
    missed = set()  # (faster, slower) if the slower one mostly missed the goal over all batch sizes: said once
    for kind in RANGES:
        for row in pair[pair["kind"] == kind].itertuples():
            ahead, behind, _, low, _ = turned(row)
            if row.shown and np.isinf(low):
                if (ahead, behind) in missed:
                    continue
                missed |= {(ahead, behind)} if kind == ALL else set()
            sizes = f"{row.smallest_batch_size:,} to {row.largest_batch_size:,}"
            where = f"over batch sizes {sizes}" if kind == ALL else f"{kind}, over {sizes}"
            if row.shown:
                yield _needs(row, where)
            elif _cross(pair, row.smallest_batch_size, row.largest_batch_size):
                yield f"{row.a} needs fewer steps than {row.b} at some batch sizes and more at others {where}"
            else:
                yield _not_shown([row], where)


def _cross(pair: pd.DataFrame, first: int, last: int) -> bool:
    """Whether each curve is shown to need fewer steps at a single batch size of this range: they do not tie there."""
    rows = pair[(pair["kind"] == ONE) & pair["shown"] & pair["smallest_batch_size"].between(first, last)]
    return bool((rows["low"] > 1).any() and (rows["high"] < 1).any())


def _needs(row: pd.Series, where: str) -> str:
    ahead, behind, ratio, low, high = turned(row)
    if np.isinf(low):
        return f"{ahead} needs fewer steps than {behind} {where}, where {behind} mostly missed the goal"
    return f"{ahead} needs {_times(ratio, low, high)} fewer steps than {behind} {where}"


def turned(row: pd.Series) -> tuple[str, str, float, float, float]:
    """(faster, slower, ratio, low, high) of a statement that is shown, with low above 1.

    >>> turned(pd.Series({"a": "sgd", "b": "adam", "ratio": 0.5, "low": 0.4, "high": 0.8}))
    ('adam', 'sgd', 2.0, 1.25, 2.5)
    """
    with np.errstate(divide="ignore"):
        back = [float(np.divide(1.0, end)) for end in (row.ratio, row.high, row.low)]
    return (row.a, row.b, row.ratio, row.low, row.high) if row.low > 1 else (row.b, row.a, *back)


def _times(ratio: float, low: float, high: float) -> str:
    times = f"{ratio:.3g} times" if np.isfinite(ratio) else f"{above(low)} times or more"
    return f"{times} (95%: {ends_text(low, high)})"


def above(low: float) -> str:
    """The lower end of an interval above 1: three digits, or more where these would be those of 1.

    >>> above(1.384), above(2.0), above(1.0036)
    ('1.38', '2', '1.004')
    """
    return next(text for digits in range(3, 18) if float(text := f"{low:.{digits}g}") > 1)


def ends_text(low: float, high: float) -> str:
    """An interval above 1.

    >>> ends_text(1.384, 2.5), ends_text(1.384, np.inf)
    ('1.38 to 2.5', 'above 1.38')
    """
    return f"{above(low)} to {high:.3g}" if np.isfinite(high) else f"above {above(low)}"


def _factors(rows: Sequence[pd.Series]) -> list[float]:
    """Half of each interval on a log scale: a larger difference would have been seen. None of an interval that is open
    or unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = np.sqrt(np.array([row.high for row in rows]) / np.array([row.low for row in rows]))
    return sorted(factors[np.isfinite(factors)].tolist())


def _inconclusive(rows: Sequence[pd.Series]) -> bool:
    """Whether these rows show neither a difference nor a tie: a difference of any size would not have been seen."""
    return not _factors(rows)


def _not_shown(rows: Sequence[pd.Series], where: str) -> str:
    """Two curves that are not shown to differ in these rows: a tie, unless nothing could have been seen."""
    first = rows[0]
    if _inconclusive(rows):
        return f"it is not known yet whether {first.a} or {first.b} needs fewer steps {where}: {_no_interval(rows)}"
    return f"{first.a} and {first.b} are tied {where} ({visible(rows)})"


def _no_interval(rows: Sequence[pd.Series]) -> str:
    source = "trials" if {row.kind for row in rows} == {SEARCHES} else "fresh seeds"
    return f"by these {source} the interval of the ratio is open"


def visible(rows: Sequence[pd.Series]) -> str:
    """The factors from which a difference would have been seen.

    >>> ends = [pd.Series({"low": low, "high": high}) for low, high in ((0.8, 1.25), (0.5, 2.0), (0.0, np.inf))]
    >>> visible(ends[:2]), visible(ends[2:])
    ('factors of 1.2 to 2 would have shown', 'the interval is open')
    """
    known = _factors(rows)
    if not known:
        return "the interval is open"
    least, most = (f"{factor:.2g}" for factor in (known[0], known[-1]))
    factors = f"a factor of {least}" if least == most else f"factors of {least} to {most}"
    return f"{factors} would have shown"


def _single(pair: pd.DataFrame) -> Iterator[str]:
    """The batch sizes at which one curve is shown to need fewer steps, tuning included."""
    rows = pair[pair["kind"] == ONE]
    if rows.empty:
        return
    yield from _at(rows, "at batch size")
    if not rows["shown"].any():
        yield _not_shown(list(rows.itertuples()), "at each single batch size")


def _at(rows: pd.DataFrame, where: str) -> Iterator[str]:
    """The batch sizes at which one of two curves needs fewer steps; those that the other missed the goal at, last."""
    shown = [(row.smallest_batch_size, *turned(row)) for row in rows[rows["shown"]].itertuples()]
    for ahead, behind in dict.fromkeys((each[1], each[2]) for each in shown):
        mine = [(size, *rest) for size, one, other, *rest in shown if (one, other) == (ahead, behind)]
        missed = [size for size, ratio, *_ in mine if np.isinf(ratio)]
        parts = [
            f"{where} {listed(f'{each[0]:,} ({range_text(*each[1:])})' for each in mine if each[0] not in missed)}"
        ]
        parts = parts if len(missed) < len(mine) else []
        if missed:
            parts.append(f"{where}{'s' if len(missed) > 1 else ''} {listed(missed)}, where {behind} missed the goal")
        yield f"{ahead} needs fewer steps than {behind} {', and '.join(parts)}"


def range_text(ratio: float, low: float, high: float) -> str:
    """A finite ratio with its interval.

    >>> range_text(2.0, 1.25, 2.5), range_text(2.0, 1.25, np.inf)
    ('2 times, 1.25 to 2.5', '2 times, above 1.25')
    """
    return f"{ratio:.3g} times, {ends_text(low, high)}"


def _configurations(pair: pd.DataFrame) -> Iterator[str]:
    """The batch sizes at which the tuned configurations differ, but tuning may explain it."""
    known = pair[(pair["kind"] == ONE) & pair["shown"]]["smallest_batch_size"]
    rows = pair[(pair["kind"] == CONFIGURATIONS) & pair["shown"]]
    rows = rows[~rows["smallest_batch_size"].isin(known)]
    yield from (f"{words}, by seeds alone: better tuning may change it" for words in _at(rows, "at batch size"))


def _searches(pair: pd.DataFrame) -> Iterator[str]:
    """The batch sizes at which one search is shown to be faster; only where there are no fresh seeds."""
    rows = pair[pair["kind"] == SEARCHES]
    if len(rows) == len(pair):
        yield from _at(rows, "by the trials of the searches, at batch size")


def _who(tied: Sequence[pd.DataFrame], names: Sequence[str], others: bool, every: bool) -> str:
    """Which pairs are tied: all but those that a sentence is about, all that there are, or these alone."""
    if others:
        return f"no other pair of {listed(names)} is shown to differ: tied"
    if every:
        none = f"neither {listed(names, 'nor')}" if len(names) == 2 else f"none of {listed(names)}"
        return f"{none} is shown to need fewer steps: tied"
    pairs = [f"{pair['a'].iloc[0]} with {pair['b'].iloc[0]}" for pair in tied]
    return f"tied: {listed(pairs)}"


def _visible_by(tied: Sequence[pd.DataFrame], cure: bool) -> str:
    """The factors that the strongest statements about these pairs could have seen."""
    rows = [row for pair in tied for row in _strongest(pair)]
    searches = cure and any(row.kind == SEARCHES for row in rows)
    seeds = f"; fresh seeds ({FRESH_SEEDS}) compare the tuned configurations seed by seed" if searches else ""
    return f"{visible(rows)}{seeds}"


def _strongest(pair: pd.DataFrame) -> list[pd.Series]:
    """The rows of the strongest kind of statement about a pair."""
    kind = next(kind for kind in (ALL, ONE, CONFIGURATIONS, SEARCHES) if (pair["kind"] == kind).any())
    return list(pair[pair["kind"] == kind].itertuples())


def _unknown(inconclusive: Sequence[pd.DataFrame], cure: bool) -> str:
    """The pairs that have no interval yet, and what to run."""
    names = sorted({name for pair in inconclusive for name in (*pair["a"], *pair["b"])})
    rows = [row for pair in inconclusive for row in _strongest(pair)]
    said = f"it is not known yet whether {listed(names, 'or')} needs fewer steps"
    if len(names) > 2:
        every = len(inconclusive) == len(names) * (len(names) - 1) // 2
        pairs = listed((f"of {pair['a'].iloc[0]} and {pair['b'].iloc[0]}" for pair in inconclusive), "or")
        which = f"which of {listed(names)} needs fewer steps" if every else f"which needs fewer steps {pairs}"
        said = f"it is not known yet {which}"
    said += f": {_no_interval(rows)}"
    if not cure:
        return said
    if any(row.kind != SEARCHES for row in rows):
        return f"{said}; run more fresh seeds: raise search.reruns, or search.confirm with search=refine"
    return f"{said}; run at least {PART} trials at each batch size (search.trials) and fresh seeds ({FRESH_SEEDS})"


def critical(names: Sequence[str], limits: pd.DataFrame, by: str = "optimizer") -> Iterator[str]:
    """The critical batch sizes side by side, if there are several; of two that the data establish, the ratio with its
    interval.

    Arguments:
        limits: the rows of one goal and of one workload (or optimizer), as for `sentences`.

    >>> [said] = critical(["momentum", "sgd"], pd.read_csv(f"{published}/tables/scaling.csv"))
    >>> said
    'critical batch sizes 62 with momentum and 37 with sgd, a ratio of 1.69 (95%: 1.2 to 2.38).'
    """
    rows = limits[limits["definition"] == CRITICAL].dropna(subset="estimate").set_index(by)
    known = [rows.loc[name] for name in names if name in rows.index]
    if len(known) < 2:
        return
    said = [f"{bounded(row['estimate'], row['estimate_bound'])} with {row.name}" for row in known]
    ratio = _ratio(*known) if len(known) == 2 else ""
    yield f"critical batch sizes {listed(said)}{ratio}."


def _ratio(one: pd.Series, other: pd.Series) -> str:
    more, less = sorted((one, other), key=lambda row: -row["estimate"])
    value, low, high = ratio(more, less)
    if (more["estimate_bound"], less["estimate_bound"]) != ("=", "=") or not 0 < low <= high < np.inf:
        return ""
    verdict = "" if low > 1 else ": tied"
    return f", a ratio of {value:.3g} (95%: {low:.3g} to {high:.3g}){verdict}"
