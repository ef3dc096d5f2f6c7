"""Compare pairs of curves: which needs fewer steps at which batch size, by how much, and whether the data show it.

Shapes: N feasible trials of one study, R resamples. Steps are infinite where a goal was not reached.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from analysis.counting import Goal
from analysis.intervals import ratios
from analysis.labels import bounded, goal_text, listed
from analysis.load import GOAL, StudyData
from analysis.tables import relative
from analysis.tables.steps_to_result import answerable, feasible_steps, row

FIXED = {"optimizer": "workload", "workload": "optimizer"}
"""The column in which two curves differ -> the column that they share."""


def table(
    studies: Sequence[StudyData], goals: Sequence[Goal | None] = (None,), by: str = "optimizer", seed: int = 0
) -> pd.DataFrame:
    """Compare pairs of optimizers on a workload, or of workloads with an optimizer, at each batch size that both have.

    Arguments:
        goals: the goals to read from the curves; None is each study's own.
        by: the column in which a pair differs, `optimizer` or `workload`. Two workloads are compared only if they share
            the data or the model.
        seed: the seed of the resampling.

    Returns:
        A row for each (workload or optimizer, goal, `by`, against, batch_size): speed_up, S(against) / S(by) (infinite
        if only the first reached the goal, 0 if only the other did, NaN if neither), with low and high, the 95 %
        interval of the same ratio of S_n by resampling trials (NaN with fewer than 4 trials and for adaptive
        searches).

    >>> folder = f"{published}/studies/mlp_digits"
    >>> studies = [load_study(f"{folder}/{optimizer}/256") for optimizer in ("momentum", "sgd")]
    >>> table(studies)[["optimizer", "against", "batch_size", "speed_up", "low"]]
      optimizer against  batch_size  speed_up       low
    0  momentum     sgd         256       1.0  0.888889
    """
    fixed = FIXED[by]
    curves: dict[tuple[str, str, float], dict[str, dict[int, tuple[np.ndarray, float, bool]]]] = {}
    for study, goal in answerable(studies, goals):
        held, name = (getattr(study, attribute) for attribute in (fixed, by))
        curve = curves.setdefault((held, goal.metric, goal.threshold), {}).setdefault(name, {})
        curve[study.batch_size] = feasible_steps(study, goal), row(study, goal)["censored_at"], study.independent
    related = relative.related(studies) if by == "workload" else None
    rows = []
    for key, by_name in sorted(curves.items()):
        for one, other in combinations(sorted(by_name), 2):
            if related is None or frozenset((one, other)) in related:
                for size in sorted(by_name[one].keys() & by_name[other].keys()):
                    (steps, end, drawn), (against, end_against, also) = by_name[one][size], by_name[other][size]
                    ratio, low, high = speed_up(steps, against, (seed, size), (end, end_against))
                    rows.append((*key, one, other, size, ratio, *((low, high) if drawn and also else (np.nan, np.nan))))
    return pd.DataFrame(rows, columns=[fixed, *GOAL, by, "against", "batch_size", "speed_up", "low", "high"])


def speed_up(
    steps: np.ndarray,
    against: np.ndarray,
    seed: tuple[int, int] = (0, 0),
    censored_at: tuple[float, float] = (np.nan, np.nan),
) -> tuple[float, float, float]:
    """(S(against) / S(steps), low, high): the ratio of the best trials, and the 95 % interval of the same ratio of S_n.

    Arguments:
        steps, against: steps to the goal of feasible trials [N], infinite if not reached.
        seed: the seed of the resampling.
        censored_at: for each side, the fewest steps at which a trial ended without the goal; NaN if all reached it.

    >>> speed_up(np.full(20, 50.0), np.full(20, 100.0))
    (2.0, 2.0, 2.0)
    """
    with np.errstate(invalid="ignore"):
        found = np.min(against, initial=np.inf) / np.min(steps, initial=np.inf)
    least, most = ratios(against, steps, ((seed[0] + 1, seed[1]), seed), censored_at[::-1])
    low, high = np.quantile(least, 0.025, method="lower"), np.quantile(most, 0.975, method="higher")
    return float(found), float(low), float(high)


def sentences(pairs: pd.DataFrame, limits: pd.DataFrame, by: str = "optimizer") -> list[str]:
    """A sentence for each pair that is shown to differ, and one about all others.

    Arguments:
        pairs, limits: from `table` and `analysis.tables.scaling.table`.

    >>> pairs = pd.DataFrame({"workload": "digits", "goal_metric": "val/classification_error", "goal_threshold": 0.05,
    ...     "optimizer": "adam", "against": "sgd", "batch_size": [64, 256],
    ...     "speed_up": [1.1, 2.0], "low": [0.9, 1.4], "high": [1.3, 2.5]})
    >>> limits = pd.read_csv(f"{published}/tables/scaling.csv")  # limits of other curves add nothing
    >>> sentences(pairs, limits)
    ['digits to validation error < 0.05: adam needs fewer steps than sgd at batch size 256 (up to 2 times).']
    """
    found = []
    for (held, metric, threshold), group in pairs.groupby([FIXED[by], *GOAL], sort=True):
        subject = f"{held} to {goal_text(metric, threshold)}"
        ahead = [_ahead(one, other, pair) for (one, other), pair in group.groupby([by, "against"], sort=True)]
        said = [f"{subject}: {words}." for words in ahead if words]
        names = sorted({*group[by], *group["against"]})
        if not said:
            none = f"neither {listed(names, 'nor')}" if len(names) == 2 else f"none of {listed(names)}"
            said = [f"{subject}: {none} is shown to need fewer steps at any batch size."]
        elif not all(ahead):
            said.append(f"{subject}: no other pair of {listed(names)} is shown to differ.")
        mine = limits[(limits[[FIXED[by], *GOAL]] == [held, metric, threshold]).all(axis=1)]
        found += [*said[:-1], f"{said[-1]} {_useful(names, mine, by)}".strip()]
    return found


def _ahead(one: str, other: str, pair: pd.DataFrame) -> str:
    """The batch sizes at which one of a pair is shown to need fewer steps; empty if there are none."""
    parts = []
    for name, behind, low, ratio in (
        (one, other, pair["low"], pair["speed_up"]),
        (other, one, 1 / pair["high"], 1 / pair["speed_up"]),
    ):
        shown = pair.assign(ratio=ratio)[low > 1].sort_values("batch_size")
        where = []
        for missed, rows in shown.groupby(np.isinf(shown["ratio"]), sort=True):
            sizes, most = ", ".join(f"{size:,}" for size in rows["batch_size"]), rows["ratio"].max()
            # The best of more trials is luckier, so S(B) can point the other way than S_n, which uses equal numbers.
            times = f"up to {most:.2g} times" if most > 1 else "comparing the best of equal numbers of trials"
            where.append(f"{sizes} ({f'where {behind} missed the goal' if missed else times})")
        if where:
            parts.append(f"{name} needs fewer steps than {behind} at batch size {', '.join(where)}")
    return "; ".join(parts)


def _useful(names: Sequence[str], limits: pd.DataFrame, by: str) -> str:
    """The maximum useful batch sizes, and their ratio if both are known."""
    useful = limits[limits["definition"] == "maximum_useful_batch_size"].dropna(subset="value").set_index(by)
    found = useful.loc[[name for name in names if name in useful.index], ["value", "bound"]]
    if len(found) < 2:
        return ""
    if len(found.drop_duplicates()) == 1 and len(found) == len(names):
        return f"Maximum useful batch size: {_useful_in_words(*found.iloc[0])} with each."
    listed = ", ".join(f"{_useful_in_words(row.value, row.bound)} with {row.Index}" for row in found.itertuples())
    times = f" (a ratio of {found['value'].max() / found['value'].min():.3g})" if (found["bound"] == "=").all() else ""
    return f"Maximum useful batch sizes: {listed}{times}."


def _useful_in_words(value: float, bound: str) -> str:
    """A limit as text. `<` is not written as `at most`: a few trials may not show a gain that exists."""
    return f"none above {value:,.0f} shown" if bound == "<" else bounded(value, bound)
