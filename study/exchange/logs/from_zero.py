"""Finds steps that are counted from 0: the number of an update, where a curve needs the number of updates made.

Lightning logs so, and many loops do (`step = epoch * len(loader) + index`): after the first epoch of 25 updates, they
log the validation error at step 24.
"""

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd

from study.exchange.logs import names
from study.exchange.logs.gathering import Gathered, Gathering, evaluated
from study.exchange.readers.tables import numbers

OF_LIGHTNING = "trainer_global_step"
"""The plain name of the column that Lightning adds to logs of W&B."""


def find(made: Gathering, metrics: Collection[str]) -> None:
    """Set `made.from_zero` if the steps of a log are counted from 0, unless `--map` names their column."""
    tables = [each for each in made.tables if each.position == "step"]
    if "step" in made.asked.columns or not tables:
        return
    known = any(each.table.from_zero or names.plain(each.roles["step"]) == OF_LIGHTNING for each in tables)
    if known or _ends_of_epochs([_evaluations(each, metrics) for each in tables if "epoch" in each.roles]):
        column = tables[0].roles["step"]
        made.from_zero = True
        made.notes[
            f"the column {column} counts updates from 0, as Lightning does, so 1 is added to it; if it counts them "
            f"from 1: --map step={column}"
        ] = None


def _evaluations(each: Gathered, metrics: Collection[str]) -> pd.DataFrame:
    """run, step, epoch, and whether something but training errors was measured there; one row for each step."""
    frame = pd.DataFrame(
        {
            "run": each.run.to_numpy(),
            "step": numbers(each.rows[each.roles["step"]])[0],
            "epoch": numbers(each.rows[each.roles["epoch"]])[0],
            "measured": evaluated(each, metrics),
        }
    )
    return frame.dropna(subset="step").groupby(["run", "step"], as_index=False).agg({"epoch": "max", "measured": "max"})


def _ends_of_epochs(tables: Sequence[pd.DataFrame]) -> bool:
    """True if evaluations at the ends of epochs 0, 1, 2, ... are at steps n - 1, 2 n - 1, 3 n - 1, ... in every run.

    The last one of three epochs or more may be cut short.
    """
    rows = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame({"epoch": []})
    rows = rows[np.isfinite(rows["epoch"])]
    if rows.empty or rows["epoch"].min() != 0 or (rows["epoch"] % 1 > 0).any():
        return False
    ends = rows[rows["measured"]].groupby(["run", "epoch"], as_index=False)["step"].max()
    judged = 0
    for _, each in ends.groupby("run"):
        whole = each if len(each) < 3 else each.iloc[:-1]
        if len(whole) > 1:
            judged += 1
            if ((whole["step"] + 1) / (whole["epoch"] + 1)).nunique() > 1:
                return False
    return judged > 0
