"""Which optimizer scales furthest and needs the fewest steps, with ties shown as ties; and performance profiles."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from analysis.claims.evidence import Curve, Evidence
from analysis.claims.statement import LEVEL, Statement
from analysis.estimates import limits, pairs, tuned
from analysis.load import CURVE
from analysis.tables.scaling import CRITICAL, USEFUL

PROBLEM = ["workload", "goal", "batch_size"]


def furthest(evidence: Evidence) -> pd.DataFrame:
    """The optimizers of each workload by their maximum useful batch size, and by their critical batch size.

    Optimizer a is ahead of b if the interval of the ratio of the two limits lies above 1, at a level divided by the
    number of pairs. The rank of an optimizer is one more than the number of those ahead of it.

    Returns:
        A row for each (workload, goal, optimizer): rank, tied (True if another optimizer has its rank), the columns
        estimate, estimate_low, estimate_high and estimate_bound of its maximum useful batch size, and all of
        these for its critical batch size with the prefix critical_. Optimizers without a limit are left out.

    >>> from analysis.gallery import gather
    >>> evidence = gather.one(published)
    >>> furthest(evidence)[["optimizer", "rank", "tied"]]
      optimizer  rank  tied
    0  momentum     1  True
    1       sgd     1  True
    """
    rows: list[dict[str, Any]] = []
    for group in evidence.groups("workload", "goal"):
        curves = [curve for curve in group if _known(curve)]
        useful, critical = (_ranks(curves, definition) for definition in (USEFUL, CRITICAL))
        critical = {name: {f"critical_{key}": value for key, value in row.items()} for name, row in critical.items()}
        found = [_names(each) | useful[each.optimizer] | critical[each.optimizer] for each in curves]
        rows += sorted(found, key=lambda row: (row["rank"], row["critical_rank"], -row["estimate"]))
    return pd.DataFrame(rows)


def _known(curve: Curve) -> bool:
    there = {USEFUL, CRITICAL} <= set(curve.limits.index)
    return there and bool(np.isfinite(curve.limits.loc[[USEFUL, CRITICAL], "estimate"].astype(float)).all())


def _names(curve: Curve) -> dict[str, str]:
    return {"workload": curve.workload, "goal": curve.goal, "optimizer": curve.optimizer}


def _ranks(curves: Sequence[Curve], definition: str) -> dict[str, dict[str, Any]]:
    """Optimizer -> its rank by a limit, and the limit."""
    ahead = {curve.optimizer: 0 for curve in curves}
    count = max(1, len(curves) * (len(curves) - 1) // 2)
    for one, other in combinations(curves, 2):
        ratio = limits.ratio(one.limits.loc[definition], other.limits.loc[definition])
        low, high = Statement("", "", *ratio).interval(LEVEL / count)
        if low > 1 or high < 1:
            ahead[other.optimizer if low > 1 else one.optimizer] += 1
    places = list(ahead.values())
    kept = ["estimate", "estimate_low", "estimate_high", "estimate_bound"]
    return {
        curve.optimizer: {
            **{"rank": 1 + ahead[curve.optimizer], "tied": places.count(ahead[curve.optimizer]) > 1},
            **curve.limits.loc[definition, kept].to_dict(),
        }
        for curve in curves
    }


def fewest(evidence: Evidence) -> pd.DataFrame:
    """The steps of every optimizer at each batch size, and which of them no other is shown to beat.

    Two optimizers are compared by the same fresh seeds: with the scatter of tuning where it is known (at least six
    batch sizes), else the two configurations alone. The level is divided by the number of pairs. Without fresh seeds
    nothing is shown, and all are tied.

    Returns:
        A row for each (workload, goal, batch_size, optimizer): steps (infinite if the goal was missed), bound (`<` if
        they are only an upper bound, because the goal was met at the first evaluation; else `=`), low and high (95 %;
        NaN if unknown), and leads (True if it reached the goal and no other is shown to need fewer steps).

    >>> from analysis.gallery import gather
    >>> evidence = gather.one(published)
    >>> found = fewest(evidence)
    >>> found[found["batch_size"] == 1024][["optimizer", "steps", "leads"]].round()
       optimizer  steps  leads
    20  momentum   11.0   True
    21       sgd   21.0  False
    """
    rows = [row for group in evidence.groups("workload", "goal") for row in _fewest(evidence, group)]
    columns = [*PROBLEM, "optimizer", "steps", "bound", "low", "high", "leads"]
    return pd.DataFrame(rows, columns=columns).sort_values([*PROBLEM, "optimizer"], ignore_index=True)


def _fewest(evidence: Evidence, group: Sequence[Curve]) -> Iterator[dict[str, object]]:
    beaten = _beaten(evidence, group)
    for curve in group:
        points = tuned.points(curve.steps)
        for row in curve.steps.to_dict("records"):
            size = int(row["batch_size"])
            low, high = map(float, tuned.interval(row))
            censored = np.isnan(points[size])
            steps = row["tuned_steps" if row["read_from"] == tuned.SEEDS else "steps_to_result"]
            leads = points[size] != np.inf and (size, curve.optimizer) not in beaten
            names = {**_names(curve), "batch_size": size, "steps": float(steps) if censored else points[size]}
            names["bound"] = "<" if censored else "="
            yield {**names, "low": low, "high": high, "leads": bool(leads)}


def _beaten(evidence: Evidence, group: Sequence[Curve]) -> set[tuple[int, str]]:
    """(batch size, optimizer) where another optimizer is shown to need fewer steps."""
    runs = evidence.table("rerun_steps")
    if runs.empty or len(group) < 2:
        return set()
    tables = evidence.table("steps_to_result"), evidence.table("scaling"), runs
    measured = {each.optimizer: pairs.seeded_curve(dict(zip(CURVE, each.key, strict=True)), *tables) for each in group}
    both = list(combinations(measured, 2))
    found = set()
    for one, other in both:
        statements = pairs.statements(measured[one], measured[other], 1 - LEVEL / len(both))
        tuning_included = {each.smallest_batch_size for each in statements if each.kind == pairs.ONE}
        for each in statements:
            alone = each.kind == pairs.CONFIGURATIONS and each.smallest_batch_size not in tuning_included
            if each.shown and (each.kind == pairs.ONE or alone):
                found.add((each.smallest_batch_size, other if each.low > 1 else one))
    return found


def profile(steps: pd.DataFrame) -> pd.DataFrame:
    """Performance profiles (Dolan & More 2002): how often an optimizer is within a factor of the best one.

    A problem is a workload, a goal and a batch size, with at least two optimizers. An optimizer that missed the goal
    is infinitely far from the best. Problems on which the steps of one are only an upper bound are left out: the best
    there is unknown.

    Arguments:
        steps: from `fewest`.

    Returns:
        A row for each optimizer and each factor at which its profile rises: factor, share (of the problems that it was
        tried on, on which it needs at most this factor times the steps of the best one) and problems (their number).

    >>> steps = pd.DataFrame({"workload": "digits", "goal": "loss < 1", "batch_size": [8, 8, 16, 16],
    ...     "optimizer": ["adam", "sgd"] * 2, "steps": [10.0, 20.0, 8.0, 4.0], "bound": "="})
    >>> profile(steps)
      optimizer  factor  share  problems
    0      adam     1.0    0.5         2
    1      adam     2.0    1.0         2
    2       sgd     1.0    0.5         2
    3       sgd     2.0    1.0         2
    """
    steps = steps[steps["bound"].eq("=").groupby([steps[name] for name in PROBLEM]).transform("all")]
    several = steps.groupby(PROBLEM)["optimizer"].transform("nunique") > 1
    known = steps[several].assign(best=steps[several].groupby(PROBLEM)["steps"].transform("min"))
    known = known[np.isfinite(known["best"])]
    rows: list[tuple[object, ...]] = []
    for optimizer, mine in known.groupby("optimizer"):
        factors = np.sort((mine["steps"] / mine["best"]).to_numpy())
        rises = np.unique([1.0, *factors[np.isfinite(factors)]])
        rows += [(optimizer, rise, float((factors <= rise + 1e-12).mean()), len(factors)) for rise in rises]
    return pd.DataFrame(rows, columns=["optimizer", "factor", "share", "problems"])
