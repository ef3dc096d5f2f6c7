"""Drawing of learning curves: the error of every trial against training steps.

The function draws `table`, the rows of one panel; `analysis.figures.FIGURES` names the table and the panels.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import canvas
from analysis.figures.best_errors import above_zero, linear_if_negative
from analysis.figures.canvas import COLOURS, INK, MUTED
from analysis.figures.ticks import powers_of_two, round_decimals
from analysis.labels import metric_text

MOST_CURVES = 20
"""The most trials drawn on one pair of axes."""
THIN: Any = {"linewidth": 0.8, "alpha": 0.55, "zorder": 2}
LOOKS: dict[str, Any] = {
    "reached": {**THIN, "color": COLOURS[0]},
    "not reached": {**THIN, "color": MUTED},
    "infeasible": {**THIN, "color": COLOURS[1], "marker": "x", "markersize": 4, "markevery": [-1]},
    "incomplete": {**THIN, "color": MUTED, "linestyle": ":"},
}
BEST: Any = {"color": INK, "linewidth": 2.0, "zorder": 4}


def learning_curves(ax: Axes, table: pd.DataFrame) -> None:
    """The goal's metric against training steps at one batch size: a line for each trial, the best one bold.

    >>> from analysis.tables.learning_curves import learning_curves as curves
    >>> learning_curves(ax, curves([study]))
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['trial 1, the fewest steps', 'reached', 'not reached', 'goal']
    """
    kept = canvas.evenly(list(dict.fromkeys(table["trial"])), MOST_CURVES)
    shown, zeros = above_zero(table[table["trial"].isin(kept)])
    inside = shown["error"][shown["error"] <= highest(shown)]
    first = shown.iloc[0]
    goal = float(first["goal_threshold"])
    errors, label = pd.concat([inside, pd.Series([goal])]), metric_text(str(first["goal_metric"]))
    canvas.log_axes(ax, shown["step"], errors, "training steps", label, powers_of_two, round_decimals)
    of = f"{len(kept)} of {first['trials']:,} trials" if len(kept) < first["trials"] else f"{len(kept)} trials"
    canvas.heading(ax, f"batch size {first['batch_size']:,}", of + zeros)
    best: list[Any] = []
    notes: dict[str, Any] = {}
    for trial, rows in shown.groupby("trial", sort=False):
        if rows["best"].iloc[0]:
            look = BEST | ({"marker": "o"} if len(rows) == 1 else {})
            best += ax.plot(rows["step"], rows["error"], label=f"trial {trial}, the fewest steps", **look)
        else:
            state = rows["state"].iloc[0]
            notes[state] = LOOKS[state]
            ax.plot(rows["step"], rows["error"], label=state, **LOOKS[state])
    if (shown["error"] < 0).any():
        linear_if_negative(ax, shown)
    ax.axhline(goal, color=MUTED, label="goal", **canvas.DASHED)
    canvas.legend(ax, best, {state: notes[state] for state in LOOKS if state in notes} | {"goal": canvas.DASHED})


def highest(table: pd.DataFrame) -> float:
    """The largest error worth showing: twice the largest of the trials that reached the goal; without one, the 90 %
    quantile. Errors of trials on their way to divergence would flatten all other curves.

    >>> highest(pd.DataFrame({"state": ["reached", "reached", "infeasible"], "error": [2.0, 0.1, 1e9]}))
    4.0
    """
    reached = table["error"][table["state"] == "reached"]
    return float(2 * np.abs(reached).max() if len(reached) else table["error"].quantile(0.9))
