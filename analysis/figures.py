"""Draw tables: one function `(ax, table)` for each figure, registered in `FIGURES`.

A drawing computes nothing but positions. `panels` cuts tables into one part for each workload and goal,
`compose` lays panels out, `render` makes bytes of them, `save` writes the files for a paper.

Columns used: workload, optimizer, goal_metric, goal_threshold; of `steps` also batch_size [examples],
reached, steps_to_result [steps], train_steps [steps: the budget], learning_rate, momentum; of `scaling` also
definition, value [examples], bound (`=`, or `>` and `<` where the data show no end).
"""

import io
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import ceil, floor, log2, log10
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

Tables = Mapping[str, pd.DataFrame]
PANEL = ["workload", "goal_metric", "goal_threshold"]
BOUNDS = {"=": "", ">": "≥ ", "<": "≤ "}

INK, MUTED, GRID, PAPER = "#1b1b1f", "#6e6e73", "#e4e4e7", "#ffffff"
# Okabe and Ito's palette without yellow, which vanishes on white; no marker resembles NOT_REACHED's triangle.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#5b5b9a")
MARKERS = ("o", "s", "D", "P", "X", "h", "p")
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud and restyled
    "svg.hashsalt": "batch-size-study",  # otherwise ids are random, and files differ from run to run
    "text.parse_math": False,  # a workload may have a dollar sign in its name
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that layouts are the same everywhere
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.fontsize": 8.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.7,
    "grid.color": GRID,
    **dict.fromkeys(["axes.spines.top", "axes.spines.right", "legend.frameon"], False),
    **dict.fromkeys(["text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"], INK),
    **dict.fromkeys(["axes.edgecolor", "xtick.color", "ytick.color"], MUTED),
    **dict.fromkeys(["axes.facecolor", "figure.facecolor", "savefig.facecolor"], PAPER),
}

NOT_REACHED, PERFECT = "not reached in budget", "perfect scaling"
DASHED: Any = {"linestyle": (0, (4, 3)), "linewidth": 1.1}
DOTTED: Any = {"linestyle": ":", "linewidth": 1.4}
LIMITS: dict[str, tuple[str, Any]] = {
    "perfect_scaling_limit": ("perfect-scaling limit", DOTTED),
    "maximum_useful_batch_size": ("maximum useful batch size", {**DOTTED, "linestyle": (0, (4, 1, 1, 1))}),
}
DEFINITIONS = {
    **{name: label for name, (label, _) in LIMITS.items()},
    "critical_batch_size_mccandlish": "critical batch size, McCandlish et al. 2018 (hyperbola)",
    "critical_batch_size_shoulder": "critical batch size, sharp shoulder",
    "critical_batch_size_zhang": "critical batch size, Zhang et al. 2024",
}
"""What limits of scaling are called; those of LIMITS are drawn."""
INTERVAL = "best of N/4 trials, 95 %"
BAR: Any = {"linewidth": 4, "alpha": 0.3, "solid_capstyle": "butt", "zorder": 2}
OPEN: Any = {"marker": "^", "markersize": 7, "markerfacecolor": PAPER, "linestyle": "none"}
LINE: Any = {"linewidth": 1.6, "markersize": 5, "zorder": 3}
RULES = {"linear rule": (1.0, DASHED), "square-root rule": (0.5, DOTTED)}


def goal_text(metric: str, threshold: float) -> str:
    """`val/classification_error`, 0.05 -> `validation error < 0.05`; an unknown metric keeps its own name."""
    split, _, error = metric.rpartition("/")
    splits = {"val": "validation", "train": "training", "test": "test"}
    errors = {"classification_error": "error", "cross_entropy_error": "cross entropy"}
    words = f"{splits[split]} {errors.get(error, error.replace('_', ' '))}" if split in splits else metric
    return f"{words} < {threshold:g}"


def powers_of_two(low: float, high: float, most: int) -> list[int]:
    """Powers of two in [low, high], evenly spaced, at most `most`: 1, 2, 4, ... or 1, 4, 16, ..."""
    exponents = range(max(0, ceil(log2(low))), floor(log2(high)) + 1)
    strides = ([2**e for e in exponents if e % stride == 0] for stride in range(1, len(exponents) + 2))
    return next(ticks for ticks in strides if len(ticks) <= max(1, most))


def round_decimals(low: float, high: float, most: int) -> list[float]:
    """At most `most` round numbers in [low, high]: 1, 2, 5, 10 or 1, 3, 10 or some powers of ten."""
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    choices = [((1, 2, 5), 1), ((1, 3), 1), *(((1,), stride) for stride in range(1, len(decades) + 2))]
    strides = (
        [v for d in decades if d % stride == 0 for m in mantissas if low <= (v := float(f"{m}e{d}")) <= high]
        for mantissas, stride in choices
    )
    return next(ticks for ticks in strides if len(ticks) <= max(1, most))


def _limits(values: pd.Series, pad: float, least: float) -> tuple[float, float]:
    """Limits of a log axis: the values padded by a factor, and `least` times apart or more."""
    values = values[values > 0]
    low, high = values.min() / pad, values.max() * pad
    widen = max(1.0, least * low / high) ** 0.5
    return float(low / widen), float(high * widen)


def _frame(ax: Axes, table: pd.DataFrame, ylabel: str, ticks: Callable[[float, float, int], Any]) -> None:
    """Log axes around columns batch_size and y; ticks are plain numbers, thinned to the room there is."""
    letter = ax.figure.dpi * matplotlib.rcParams["font.size"] / 72  # the font size in pixels
    x_limits, y_limits = _limits(table["batch_size"], 1.4, 8), _limits(table["y"], 1.7, 10)
    longest = len(f"{table['batch_size'].max():,}")
    x_ticks = powers_of_two(*x_limits, int(ax.bbox.width / letter / (0.62 * longest + 1.2)))
    y_ticks = ticks(*y_limits, int(ax.bbox.height / letter / 2.6))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set(xlim=x_limits, ylim=y_limits, xlabel="batch size (examples)")
    # A long label goes on two lines: the axis is not much taller than one.
    ax.set_ylabel(ylabel if len(ylabel) <= 42 else ylabel.replace(" to ", " to\n", 1))
    for axis, values in ((ax.xaxis, x_ticks), (ax.yaxis, y_ticks)):
        axis.set_major_locator(FixedLocator(values))
        labels = [f"{v:,}" if isinstance(v, int) else f"{v:g}" for v in values]
        axis.set_major_formatter(FixedFormatter(labels))
        axis.set_minor_locator(NullLocator())
    name = str(table["workload"].iloc[0])
    ax.set_title(name if len(name) <= 44 else name[:43] + "…", pad=20)
    ax.annotate(f"goal: {_goal(table)}", (0, 1), (0, 6), "axes fraction", "offset points", color=MUTED)


def _goal(table: pd.DataFrame) -> str:
    return goal_text(str(table["goal_metric"].iloc[0]), float(table["goal_threshold"].iloc[0]))


def _curves(ax: Axes, table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame, Line2D]]:
    """Draw y against batch_size, broken where y is NaN; yields (optimizer, rows by batch size, line).

    Where the optimizer is a categorical, each keeps its colour and marker in every panel, drawn there or not.
    """
    names = table["optimizer"].astype("category")
    for i, name in enumerate(names.cat.categories):
        rows = table[names == name].sort_values("batch_size")
        if len(rows):
            style = ("-", "--", "-.")[i // 7 % 3]
            (line,) = ax.plot(rows["batch_size"], rows["y"], style, label=str(name), **LINE)
            line.set(color=COLOURS[i % 7], marker=MARKERS[i % 7])
            yield str(name), rows, line


def _legend(ax: Axes, lines: list[Line2D], notes: Mapping[str, Any]) -> None:
    """Below the axes, where it hides nothing: the curves, then what the other marks mean, in grey."""
    marks = [Line2D([], [], label=label, color=MUTED, **look) for label, look in notes.items()]
    handles = [*lines, *marks]
    labels = [str(handle.get_label()) for handle in handles]
    middle = ceil(len(labels) / 2)
    widths = [max(map(len, part), default=0) for part in (labels[:middle], labels[middle:])]
    below = ax.transAxes + ScaledTranslation(-0.1, -0.5, ax.figure.dpi_scale_trans)
    place: Any = {"loc": "upper left", "bbox_to_anchor": (0, 0), "bbox_transform": below, "borderaxespad": 0}
    columns = 2 if sum(widths) <= 56 else 1
    ax.legend(handles, labels, ncols=columns, handlelength=2.4, columnspacing=1.4, **place)


def steps_to_result(ax: Axes, table: pd.DataFrame, scaling: pd.DataFrame | None = None) -> None:
    """S(B) against B for the one workload and goal of `table`: a curve an optimizer, limits as verticals."""
    _draw_cost(ax, table, "training steps", 0, scaling)


def examples_to_result(ax: Axes, table: pd.DataFrame, scaling: pd.DataFrame | None = None) -> None:
    """B * S(B) against B, as `steps_to_result`: perfect scaling is level, a rise is what size costs."""
    _draw_cost(ax, table, "training examples", 1, scaling)


def _draw_cost(ax: Axes, table: pd.DataFrame, unit: str, power: int, scaling: pd.DataFrame | None) -> None:
    """Steps * batch_size^power; a study that missed its goal stands at its budget."""
    reached = table["reached"].astype(bool)
    steps = table["steps_to_result"].astype("Float64").where(reached, table["train_steps"]).astype(float)
    each = table["batch_size"].astype(float) ** power
    table = table.assign(all=steps * each)
    ends = {end: table[end].where(reached) * each for end in ("low", "high") if end in table}
    table = table.assign(**ends)
    shown = [table.assign(y=values[np.isfinite(values)]) for values in (table["all"], *ends.values())]
    _frame(ax, pd.concat(shown), f"{unit} to {_goal(table)}", powers_of_two)
    notes: dict[str, Any] = {INTERVAL: BAR} if ends and table["low"].notna().any() else {}
    lines, count = [], table["optimizer"].nunique()
    for name, rows, line in _curves(ax, table.assign(y=table["all"].where(reached))):
        lines.append(line)
        colour = line.get_color()
        missed = rows[rows["y"].isna()]
        for first in rows.dropna(subset="y").head(1).itertuples():
            notes[PERFECT] = DASHED
            x = np.array([first.batch_size, table["batch_size"].max()], dtype=float)
            y = first.steps_to_result * first.batch_size / x * x**power
            ax.plot(x, y, color=colour if count > 1 else MUTED, label=PERFECT, **DASHED)
        for row in rows.dropna(subset="low").itertuples() if ends else ():
            top = row.high if np.isfinite(row.high) else ax.get_ylim()[1]
            # Beside one another, so that those of several curves can be told apart.
            moved = ScaledTranslation(5 * (len(lines) - (count + 1) / 2) / 72, 0, ax.figure.dpi_scale_trans)
            place: Any = {"color": colour, "label": INTERVAL, "transform": ax.transData + moved}
            ax.plot([row.batch_size] * 2, [row.low, top], **place, **BAR)
        if len(missed):
            notes[NOT_REACHED] = OPEN
            ax.plot(missed["batch_size"], missed["all"], color=colour, label=NOT_REACHED, zorder=4, **OPEN)
        if scaling is not None:
            limits = scaling[scaling["optimizer"] == name]
            aside = 1.6 * (len(lines) - (count + 1) / 2) if count > 1 else None
            notes |= _draw_limits(ax, rows, limits, colour, aside)
    _legend(ax, lines, notes)


def _draw_limits(
    ax: Axes, rows: pd.DataFrame, limits: pd.DataFrame, colour: Any, aside: float | None
) -> dict[str, Any]:
    """Drop limits from their curve to the axis, with an arrowhead where the data show no end; returns notes.

    `aside`: where there are several curves, points to move by, so that equal limits do not hide one another.
    """
    notes: dict[str, Any] = {}
    moved = ax.transData + ScaledTranslation((aside or 0) / 72, 0, ax.figure.dpi_scale_trans)
    bottom, top = ax.get_ylim()
    seen = limits["definition"].isin(list(LIMITS)) & limits["value"].between(*ax.get_xlim())
    for limit in limits[seen].itertuples():
        label, look = LIMITS[limit.definition]
        heights = rows.loc[rows["batch_size"] == limit.value, "y"].dropna()
        style: Any = {"color": colour, "transform": moved, "label": label}
        ax.plot([limit.value] * 2, [bottom, heights.max() if len(heights) else top], **style, **look)
        if limit.bound in "<>":
            ax.plot([limit.value], [bottom], limit.bound, markersize=6, clip_on=False, zorder=5, **style)
        notes[f"{label}: {BOUNDS[limit.bound]}{limit.value:,.0f}" if aside is None else label] = look
    return notes


def effective_learning_rate(table: pd.DataFrame) -> pd.Series:
    """learning_rate / (1 - momentum); an optimizer without momentum keeps its learning rate."""
    return table["learning_rate"] / (1 - (table["momentum"].fillna(0.0) if "momentum" in table else 0.0))


def best_learning_rate(ax: Axes, table: pd.DataFrame) -> None:
    """Learning rate of the fastest trial against B; linear and square-root rules from the smallest B."""
    _draw_rate(ax, table.assign(y=table["learning_rate"]), "best learning rate")


def best_effective_learning_rate(ax: Axes, table: pd.DataFrame) -> None:
    """As `best_learning_rate`, for learning_rate / (1 - momentum)."""
    _draw_rate(ax, table.assign(y=effective_learning_rate(table)), "learning rate / (1 − momentum)")


def _draw_rate(ax: Axes, table: pd.DataFrame, label: str) -> None:
    table = table.assign(y=table["y"].where(table["reached"].astype(bool)))
    _frame(ax, table, label, round_decimals)
    lines, several = [], table.dropna(subset="y")["optimizer"].nunique() > 1
    for _, rows, line in _curves(ax, table):
        for first in rows.dropna(subset="y").head(1).itertuples():
            lines.append(line)
            x = np.array([first.batch_size, table["batch_size"].max()], dtype=float)
            for rule, (power, look) in RULES.items():
                y = first.y * (x / first.batch_size) ** power
                ax.plot(x, y, color=line.get_color() if several else MUTED, label=rule, **look)
    _legend(ax, lines, {rule: look for rule, (_, look) in RULES.items()})


@dataclass(frozen=True)
class Drawing:
    """A figure: `draw(ax, table, **overlays)`; without values in the columns `needs` it has no point."""

    title: str
    caption: str
    draw: Callable[..., None]
    needs: tuple[str, ...] = ()
    overlays: tuple[str, ...] = ()
    table: str = "steps"


FIGURES: dict[str, Drawing] = {
    "steps_to_result": Drawing(
        "Steps to result",
        "Fewest training steps S(B) in which any trial met the goal, at each batch size B, with everything "
        "retuned. Dashed: perfect scaling from the smallest batch size that met the goal (twice the batch, "
        "half the steps). Open triangles: no trial met the goal within the step budget drawn. Verticals: "
        "perfect-scaling limit (dotted) and maximum useful batch size (dash-dotted), with an arrowhead where "
        "the data show no end. Bars: 95 % interval of the median best of a quarter of the trials.",
        steps_to_result,
        overlays=("scaling",),
    ),
    "examples_to_result": Drawing(
        "Examples to result",
        "Training examples B · S(B) until the goal is met. Level (dashed) is perfect scaling; a rise is what "
        "larger batches cost in addition. Other marks as for the steps.",
        examples_to_result,
        overlays=("scaling",),
    ),
    "best_learning_rate": Drawing(
        "Best learning rate",
        "Learning rate η of the trial that met the goal first. Dashed: the linear rule, η ∝ B; dotted: the "
        "square-root rule, η ∝ √B; both from the smallest batch size that met the goal.",
        best_learning_rate,
        needs=("learning_rate",),
    ),
    "best_effective_learning_rate": Drawing(
        "Best effective learning rate",
        "Effective learning rate η / (1 − m) of the same trials; momentum m is 0 where there is none.",
        best_effective_learning_rate,
        needs=("learning_rate", "momentum"),
    ),
}


def panels(name: str, tables: Tables) -> list[dict[str, pd.DataFrame]]:
    """The tables of a figure cut into panels, one a workload and goal; [] if nothing can be drawn."""
    drawing = FIGURES[name]
    table = tables[drawing.table]
    if table.empty:
        return []
    optimizers = table["optimizer"].astype(str)
    table = table.assign(optimizer=pd.Categorical(optimizers, categories=list(dict.fromkeys(optimizers))))
    parts = []
    for key, part in table.groupby(PANEL, sort=False):
        shown = part[part["reached"].astype(bool)] if "reached" in part else part
        if all(column in part and shown[column].notna().any() for column in drawing.needs):
            overlays = {name: tables[name] for name in drawing.overlays if name in tables}
            cut = {name: t[(t[PANEL] == list(key)).all(axis=1)] for name, t in overlays.items()}
            parts.append({drawing.table: part, **cut})
    return parts


def compose(name: str, parts: list[dict[str, pd.DataFrame]]) -> Figure:
    """Draw panels side by side, at most three to a row."""
    drawing = FIGURES[name]
    columns = {1: 1, 2: 2, 4: 2}.get(len(parts), 3)
    rows = ceil(len(parts) / columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2 * columns, 4.6 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).flat
        for ax, part in zip(axes, parts, strict=False):
            drawing.draw(ax, part[drawing.table], **{o: part[o] for o in drawing.overlays if o in part})
        for ax in axes[len(parts) :]:
            ax.remove()
    return figure


def render(figure: Figure, kind: Literal["svg", "png"]) -> bytes:
    """The same bytes on every run: no date, no version, no random id."""
    buffer = io.BytesIO()
    nothing = ("Date", "Creator", "Format", "Type") if kind == "svg" else ("Software",)
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format=kind, dpi=200 if kind == "png" else 72, metadata=dict.fromkeys(nothing))
    # Laid out in DejaVu Sans, an SVG names fonts every system has; they are narrower: nothing can overlap.
    fonts = (rb"(style=\"[^\"]*font[^\"]*?)'DejaVu Sans'[^;\"]*", rb"\1Helvetica, Arial, sans-serif")
    return re.sub(*fonts, buffer.getvalue()) if kind == "svg" else buffer.getvalue()


def save(name: str, tables: Tables, folder: Path) -> list[Path]:
    """Write `folder/name.svg` and `.png` (200 dots an inch); nothing, and [], if there is nothing to draw."""
    parts = panels(name, tables)
    if not parts:
        return []
    figure = compose(name, parts)
    folder.mkdir(parents=True, exist_ok=True)
    kinds: tuple[Literal["svg", "png"], ...] = ("svg", "png")
    return [write_atomically(folder / f"{name}.{kind}", render(figure, kind)) for kind in kinds]


def write_atomically(path: Path, data: bytes) -> Path:
    """Write aside, sync, rename: a reader sees the old file or the whole new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        error.filename = str(path)  # a failed write names no file, and the one aside means nothing to a reader
        raise
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
    return path
