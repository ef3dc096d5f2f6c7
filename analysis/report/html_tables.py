"""The kinds of tables of the page, and how each shows the numbers of its CSV file."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.certificates import table as certificates
from analysis.estimates.limits import COLUMNS as LIMIT_COLUMNS
from analysis.estimates.limits import IN_TOKENS
from analysis.estimates.pairs import NUMBERS, SEARCHES
from analysis.estimates.tuned import COLUMNS as ESTIMATES
from analysis.intervals import left_censored
from analysis.labels import BOUNDS, listed, number, with_interval, within
from analysis.load import GOAL, STUDY, TASK
from analysis.one_step import table as one_step
from analysis.report.estimate_tables import (
    branched_shown,
    budget_shown,
    goals_shown,
    proxies_shown,
    split_shown,
    tunability_shown,
)
from analysis.report.table import Cell, Table, bounded, open_ends, shown, with_cells, with_goal
from analysis.sizes import table as size_laws
from analysis.tables.scaling import CRITICAL, PERFECT, SHOULDER, USEFUL, ZHANG
from analysis.tables.transfer import briefly

UNBROKEN = str.maketrans({" ": "\N{NO-BREAK SPACE}", "-": "\N{NON-BREAKING HYPHEN}"})
USUAL = {"repeat": 0, "budget_multiple": 1.0, "stage": 0}
BASE = ["workload", "optimizer", *GOAL, "base_batch_size"]
STATUSES = ["complete", "infeasible", "incomplete"]
DEFINITIONS = {
    CRITICAL: "critical batch size, McCandlish et al. 2018 (hyperbola)",
    SHOULDER: "critical batch size, sharp shoulder",
    ZHANG: "critical batch size, Zhang et al. 2024",
    PERFECT: "perfect-scaling limit",
    USEFUL: "maximum useful batch size",
}
"""The names of limits of scaling in tables, the best known first."""
TUNED, OPTIMUM = ("tuned_steps", "tuned_low", "tuned_high"), ("optimum_low", "optimum_high")
SHOWN = {True: "differ", False: "tied"}


def _counts(steps: pd.DataFrame) -> list[str]:
    return [status for status in STATUSES if status in steps]


def _interval_shown(value: float, low: float, high: float, censored_at: float) -> Cell | None:
    """A value with its interval; an infinite value or end is shown as `> censored_at`, or as an ellipsis if unknown."""
    if pd.isna(value):
        return None
    if np.isinf(low):
        return Cell("not reached", np.inf)
    beyond = "…" if pd.isna(censored_at) else f"> {number(censored_at)}"
    shown, top = (beyond if np.isinf(end) else number(end) for end in (value, high))
    return Cell(f"{shown} ({number(low)} to {top})", value)


def _ratios(table: pd.DataFrame, *columns: str) -> pd.Series:
    """Cells of ratios, with intervals if there are any; `columns`: value, low end, high end."""

    def cell(value: float, low: float, high: float) -> Cell | None:
        interval = "" if pd.isna(low) or np.isinf(low) else f" ({within(low, high, _times)})"
        return None if pd.isna(value) else Cell(_times(value) + interval, value)

    rows = table[list(columns)].itertuples(index=False)
    return pd.Series([cell(*row) for row in rows], table.index, dtype=object)


def _pairs_shown(pairs: pd.DataFrame) -> pd.DataFrame:
    """A row for each statement: the batch sizes that it is about, and how many times the steps of a b needs.

    Searches are left out of the page, not of the file, where fresh seeds say more.
    """
    pairs = pairs if (pairs["kind"] == SEARCHES).all() else pairs[pairs["kind"] != SEARCHES]
    sizes = [
        Cell(number(first) if first == last else f"{number(first)} to {number(last)}", first)
        for first, last in zip(pairs["smallest_batch_size"], pairs["largest_batch_size"], strict=True)
    ]
    ratios, shown = _ratios(pairs, "ratio", "low", "high"), [SHOWN[bool(each)] for each in pairs["shown"]]
    kept, together = [name for name in pairs if name not in NUMBERS], len(pairs[["a", "b"]].drop_duplicates())
    level = {"intervals": f"95% for all {together} pairs together"} if together > 1 else {}
    return pairs[kept].assign(**{"batch sizes": sizes, "steps of b / a": ratios, "shown": shown}, **level)


def _rules_shown(rules: pd.DataFrame) -> pd.DataFrame:
    """A row for each rule: values with intervals, and the count of seeds that missed the goal."""
    counts = rules[["missed", "seeds", "missed_low", "missed_high"]].itertuples(index=False)
    missed = [Cell(f"{m} of {n} ({a:.0%} to {b:.0%})", m / n) for m, n, a, b in counts]
    columns = {
        "rule": [briefly(rule).translate(UNBROKEN) for rule in rules["rule"]],
        "batch_size": rules["batch_size"],
        "learning_rate": rules["learning_rate"],
        "steps": _ratios(rules, "steps", "low", "high"),
        "goal missed": missed,
        "times the tuned steps": _ratios(rules, "steps_lost", "lost_low", "lost_high"),
        "tuned_learning_rate": rules["tuned_learning_rate"],
        "tuned_steps": rules["tuned_steps"],
        "S(B)": rules["steps_to_result"],
    }
    return with_cells(rules[BASE], columns)


def _times(value: float) -> str:
    return "∞" if np.isinf(value) else number(value)


def _boxes_shown(searches: pd.DataFrame) -> pd.DataFrame:
    """Each search space once, with the batch sizes that it was used at."""
    searched = [name for name in searches if str(name).startswith("searched_")]
    groups = searches.groupby(["workload", "optimizer", "stage", *searched], sort=False, dropna=False)
    boxes = groups["batch_size"].agg(lambda sizes: listed(dict.fromkeys(sizes))).reset_index()
    boxes = boxes.rename(columns={name: str(name).removeprefix("searched_") for name in searched})
    return _usual_dropped(boxes.rename(columns={"batch_size": "batch sizes"}))


def _usual_dropped(table: pd.DataFrame) -> pd.DataFrame:
    """Drop columns that hold their usual value throughout."""
    return table.drop(columns=[name for name, usual in USUAL.items() if name in table and (table[name] == usual).all()])


def _answers_shown(steps: pd.DataFrame) -> pd.DataFrame:
    return _steps_shown(steps.drop(columns=_counts(steps)))


def _statuses_shown(steps: pd.DataFrame) -> pd.DataFrame:
    """How many trials of each study ended in each way."""
    return steps[[*(name for name in (*STUDY, *GOAL) if name in steps), *_counts(steps)]]


def _all_shown(searches: pd.DataFrame) -> pd.DataFrame:
    """Every search; none if each study has only the one that gives its answer."""
    return _steps_shown(searches) if searches.duplicated(STUDY).any() else searches.iloc[:0]


def _steps_shown(steps: pd.DataFrame) -> pd.DataFrame:
    """Steps and their interval as one cell each; `not reached` sorts after every number."""
    steps = _usual_dropped(steps.drop(columns=[name for name in steps if str(name).startswith("searched_")]))
    if "steps_n" in steps:
        interval = ["steps_n", "low", "high", "censored_at"]
        columns = (steps[name] for name in interval)
        sure = [_interval_shown(*row) for row in zip(*columns, strict=True)]
        at = steps.columns.get_loc("steps_n")
        steps = steps.drop(columns=interval)
        steps.insert(at, "median best of N/4 trials", pd.Series(sure, steps.index, dtype=object))
    if "tuned_steps" in steps:
        steps = _estimates_shown(steps)
    censored = left_censored(steps["steps_to_result"], steps.get("first_evaluation"))
    cells = [
        Cell("not reached", np.inf) if not reached else Cell(f"{BOUNDS['<']}{value:,}", value) if is_bound else value
        for value, reached, is_bound in zip(steps["steps_to_result"], steps["reached"], censored, strict=True)
    ]
    dropped = [name for name in ("reached", "first_evaluation") if name in steps]
    return steps.assign(steps_to_result=pd.Series(cells, steps.index, dtype=object)).drop(columns=dropped)


def _estimates_shown(steps: pd.DataFrame) -> pd.DataFrame:
    """The estimates beside S(B): each with its interval as one cell."""
    rows = {name: steps[name] if name in steps else pd.Series(np.nan, steps.index) for name in ESTIMATES}
    own, optimum = ([rows[name] for name in names] for names in (TUNED, ("tuned_steps", *OPTIMUM)))
    censored = left_censored(own[0], steps.get("first_evaluation"))
    columns: dict[str, Any] = {
        "tuned, fresh seeds": [_between(*row) for row in zip(*own, censored, strict=True)],
        "tuned optimum, 95 %": [
            None if pd.isna(low) or np.isinf(value) else Cell(within(low, high).translate(UNBROKEN), low)
            for value, low, high in zip(*optimum, strict=True)
        ],
        "seeds that missed": [
            None if not count else Cell(f"{missed:.0f} of {count:.0f}", missed / count)
            for missed, count in zip(rows["missed"], rows["seeds"], strict=True)
        ],
        "tuned / S(B)": rows["luck"],
        "tuned for": rows["tuned_for"],
        "convex curve": rows["curve_steps"],
    }
    at = steps.columns.get_loc("steps_to_result") + 1
    steps = steps.drop(columns=[name for name in ESTIMATES if name in steps])
    made = with_cells(steps[[]], columns).dropna(axis=1, how="all")
    return pd.concat([steps.iloc[:, :at], made, steps.iloc[:, at:]], axis=1)


def _between(value: float, low: float, high: float, censored: bool) -> Cell | None:
    if pd.isna(value):
        return None
    shown = f"{BOUNDS['<'] if censored else ''}{with_interval(value, low, high)}"
    return Cell("not reached" if np.isinf(value) else shown, value)


def _scaling_shown(scaling: pd.DataFrame) -> pd.DataFrame:
    """Limits with bounds and intervals, under readable names; what S(B) and S_n alone give comes last."""
    scaling = with_goal(scaling)
    ranks = scaling["definition"].map({name: rank for rank, name in enumerate(DEFINITIONS)})
    scaling = scaling.assign(rank=ranks).sort_values(["workload", "optimizer", "goal", "rank"], ignore_index=True)
    shown = scaling.drop(columns=["value", "bound", "low", "high", "rank", *LIMIT_COLUMNS, IN_TOKENS], errors="ignore")
    shown["definition"] = [DEFINITIONS.get(d, d.replace("_", " ")) for d in scaling["definition"]]
    columns = {
        "batch size (examples)": bounded(scaling, "estimate", "estimate_bound"),
        "in tokens": bounded(scaling, IN_TOKENS, "estimate_bound") if IN_TOKENS in scaling else np.nan,
        "95 % interval": open_ends(scaling, "estimate_low", "estimate_high"),
        "read from": scaling["read_from"],
        "by S(B) alone": bounded(scaling, "value", "bound"),
        "95 % of resamples": open_ends(scaling, "low", "high"),
    }
    return with_cells(shown, {name: cells for name, cells in columns.items() if pd.Series(cells).notna().any()})


def _fits_shown(fits: pd.DataFrame) -> pd.DataFrame:
    return fits.rename(columns={"read_from": "read from"})


class Kind(NamedTuple):
    """A kind of table of the page.

    Attributes:
        source: the name of the table that it shows, which is a CSV file in full.
        shown: makes rows readable; it may leave out all of them.
        apart: columns; each combination of their values has a table of its own.
    """

    title: str
    source: str
    shown: Callable[[pd.DataFrame], pd.DataFrame] = lambda rows: rows
    apart: Sequence[str] = tuple(TASK)

    @property
    def stem(self) -> str:
        """The name of the LaTeX file of its first table."""
        return re.sub(r"[^a-z]+", "_", self.title.lower())

    def frames(self, tables: Mapping[str, pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """The content of each of its tables, without columns that have no value.

        >>> cost = pd.DataFrame({"workload": ["digits", "mnist"], "trials": [20, 50], "device": None})
        >>> [frame.columns.tolist() for frame in Kind("Cost", "cost").frames({"cost": cost})]
        [['workload', 'trials'], ['workload', 'trials']]
        """
        rows = tables.get(self.source, pd.DataFrame())
        apart = [name for name in self.apart if name in rows]
        for part in (part for _, part in rows.groupby(apart, sort=False)) if apart else [rows]:
            if len(part) and len(made := self.shown(part)):
                yield with_goal(made).dropna(axis=1, how="all")


KINDS = (
    Kind("Steps to result", "steps_to_result", _answers_shown),
    Kind("Limits of scaling", "scaling", _scaling_shown, apart=()),
    Kind("Critical batch size against the goal", "critical_by_goal", goals_shown, apart=["workload"]),
    Kind("Critical batch size by branches", "branched", branched_shown, apart=["workload"]),
    Kind("Proxies of the critical batch size", "proxies", proxies_shown),
    Kind("Error at a fixed number of examples or tokens", "at_budget", budget_shown, apart=["workload"]),
    Kind("Noise of seeds and shortfall of tuning", "split", split_shown),
    Kind("Fits of steps to result", "fits", _fits_shown),
    Kind("Optimizers compared", "compare", _pairs_shown),
    Kind("Workloads compared", "compare_workloads", _pairs_shown, apart=["optimizer", *GOAL]),
    Kind("Batch-size schedules", "batch_schedules"),
    Kind("Schedules verified", "verified"),
    Kind("Trials by status", "steps_to_result", _statuses_shown),
    Kind("Search spaces", "searches", _boxes_shown, apart=["workload"]),
    Kind("All searches", "searches", _all_shown),
    Kind("Tunability", "tunability", tunability_shown),
    Kind("Searches repeated with other seeds", "repeats"),
    Kind("Tuned configurations with fresh seeds", "reruns"),
    Kind("Rules against tuning", "rules", _rules_shown, apart=BASE),
    Kind("Critical batch size across sizes", "size_laws", size_laws.overview, apart=()),
    Kind("Best learning rate of one step", "one_step", one_step.overview, apart=()),
    Kind("Certificates", "certificates", certificates.overview, apart=()),
    Kind("Cost", "cost"),
    Kind("Claims", "claims", apart=()),
)
"""The kinds of tables, in the order of the page."""


def sections(tables: Mapping[str, pd.DataFrame]) -> list[Table]:
    """The tables of the page, of each kind one for each workload and goal; columns without any value are left out.

    >>> from analysis.report.build import Asked, tables
    >>> studies = [study]
    >>> [table.title for table in sections(tables(studies, studies, Asked()))][:3]
    ['Table 1. Steps to result.', 'Table 2. Limits of scaling.', 'Table 3. Trials by status.']
    """
    found: list[Table] = []
    for kind in KINDS:
        for place, frame in enumerate(kind.frames(tables), 1):
            made = shown(frame, f"Table {len(found) + 1}. {kind.title}.")
            name = kind.stem if place == 1 else f"{kind.stem}-{place}"
            found.append(made._replace(name=name, source=kind.source))
    return found
