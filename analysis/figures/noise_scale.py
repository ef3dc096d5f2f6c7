"""Drawing of the gradient noise scale along tuned runs.

The function draws `table`, the rows of one panel (`analysis.noise_scale.table`).
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import canvas
from analysis.figures.canvas import COLOURS, MARKERS
from analysis.noise_scale.table import SHOWN

INTERVAL, OPEN = "95 % interval", "no upper end"
BAR: Any = {"linewidth": 1.2, "alpha": 0.45, "zorder": 2}


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
    kinds = [kind for kind in SHOWN if (table[["estimator", "form"]] == list(kind)).all(axis=1).any()]
    for place, kind in enumerate(kinds):
        rows = table[(table[["estimator", "form"]] == list(kind)).all(axis=1)]
        look: Any = {"color": COLOURS[place], "transform": canvas.aside(ax, 4 * (place - (len(kinds) - 1) / 2))}
        bounded = rows[np.isfinite(rows["high"])]
        lines += ax.plot(
            bounded["examples_seen"],
            bounded["noise_scale"],
            label=SHOWN[kind],
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
