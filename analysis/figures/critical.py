"""Critical batch sizes: against the goal, and against the size of the model or of the data."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.markers import CARETDOWN, CARETUP

from analysis.figures import canvas
from analysis.figures.canvas import MUTED, heading, round_decimals
from analysis.labels import column_text, goal_text
from analysis.sizes.table import law

BAR, TUNED_FOR = "95 % interval", "tuned for"
LAW = "power law, with its 95 % interval"
CARETS = {">": (CARETUP, "lower bound"), "<": (CARETDOWN, "upper bound")}
"""Bound of a critical batch size -> its marker and what it means."""


def critical_by_goal(ax: Axes, table: pd.DataFrame) -> None:
    """Critical batch size against the threshold of the goal, with intervals: one curve per optimizer.

    >>> critical_by_goal(ax, pd.read_csv(f"{published}/tables/critical_by_goal.csv"))
    >>> ax.get_xlabel(), [text.get_text() for text in ax.get_legend().get_texts()]
    ('goal: validation cross entropy <', ['momentum', 'sgd', '95 % interval', 'tuned for'])
    """
    table = table.assign(y=table["critical_batch_size"])
    ends = pd.concat([table["y"], *(table[end].where(table[end] > 0) for end in ("low", "high"))])
    label = goal_text(str(table["goal_metric"].iloc[0]), 0).removesuffix(" 0")
    canvas.log_axes(
        ax, table["goal_threshold"], ends, f"goal: {label}", "critical batch size (examples)", round_decimals
    )
    heading(ax, str(table["workload"].iloc[0]), "by the same trials")
    lines, count = [], table["optimizer"].nunique()
    curves = canvas.curves(ax, table.rename(columns={"batch_size": "of"}).assign(batch_size=table["goal_threshold"]))
    for position, (_, rows, line) in enumerate(curves):
        lines.append(line)
        _draw_intervals(ax, rows, line.get_color(), 5 * (position - (count - 1) / 2))
    for threshold in table["goal_threshold"][table["recorded"].astype(bool)].unique():
        ax.plot([threshold] * 2, ax.get_ylim(), color=MUTED, label=TUNED_FOR, zorder=1, **canvas.DOTTED)
    canvas.legend(ax, lines, {BAR: canvas.BAR} | _carets(table) | {TUNED_FOR: canvas.DOTTED})


def critical_by_size(ax: Axes, table: pd.DataFrame, size_laws: pd.DataFrame | None = None) -> None:
    """Critical batch size against the size of the model or the data, with the power law and its interval.

    Arguments:
        size_laws: the laws of the panel (`analysis.sizes.table.laws`).

    >>> from analysis.sizes.table import laws
    >>> law = {"of": "mlp", "optimizer": "sgd", "goal_metric": "val/loss", "goal_threshold": 0.2, "axis": "width"}
    >>> ends = {"low": [15, 20, 30, 0], "high": [27, 40, 53, np.inf], "bound": ["=", "=", "=", ">"]}
    >>> law |= {"definition": "critical_batch_size_mccandlish", "size": [64, 128, 256, 512]}
    >>> made = pd.DataFrame({"critical_batch_size": [20, 28.3, 40, 50]} | ends | law)
    >>> critical_by_size(ax, made, laws(made))
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['sgd', '95 % interval', 'lower bound', 'power law, with its 95 % interval']
    """
    table = table.assign(y=table["critical_batch_size"], batch_size=table["size"])
    ends = pd.concat([table["y"], *(table[end].where(table[end] > 0) for end in ("low", "high"))])
    fitted = size_laws is not None and len(size_laws) > 0
    canvas.log_axes(ax, table["size"], ends, column_text(table["axis"].iloc[0]), "critical batch size (examples)")
    heading(ax, str(table["of"].iloc[0]), f"goal: {canvas.goal(table)}")
    across, lines = np.geomspace(*ax.get_xlim(), 60), []
    for name, rows, line in canvas.curves(ax, table):
        line.set_linestyle("none")
        lines.append(line)
        look: Any = {"color": line.get_color()}
        _draw_intervals(ax, rows, line.get_color())
        for row in [] if size_laws is None else size_laws[size_laws["optimizer"] == name].to_dict("records"):
            value, low, high = law(row).predict(across)
            ax.plot(across, value, **look, **canvas.DASHED)
            ax.fill_between(across, low, high, alpha=0.12, linewidth=0, **look)
    canvas.legend(ax, lines, {BAR: canvas.BAR} | _carets(table) | ({LAW: canvas.DASHED} if fitted else {}))


def _carets(table: pd.DataFrame) -> dict[str, Any]:
    """The notes of a legend on the bounds that are drawn."""
    there = set(table["bound"])
    look: Any = {"linestyle": "none", "markersize": 9}
    return {meaning: {"marker": caret, **look} for bound, (caret, meaning) in CARETS.items() if bound in there}


def _draw_intervals(ax: Axes, rows: pd.DataFrame, colour: Any, shift: float = 0.0) -> None:
    """Draw the intervals of a curve as bars within the axes, `shift` points aside, and its bounds as arrowheads."""
    look: Any = {"color": colour, "transform": canvas.aside(ax, shift)}
    bottom, top = ax.get_ylim()
    for row in rows.dropna(subset="low").itertuples():
        ax.plot([row.batch_size] * 2, [max(row.low, bottom), min(row.high, top)], label=BAR, **look, **canvas.BAR)
    for bound, (caret, _) in CARETS.items():
        beyond = rows[rows["bound"] == bound]
        ax.plot(beyond["batch_size"], beyond["y"], marker=caret, linestyle="none", markersize=9, **look)
