"""Drawings of steps-to-result: against batch size, by goal, by workload, by optimizer, and in seconds.

Each function draws `table`, the rows of one panel; `analysis.figures.FIGURES` names the tables and panels.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.estimates.tuned import SEEDS, interval, nothing_feasible
from analysis.figures import canvas
from analysis.figures.canvas import MUTED, goal, heading, powers_of_two, round_decimals
from analysis.intervals import left_censored
from analysis.labels import BOUNDS, goal_text, number, size_text
from analysis.load import GOAL
from analysis.question.stages import REFINE
from analysis.tables.scaling import CRITICAL, USEFUL
from analysis.tables.scaling import PERFECT as PROPORTIONAL

NOT_REACHED, INFEASIBLE, PERFECT = "not reached in budget", "no feasible trial", "perfect scaling"
LEFT_CENSORED = "met at the first evaluation, perhaps earlier"
INTERVAL, OPTIMUM, OF_SEEDS = "best of N/4 trials, 95 %", "tuned optimum, 95 %", "noise of seeds, 95 %"
CURVE, FEWEST = "convex curve", "fewest steps of the search"
MODEL, TUNED_FOR = "minimum of the model", "tuned for"
MODELLED: Any = {"linestyle": (0, (7, 2.5)), "linewidth": 1.2, "alpha": 0.85, "zorder": 2.5}
CROWDED = 3
"""From this number of curves on, the fewest steps, the minimum of the model and all limits but one are left out."""
COSTS = ("all", "low", "high", "fewest", "curve", "model")
CONSTRAINED: Any = {"linewidth": 3.5, "alpha": 0.25, "zorder": 1.5}
SMALL: Any = {"marker": "_", "markersize": 7, "linestyle": "none", "zorder": 3}
TUNED_LINE: Any = {"marker": "o", **canvas.LINE}
APART = 9.0
"""Points between marks at one place."""
NO_GOALS = pd.Series(dtype=object)
ACROSS = "critical batch size, 95 %"
INTERVAL_ACROSS: Any = {"marker": "|", "markersize": 5, "linewidth": 1.2, "zorder": 4}
NUMBER: Any = {"fontsize": 8.5, "fontweight": "bold", "zorder": 5}
LIMITS: dict[str, tuple[str, Any]] = {
    CRITICAL: ("critical batch size", {**canvas.DOTTED, "linestyle": "-"}),
    PROPORTIONAL: ("perfect-scaling limit", canvas.DOTTED),
    USEFUL: ("maximum useful batch size", {**canvas.DOTTED, "linestyle": (0, (4, 1, 1, 1))}),
}
FITS: dict[str, Any] = {"hyperbola": canvas.DASHED, "shoulder": canvas.DOTTED}


def steps_to_result(
    ax: Axes, table: pd.DataFrame, scaling: pd.DataFrame | None = None, tunability: pd.DataFrame | None = None
) -> None:
    """S(B) against B for the workload and goal of `table`: one curve per optimizer, limits as vertical lines.

    The minimum of the model is drawn for `refine` alone, which put its trials where that minimum is. From `CROWDED`
    curves on, only the marks that tell them apart are drawn.

    >>> table = pd.read_csv(f"{published}/tables/steps_to_result.csv")
    >>> steps_to_result(ax, table, scaling=pd.read_csv(f"{published}/tables/scaling.csv"))
    >>> ax.get_ylabel().split(), [text.get_text() for text in ax.get_legend().get_texts()][:2]
    (['training', 'steps', 'to', 'validation', 'cross', 'entropy', '<', '0.2'], ['momentum', 'sgd'])
    """
    if tunability is not None:
        mine = tunability[tunability["sampler"] == REFINE]
        steps = mine.set_index([mine["optimizer"].astype(str), "batch_size"])["model_steps"]
        at = pd.MultiIndex.from_arrays([table["optimizer"].astype(str), table["batch_size"]])
        table = table.assign(model_steps=steps.reindex(at).to_numpy(dtype=float))
    _draw_cost(ax, table, "training steps", table["batch_size"] ** 0, scaling)


def examples_to_result(ax: Axes, table: pd.DataFrame, scaling: pd.DataFrame | None = None) -> None:
    """B * S(B) against B, as `steps_to_result`: perfect scaling is level, a rise is the cost of larger batches.

    >>> examples_to_result(ax, pd.read_csv(f"{published}/tables/steps_to_result.csv"))
    >>> ax.get_ylabel().split()[:2]
    ['training', 'examples']
    """
    _draw_cost(ax, table, "training examples", table["batch_size"], scaling)


def seconds_to_result(ax: Axes, table: pd.DataFrame) -> None:
    """S(B) times the measured seconds per step against B: perfect scaling saves time only while steps take no longer.

    >>> table = pd.read_csv(f"{published}/tables/steps_to_result.csv")
    >>> seconds_to_result(ax, table.assign(seconds_per_step=0.001, device="cpu"))
    >>> ax.get_ylabel()
    'seconds to validation cross entropy < 0.2'
    """
    _draw_cost(ax, table, "seconds", table["seconds_per_step"], None)
    devices = ", ".join(dict.fromkeys(table["device"]))
    up = 6 + (canvas.LIFT if ax.child_axes else 0)
    ax.annotate(devices, (1, 1), (0, up), "axes fraction", "offset points", color=MUTED, ha="right")


def _draw_cost(ax: Axes, table: pd.DataFrame, unit: str, each: pd.Series, scaling: pd.DataFrame | None) -> None:
    """Draw steps times the cost of a step, `each`; a study that missed its goal is drawn at its budget."""
    table = _costs(table, each.astype(float))
    if unit == "seconds":  # the time of a step has noise of its own
        table = table.assign(curve=np.nan)
    shown = [table.assign(y=values.where(np.isfinite(values))) for values in (table[name] for name in COSTS)]
    ticks = round_decimals if unit == "seconds" else powers_of_two
    canvas.batch_size_axes(ax, pd.concat(shown), f"{unit} to {goal(table)}", ticks)
    table = table.assign(beside=_beside(ax, table))
    notes: dict[str, Any] = {}
    lines, count = [], table["optimizer"].nunique()
    crowded = count >= CROWDED
    for name, rows, line in canvas.curves(ax, table):
        lines.append(line)
        colour = line.get_color()
        notes |= _draw_estimates(ax, rows, colour, (len(lines) - (count + 1) / 2), crowded)
        notes |= _mark_unknown(ax, rows, colour)
        notes |= {f"{TUNED_FOR} {other}": TUNED_LINE for other in rows.get("tuned_for", NO_GOALS).dropna()}
        if scaling is not None:
            limits = scaling[(scaling["optimizer"] == name) & ((scaling["definition"] == CRITICAL) | (not crowded))]
            aside = 1.6 * (len(lines) - (count + 1) / 2) if count > 1 else None
            side = _side(table, name) if unit == "training steps" else 0  # beside rising curves there is no room
            notes |= _draw_limits(ax, rows, limits, colour, aside, side)
    perfect = _draw_perfect(ax, table, falls=unit == "training steps") if unit != "seconds" else {}
    canvas.legend(ax, lines, perfect | notes)


def points(table: pd.DataFrame) -> pd.Series:
    """The steps that a curve is drawn through: of tuned configurations with fresh seeds, else the fewest; else NaN.

    >>> table = pd.read_csv(f"{published}/tables/steps_to_result.csv")
    >>> points(table).head(2).tolist(), points(table.drop(columns="read_from")).head(2).tolist()
    ([628.0, 390.0], [759.0, 293.0])
    """
    return _shown(table)["y"]


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    """The table with y (steps; NaN if the goal was missed, or they are left-censored), left_censored (whether they are)
    and all (steps; the budget if the goal was missed)."""
    steps = table["steps_to_result"].astype("Float64").where(table["reached"].astype(bool)).astype("float64")
    if "read_from" in table:
        tuned = table["tuned_steps"].astype("float64")
        steps = steps.where(table["read_from"] != SEEDS, tuned.where(np.isfinite(tuned)))
    censored = left_censored(steps, table.get("first_evaluation"))
    return table.assign(y=steps.mask(censored), left_censored=censored, all=steps.fillna(table["train_steps"]))


def _costs(table: pd.DataFrame, each: pd.Series) -> pd.DataFrame:
    """Add what is drawn: the columns of `_shown`; fewest, curve and model; low, high and interval (what they hold)."""
    table = _shown(table)
    by_seeds = table.get("read_from", pd.Series(None, table.index)) == SEEDS
    of_optimum = pd.notna(table.get("optimum_low", np.nan))
    ends = {}
    for end, of_seeds in zip(("low", "high"), interval(table), strict=True):
        of_search = pd.Series(table.get(end), table.index, dtype="float64")
        ends[end] = of_search.where(~by_seeds, of_seeds).where(table["y"].notna()) * each
    return table.assign(
        y=table["y"] * each,
        all=table["all"] * each,
        fewest=table["steps_to_result"].astype("Float64").astype("float64").where(by_seeds) * each,
        curve=table.get("curve_steps", np.nan) * each,
        model=table.get("model_steps", np.nan) * each,
        interval=np.where(by_seeds, np.where(of_optimum, OPTIMUM, OF_SEEDS), INTERVAL),
        **ends,
    )


def _draw_perfect(ax: Axes, table: pd.DataFrame, falls: bool) -> dict[str, Any]:
    """Draw perfect scaling from the first point of the lowest curve; returns notes.

    One line stands for all curves: from each it has the same slope.
    """
    known = table.dropna(subset="y")
    if known.empty:
        return {}
    firsts = known.sort_values("batch_size").drop_duplicates("optimizer")
    first = firsts.iloc[int((firsts["y"] * firsts["batch_size"] ** int(falls)).argmin())]
    x = np.array([first["batch_size"], table["batch_size"].max()], dtype=float)
    y = first["y"] * (first["batch_size"] / x if falls else np.ones(2))
    ax.plot(x, y, color=MUTED, label=PERFECT, **canvas.DASHED)
    return {PERFECT: canvas.DASHED}


def _draw_estimates(ax: Axes, rows: pd.DataFrame, colour: Any, position: float, crowded: bool) -> dict[str, Any]:
    """Draw the interval of each point, the constrained curve and the fewest steps seen; returns notes."""
    notes: dict[str, Any] = {}
    for row in rows.dropna(subset="low").itertuples():
        top = row.high if np.isfinite(row.high) else ax.get_ylim()[1]
        place: Any = {"color": colour, "label": row.interval, "transform": canvas.aside(ax, 5 * position)}
        ax.plot([row.batch_size] * 2, [row.low, top], **place, **canvas.BAR)
        notes[row.interval] = canvas.BAR
    marks = (("curve", CURVE, CONSTRAINED), ("fewest", FEWEST, SMALL), ("model", MODEL, MODELLED))
    for column, label, look in marks[:1] if crowded else marks:
        known = rows.dropna(subset=column)
        if len(known):
            ax.plot(known["batch_size"], known[column], color=colour, label=label, **look)
            notes[label] = look
    return notes


def _mark_unknown(ax: Axes, rows: pd.DataFrame, colour: Any) -> dict[str, Any]:
    """Mark unconnected batch sizes without known steps: at the budget if they missed the goal or no trial was feasible,
    at the first evaluation if they met it there. Returns notes if there are any."""
    notes: dict[str, Any] = {}
    censored = rows["left_censored"].astype(bool)
    hopeless = ~censored & np.array([nothing_feasible(row) for row in rows.to_dict("records")], dtype=bool)
    for marked, label, look in (
        (~censored & ~hopeless, NOT_REACHED, canvas.OPEN),
        (hopeless, INFEASIBLE, {**canvas.OPEN, "marker": "x"}),
        (censored, LEFT_CENSORED, {**canvas.OPEN, "marker": "v"}),
    ):
        for points, unknown in rows[marked & rows["y"].isna()].groupby(rows.get("beside", 0.0 * rows["all"])):
            place: Any = {"color": colour, "label": label, "zorder": 4, "transform": canvas.aside(ax, float(points))}
            ax.plot(unknown["batch_size"], unknown["all"], **place, **look)
            notes[label] = look
    return notes


def _beside(ax: Axes, table: pd.DataFrame) -> pd.Series:
    """The points by which to shift the mark of each batch size without known steps, so that marks of several curves at
    one budget stand side by side; 0 where none would hide another."""
    marks = table[["batch_size", "all"]].assign(unknown=table["y"].isna()).reset_index(drop=True)
    alike = marks.groupby(["batch_size", "all", "unknown"])["all"]
    places, count = alike.cumcount(), alike.transform("size").where(marks["unknown"], 1)
    places = places.where(marks["unknown"], 0)
    sizes = np.log(np.unique(table["batch_size"]))
    share = np.diff(sizes, append=np.inf).min() / np.diff(np.log(ax.get_xlim()))[0]
    room = share * ax.bbox.width / ax.figure.dpi * 72  # between two batch sizes [points]
    return ((places - (count - 1) / 2) * np.minimum(APART, 0.8 * room / count)).set_axis(table.index)


def _side(table: pd.DataFrame, name: str) -> int:
    """1 to write numbers above a curve, -1 below it, 0 to write none: those of many curves would overlap."""
    curves = table.groupby("optimizer", observed=True)["y"].mean()
    return 0 if len(curves) > 2 else -1 if curves[name] < curves.max() else 1


def _draw_limits(
    ax: Axes, rows: pd.DataFrame, limits: pd.DataFrame, colour: Any, aside: float | None, side: int
) -> dict[str, Any]:
    """Draw limits as lines from the curve down to the axis, with an arrowhead for a bound; returns notes.

    On the curve stand a number and, across, the 95 % interval of the critical batch size.

    Arguments:
        aside: None for a single curve. With several curves, the points to shift lines by, so that equal limits do not
            hide one another; bounds are then omitted, because most would lie at the first or last batch size.
        side: 1 to write numbers above the curve, -1 below it, 0 to write none.
    """
    notes: dict[str, Any] = {}
    if "estimate" not in limits:
        limits = limits.assign(estimate=limits["value"], estimate_bound=limits["bound"])
    moved = canvas.aside(ax, aside or 0)
    bottom, _ = ax.get_ylim()
    seen = limits["definition"].isin(list(LIMITS)) & limits["estimate"].between(*ax.get_xlim())
    if aside is not None:
        seen &= limits["estimate_bound"] == "="
    heights = rows["curve"].fillna(rows["y"]).dropna()
    log_sizes = np.log(rows.loc[heights.index, "batch_size"].astype(float))
    for limit in limits[seen].itertuples():
        label, look = LIMITS[limit.definition]
        height = np.exp(np.interp(np.log(limit.estimate), log_sizes, np.log(heights)))
        style: Any = {"color": colour, "transform": moved, "label": label}
        ax.plot([limit.estimate] * 2, [bottom, height], **style, **look)
        if limit.estimate_bound in "<>":
            ax.plot([limit.estimate], [bottom], limit.estimate_bound, markersize=6, clip_on=False, zorder=5, **style)
        elif side and limit.definition != PROPORTIONAL:  # where curves still lie on one another
            _write(ax, limit.estimate, height, colour, side)
        notes[f"{label}: {BOUNDS[limit.estimate_bound]}{number(limit.estimate)}" if aside is None else label] = look
        low, high = (getattr(limit, f"estimate_{end}", np.nan) for end in ("low", "high"))
        if limit.definition == CRITICAL and (low > 0 or np.isfinite(high)):
            first, last = ax.get_xlim()
            ends = [max(low, first), min(high, last)]
            ax.plot(ends, [height] * 2, color=colour, label=ACROSS, **INTERVAL_ACROSS)
            notes[ACROSS] = INTERVAL_ACROSS
    return notes


def _write(ax: Axes, x: float, y: float, colour: Any, side: int) -> None:
    """Write a batch size beside its place on a curve."""
    place: Any = {"ha": "left", "va": "bottom"} if side > 0 else {"ha": "right", "va": "top"}
    ax.annotate(size_text(x), (x, y), (3 * side, 3 * side), textcoords="offset points", color=colour, **place, **NUMBER)


def by_goal(ax: Axes, table: pd.DataFrame) -> None:
    """S(B) against B for several goals of one workload and optimizer: one curve per goal.

    >>> table = pd.read_csv(f"{published}/tables/steps_to_result.csv")
    >>> sgd = table[table["optimizer"] == "sgd"]
    >>> by_goal(ax, pd.concat([sgd, sgd.assign(goal_threshold=0.4, steps_to_result=sgd["steps_to_result"] / 2)]))
    >>> [line.get_label() for line in ax.lines]
    ['validation cross entropy < 0.4', 'validation cross entropy < 0.2']
    """
    table = _shown(table)
    pairs = zip(table["goal_metric"], table["goal_threshold"], strict=True)
    table = table.assign(goal=[goal_text(str(metric), float(threshold)) for metric, threshold in pairs])
    goals = table.sort_values(GOAL, ascending=[True, False])["goal"]
    table["goal"] = pd.Categorical(table["goal"], categories=list(dict.fromkeys(goals)))
    canvas.log_axes(ax, table["batch_size"], table["all"], "batch size (examples)", "training steps to each goal")
    heading(ax, str(table["workload"].iloc[0]), str(table["optimizer"].iloc[0]))
    lines: list[Any] = []
    notes: dict[str, Any] = {}
    for _, rows, line in canvas.curves(ax, table, by="goal"):
        lines.append(line)
        notes |= _mark_unknown(ax, rows, line.get_color())
    canvas.legend(ax, lines, notes)


def relative_steps(ax: Axes, table: pd.DataFrame) -> None:
    """S(B) / S(B_norm) against B of workloads that differ in one thing: one curve per workload and goal.

    >>> table = pd.DataFrame({"of": "digits", "optimizer": "sgd", "workload": ["narrow", "narrow", "wide", "wide"],
    ...     "goal_metric": "val/classification_error", "goal_threshold": 0.05, "batch_size": [8, 16, 8, 16],
    ...     "relative_steps": [1.0, 0.5, 1.0, 0.75], "norm": 8})
    >>> relative_steps(ax, table)
    >>> ax.get_ylabel(), [line.get_label() for line in ax.lines]
    ('steps relative to batch size 8', ['narrow', 'wide', 'perfect scaling'])
    """
    several = table.groupby("workload")[GOAL].nunique().max().max() > 1
    pairs = zip(table["workload"], table["goal_metric"], table["goal_threshold"], strict=True)
    names = [f"{name}, {goal_text(str(m), float(t))}" if several else str(name) for name, m, t in pairs]
    table = table.assign(curve=names, y=table["relative_steps"])
    norm = int(table["norm"].iloc[0])
    label = f"steps relative to batch size {norm:,}"
    canvas.log_axes(ax, table["batch_size"], table["y"], "batch size (examples)", label, yticks=round_decimals)
    same_goal = len(table[GOAL].drop_duplicates()) == 1
    note = f"{table['optimizer'].iloc[0]}{f'; goal: {goal(table)}' if same_goal else ''}"
    heading(ax, str(table["of"].iloc[0]), note)
    lines = [line for _, _, line in canvas.curves(ax, table, by="curve")]
    x = np.array([norm, table["batch_size"].max()], dtype=float)
    ax.plot(x, norm / x, color=MUTED, label=PERFECT, **canvas.DASHED)
    canvas.legend(ax, lines, {PERFECT: canvas.DASHED})


def time_and_examples(ax: Axes, table: pd.DataFrame, fits: pd.DataFrame | None = None) -> None:
    """Examples against steps to the goal, one point per batch size, with the frontiers of both fits to these points.

    >>> tables = f"{published}/tables"
    >>> time_and_examples(ax, pd.read_csv(f"{tables}/steps_to_result.csv"), fits=pd.read_csv(f"{tables}/fits.csv"))
    >>> ax.get_xlabel(), [line.get_label() for line in ax.lines][:3]
    ('training steps to validation cross entropy < 0.2', ['momentum', 'hyperbola', 'shoulder'])
    """
    table = table.assign(steps=points(table))
    reached = table[table["steps"].notna()]
    steps, examples = reached["steps"], reached["steps"] * reached["batch_size"]
    words = f"to {goal(table)}"
    canvas.log_axes(ax, steps, examples, f"training steps {words}", f"training examples {words}")
    heading(ax, str(table["workload"].iloc[0]), f"goal: {goal(table)}")
    lines, notes = [], {}
    few, many = ax.get_xlim()
    for _, rows, line in canvas.curves(ax, reached.assign(y=np.nan)):
        line.set(xdata=rows["steps"], ydata=rows["steps"] * rows["batch_size"])
        line.set(linestyle="none", label=str(rows["optimizer"].iloc[0]))
        lines.append(line)
        for fit in [] if fits is None else _through(fits, rows).itertuples():
            notes[f"{fit.fit} fit"] = FITS[fit.fit]
            sizes = np.geomspace(reached["batch_size"].min() / 8, reached["batch_size"].max() * 8, 200)
            bend = fit.sharpness * np.log(fit.critical_batch_size / sizes)
            curve = fit.steps_min * np.exp(np.logaddexp(0.0, bend) / fit.sharpness)
            seen = (curve >= few) & (curve <= many)
            ax.plot(curve[seen], (sizes * curve)[seen], color=line.get_color(), label=fit.fit, **FITS[fit.fit])
    canvas.legend(ax, lines, notes)


def _through(fits: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """The fits through the points of one curve."""
    mine = fits["optimizer"] == rows["optimizer"].iloc[0]
    if {"read_from"} <= {*fits} & {*rows}:
        mine &= fits["read_from"] == rows["read_from"].iloc[0]
    return fits[mine]
