"""Drawings along trials: learning curves, batch sizes that grow, and the ends of the arms that verify a schedule.

Each function draws `table`, the rows of one panel; `analysis.figures.FIGURES` names the table and the panels.
"""

import itertools
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import canvas
from analysis.figures.best_errors import above_zero, linear_if_negative
from analysis.figures.canvas import COLOURS, INK, MARKERS, MUTED, powers_of_two, round_decimals
from analysis.labels import metric_text

MOST_CURVES = 20
"""The most trials drawn on one pair of axes."""
NARROW = 3
"""Errors within this factor fill a linear axis. Log axes span a factor of 10, where these curves would be one line."""
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
    linear_if_negative(ax, shown)
    if 0 < errors.max() < NARROW * errors.min():
        canvas.linear(ax, "y")
        room = 0.08 * (errors.max() - errors.min()) or 0.1 * goal
        ax.set_ylim(errors.min() - room, errors.max() + room)
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


MET = "goal met"


def batch_phases(ax: Axes, table: pd.DataFrame, batch_schedules: pd.DataFrame) -> None:
    """The batch size against the examples seen, a line for each curve, up to the budget; a mark where the goal was met.

    >>> goal = {"workload": "digits", "goal_metric": "val/cross_entropy_error", "goal_threshold": 0.2}
    >>> curve = {"optimizer": "sgd+ramp", "batch_size": 8, **goal}
    >>> phases = pd.DataFrame({"step": [0, 50], "examples_seen": [0, 400], "size": [8, 32]}).assign(**curve)
    >>> ends = pd.DataFrame([{**curve, "train_steps": 70, "examples_to_result": 720, "tuned_examples": float("nan")}])
    >>> batch_phases(ax, phases, ends)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['sgd+ramp from 8', 'goal met']
    """
    ends = batch_schedules.astype({"optimizer": str}).set_index(["optimizer", "batch_size"])
    drawn = []
    for key, rows in table.astype({"optimizer": str}).groupby(["optimizer", "batch_size"], sort=False):
        last = rows.iloc[-1]
        budget = last["examples_seen"] + (ends.loc[key]["train_steps"] - last["step"]) * last["size"]
        places = [key[1], *rows["examples_seen"][1:], budget]  # the axis has no zero
        drawn.append((key, places, [*rows["size"], last["size"]]))
    x, y = (pd.Series([value for each in drawn for value in each[part]]) for part in (1, 2))
    canvas.log_axes(ax, x, y, "examples seen", "batch size (examples)")
    canvas.heading(ax, str(table.iloc[0]["workload"]), f"goal: {canvas.goal(table)}")
    lines: list[Any] = []
    for (key, places, sizes), colour in zip(drawn, itertools.cycle(COLOURS), strict=False):
        label = f"{key[0]} from {key[1]:,}"
        lines += ax.plot(places, sizes, drawstyle="steps-post", label=label, linewidth=1.6, color=colour)
        end = ends.loc[key]
        met = end["examples_to_result"] if pd.isna(end["tuned_examples"]) else end["tuned_examples"]
        if pd.notna(met):
            at = [size for place, size in zip(places, sizes, strict=True) if place <= met][-1:] or sizes[:1]
            ax.plot([met], at, marker=MARKERS[0], linestyle="none", color=colour)
    canvas.legend(ax, lines, {MET: {"marker": MARKERS[0], "linestyle": "none"}})


def verified(ax: Axes, table: pd.DataFrame) -> None:
    """The error at the end of the budget against the steps that it took, a point for each arm with its 95 % interval.

    >>> goal = {"workload": "digits", "optimizer": "sgd", "goal_metric": "val/loss", "goal_threshold": 0.2}
    >>> arms = {"arm": ["constant 8", "constant 32", "ramp"], "train_steps": [800, 200, 300]}
    >>> verified(ax, pd.DataFrame(arms).assign(error=[0.1, 0.14, 0.11], error_low=0.09, error_high=0.15, **goal))
    >>> ax.get_xlabel(), [text.get_text() for text in ax.get_legend().get_texts()][:2]
    ('steps in the budget', ['constant 8', 'constant 32'])
    """
    ends = table[["error", "error_low", "error_high"]].stack()
    canvas.log_axes(ax, table["train_steps"], ends, "steps in the budget", "error at its end", yticks=round_decimals)
    first = table.iloc[0]
    canvas.heading(ax, str(first["workload"]), f"{first['optimizer']}; {canvas.goal(table)}")
    lines: list[Any] = []
    for place, row in enumerate(table.to_dict("records")):
        look: Any = {"color": COLOURS[place % len(COLOURS)]}
        lines += ax.plot(
            [row["train_steps"]], [row["error"]], marker=MARKERS[place], linestyle="none", label=row["arm"], **look
        )
        ax.vlines([row["train_steps"]], row["error_low"], row["error_high"], alpha=0.5, **look)
    canvas.legend(ax, lines, {"95 % interval": {"linewidth": 1.2, "alpha": 0.5}})
