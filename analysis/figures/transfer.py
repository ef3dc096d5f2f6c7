"""Drawing of transferred against retuned hyperparameters: the cost of a transfer.

`table` holds the rows of one panel (`analysis.tables.transfer.table`, one base).
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import canvas
from analysis.figures.canvas import COLOURS, INK, MARKERS, MUTED, OPEN, PAPER, goal, round_decimals
from analysis.tables.transfer import ORDER, briefly, rank

STAR: Any = {"marker": "*", "markersize": 13, "color": INK, "linestyle": "none", "zorder": 5}
BAR: Any = {"linewidth": 1.2, "alpha": 0.45, "zorder": 2}
HOLLOW: Any = {"markerfacecolor": PAPER, "linestyle": "none", "zorder": 4}
HERE, AGAIN, INTERVAL = "tuned here and transferred", "retuned", "95 % over seeds"
SOME, MOST = "some seeds missed", "most seeds missed"


def steps_lost(ax: Axes, table: pd.DataFrame) -> None:
    """Steps relative to the tuned configuration against B: one curve per rule.

    A mark at the top stands for a batch size at which most seeds missed the goal.

    >>> table = pd.DataFrame({"workload": "digits", "optimizer": "sgd", "goal_metric": "val/classification_error",
    ...     "goal_threshold": 0.05, "base_batch_size": 32, "rule": "linear", "batch_size": [16, 64, 128],
    ...     "steps_lost": [1.0, 1.3, np.inf], "lost_low": [0.9, 1.1, 2.0], "lost_high": [1.1, 1.5, np.inf],
    ...     "missed": [0, 1, 7]})
    >>> steps_lost(ax, table)
    >>> ax.get_ylabel(), [text.get_text() for text in ax.get_legend().get_texts()][:2]
    ('times the tuned steps', ['linear', 'tuned here and transferred'])
    """
    base = int(table["base_batch_size"].iloc[0])
    table = table.dropna(subset="steps_lost")
    most = np.isinf(table["steps_lost"])
    table = table.assign(y=table["steps_lost"].mask(most))
    # Leave room above all values for the marks of batch sizes at which most seeds missed.
    room = 1.6 * max(1.0, table["y"].max()) if most.any() else 1.0
    seen = pd.Series([*table["y"], 1.0, room])
    sizes = pd.Series([*table["batch_size"], base])
    canvas.log_axes(ax, sizes, seen, "batch size (examples)", "times the tuned steps", yticks=round_decimals)
    title = f"{table['workload'].iloc[0]}, from batch size {base:,}"
    canvas.heading(ax, title, f"{table['optimizer'].iloc[0]}; goal: {goal(table)}")
    ax.axhline(1, color=MUTED, label=AGAIN, **canvas.DASHED)
    ax.plot([base], [1], label=HERE, **STAR)
    rules = sorted(table["rule"].unique(), key=lambda rule: (rank(rule), rule))
    lines = []
    for position, rule in enumerate(rules):
        # Shift rules sideways, so that their bars do not hide one another.
        points = min(4, 16 / len(rules)) * (position - (len(rules) - 1) / 2)
        lines += _draw_rule(ax, table[table["rule"] == rule], rule, base, points)
    notes = {HERE: STAR, AGAIN: canvas.DASHED, INTERVAL: BAR}
    if ((table["missed"] > 0) & ~most).any():
        notes[SOME] = {"marker": "o", "markersize": 5, **HOLLOW}
    canvas.legend(ax, lines, notes | ({MOST: OPEN} if most.any() else {}))


def _draw_rule(ax: Axes, rows: pd.DataFrame, rule: str, base: int, points: float) -> list[Any]:
    """Draw the curve, intervals and missed goals of one rule, `points` to the right; returns the curve."""
    bottom, top = ax.get_ylim()
    rows = pd.concat([rows, pd.DataFrame({"batch_size": [base], "y": [1.0]})]).sort_values("batch_size")
    look: Any = canvas.LINE | _look(rule) | {"transform": canvas.aside(ax, points)}
    place: Any = {name: look[name] for name in ("transform", "color")}
    at = np.flatnonzero(rows["batch_size"] != base).tolist()  # the star marks the base
    lines = ax.plot(rows["batch_size"], rows["y"], label=briefly(rule), markevery=at, **look)
    for row in rows.dropna(subset="lost_low").itertuples():
        ends = np.clip([row.lost_low, row.lost_high], bottom, top)
        ax.plot([row.batch_size] * 2, ends, label=INTERVAL, **place, **BAR)
    some, gone = rows[(rows["missed"] > 0) & rows["y"].notna()], rows[rows["steps_lost"] == np.inf]
    ax.plot(some["batch_size"], some["y"], label=SOME, **look | HOLLOW)
    ax.plot(gone["batch_size"], [top / 1.25] * len(gone), label=MOST, **place, **OPEN, zorder=4)
    return lines


def _look(rule: str) -> dict[str, Any]:
    """The style of a rule: a colour for its learning rate, dashed if half-lives are kept."""
    place = rank(rule)
    rates = ORDER[: len(ORDER) // 2]
    colour = COLOURS[place % len(rates) if place < len(ORDER) else len(rates)]
    return {"color": colour, "marker": MARKERS[place], "linestyle": "-" if rule in rates else "--"}
