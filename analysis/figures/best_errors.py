"""Drawings of the best errors within fixed budgets, independent of the goal.

Each function draws `table`, the rows of one panel; `analysis.figures.FIGURES` names the tables and panels.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.figures import canvas
from analysis.figures.canvas import LINE, MARKERS, heading, log_axes, round_decimals
from analysis.labels import metric_text, percent, short_count

BATCH_SIZE = "batch size (examples)"
LEAST_ERROR = 1e-3
"""The position of errors of 0 if all errors are 0."""


def against_budget(ax: Axes, table: pd.DataFrame) -> None:
    """The best error so far against training steps: one curve per batch size.

    >>> table = pd.read_csv(f"{published}/tables/best_errors.csv")
    >>> against_budget(ax, table[table["optimizer"] == "sgd"])
    >>> ax.get_ylabel(), [line.get_label() for line in ax.lines][:2]
    ('best validation cross entropy', ['batch size 1', 'batch size 4'])
    """
    shown = _of_several_sizes(table)
    shown = _with_axes(ax, shown, shown["step"], "training steps")
    lines = _by_size(ax, shown, "step", drawstyle="steps-post", linewidth=1.6)
    linear_if_negative(ax, shown)
    canvas.legend(ax, lines, {})


def against_batch_size(ax: Axes, table: pd.DataFrame) -> None:
    """The best error against batch size: one curve per budget, all in steps or all in examples.

    >>> from analysis.tables.best_errors import by_budget
    >>> found = by_budget(pd.read_csv(f"{published}/tables/best_errors.csv"))
    >>> against_batch_size(ax, found[(found["optimizer"] == "sgd") & (found["unit"] == "examples")])
    >>> [line.get_label() for line in ax.lines][-1]
    '10,000 examples (8.4 epochs)'
    """
    unit = table["unit"].iloc[0]
    table = _with_axes(ax, table, table["batch_size"], BATCH_SIZE, f"the same {unit} at every batch size")
    canvas.tokens_axis(ax, table)
    budgets, lines = sorted(table["budget"].unique()), []
    for budget, colour, marker in zip(budgets, canvas.ramp(len(budgets)), MARKERS, strict=False):
        rows = table[table["budget"] == budget].sort_values("batch_size")
        epochs = budget / rows["train_examples"].iloc[0]
        words = f"{budget:,.0f} {unit}"
        if unit == "examples" and np.isfinite(epochs):
            words += f" ({epochs:{',.0f' if epochs >= 10 else '.2g'}} epochs)"
        lines += ax.plot(rows["batch_size"], rows["error"], marker=marker, color=colour, label=words, **LINE)
    linear_if_negative(ax, table)
    canvas.legend(ax, lines, {})


def at_budget(ax: Axes, table: pd.DataFrame) -> None:
    """The error at fixed budgets against batch size: one curve per budget. Open marks are outside the tolerance.

    >>> rows = {"workload": "mine", "optimizer": "adam", "goal_metric": "val/cross_entropy_error", "examples": 1000,
    ...     "batch_size": [8, 16], "error": [2.0, 2.1], "low": 1.9, "high": 2.2, "within": [True, False],
    ...     "largest": 8, "largest_bound": "=", "tolerance": 0.01}
    >>> at_budget(ax, pd.DataFrame(rows))
    >>> [line.get_label() for line in ax.lines][:1]
    ['1,000 examples']
    """
    near = f"filled: within {percent(table['tolerance'].iloc[0])} of the best"
    table = _with_axes(ax, table, table["batch_size"], BATCH_SIZE, near)
    canvas.tokens_axis(ax, table)
    budgets, lines, notes = sorted(table["examples"].unique()), [], {}
    for budget, colour, marker in zip(budgets, canvas.ramp(len(budgets)), MARKERS, strict=False):
        rows = table[table["examples"] == budget].sort_values("batch_size")
        count = rows["tokens"].iloc[0] if "tokens" in rows else np.nan
        words = f"{budget:,.0f} examples" if np.isnan(count) else f"{short_count(count)} tokens"
        lines += ax.plot(rows["batch_size"], rows["error"], marker=marker, color=colour, label=words, **LINE)
        outside = rows[~rows["within"].astype(bool)]
        hollow: Any = {"marker": marker, "color": colour, "markerfacecolor": canvas.PAPER, "linestyle": "none"}
        ax.plot(outside["batch_size"], outside["error"], **{**LINE, **hollow, "zorder": 4})
        known = rows.dropna(subset=["low", "high"]) if budget == budgets[-1] else rows.iloc[:0]
        for row in known.itertuples():
            ax.plot([row.batch_size] * 2, [row.low, row.high], color=colour, **canvas.BAR)
            notes["95 % interval"] = canvas.BAR
    linear_if_negative(ax, table)
    canvas.legend(ax, lines, notes)


def label_smoothing(ax: Axes, table: pd.DataFrame) -> None:
    """The best error against label smoothing within the step budget: one curve per batch size.

    >>> table = pd.DataFrame({"workload": "digits", "optimizer": "sgd", "batch_size": 64,
    ...     "goal_metric": "val/classification_error", "label_smoothing": [0.0, 0.1], "error": [0.06, 0.05]})
    >>> label_smoothing(ax, table)
    >>> ax.get_xlabel(), ax.lines[0].get_label()
    ('label smoothing', 'batch size 64')
    """
    shown = _of_several_sizes(table)
    shown = _with_axes(ax, shown, shown["label_smoothing"] + 1, "label smoothing")
    lines = _by_size(ax, shown, "label_smoothing", marker="o", **LINE)
    canvas.linear(ax, "x")
    linear_if_negative(ax, shown)
    canvas.legend(ax, lines, {})


def _with_axes(ax: Axes, table: pd.DataFrame, x: pd.Series, xlabel: str, note: str = "") -> pd.DataFrame:
    """Set axes around the errors, with workload and optimizer as heading; returns the table as it can be drawn."""
    drawn, zeros = above_zero(table)
    first = table.iloc[0]
    log_axes(ax, x, drawn["error"], xlabel, f"best {metric_text(first['goal_metric'])}", yticks=round_decimals)
    heading(ax, str(first["workload"]), f"{first['optimizer']}{note and f'; {note}'}{zeros}")
    return drawn


def _of_several_sizes(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["batch_size"].isin(canvas.evenly(sorted(table["batch_size"].unique())))]


def _by_size(ax: Axes, table: pd.DataFrame, x: str, **look: Any) -> list[Line2D]:
    """Draw one curve per batch size, from dark to light."""
    lines, sizes = [], table.groupby("batch_size")
    for (size, rows), colour in zip(sizes, canvas.ramp(len(sizes)), strict=True):
        rows = rows.sort_values(x)
        lines += ax.plot(rows[x], rows["error"], color=colour, label=f"batch size {size:,}", **look)
    return lines


def linear_if_negative(ax: Axes, table: pd.DataFrame) -> None:
    """Make the error axis linear if some errors are below 0, as log-likelihoods are.

    >>> _ = ax.loglog([1, 2], [3, 2])
    >>> linear_if_negative(ax, pd.DataFrame({"error": [0.1, 0.2]}))
    >>> ax.get_yscale()
    'log'
    """
    if (table["error"] < 0).any():
        canvas.linear(ax, "y")


def above_zero(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """(the table with errors of 0, which a log axis cannot show, at half the least positive error; a note about it).

    >>> table, note = above_zero(pd.DataFrame({"error": [0.0, 0.2]}))
    >>> table["error"].tolist(), note
    ([0.1, 0.2], '; 0 drawn at 0.1')
    """
    error = table["error"]
    if not (error == 0).any() or (error < 0).any():  # with negative errors the axis is linear
        return table, ""
    floor = error[error > 0].min() / 2 if (error > 0).any() else LEAST_ERROR
    return table.assign(error=error.mask(error == 0, floor)), f"; 0 drawn at {floor:.1g}"
