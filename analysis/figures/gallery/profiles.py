"""Drawing of performance profiles (Dolan & More 2002)."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import canvas
from analysis.figures.canvas import COLOURS

STYLES = ("-", "--", "-.", ":")


def profiles(ax: Axes, table: pd.DataFrame) -> None:
    """The share of problems within a factor of the fewest steps, a staircase for each optimizer.

    Arguments:
        table: from `analysis.gallery.standings.profile`.

    >>> table = pd.DataFrame({"optimizer": ["adam", "adam", "sgd"], "factor": [1.0, 2.0, 1.0],
    ...     "share": [0.5, 1.0, 0.5], "problems": 2})
    >>> profiles(ax, table)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['adam (2)', 'sgd (2)']
    """
    last = float(max(2.0, table["factor"].max())) * 1.1
    lines: list[Any] = []
    for place, (optimizer, rows) in enumerate(table.groupby("optimizer", sort=True)):
        factors = np.append(rows["factor"].to_numpy(), last)
        shares = np.append(rows["share"].to_numpy(), rows["share"].iloc[-1])
        look: Any = {"color": COLOURS[place % len(COLOURS)], "linestyle": STYLES[place // len(COLOURS) % len(STYLES)]}
        label = f"{optimizer} ({rows['problems'].iloc[0]})"
        lines += ax.step(factors, shares, where="post", label=label, linewidth=1.6, **look)
    ax.set_xscale("log", base=2)
    ticks = [tick for tick in (1, 1.5, 2, 3, 4, 6, 8, 12, 16) if tick <= last]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    ax.set(xlim=(1, last), ylim=(0, 1.03), xlabel="factor of the fewest steps", ylabel="share of problems")
    canvas.heading(ax, "Performance profiles", "a problem: a workload, its goal and a batch size")
    canvas.legend(ax, lines, {})
