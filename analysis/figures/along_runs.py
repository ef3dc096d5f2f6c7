"""Drawings of what was measured along tuned runs: gradient noise scales, critical batch sizes by branches, and the best
learning rates of one step.

Each function draws `table`, the rows of one panel (`analysis.noise_scale.table`, `analysis.branched.table`,
`analysis.one_step.table`).
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.branched.table import rule_in_words
from analysis.figures import canvas
from analysis.figures.canvas import COLOURS, MARKERS, round_decimals
from analysis.labels import listed
from analysis.load import rows_with
from analysis.noise_scale.table import SHOWN
from analysis.one_step.estimate import LINEAR, LOG
from analysis.one_step.table import FORMS

INTERVAL, OPEN = "95 % interval", "no upper end"
UNTRIED, NONE_WITHIN = "no larger batch size was tried", "larger ones lose more on average"
TRIANGLES = {">": ("^", UNTRIED), "<": ("v", NONE_WITHIN)}
"""Bound of a critical batch size by branches -> its marker and what it means."""
BAR: Any = {"linewidth": 1.2, "alpha": 0.45, "zorder": 2}
SPACES: dict[str, tuple[str, Any]] = {
    LOG: ("fit in log space", {"linestyle": "-", "linewidth": 1.2}),
    LINEAR: ("fit in linear space", canvas.DASHED),
}
"""Space of a fit -> its label and its line."""


def noise_scale(ax: Axes, table: pd.DataFrame) -> None:
    """The noise scale against the examples seen: a curve for each estimator and form, with intervals as bars.

    A point without an upper end is a triangle at its lower end; one that may be 0 is left out.

    >>> point = {"workload": "digits", "optimizer": "sgd", "batch_size": 8, "goal_metric": "val/classification_error",
    ...     "goal_threshold": 0.05, "estimator": "per_example", "form": "plain"}
    >>> ends = {"examples_seen": [80, 800], "noise_scale": [20.0, 90.0], "low": [15.0, 60.0], "high": [30.0, np.inf]}
    >>> noise_scale(ax, pd.DataFrame(ends).assign(**point))
    >>> ax.get_xlabel(), [text.get_text() for text in ax.get_legend().get_texts()]
    ('examples seen', ['per example', '95 % interval', 'no upper end'])
    """
    table = table[table["low"] > 0]
    ends = table[["noise_scale", "low", "high"]].to_numpy().ravel()
    heights = pd.Series(ends[np.isfinite(ends)])
    canvas.log_axes(ax, table["examples_seen"], heights, "examples seen", "noise scale (examples)")
    first = table.iloc[0]
    title = f"{first['workload']}, batch size {first['batch_size']:,}"
    canvas.heading(ax, title, f"{first['optimizer']}; goal: {canvas.goal(table)}")
    lines: list[Any] = []
    curves = [(label, rows_with(table, ["estimator", "form"], kind)) for kind, label in SHOWN.items()]
    curves = [(label, rows) for label, rows in curves if len(rows)]
    for place, (label, rows) in enumerate(curves):
        look: Any = {"color": COLOURS[place], "transform": canvas.aside(ax, 4 * (place - (len(curves) - 1) / 2))}
        bounded = rows[np.isfinite(rows["high"])]
        lines += ax.plot(
            bounded["examples_seen"],
            bounded["noise_scale"],
            label=label,
            marker=MARKERS[place],
            **canvas.LINE,
            **look,
        )
        ax.vlines(bounded["examples_seen"], bounded["low"], bounded["high"], **look, **BAR)
        open_ = rows[np.isinf(rows["high"])]
        ax.plot(open_["examples_seen"], open_["low"], marker="^", linestyle="none", **look)
    notes: dict[str, Any] = {INTERVAL: BAR}
    if np.isinf(table["high"]).any():
        notes[OPEN] = {"marker": "^", "linestyle": "none"}
    canvas.legend(ax, lines, notes)


def branched(ax: Axes, table: pd.DataFrame) -> None:
    """The critical batch size against the examples seen: a curve for each trunk and rule, with intervals as bars.

    A triangle is the largest batch size that was tried, where all were within the tolerance; upside down it is the
    smallest, where no larger one was. An interval without an upper end goes to the top.

    >>> row = {"workload": "digits", "optimizer": "sgd", "batch_size": 8, "rule": "linear", "factors": "1",
    ...     "window": 4096, "tolerance": 0.01}
    >>> ends = {"examples_seen": [80, 800], "critical_batch_size": [16, 64], "low": [8.0, 32.0], "bound": ["=", ">"]}
    >>> branched(ax, pd.DataFrame(ends).assign(**row, high=[32.0, np.inf]))
    >>> ax.get_ylabel(), [text.get_text() for text in ax.get_legend().get_texts()]
    ('critical batch size (examples)', ['sgd, linear', '95 % interval', 'no larger batch size was tried'])
    """
    shown = table[table["examples_seen"] > 0]
    ends = shown[["critical_batch_size", "low", "high", "batch_size"]].to_numpy(dtype=float).ravel()
    heights = pd.Series(ends[np.isfinite(ends)])
    canvas.log_axes(ax, shown["examples_seen"], heights, "examples seen", "critical batch size (examples)")
    first = shown.iloc[0]
    windows = listed(sorted({*map(int, shown["window"])}))
    note = f"from batch size {first['batch_size']:,}, tolerance {first['tolerance']:.1%}, windows of {windows} examples"
    canvas.heading(ax, str(first["workload"]), note)
    lines: list[Any] = []
    for place, ((optimizer, *_), rows) in enumerate(
        shown.groupby(["optimizer", "rule", "factors", "window"], sort=False, observed=True)
    ):
        colour = COLOURS[place % len(COLOURS)]
        look: Any = {"color": colour, "transform": canvas.aside(ax, 4 * place)}
        label = f"{optimizer}, {rule_in_words(rows.iloc[0].to_dict())}"
        marker = MARKERS[place % len(MARKERS)]
        lines += ax.plot(
            rows["examples_seen"], rows["critical_batch_size"], label=label, marker=marker, **canvas.LINE, **look
        )
        ax.vlines(rows["examples_seen"], rows["low"], rows["high"].clip(upper=ax.get_ylim()[1]), **look, **BAR)
        for bound, (triangle, _) in TRIANGLES.items():
            mine = rows[rows["bound"] == bound]
            at = mine["examples_seen"], mine["critical_batch_size"]
            ax.plot(*at, marker=triangle, markersize=8, linestyle="none", **look)
    notes: dict[str, Any] = {INTERVAL: BAR}
    for bound, (triangle, meaning) in TRIANGLES.items():
        if (shown["bound"] == bound).any():
            notes[meaning] = {"marker": triangle, "linestyle": "none"}
    canvas.legend(ax, lines, notes)


def one_step(ax: Axes, table: pd.DataFrame, one_step: pd.DataFrame | None = None) -> None:
    """The best learning rate of one step against the batch size of that step: a colour for each point along the run.

    Arguments:
        one_step: the fits, as curves: in log space solid, in linear space dashed (`analysis.one_step.table.tables`).

    >>> point = {"workload": "digits", "optimizer": "sgd", "batch_size": 8, "goal_metric": "val/classification_error",
    ...     "goal_threshold": 0.05, "form": "plain", "step": 10, "examples_seen": 80}
    >>> ends = {"step_batch_size": [4, 64], "learning_rate": [0.1, 0.6], "low": [0.08, 0.5], "high": [0.12, 0.7]}
    >>> fits = pd.DataFrame({"space": ["log", "linear"], "eps_max": 0.8, "noise_scale": 25.0}).assign(**point)
    >>> one_step(ax, pd.DataFrame(ends).assign(**point), fits)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['80 examples seen', 'fit in log space', 'fit in linear space', '95 % interval']
    """
    table = table.dropna(subset="learning_rate")
    heights = pd.concat([table["learning_rate"], table["low"], table["high"]]).dropna()
    label = "best learning rate of one step"
    canvas.log_axes(ax, table["step_batch_size"], heights, "batch size of the step", label, yticks=round_decimals)
    first = table.iloc[0]
    canvas.heading(
        ax,
        f"{first['workload']}, batch size {first['batch_size']:,}",
        f"{first['optimizer']}; {FORMS[first['form']]}; goal: {canvas.goal(table)}",
    )
    steps = canvas.evenly(sorted(set(table["step"])))
    sizes = np.geomspace(*ax.get_xlim(), 60)
    lines: list[Any] = []
    for step, colour in zip(steps, canvas.ramp(len(steps)), strict=True):
        rows = table[table["step"] == step]
        seen = f"{rows['examples_seen'].iloc[0]:,} examples seen"
        x = rows["step_batch_size"]
        look: Any = {"color": colour}
        lines += ax.plot(x, rows["learning_rate"], "o", label=seen, **look, **canvas.LINE)
        ax.vlines(x, rows["low"], rows["high"], **look, **BAR)
        fits = rows[:0] if one_step is None else one_step[one_step["step"] == step]
        for fit in fits.itertuples():
            ax.plot(sizes, fit.eps_max / (1 + fit.noise_scale / sizes), **look, **SPACES[fit.space][1])
    used = {} if one_step is None else dict(SPACES[space] for space in dict.fromkeys(one_step["space"]))
    canvas.legend(ax, lines, {**used, INTERVAL: BAR})


def proxies(ax: Axes, table: pd.DataFrame) -> None:
    """The ratio of each proxy to the critical batch size that steps show, on a log axis, with intervals as bars.

    A proxy of several optimizers has a mark for each. Triangles: the proxy is only a bound.

    >>> row = {"workload": "digits", "optimizer": "sgd", "goal_metric": "val/loss", "goal_threshold": 0.1, "bound": "="}
    >>> found = {"proxy": ["one step", "branches"], "ratio": [0.5, 2.0], "ratio_low": [0.3, 1.0], "ratio_high": [1, 4]}
    >>> proxies(ax, pd.DataFrame(found).assign(**row))
    >>> [text.get_text() for text in ax.get_yticklabels()]
    ['branches', 'one step']
    """
    ends = table[["ratio", "ratio_low", "ratio_high"]].to_numpy(dtype=float).ravel()
    ends = ends[np.isfinite(ends) & (ends > 0)]
    names = list(dict.fromkeys(table["proxy"]))[::-1]
    ratios = pd.Series([*ends, 0.5, 2.0])
    canvas.log_axes(ax, ratios, pd.Series([1.0]), "times the measured critical batch size", "", xticks=round_decimals)
    canvas.named_y(ax, names)
    canvas.heading(ax, str(table["workload"].iloc[0]), f"goal: {canvas.goal(table)}")
    ax.axvline(1.0, color=canvas.INK, linewidth=1.0, zorder=1)
    lines: list[Any] = []
    optimizers = table["optimizer"].astype("category").cat.categories
    there = [optimizer for optimizer in optimizers if (table["optimizer"] == optimizer).any()]
    for optimizer in there:
        rows, place = table[table["optimizer"] == optimizer], list(optimizers).index(optimizer)
        down = 0.7 / len(there) * (there.index(optimizer) - (len(there) - 1) / 2)
        y = np.array([names.index(name) for name in rows["proxy"]]) - down
        colour = COLOURS[place % len(COLOURS)]
        certain = (rows["bound"] == "=").to_numpy()
        look: Any = {"color": colour, "linestyle": "none", "zorder": 3}
        lines += ax.plot(rows["ratio"][certain], y[certain], marker=MARKERS[place % 7], label=str(optimizer), **look)
        for sign, marker in ((">", ">"), ("<", "<")):
            open_ = (rows["bound"] == sign).to_numpy()
            ax.plot(rows["ratio"][open_], y[open_], marker=marker, **look)
        low = rows["ratio_low"].replace(0.0, ax.get_xlim()[0])
        ax.hlines(y, low, rows["ratio_high"].clip(upper=ax.get_xlim()[1]), color=colour, **BAR)
    canvas.legend(ax, lines, {INTERVAL: BAR})
