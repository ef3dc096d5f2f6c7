"""A table of the page: cells with text for people and a number to sort by, headings, and a caption."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.labels import BOUNDS, column_text, duration, goal_text, number, value_text, within
from analysis.units import TOKENS

DASH = "–"
NEAR_ONE = re.compile("momentum|beta|decay")
"""In names of hyperparameters that act through 1 - value."""
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


class Cell(NamedTuple):
    """The text of a cell, and the number to sort it by; None: sort by the text."""

    text: str
    key: float | None = None

    @property
    def sort_key(self) -> str | None:
        """The key for the page's script. Empty for a dash, which sorts last; None: sort by the text."""
        if self.text == DASH:
            return ""
        return None if self.key is None else str(self.key).replace("inf", "Infinity")


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


def with_goal(table: pd.DataFrame) -> pd.DataFrame:
    """One column for the goal in place of its metric and threshold.

    >>> with_goal(pd.DataFrame({"goal_metric": ["val/cross_entropy_error"], "goal_threshold": [0.2]}))["goal"][0]
    'validation cross entropy < 0.2'
    """
    if not {"goal_metric", "goal_threshold"} <= set(table):
        return table
    goals = [goal_text(*pair) for pair in zip(table["goal_metric"], table["goal_threshold"], strict=True)]
    return table.assign(goal=goals).drop(columns=["goal_metric", "goal_threshold"])


def with_cells(table: pd.DataFrame, columns: Mapping[str, Iterable[Any]]) -> pd.DataFrame:
    """A frame with further columns, whose cells are in the order of its rows.

    >>> with_cells(pd.DataFrame({"batch_size": [8]}, index=[3]), {"steps": [Cell("≤ 20", 20)]}).loc[3, "steps"].text
    '≤ 20'
    """
    return table.assign(**{name: pd.Series(list(cells), table.index, dtype=object) for name, cells in columns.items()})


def bounded(scaling: pd.DataFrame, value: str, bound: str) -> list[Cell | None]:
    """Cells of values with their bounds before them; `value` and `bound` name columns.

    >>> bounded(pd.DataFrame({"estimate": [64.0], "bound": [">"]}), "estimate", "bound")
    [Cell(text='≥ 64', key=64.0)]
    """
    pairs = zip(scaling[value], scaling[bound], strict=True)
    return [None if pd.isna(v) else Cell(BOUNDS[bound] + number(v), v) for v, bound in pairs]


def open_ends(scaling: pd.DataFrame, low: str, high: str) -> list[Cell | None]:
    """Cells of intervals, sorted by their lower ends; 0 and infinity are open ends.

    >>> open_ends(pd.DataFrame({"low": [8.0], "high": [float("inf")]}), "low", "high")
    [Cell(text='above 8', key=8.0)]
    """
    pairs = zip(scaling[low], scaling[high], strict=True)
    return [None if pd.isna(a) else Cell(within(a, b), a) for a, b in pairs]


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
