"""The parts that all figures share: colours, axes, ticks, curves and legends.

This module knows the meaning of a few columns only: workload, goal_metric and goal_threshold, which identify a panel,
and batch_size, which `y` is drawn against.

>>> table = pd.DataFrame({"workload": "digits", "goal_metric": "val/classification_error", "goal_threshold": 0.05,
...     "optimizer": "sgd", "batch_size": [8, 64, 512], "y": [117, 24, 18]})
>>> def panel(ax):
...     batch_size_axes(ax, table, f"training steps to {goal(table)}")
...     legend(ax, [line for _, _, line in curves(ax, table)], {"perfect scaling": DASHED})
>>> figure = draw(panel)
>>> ax = figure.axes[0]
>>> ax.get_title("left"), ax.get_ylabel(), [text.get_text() for text in ax.get_legend().get_texts()]
('digits', 'training steps to validation error < 0.05', ['sgd', 'perfect scaling'])
"""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from math import ceil, floor, log2, log10
from typing import Any, Literal

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox, ScaledTranslation

from analysis.labels import goal_text
from analysis.units import TOKENS

Ticks = Callable[[float, float, int], Sequence[float]]
"""Makes the ticks of a log axis from its two ends and the most ticks."""
INK, MUTED, GRID, PAPER = "#1b1b1f", "#6e6e73", "#e4e4e7", "#ffffff"
# Okabe and Ito's palette without yellow, which vanishes on white; no marker resembles the triangle of a missed goal.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#5b5b9a")
MARKERS = ("o", "s", "D", "P", "X", "h", "p")
# For ordered values, such as batch sizes: dark to light, so that they differ in grey, too.
RAMP = ("#3b0f70", "#7b2382", "#b5367a", "#e55064", "#fb8761", "#fbb96b")
STYLE: Any = {
    "svg.fonttype": "none",  # keep text as text, to be searched, read aloud and restyled
    "svg.hashsalt": "batch-size-study",  # otherwise ids are random, and files differ from run to run
    "pdf.fonttype": 42,  # TrueType: journals refuse the usual type 3
    "text.parse_math": False,  # a workload may have a dollar sign in its name
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that layouts are the same everywhere
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # otherwise every draw measures all tick labels to place the title
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
DASHED: Any = {"linestyle": (0, (4, 3)), "linewidth": 1.1}
DOTTED: Any = {"linestyle": ":", "linewidth": 1.4}
LINE: Any = {"linewidth": 1.6, "markersize": 5, "zorder": 3}
BAR: Any = {"linewidth": 4, "alpha": 0.3, "solid_capstyle": "butt", "zorder": 2}
OPEN: Any = {"marker": "^", "markersize": 7, "markerfacecolor": PAPER, "linestyle": "none"}
SEVERAL = 6
"""The most batch sizes drawn on one pair of axes."""
LIFT = 27
"""Points by which a second axis on top raises the heading."""
MOST_POINTS = 2000
"""A scatter with more points becomes an image inside its SVG: a page must not hold a hundred thousand circles."""


def evenly(values: Sequence[Any], most: int = SEVERAL) -> list[Any]:
    """At most `most` of these values, evenly spaced, the first and the last included.

    >>> evenly([1, 2, 4, 8, 16], 3)
    [1, 4, 16]
    """
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def ramp(count: int) -> list[str]:
    """`count` colours, at most SEVERAL, for ordered values.

    >>> ramp(3)
    ['#3b0f70', '#b5367a', '#fbb96b']
    """
    return [RAMP[0]] if count == 1 else [RAMP[round(i * (len(RAMP) - 1) / (count - 1))] for i in range(count)]


def limits(values: pd.Series, pad: float, least: float) -> tuple[float, float]:
    """Limits of a log axis: the positive finite values, padded by the factor `pad`, with high / low at least `least`.

    >>> limits(pd.Series([2.0, 200.0, np.inf]), pad=2, least=10), limits(pd.Series([4.0]), pad=1, least=16)
    ((1.0, 400.0), (1.0, 16.0))
    """
    values = values[(values > 0) & np.isfinite(values)]
    low, high = (values.min() / pad, values.max() * pad) if len(values) else (1.0, 1.0)
    widen = max(1.0, least * low / high) ** 0.5
    return float(low / widen), float(high * widen)


def powers_of_two(low: float, high: float, most: int) -> list[int]:
    """Powers of two in [low, high], evenly spaced, at most `most`: 1, 2, 4, ... or 1, 4, 16, ...

    >>> powers_of_two(3, 300, most=4)
    [4, 16, 64, 256]
    """
    exponents = range(max(0, ceil(log2(low))), floor(log2(high)) + 1)
    strides = ([2**e for e in exponents if e % stride == 0] for stride in range(1, len(exponents) + 2))
    return next(ticks for ticks in strides if len(ticks) <= max(1, most))


def round_decimals(low: float, high: float, most: int) -> list[float]:
    """At most `most` round numbers in [low, high]: 1, 2, 5, 10, or 1, 3, 10, or powers of ten.

    >>> round_decimals(0.03, 2, most=6), round_decimals(0.03, 2, most=4)
    ([0.05, 0.1, 0.2, 0.5, 1.0, 2.0], [0.03, 0.1, 0.3, 1.0])
    """
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    choices = [((1, 2, 5), 1), ((1, 3), 1), *(((1,), stride) for stride in range(1, len(decades) + 2))]
    strides = (
        [v for d in decades if d % stride == 0 for m in mantissas if low <= (v := float(f"{m}e{d}")) <= high]
        for mantissas, stride in choices
    )
    return next(ticks for ticks in strides if len(ticks) <= max(1, most))


def in_binary(count: int) -> str:
    """A power of two with k = 1,024 and M = 1,048,576.

    >>> in_binary(512), in_binary(32768), in_binary(2**21)
    ('512', '32k', '2M')
    """
    size, unit = next((each for each in ((2**20, "M"), (2**10, "k")) if count >= each[0]), (1, ""))
    return f"{count / size:g}{unit}"


def log_axes(
    ax: Axes,
    x: pd.Series,
    y: pd.Series,
    xlabel: str,
    ylabel: str,
    xticks: Ticks = powers_of_two,
    yticks: Ticks = powers_of_two,
) -> None:
    """Set log axes around these values; ticks are plain numbers, as many as fit.

    >>> log_axes(ax, pd.Series([1, 1024]), pd.Series([20, 1000]), "batch size (examples)", "steps")
    >>> [text.get_text() for text in ax.get_xticklabels()]
    ['1', '4', '16', '64', '256', '1,024']
    """
    letter = ax.figure.dpi * matplotlib.rcParams["font.size"] / 72  # the font size in pixels
    x_limits, y_limits = limits(x, 1.4, 8), limits(y, 1.7, 10)
    longest = len(f"{x_limits[1]:,.0f}") if xticks is powers_of_two else 5
    x_ticks = xticks(*x_limits, int(ax.bbox.width / letter / (0.62 * longest + 1.2)))
    y_ticks = yticks(*y_limits, int(ax.bbox.height / letter / 2.6))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set(xlim=x_limits, ylim=y_limits, xlabel=xlabel)
    # Break a long label: the axis is too short for it.
    most = min(42, round(20 * ax.bbox.height / ax.figure.dpi))
    broken = ylabel.replace(" to ", " to\n", 1) if most == 42 else textwrap.fill(ylabel, most)
    ax.set_ylabel(ylabel if len(ylabel) <= most else broken)
    for axis, values in ((ax.xaxis, x_ticks), (ax.yaxis, y_ticks)):
        axis.set_major_locator(FixedLocator(values))
        labels = [f"{v:,}" if isinstance(v, int) else f"{v:g}" for v in values]
        axis.set_major_formatter(FixedFormatter(labels))
        axis.set_minor_locator(NullLocator())


def batch_size_axes(ax: Axes, table: pd.DataFrame, ylabel: str, yticks: Ticks = powers_of_two) -> None:
    """Set log axes around the columns batch_size and y, with the workload and its goal as heading."""
    log_axes(ax, table["batch_size"], table["y"], "batch size (examples)", ylabel, yticks=yticks)
    heading(ax, str(table["workload"].iloc[0]), f"goal: {goal(table)}")
    tokens_axis(ax, table)


def tokens_axis(ax: Axes, table: pd.DataFrame) -> None:
    """Add batch sizes in tokens on top, below the heading, if the examples of all rows have as many tokens.

    >>> log_axes(ax, pd.Series([4, 64]), pd.Series([20, 1000]), "batch size (examples)", "steps")
    >>> heading(ax, "tokens")
    >>> tokens_axis(ax, pd.DataFrame({"tokens_per_example": [512, 512]}))
    >>> (top,) = ax.child_axes
    >>> [text.get_text() for text in top.get_xticklabels()]
    ['2k', '4k', '8k', '16k', '32k']
    """
    each = table[TOKENS].dropna().unique() if TOKENS in table and table[TOKENS].notna().all() else []
    if len(each) != 1:
        return
    tokens = float(each[0])
    top = ax.secondary_xaxis("top", functions=(partial(np.multiply, tokens), partial(np.multiply, 1 / tokens)))
    most = len(ax.xaxis.get_major_locator()())
    low, high = ax.get_xlim()
    ticks = powers_of_two(low * tokens, high * tokens, max(2, most))
    top.xaxis.set_major_locator(FixedLocator(ticks))
    top.xaxis.set_major_formatter(FixedFormatter([in_binary(tick) for tick in ticks]))
    top.xaxis.set_minor_locator(NullLocator())
    top.grid(visible=False)
    top.spines["top"].set_visible(False)
    top.set_xlabel("batch size (tokens)", labelpad=3)
    ax.set_title(ax.get_title("left"), loc="left", pad=20 + LIFT)
    for note in ax.texts:
        note.set_position((0, 6 + LIFT))


def linear(ax: Axes, which: Literal["x", "y"]) -> None:
    """Make an axis linear, fitted to the drawn points, with few ticks.

    >>> _ = ax.loglog([0.0, 0.1, 0.2], [3, 2, 1])
    >>> linear(ax, "x")
    >>> ax.get_xscale(), ax.get_yscale()
    ('linear', 'log')
    """
    ax.set(**{f"{which}scale": "linear"})
    ax.autoscale(axis=which)
    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def named_x(ax: Axes, names: Sequence[str]) -> None:
    """Make the x axis one of names: the first at 0, the second at 1 and so on; long names are broken at their spaces.

    >>> _ = ax.loglog([0, 1], [3, 2])
    >>> named_x(ax, ["constant", "linear_decay"])
    >>> [text.get_text() for text in ax.get_xticklabels()]
    ['constant', 'linear decay']
    """
    ax.set(xscale="linear", xlim=(-0.5, len(names) - 0.5))
    ax.xaxis.set_major_locator(FixedLocator(range(len(names))))
    size = matplotlib.rcParams["font.size"]
    room = ax.bbox.width / len(names) / (0.62 * ax.figure.dpi / 72)  # of a name, in letters of one point
    if max(map(len, names)) * size < room:
        ax.xaxis.set_major_formatter(FixedFormatter([name.replace("_", " ") for name in names]))
        return
    # One word a line, in place of the label of the axis.
    ax.xaxis.set_major_formatter(FixedFormatter([name.replace("_", "\n") for name in names]))
    longest = max(len(word) for name in names for word in name.split("_"))
    ax.tick_params(axis="x", labelsize=min(size, room / longest))
    ax.set_xlabel("")


def named_y(ax: Axes, names: Sequence[str]) -> None:
    """Make the y axis one of names, the first at the bottom, with room for them on the left.

    >>> _ = ax.loglog([3, 2], [1, 2])
    >>> named_y(ax, ["one step", "branches"])
    >>> [text.get_text() for text in ax.get_yticklabels()]
    ['one step', 'branches']
    """
    ax.set(yscale="linear", ylim=(-0.5, len(names) - 0.5))
    ax.yaxis.set_major_locator(FixedLocator(range(len(names))))
    ax.yaxis.set_major_formatter(FixedFormatter(list(names)))
    ax.yaxis.set_minor_locator(NullLocator())


def heading(ax: Axes, title: str, note: str = "") -> None:
    """Write the title of a panel, and a grey note below it.

    >>> heading(ax, "digits", "goal: validation error < 0.05")
    >>> ax.get_title("left"), ax.texts[0].get_text()
    ('digits', 'goal: validation error < 0.05')
    """
    inches = min(3.0, ax.bbox.width / ax.figure.dpi)  # every figure of the page has room for all letters
    title, note = (shortened(text, round(most * inches / 3)) for text, most in ((title, 44), (note, 66)))
    ax.set_title(title, loc="left", pad=20)
    fitting = 13.5 * ax.bbox.width / ax.figure.dpi  # letters of the usual size; 13.5 fill an inch
    size = matplotlib.rcParams["font.size"] * min(1.0, fitting / max(1, len(note)))
    ax.annotate(note, (0, 1), (0, 6), "axes fraction", "offset points", color=MUTED, fontsize=size)


def shortened(text: str, most: int) -> str:
    """At most this many letters of a text.

    >>> shortened("momentum", 8), shortened("momentum", 5)
    ('momentum', 'mome…')
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def goal(table: pd.DataFrame) -> str:
    """The goal of a panel as text."""
    return goal_text(str(table["goal_metric"].iloc[0]), float(table["goal_threshold"].iloc[0]))


def curves(ax: Axes, table: pd.DataFrame, by: str = "optimizer") -> Iterator[tuple[str, pd.DataFrame, Line2D]]:
    """Draw y against batch_size, broken where y is NaN; yields (name, rows by batch size, line).

    If the column `by` is categorical, each name keeps its colour and marker in every panel.
    """
    names = table[by].astype("category")
    for i, name in enumerate(names.cat.categories):
        rows = table[names == name].sort_values("batch_size")
        if len(rows):
            style = ("-", "--", "-.")[i // 7 % 3]
            (line,) = ax.plot(rows["batch_size"], rows["y"], style, label=str(name), **LINE)
            line.set(color=COLOURS[i % 7], marker=MARKERS[i % 7])
            yield str(name), rows, line


def aside(ax: Axes, points: float) -> Any:
    """Data coordinates shifted sideways, so that the marks of several curves do not hide one another.

    >>> bool((aside(ax, 36).transform((1, 1)) > ax.transData.transform((1, 1)))[0])
    True
    """
    return ax.transData + ScaledTranslation(points / 72, 0, ax.figure.dpi_scale_trans)


def legend(ax: Axes, lines: Sequence[Any], notes: Mapping[str, Any]) -> None:
    """Add a legend below the axes, where it hides nothing: first `lines`, then in grey `notes` (label -> style)."""
    marks = [Line2D([], [], label=label, **{"color": MUTED, **look}) for label, look in notes.items()]
    handles = [*lines, *marks]
    place: Any = {"handles": handles, "loc": "upper left", "bbox_to_anchor": (0, 0), "borderaxespad": 0}
    place |= {"handlelength": 2.4, "columnspacing": 1.4}

    def beside(columns: int, left: float) -> float:
        """Place the legend `left` inches to the left of the axes; returns the inches by which it is too wide."""
        below = ax.transAxes + ScaledTranslation(-left, -0.5, ax.figure.dpi_scale_trans)
        drawn = ax.legend(ncols=columns, bbox_transform=below, **place).get_window_extent()
        return float(drawn.x1 - ax.figure.bbox.x1) / ax.figure.dpi

    if (over := beside(2, 0.1)) > 0:
        beside(*((2, 0.1 + over) if over < 0.7 else (1, 0.1)))


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib's defaults with STYLE: a user's matplotlibrc, such as `text.usetex: True`, changes no figure.

    >>> with style():
    ...     matplotlib.rcParams["svg.fonttype"]
    'none'
    """
    with matplotlib.rc_context():
        now: Any = matplotlib.rcParams
        # Only what differs: to set a parameter checks its value, and three hundred of them take 4 ms.
        now.update({name: value for name, value in _styled().items() if now[name] != value})
        yield


@cache
def _styled() -> dict[str, Any]:
    """All parameters in this style, as matplotlib keeps them; not the backends, which a look would load."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        now: Any = matplotlib.rcParams
        return {name: now[name] for name in matplotlib.rcParamsDefault if "backend" not in name}


def draw(panel: Callable[[Axes], None], small: bool = False, total: float | None = None) -> Figure:
    """Draw a figure with one panel. Axes have a fixed size, so that panels line up; the figure grows with its legend.

    Matplotlib's own layouts measure every label, which takes longer than drawing them.

    Arguments:
        total: the width of the figure [inches]; the axes are then as wide as it leaves room for.
    """
    width, height = (3.0, 2.3) if small else (4.0, 3.0)
    left, right, above, below = 1.08, 0.12, 0.5, 0.6  # inches, like all lengths here
    if total is not None:
        height *= max(0.6, (total - left - right) / width)
        width = total - left - right
    with style():
        figure = Figure(figsize=(left + width + right, above + height + below))
        FigureCanvasAgg(figure)  # otherwise each measure of a text makes a canvas for itself
        ax = figure.add_axes(_share(figure, left, below, width, height).bounds)
        panel(ax)
        above += LIFT / 72 if ax.child_axes else 0
        # Place axis labels by the length of the tick labels: otherwise each draw measures every one twice.
        ticks = 0.16 + 0.073 * max(map(len, getattr(ax.yaxis.get_major_formatter(), "seq", [])), default=6)
        ax.xaxis.set_label_coords(0.5, -0.32 / height)
        ax.yaxis.set_label_coords(-max(0.6, ticks) / width, 0.5)
        lines = ax.get_ylabel().count("\n")
        left = max(left, ticks + 0.4) if total is None else max(0.6, ticks) + 0.22 + 0.17 * lines
        width = width if total is None else total - left - right
        if (key := ax.get_legend()) is not None:
            below += key.get_window_extent().height / figure.dpi + 0.05
        figure.set_size_inches(left + width + right, above + height + below)
        ax.set_position(_share(figure, left, below, width, height))
    return figure


def _share(figure: Figure, left: float, bottom: float, width: float, height: float) -> Bbox:
    """A box in inches as fractions of the width and height of a figure."""
    across, up = figure.get_size_inches()
    return Bbox.from_bounds(left / across, bottom / up, width / across, height / up)
