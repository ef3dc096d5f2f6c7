"""Drawings of errors at fixed budgets, whatever the goal.

Each draws `table`, the rows of one panel, onto axes; `analysis.figures.FIGURES` names tables and panels. Examples
read tables of a report.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures.canvas import (
    LINE,
    MARKERS,
    evenly,
    heading,
    legend,
    linear_x,
    log_axes,
    powers_of_two,
    ramp,
    round_decimals,
)
from analysis.labels import metric_text

LEAST_ERROR = 1e-3
"""Where errors of 0 are drawn if there are no others."""


def against_budget(ax: Axes, table: pd.DataFrame) -> None:
    """The best error so far against training steps: a curve a batch size.

    >>> from matplotlib.figure import Figure
    >>> table = pd.read_csv("results/published/mlp_digits/tables/best_errors.csv")
    >>> ax = Figure().subplots()
    >>> against_budget(ax, table[table["optimizer"] == "sgd"])
    >>> ax.get_ylabel(), [line.get_label() for line in ax.lines][:2]
    ('best validation cross entropy', ['batch size 1', 'batch size 4'])
    """
    sizes = evenly(sorted(table["batch_size"].unique()))
    shown, zeros = _above_zero(table[table["batch_size"].isin(sizes)])
    label = f"best {metric_text(table['goal_metric'].iloc[0])}"
    log_axes(ax, shown["step"], shown["error"], "training steps", label, powers_of_two, round_decimals)
    heading(ax, str(table["workload"].iloc[0]), f"{table['optimizer'].iloc[0]}{zeros}")
    lines = []
    for size, colour in zip(sizes, ramp(len(sizes)), strict=True):
        rows = shown[shown["batch_size"] == size].sort_values("step")
        (line,) = ax.plot(rows["step"], rows["error"], drawstyle="steps-post", color=colour, linewidth=1.6)
        line.set_label(f"batch size {size:,}")
        lines.append(line)
    legend(ax, lines, {})


def against_batch_size(ax: Axes, table: pd.DataFrame) -> None:
    """The best error against batch size: a curve a budget, all in steps or all in examples.

    >>> from matplotlib.figure import Figure
    >>> from analysis.tables.best_errors import by_budget
    >>> found = by_budget(pd.read_csv("results/published/mlp_digits/tables/best_errors.csv"))
    >>> ax = Figure().subplots()
    >>> against_batch_size(ax, found[(found["optimizer"] == "sgd") & (found["unit"] == "examples")])
    >>> [line.get_label() for line in ax.lines][-1]
    '10,000 examples (8.4 epochs)'
    """
    unit = table["unit"].iloc[0]
    table, zeros = _above_zero(table)
    label = f"best {metric_text(table['goal_metric'].iloc[0])}"
    log_axes(ax, table["batch_size"], table["error"], "batch size (examples)", label, yticks=round_decimals)
    budgets = sorted(table["budget"].unique())
    heading(
        ax, str(table["workload"].iloc[0]), f"{table['optimizer'].iloc[0]}; the same {unit} at every batch size{zeros}"
    )
    lines = []
    for budget, colour, marker in zip(budgets, ramp(len(budgets)), MARKERS, strict=False):
        rows = table[table["budget"] == budget].sort_values("batch_size")
        epochs = budget / rows["train_examples"].iloc[0]
        words = f"{budget:,.0f} steps" if unit == "steps" else f"{budget:,.0f} examples"
        words += (
            f" ({epochs:{',.0f' if epochs >= 10 else '.2g'}} epochs)"
            if unit == "examples" and np.isfinite(epochs)
            else ""
        )
        lines += ax.plot(rows["batch_size"], rows["error"], marker=marker, color=colour, label=words, **LINE)
    legend(ax, lines, {})


def label_smoothing(ax: Axes, table: pd.DataFrame) -> None:
    """The best error against label smoothing within each batch size's step budget: a curve a batch size.

    >>> from matplotlib.figure import Figure
    >>> table = pd.DataFrame({"workload": "digits", "optimizer": "sgd", "batch_size": 64,
    ...     "goal_metric": "val/classification_error", "label_smoothing": [0.0, 0.1], "error": [0.06, 0.05]})
    >>> ax = Figure().subplots()
    >>> label_smoothing(ax, table)
    >>> ax.get_xlabel(), ax.lines[0].get_label()
    ('label smoothing', 'batch size 64')
    """
    sizes = evenly(sorted(table["batch_size"].unique()))
    shown, zeros = _above_zero(table[table["batch_size"].isin(sizes) & np.isfinite(table["error"])])
    label = f"best {metric_text(table['goal_metric'].iloc[0])}"
    log_axes(ax, shown["label_smoothing"] + 1, shown["error"], "label smoothing", label, yticks=round_decimals)
    heading(ax, str(table["workload"].iloc[0]), f"{table['optimizer'].iloc[0]}{zeros}")
    lines = []
    for size, colour in zip(sizes, ramp(len(sizes)), strict=True):
        rows = shown[shown["batch_size"] == size].sort_values("label_smoothing")
        lines += ax.plot(
            rows["label_smoothing"], rows["error"], "o-", color=colour, label=f"batch size {size:,}", **LINE
        )
    linear_x(ax)
    legend(ax, lines, {})


def _above_zero(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """(the table with errors of 0, which a log axis has no place for, at half the least error above; words for it)."""
    error = table["error"]
    if not (error == 0).any():
        return table, ""
    floor = error[error > 0].min() / 2 if (error > 0).any() else LEAST_ERROR
    return table.assign(error=error.mask(error == 0, floor)), f"; 0 drawn at {floor:.1g}"
