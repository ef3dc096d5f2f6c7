"""Drawings of the search: tuned values against batch size, where trials reached the goal, the best of n trials.

Each function draws `table`, the rows of one panel; `analysis.figures.FIGURES` names the tables and panels.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from analysis.counting import COMPLETE, INFEASIBLE
from analysis.figures import canvas
from analysis.figures.canvas import (
    COLOURS,
    DASHED,
    DOTTED,
    GRID,
    INK,
    MUTED,
    OPEN,
    PAPER,
    goal,
    heading,
    legend,
    round_decimals,
)
from analysis.labels import column_text

RULES = {"linear rule": (1.0, DASHED), "square-root rule": (0.5, DOTTED)}
REACHED, MISSED, INFEASIBLE_COLOUR = COLOURS[0], MUTED, COLOURS[1]
INTERVAL = "95 % interval"
ALL_DIVERGED = "every trial diverged"
LEAST_SHARE = 1e-4
"""A smaller share of the search space is drawn as this one: the model looks at about a thousand points."""
STATES: dict[str, Any] = {
    "reached": {"marker": "o", "markersize": 4.5, "color": REACHED, "linestyle": "none"},
    "not reached": {"marker": "o", "markersize": 4.5, "color": MISSED, "markerfacecolor": PAPER, "linestyle": "none"},
    "infeasible": {"marker": "x", "markersize": 4.5, "color": INFEASIBLE_COLOUR, "linestyle": "none"},
}
STAR: Any = {"marker": "*", "markersize": 13, "color": COLOURS[5], "markeredgecolor": INK, "linestyle": "none"}


def best_learning_rate(ax: Axes, table: pd.DataFrame) -> None:
    """Learning rate of the fastest trial against B; linear and square-root rules from the smallest B.

    >>> best_learning_rate(ax, pd.read_csv(f"{published}/tables/steps_to_result.csv"))
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['momentum', 'sgd', 'linear rule', 'square-root rule']
    """
    _draw_rate(ax, table.assign(y=table["learning_rate"]), "best learning rate", RULES)


def best_effective_learning_rate(ax: Axes, table: pd.DataFrame) -> None:
    """As `best_learning_rate`, for learning_rate / (1 - momentum); without a momentum, the learning rate itself.

    >>> best_effective_learning_rate(ax, pd.read_csv(f"{published}/tables/steps_to_result.csv"))
    >>> ax.get_ylabel()
    'learning rate / (1 − momentum)'
    """
    momentum = table["momentum"].fillna(0.0) if "momentum" in table else 0.0
    _draw_rate(ax, table.assign(y=table["learning_rate"] / (1 - momentum)), "learning rate / (1 − momentum)", RULES)


def best_momentum(ax: Axes, table: pd.DataFrame) -> None:
    """1 - momentum of the fastest trial against B; a lower value averages more gradients.

    >>> best_momentum(ax, pd.read_csv(f"{published}/tables/steps_to_result.csv"))
    >>> ax.get_ylabel(), [text.get_text() for text in ax.get_legend().get_texts()]
    ('1 − best momentum', ['momentum'])
    """
    _draw_rate(ax, table.assign(y=1 - table["momentum"]), "1 − best momentum", {})


def _draw_rate(ax: Axes, table: pd.DataFrame, label: str, rules: dict[str, Any]) -> None:
    table = table.assign(y=table["y"].where(table["reached"].astype(bool)))
    canvas.batch_size_axes(ax, table, label, round_decimals)
    lines, several = [], table.dropna(subset="y")["optimizer"].nunique() > 1
    for _, rows, line in canvas.curves(ax, table):
        for first in rows.dropna(subset="y").head(1).itertuples():
            lines.append(line)
            x = np.array([first.batch_size, table["batch_size"].max()], dtype=float)
            for rule, (power, look) in rules.items():
                y = first.y * (x / first.batch_size) ** power
                ax.plot(x, y, color=line.get_color() if several else MUTED, label=rule, **look)
    legend(ax, lines, {rule: look for rule, (_, look) in rules.items()})


def along_axis(ax: Axes, table: pd.DataFrame) -> None:
    """Steps to the goal against the value of one parameter at one batch size; every trial is a point.

    >>> from analysis.tables.trials import along_axes, trials
    >>> studies = [load_study(f"{published}/studies/mlp_digits/momentum/64")]
    >>> table = along_axes(trials(studies), studies)
    >>> along_axis(ax, table[table["parameter"] == "momentum"])
    >>> ax.get_xlabel(), ax.get_title("left"), [line.get_label() for line in ax.lines]
    ('1 − momentum', 'batch size 64', ['infeasible', 'not reached', 'reached'])
    """
    name, scale = table["parameter"].iloc[0], table["scale"].iloc[0]
    label = column_text(str(name))
    names = sorted(set(table["value"])) if scale == "names" else []
    values = _side_by_side(table["value"].map(names.index)) if names else table["value"].astype(float)
    x, xlabel = (1 - values, f"1 − {label}") if scale == "reverse_log" else (values, label)
    steps = table["steps_to_goal"].astype("float64").fillna(table["end"])
    canvas.log_axes(ax, x, steps, xlabel, f"steps to {goal(table)}", round_decimals)
    none_ended = (table["status"] == INFEASIBLE).all()
    heading(ax, f"batch size {table['batch_size'].iloc[0]:,}", f"{label}; {ALL_DIVERGED}" if none_ended else label)
    ended, missed = table["status"] == COMPLETE, table["steps_to_goal"].isna()
    if none_ended:  # then no steps to the goal are known
        ax.set_ylabel("")
        ax.yaxis.set_major_locator(NullLocator())
    at_top = pd.Series(np.sqrt(np.prod(ax.get_ylim())) if none_ended else ax.get_ylim()[1] / 1.15, table.index)
    for state, rows, y in (
        ("infeasible", table["status"] == INFEASIBLE, at_top),
        ("not reached", ended & missed, steps),
        ("reached", ended & ~missed, steps),
    ):
        look = STATES[state] | ({"marker": "^"} if state == "not reached" else {})
        ax.plot(x[rows], y[rows], label=state, rasterized=len(table) > canvas.MOST_POINTS, **look)
    if scale == "linear":
        canvas.linear(ax, "x")
    if names:
        canvas.named_x(ax, names)


def _side_by_side(places: pd.Series) -> pd.Series:
    """Places 0, 1, ... with the points of each place beside each other, so that none hides another."""
    order = places.groupby(places).cumcount()
    return places + 0.12 * (order % 5 - 2)


def working_region(ax: Axes, table: pd.DataFrame) -> None:
    """Learning rate against 1 - momentum at one batch size: reached, not reached or infeasible within the budget.

    >>> from analysis.tables.trials import maps
    >>> table = maps(pd.read_csv(f"{published}/tables/trials.csv"))
    >>> working_region(ax, table[(table["batch_size"] == 64) & (table["unit"] == "steps")])
    >>> ax.get_title("left"), [len(line.get_xdata()) for line in ax.lines if line.get_label() == "reached"]
    ('batch size 64', [9])
    """
    x, y = table["learning_rate"], 1 - table["momentum"]
    canvas.log_axes(ax, x, y, "learning rate", "1 − momentum", round_decimals, round_decimals)
    within = f"within {table['budget'].iloc[0]:,.0f} {table['unit'].iloc[0]}"
    heading(ax, f"batch size {table['batch_size'].iloc[0]:,}", within)
    _draw_contours(ax)
    for state in ("not reached", "infeasible", "reached"):
        rows = table["state"] == state
        ax.plot(x[rows], y[rows], label=state, rasterized=len(table) > canvas.MOST_POINTS, **STATES[state])
    best = table["fastest"].astype(bool)
    ax.plot(x[best], y[best], label="fastest", zorder=5, **STAR)


def _draw_contours(ax: Axes) -> None:
    """Draw lines of equal learning_rate / (1 - momentum), at powers of ten."""
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    for rate in 10.0 ** np.arange(np.ceil(np.log10(left / top)), np.log10(right / bottom)):
        ends = np.clip([left, right], bottom * rate, top * rate)
        if ends[1] > 2 * left and ends[0] < ends[1]:  # a line across a corner has no room for its label
            ax.plot(ends, ends / rate, color=GRID, linewidth=1.2, zorder=1, label="contour")
            ax.annotate(f"{rate:g}", (ends[1], ends[1] / rate), (-2, -9), textcoords="offset points", color=MUTED,
                        fontsize=7.5, ha="right")  # fmt: skip


def tunability(ax: Axes, table: pd.DataFrame) -> None:
    """The share of the search space that is close to the optimum against B, with its interval: one curve per optimizer.

    >>> tunability(ax, pd.read_csv(f"{published}/tables/tunability.csv"))
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['momentum', 'sgd', '95 % interval']
    """
    percent = {name: 100 * table[name].clip(lower=LEAST_SHARE) for name in ("share", "share_low", "share_high")}
    table = table.assign(y=percent["share"], low=percent["share_low"], high=percent["share_high"])
    shown = pd.concat([table, table.assign(y=table["low"]), table.assign(y=table["high"])])
    canvas.batch_size_axes(ax, shown, "share of the search space\nwithin 1.2 times of the best, %", round_decimals)
    lines, count = [], table["optimizer"].nunique()
    for number, (_, rows, line) in enumerate(canvas.curves(ax, table)):
        lines.append(line)
        moved = canvas.aside(ax, 5 * (number - (count - 1) / 2))
        for row in rows.itertuples():
            place: Any = {"color": line.get_color(), "label": INTERVAL, "transform": moved}
            ax.plot([row.batch_size] * 2, [row.low, row.high], **place, **canvas.BAR)
    legend(ax, lines, {INTERVAL: canvas.BAR})


def best_of_n(ax: Axes, table: pd.DataFrame) -> None:
    """The median best of n trials against n: one curve per batch size. If it still falls, more trials would help.

    >>> table = pd.read_csv(f"{published}/tables/best_of_n.csv")
    >>> best_of_n(ax, table[table["optimizer"] == "sgd"])
    >>> ax.get_xlabel(), [line.get_label() for line in ax.lines][-1]
    ('trials n', 'batch size 1,024')
    """
    sizes = canvas.evenly(sorted(table["batch_size"].unique()))
    shown = table[table["batch_size"].isin(sizes) & np.isfinite(table["steps"])]
    canvas.log_axes(ax, table["n"], shown["steps"], "trials n", f"median best of n: steps to {goal(table)}")
    heading(ax, str(table["workload"].iloc[0]), f"{table['optimizer'].iloc[0]}; goal: {goal(table)}")
    lines = []
    for size, colour in zip(sizes, canvas.ramp(len(sizes)), strict=True):
        rows = shown[shown["batch_size"] == size].sort_values("n")
        (line,) = ax.plot(rows["n"], rows["steps"], "o-", color=colour, label=f"batch size {size:,}", **canvas.LINE)
        lines.append(line)
    legend(ax, lines, {})


def reruns(ax: Axes, table: pd.DataFrame) -> None:
    """Steps to the goal of the tuned configuration with fresh seeds, and of the search that found it.

    >>> reruns(ax, pd.read_csv(f"{published}/tables/rerun_steps.csv"))
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['momentum: the search', 'sgd: the search', 'rerun with fresh seeds', 'rerun that missed the goal']
    """
    steps = pd.concat([table["steps"], table["steps_to_result"].astype(float)]).replace(np.inf, np.nan)
    both = pd.concat([table, table]).assign(y=steps.to_numpy())
    canvas.batch_size_axes(ax, both, f"training steps to {goal(table)}")
    lines = []
    for name, rows, line in canvas.curves(ax, table.drop_duplicates(["optimizer", "batch_size"]).assign(y=np.nan)):
        mine = table[table["optimizer"] == name]
        line.set(xdata=rows["batch_size"], ydata=rows["steps_to_result"].astype(float), label=f"{name}: the search")
        lines.append(line)
        spread = mine["batch_size"] * 2 ** (0.16 * (mine.groupby("batch_size").cumcount() % 5 - 2) / 2)
        top = ax.get_ylim()[1] / 1.15
        reached = np.isfinite(mine["steps"])
        look: Any = {"color": line.get_color(), "linestyle": "none", "alpha": 0.55, "markersize": 4}
        ax.plot(spread[reached], mine["steps"][reached], "o", label="rerun", **look)
        ax.plot(spread[~reached], [top] * int((~reached).sum()), "^", label="rerun missed", **look)
    legend(ax, lines, {"rerun with fresh seeds": {"marker": "o", "linestyle": "none", "alpha": 0.55, "markersize": 4},
                       "rerun that missed the goal": OPEN})  # fmt: skip
