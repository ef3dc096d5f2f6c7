"""Turns frames into tables of the page: readable numbers and goals, bounds beside their values, keys for sorting."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.certificates import table as certificates
from analysis.estimates.limits import COLUMNS as LIMIT_COLUMNS
from analysis.estimates.limits import IN_TOKENS
from analysis.estimates.pairs import NUMBERS, SEARCHES
from analysis.estimates.tuned import COLUMNS as ESTIMATES
from analysis.intervals import left_censored
from analysis.labels import BOUNDS, column_text, duration, listed, number, value_text, with_interval, within
from analysis.load import STUDY
from analysis.one_step import table as one_step
from analysis.report.cells import DASH, Cell, bounded, open_ends, with_cells, with_goal
from analysis.report.estimate_tables import (
    NONE,
    branched_shown,
    budget_shown,
    goals_shown,
    proxies_shown,
    split_shown,
    tunability_shown,
)
from analysis.sizes import table as size_laws
from analysis.tables.scaling import CRITICAL, PERFECT, SHOULDER, USEFUL, ZHANG
from analysis.tables.transfer import briefly
from analysis.units import TOKENS

UNBROKEN = str.maketrans({" ": "\N{NO-BREAK SPACE}", "-": "\N{NON-BREAKING HYPHEN}"})
USUAL = {"repeat": 0, "budget_multiple": 1.0, "stage": 0}
NEAR_ONE = re.compile("momentum|beta|decay")
"""In names of hyperparameters that act through 1 - value."""
STATUSES = ["complete", "infeasible", "incomplete"]
SAID_ONCE: tuple[str, ...] = ("workload", "optimizer", "goal", "stopping", "base_batch_size", "device", "read from")
SAID_ONCE += ("tuned for", TOKENS, "intervals")
"""Columns that go into the caption if all rows hold the same value."""
HEADERS = {
    "steps_to_result": "steps to goal",
    "examples_to_result": "examples to goal",
    "tokens_to_result": "tokens to goal",
    "train_steps": "step budget",
    "seconds_training": "training time",
    "seconds_evaluation": "evaluation time",
    "seconds_per_step": "time per step",
    "evaluation_share": "time spent evaluating",
    "log_error": "standard error of its log",
    "information": "AICc",
}
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
SOURCES = {
    "Steps to result": "steps_to_result",
    "Limits of scaling": "scaling",
    "Critical batch size against the goal": "critical_by_goal",
    "Critical batch size by branches": "branched",
    "Proxies of the critical batch size": "proxies",
    "Error at a fixed number of examples or tokens": "at_budget",
    "Noise of seeds and shortfall of tuning": "split",
    "Fits of steps to result": "fits",
    "Optimizers compared": "compare",
    "Workloads compared": "compare_workloads",
    "Batch-size schedules": "batch_schedules",
    "Schedules verified": "verified",
    "Trials by status": "steps_to_result",
    "Search spaces": "searches",
    "All searches": "searches",
    "Tunability": "tunability",
    "Searches repeated with other seeds": "repeats",
    "Tuned configurations with fresh seeds": "reruns",
    "Rules against tuning": "rules",
    "Certificates": "certificates",
    "Best learning rate of one step": "one_step",
    "Critical batch size across sizes": "size_laws",
    "Cost": "cost",
    "Claims": "claims",
}
"""Title of a table of the page -> the name of the table that it shows, which is a CSV file in full."""
ESTIMATED = {
    "Critical batch size against the goal": goals_shown,
    "Critical batch size by branches": branched_shown,
    "Proxies of the critical batch size": proxies_shown,
    "Error at a fixed number of examples or tokens": budget_shown,
    "Noise of seeds and shortfall of tuning": split_shown,
}
"""Title of a table of estimates -> its text."""
BESIDE = {
    "Critical batch size across sizes": size_laws.overview,
    "Best learning rate of one step": one_step.overview,
    "Certificates": certificates.overview,
}
"""Title of a table of what other verbs measured -> its text."""


class Column(NamedTuple):
    """The heading of a column, and whether it holds numbers."""

    name: str
    numeric: bool


class Table(NamedTuple):
    """A table of the page.

    Attributes:
        facts: values that all rows share, shown in the caption.
        name: of its LaTeX file; empty for a table that has no file.
        source: the name of its CSV file.
    """

    title: str
    facts: list[str]
    columns: list[Column]
    rows: list[tuple[Cell, ...]]
    name: str = ""
    source: str = ""

    @property
    def number(self) -> str:
        """Its number in the title; empty without one."""
        return self.title.partition(".")[0].removeprefix("Table ") if self.title.startswith("Table ") else ""


def sections(tables: Mapping[str, pd.DataFrame]) -> list[Table]:
    """The tables of the page, one for each workload and goal; columns without any value are left out.

    >>> from analysis.report.build import Asked, tables
    >>> studies = [study]
    >>> [table.title for table in sections(tables(studies, studies, Asked()))][:3]
    ['Table 1. Steps to result.', 'Table 2. Limits of scaling.', 'Table 3. Trials by status.']
    """
    if not tables:
        return []
    found: list[Table] = []
    for title, parts in (_found(tables) | _searched(tables)).items():
        stem = re.sub(r"[^a-z]+", "_", title.lower())
        for place, part in enumerate(parts, 1):
            made = shown(part.dropna(axis=1, how="all"), f"Table {len(found) + 1}. {title}.")
            found.append(made._replace(name=stem if place == 1 else f"{stem}-{place}", source=SOURCES[title]))
    return found


def _found(tables: Mapping[str, pd.DataFrame]) -> dict[str, list[pd.DataFrame]]:
    """Title -> frames of each table on the goal."""
    steps, scaling = with_goal(tables["steps_to_result"]), with_goal(tables["scaling"])
    fits = with_goal(tables["fits"]).rename(columns={"read_from": "read from"})
    workloads = _parts(with_goal(tables["compare_workloads"]), "optimizer")
    return {
        "Steps to result": [_steps_shown(part) for part in _parts(steps.drop(columns=_counts(steps)))],
        "Limits of scaling": [_scaling_shown(scaling)] if len(scaling) else [],
        **{title: _parts(show(tables.get(SOURCES[title], NONE))) for title, show in ESTIMATED.items()},
        "Fits of steps to result": _parts(fits),
        "Optimizers compared": [_pairs_shown(part) for part in _parts(with_goal(tables["compare"]))],
        "Workloads compared": [_pairs_shown(part) for part in workloads],
        "Batch-size schedules": _parts(with_goal(tables.get("batch_schedules", NONE))),
        "Schedules verified": _parts(with_goal(tables.get("verified", NONE))),
    }


def _searched(tables: Mapping[str, pd.DataFrame]) -> dict[str, list[pd.DataFrame]]:
    """Title -> frames of each table on the search."""
    steps, searches = with_goal(tables["steps_to_result"]), tables["searches"]
    names = [name for name in ("workload", "optimizer", "goal", "batch_size") if name in steps]
    every = [part for part in _parts(with_goal(searches)) if part.duplicated(STUDY).any()]
    beside = {title: tables.get(SOURCES[title], NONE) for title in BESIDE}
    return {
        "Trials by status": _parts(steps[[*names, *_counts(steps)]]),
        "Search spaces": [_boxes_shown(part) for part in _parts(searches)],
        "All searches": [_steps_shown(part) for part in every],
        "Tunability": _parts(tunability_shown(tables.get("tunability", NONE))),
        "Searches repeated with other seeds": _parts(with_goal(tables["repeats"])),
        "Tuned configurations with fresh seeds": _parts(with_goal(tables["reruns"])),
        "Rules against tuning": _rules_shown(with_goal(tables["rules"])),
        **{title: [BESIDE[title](rows)] for title, rows in beside.items() if rows.size},
        "Cost": _parts(tables["cost"]),
        "Claims": [tables["claims"]] if "claims" in tables else [],
    }


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


def _rules_shown(rules: pd.DataFrame) -> list[pd.DataFrame]:
    """A table for each curve and base: values with intervals, and the count of seeds that missed the goal."""
    names = ["workload", "optimizer", "goal", "base_batch_size"]
    return [_base_shown(part, names) for _, part in rules.groupby(names, sort=False)] if len(rules) else []


def _base_shown(rules: pd.DataFrame, names: list[str]) -> pd.DataFrame:
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
    return with_cells(rules[names], columns)


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


def _parts(table: pd.DataFrame, by: str = "workload") -> list[pd.DataFrame]:
    names = [name for name in (by, "goal") if name in table]
    return [part for _, part in table.groupby(names, sort=False)] if len(table) else []


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


def shown(table: pd.DataFrame, title: str) -> Table:
    """A frame as the page shows it; a name that is the same in all rows goes into the caption.

    >>> found = shown(pd.DataFrame({"optimizer": ["sgd", "sgd"], "steps_to_result": [1725, 24]}), "Table 1.")
    >>> found.facts, found.columns[0].name, [cell.text for (cell,) in found.rows]
    (['optimizer sgd'], 'steps to goal', ['1,725', '24'])
    """
    same = [name for name in SAID_ONCE if name in table and table[name].nunique(dropna=False) == 1]
    facts = [f"{header(name)} {value}" for name in same if (value := table[name].iloc[0]) != ""]
    columns = {name: [_cell(value, str(name)) for value in table[name]] for name in table.columns.drop(same)}
    headings = [Column(header(name), any(cell.key is not None for cell in cells)) for name, cells in columns.items()]
    return Table(title, facts, headings, list(zip(*columns.values(), strict=True)))


def header(name: Any) -> str:
    """The heading of a column.

    >>> header("steps_to_result"), header("batch_size")
    ('steps to goal', 'batch size')
    """
    return HEADERS.get(str(name), column_text(str(name)))


def _cell(value: Any, column: str) -> Cell:
    """A value as people read it: 1,725; 0.0213; 2 h 05 min; a dash if it is missing."""
    if isinstance(value, Cell):
        return value
    if pd.isna(value) or value == "":
        return Cell(DASH)
    if isinstance(value, bool | np.bool_):
        return Cell("yes" if value else "no")
    if isinstance(value, str):
        return Cell(value)
    if value == np.inf:  # steps to a goal, or an open end of an interval
        return Cell("∞" if column == "log_error" else "not reached", value)
    if column.startswith("seconds_"):
        return Cell(duration(float(value)), float(value))
    if column.endswith("_share"):
        return Cell(f"{value:.1%}", float(value))
    return Cell(value_text(value) if NEAR_ONE.search(column) else number(value), float(value))
