"""Cells of the page's tables: text for people, a number to sort by."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from analysis.labels import BOUNDS, goal_text, number, within

DASH = "–"


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
