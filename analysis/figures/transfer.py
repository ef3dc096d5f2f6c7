"""Drawing of rules against tuning: what was lost by moving a tuned configuration instead of tuning anew.

It draws `table`, the rows of one panel (`analysis.tables.transfer.table`, one base), onto axes and returns nothing.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.transforms import ScaledTranslation

from analysis.figures.canvas import (
    COLOURS,
    DASHED,
    INK,
    LINE,
    MARKERS,
    MUTED,
    OPEN,
    PAPER,
    goal,
    heading,
    legend,
    log_axes,
    round_decimals,
)
from analysis.tables.transfer import ORDER, briefly, rank

STAR: Any = {"marker": "*", "markersize": 13, "color": INK, "linestyle": "none", "zorder": 5}
BAR: Any = {"linewidth": 1.2, "alpha": 0.45, "zorder": 2}
HOLLOW: Any = {"markerfacecolor": PAPER, "linestyle": "none", "zorder": 4}
HERE, AGAIN, INTERVAL = "tuned here, and moved", "tuned anew", "95 % over seeds"
SOME, MOST = "some seeds missed", "most seeds missed"


def steps_lost(ax: Axes, table: pd.DataFrame) -> None:
    """Times the tuned steps against B: a curve a rule, broken where most seeds missed the goal, which stands on top.

    >>> from matplotlib.figure import Figure
    >>> table = pd.DataFrame({"workload": "digits", "optimizer": "sgd", "goal_metric": "val/classification_error",
    ...     "goal_threshold": 0.05, "base_batch_size": 32, "rule": "linear", "batch_size": [16, 64, 128],
    ...     "steps_lost": [1.0, 1.3, np.inf], "lost_low": [0.9, 1.1, 2.0], "lost_high": [1.1, 1.5, np.inf],
    ...     "missed": [0, 1, 7]})
    >>> ax = Figure().subplots()
    >>> steps_lost(ax, table)
    >>> ax.get_ylabel(), [text.get_text() for text in ax.get_legend().get_texts()][:2]
    ('times the tuned steps', ['linear', 'tuned here, and moved'])
    """
    base = int(table["base_batch_size"].iloc[0])
    table = table.dropna(subset="steps_lost")
    most = np.isinf(table["steps_lost"])
    table = table.assign(y=table["steps_lost"].mask(most))
    # What most seeds missed stands in a row of its own, above everything that has a value.
    room = 1.6 * max(1.0, table["y"].max()) if most.any() else 1.0
    seen = pd.Series([*table["y"], 1.0, room])
    sizes = pd.Series([*table["batch_size"], base])
    log_axes(ax, sizes, seen, "batch size (examples)", "times the tuned steps", yticks=round_decimals)
    heading(
        ax,
        f"{table['workload'].iloc[0]}, from batch size {base:,}",
        f"{table['optimizer'].iloc[0]}; goal: {goal(table)}",
    )
    bottom, top = ax.get_ylim()
    ax.axhline(1, color=MUTED, label=AGAIN, **DASHED)
    ax.plot([base], [1], label=HERE, **STAR)
    rules = sorted(table["rule"].unique(), key=lambda rule: (rank(rule), rule))
    lines = []
    for position, rule in enumerate(rules):
        rows = table[table["rule"] == rule]
        rows = pd.concat([rows, pd.DataFrame({"batch_size": [base], "y": [1.0]})]).sort_values("batch_size")
        # Beside one another, so that those of several rules can be told apart.
        points = min(4, 16 / len(rules)) * (position - (len(rules) - 1) / 2)
        aside = ScaledTranslation(points / 72, 0, ax.figure.dpi_scale_trans)
        look: Any = LINE | _look(rule) | {"transform": ax.transData + aside}
        place: Any = {name: look[name] for name in ("transform", "color")}
        at = np.flatnonzero(rows["batch_size"] != base).tolist()  # the base has its star
        lines += ax.plot(rows["batch_size"], rows["y"], label=briefly(rule), markevery=at, **look)
        for row in rows.dropna(subset="lost_low").itertuples():
            ends = np.clip([row.lost_low, row.lost_high], bottom, top)
            ax.plot([row.batch_size] * 2, ends, label=INTERVAL, **place, **BAR)
        some, gone = rows[(rows["missed"] > 0) & rows["y"].notna()], rows[rows["steps_lost"] == np.inf]
        ax.plot(some["batch_size"], some["y"], label=SOME, **look | HOLLOW)
        ax.plot(gone["batch_size"], [top / 1.25] * len(gone), label=MOST, **place, **OPEN, zorder=4)
    notes = {HERE: STAR, AGAIN: DASHED, INTERVAL: BAR}
    if ((table["missed"] > 0) & ~most).any():
        notes[SOME] = {"marker": "o", "markersize": 5, **HOLLOW}
    legend(ax, lines, notes | ({MOST: OPEN} if most.any() else {}))


def _look(rule: str) -> dict[str, Any]:
    """A colour for what becomes of the learning rate; dashed where half-lives are kept."""
    place = rank(rule)
    rates = ORDER[: len(ORDER) // 2]
    colour = COLOURS[place % len(rates) if place < len(ORDER) else len(rates)]
    return {"color": colour, "marker": MARKERS[place], "linestyle": "-" if rule in rates else "--"}
