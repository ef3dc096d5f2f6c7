"""Drawings of the best errors within fixed budgets, independent of the goal.

Each function draws `table`, the rows of one panel; `analysis.figures.FIGURES` names the tables and panels.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import canvas
from analysis.figures.canvas import LINE, MARKERS, heading, log_axes, powers_of_two, round_decimals
from analysis.labels import metric_text, percent, short_count

LEAST_ERROR = 1e-3
"""The position of errors of 0 if all errors are 0."""


def against_budget(ax: Axes, table: pd.DataFrame) -> None:
    """The best error so far against training steps: one curve per batch size.

    >>> table = pd.read_csv(f"{published}/tables/best_errors.csv")
    >>> against_budget(ax, table[table["optimizer"] == "sgd"])
    >>> ax.get_ylabel(), [line.get_label() for line in ax.lines][:2]
    ('best validation cross entropy', ['batch size 1', 'batch size 4'])
    """
    sizes = canvas.evenly(sorted(table["batch_size"].unique()))
    shown, zeros = above_zero(table[table["batch_size"].isin(sizes)])
    label = f"best {metric_text(table['goal_metric'].iloc[0])}"
    log_axes(ax, shown["step"], shown["error"], "training steps", label, powers_of_two, round_decimals)
    heading(ax, str(table["workload"].iloc[0]), f"{table['optimizer'].iloc[0]}{zeros}")
    lines = []
    for size, colour in zip(sizes, canvas.ramp(len(sizes)), strict=True):
        rows = shown[shown["batch_size"] == size].sort_values("step")
        look: Any = {"drawstyle": "steps-post", "color": colour, "label": f"batch size {size:,}", "linewidth": 1.6}
        lines += ax.plot(rows["step"], rows["error"], **look)
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
    table, zeros = above_zero(table)
    label = f"best {metric_text(table['goal_metric'].iloc[0])}"
    log_axes(ax, table["batch_size"], table["error"], "batch size (examples)", label, yticks=round_decimals)
    budgets = sorted(table["budget"].unique())
    note = f"{table['optimizer'].iloc[0]}; the same {unit} at every batch size{zeros}"
    heading(ax, str(table["workload"].iloc[0]), note)
    canvas.tokens_axis(ax, table)
    lines = []
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
    table, zeros = above_zero(table)
    label = f"best {metric_text(table['goal_metric'].iloc[0])}"
    log_axes(ax, table["batch_size"], table["error"], "batch size (examples)", label, yticks=round_decimals)
    near = f"filled: within {percent(table['tolerance'].iloc[0])} of the best"
    heading(ax, str(table["workload"].iloc[0]), f"{table['optimizer'].iloc[0]}; {near}{zeros}")
    canvas.tokens_axis(ax, table)
    budgets = sorted(table["examples"].unique())
    lines, bars = [], 0
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
            bars += 1
    linear_if_negative(ax, table)
    canvas.legend(ax, lines, {"95 % interval": canvas.BAR} if bars else {})


def label_smoothing(ax: Axes, table: pd.DataFrame) -> None:
    """The best error against label smoothing within the step budget: one curve per batch size.

    >>> table = pd.DataFrame({"workload": "digits", "optimizer": "sgd", "batch_size": 64,
    ...     "goal_metric": "val/classification_error", "label_smoothing": [0.0, 0.1], "error": [0.06, 0.05]})
    >>> label_smoothing(ax, table)
    >>> ax.get_xlabel(), ax.lines[0].get_label()
    ('label smoothing', 'batch size 64')
    """
    sizes = canvas.evenly(sorted(table["batch_size"].unique()))
    shown, zeros = above_zero(table[table["batch_size"].isin(sizes) & np.isfinite(table["error"])])
    label = f"best {metric_text(table['goal_metric'].iloc[0])}"
    log_axes(ax, shown["label_smoothing"] + 1, shown["error"], "label smoothing", label, yticks=round_decimals)
    heading(ax, str(table["workload"].iloc[0]), f"{table['optimizer'].iloc[0]}{zeros}")
    lines = []
    for size, colour in zip(sizes, canvas.ramp(len(sizes)), strict=True):
        rows = shown[shown["batch_size"] == size].sort_values("label_smoothing")
        label = f"batch size {size:,}"
        lines += ax.plot(rows["label_smoothing"], rows["error"], "o-", color=colour, label=label, **LINE)
    canvas.linear(ax, "x")
    linear_if_negative(ax, shown)
    canvas.legend(ax, lines, {})


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
