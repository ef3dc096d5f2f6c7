"""Tables made by hand, and the axes that a figure draws of them."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import charts, draw

METRIC = "val/classification_error"


def table(optimizer="nesterov", sizes=(1, 4, 16, 64, 256), missed=(), workload="digits", momentum=0.9):
    """S(B) = 20 + 1000 / B, learning rate 0.01 B^0.5, budget 5,000 steps."""
    sizes = np.array(sizes)
    reached = ~np.isin(sizes, missed)
    steps = pd.array(np.round(20 + 1000 / sizes), dtype="Int64")
    steps[~reached] = pd.NA
    return pd.DataFrame(
        {
            "workload": workload,
            "optimizer": optimizer,
            "batch_size": sizes,
            "goal_metric": METRIC,
            "goal_threshold": 0.05,
            "reached": reached,
            "steps_to_result": steps,
            "examples_to_result": steps * sizes,
            "learning_rate": np.where(reached, 0.01 * np.sqrt(sizes), np.nan),
            "momentum": np.where(reached, momentum, np.nan),
            "train_steps": 5000,
            "complete": 4,
            "infeasible": 0,
        }
    )


def limits(optimizer="nesterov", workload="digits", perfect=(16.0, "="), useful=(256.0, ">")):
    rows = [("perfect_scaling_limit", *perfect), ("maximum_useful_batch_size", *useful)]
    frame = pd.DataFrame(rows, columns=["definition", "estimate", "estimate_bound"])
    return frame.assign(workload=workload, optimizer=optimizer, goal_metric=METRIC, goal_threshold=0.05)


def drawn(name, steps, scaling=None) -> Axes:
    tables = {"steps_to_result": steps} | ({} if scaling is None else {"scaling": scaling})
    return panels_of(name, tables)[0]


def panels_of(name, tables) -> list[Axes]:
    """Axes of the one figure of this kind."""
    return [figure.axes[0] for figure in draw(only(name, tables))]


def only(name, tables):
    (chart,) = charts(tables, [name])
    return chart


def trials(batch_size=8):
    """One trial of each fate; the learning rate tells them apart."""
    rows = [(0.1, "COMPLETE", 300, 300, None), (0.2, "COMPLETE", 2000, None, None), (0.4, "INFEASIBLE", 7, None, 7)]
    found = pd.DataFrame(rows, columns=["learning_rate", "status", "end", "steps_to_goal", "first_bad_step"])
    found = found.astype({"steps_to_goal": "Int64", "first_bad_step": "Int64"}).assign(momentum=0.9)
    return found.assign(
        **{"workload": "digits", "optimizer": "nesterov", "goal_metric": METRIC, "goal_threshold": 0.05},
        batch_size=batch_size, trial=found.index, stopping="budget", train_steps=2000,
    )  # fmt: skip


def errors_at(size, falls):
    rows = pd.DataFrame(falls, columns=["step", "error"])
    names = {"workload": "digits", "optimizer": "sgd", "goal_metric": METRIC, "train_examples": 1000}
    return rows.assign(**names, batch_size=size)
