"""Finds steps of W&B that count calls of `log`, where a curve needs the number of updates made.

Without `log(..., step=N)`, W&B counts calls from 0, so every row of a history has the step after that of the row
before. Two such histories do not count updates: each row is an evaluation, as in a call for each epoch; or the
evaluations are in calls of their own, which share no measurement with the calls between them.
"""

from collections.abc import Collection

import numpy as np
import pandas as pd

from study.exchange.importing import ImportRefused
from study.exchange.logs import names
from study.exchange.logs.gathering import Gathered, Gathering, evaluated
from study.exchange.readers.tables import numbers
from study.exchange.readers.wandb_files import STEP

FEWEST = 3
"""Evaluations of a run from which their steps are judged."""


def check(made: Gathering, metrics: Collection[str]) -> None:
    """Refuse steps of W&B that count calls of `log` instead of updates, unless `--map` names their column; set
    `made.of_calls` where they may.

    Raises:
        ImportRefused: a history has such steps; the message has the cures.
    """
    for each in made.tables:
        if each.position == "step" and "step" not in made.asked.columns:
            column = each.roles["step"]
            if each.table.steps_of_wandb or column == STEP:
                _check_table(each, metrics)
                made.of_calls = column


def _check_table(each: Gathered, metrics: Collection[str]) -> None:
    column = each.roles["step"]
    at = numbers(each.rows[column])[0]
    measured = evaluated(each, metrics)
    logged = _logged(each)
    for run, rows in pd.Series(np.arange(len(at))).groupby(each.run.to_numpy(), sort=False):
        own = rows.to_numpy()
        own = own[~np.isnan(at[own])]
        steps = np.unique(at[own])
        is_evaluation = measured[own]
        if is_evaluation.sum() < FEWEST or steps[0] != 0 or steps[-1] != len(steps) - 1:
            continue
        both = logged[own][is_evaluation].any(axis=0) & logged[own][~is_evaluation].any(axis=0)
        if is_evaluation.all():
            raise ImportRefused(_message(each, run, "each call of log was an evaluation"))
        if not both.any():
            raise ImportRefused(_message(each, run, "evaluations were logged in calls of their own"))


def _logged(each: Gathered) -> np.ndarray:
    """Which cells were logged [R, columns], of the columns that say neither how far training was nor what a run is."""
    passing = {*each.roles.values(), *filter(names.is_of_wandb, each.rows)}
    kept = [column for column in each.rows if column not in passing]
    cells = each.rows[kept].astype("string").fillna("").to_numpy(dtype=str)
    return np.asarray(np.strings.strip(cells) != "")


def _message(each: Gathered, run: object, why: str) -> str:
    column = each.roles["step"]
    epoch = each.roles.get("epoch", column)
    return (
        f"{column} is W&B's own step, which counts calls of log, not updates: in run {run!r} {why}. If a column counts "
        f"updates: --map step=COLUMN; if {epoch} counts epochs: --map epoch={epoch} --set train_examples=N; if "
        f"{column} does count updates: --map step={column}."
    )
