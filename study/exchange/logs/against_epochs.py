"""Compares the steps of runs with their epochs.

Steps may be counted from 0: the number of an update, where a curve needs the number of updates made. Lightning logs
so, and many loops do (`step = epoch * len(loader) + index`): after the first epoch of 25 updates, they log the
validation error at step 24.

Epochs of runs at one batch size have equally many updates, unless the batch size is that of a part of an update.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from study.exchange.importing import ImportRefused
from study.exchange.logs import names
from study.exchange.logs.gathering import Gathered, Gathering, evaluated
from study.exchange.readers.tables import numbers

OF_LIGHTNING = "trainer_global_step"
"""The plain name of the column that Lightning adds to logs of W&B."""
AXES = ("step", "epoch")
"""Roles that are compared."""
UNLIKE = 1.5
"""Numbers of updates in an epoch that differ by more are not those of one batch size."""
OF_DATA = ("batch_size", "workload", "dataset", "train_examples")
"""Settings of a run; runs that agree in all of them have epochs of equally many updates."""


class Epoch(NamedTuple):
    """Bounds on the number of updates in an epoch of a run."""

    run: str
    low: float
    high: float

    @property
    def middle(self) -> float:
        return math.sqrt(self.low * self.high)

    def is_like(self, low: float, high: float) -> bool:
        """Whether a number between these bounds may be the same, or nearly the same."""
        ratio = self.middle / math.sqrt(low * high)
        return (self.low <= high and low <= self.high) or 1 / UNLIKE <= ratio <= UNLIKE


def find_from_zero(made: Gathering, metrics: Collection[str]) -> None:
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


def check_lengths(made: Gathering, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Find batch sizes that count one part of an update, such as an accumulation step. Then runs of one batch size have
    epochs of different lengths, or an epoch has too few updates for its training examples.

    Raises:
        ImportRefused: there are some. It is only a note if the user said what a batch size is.
    """
    first: dict[tuple[Any, ...], Epoch] = {}
    for epoch in _epochs(made):
        if (settings := runs.get(epoch.run)) is None:
            continue
        of_data = (*OF_DATA, *([made.asked.size] if made.asked.size else []))
        known = first.setdefault(tuple(str(settings.get(name)) for name in of_data), epoch)
        size, examples = settings["batch_size"], settings.get("train_examples")
        why = ""
        if not epoch.is_like(known.low, known.high):
            why = f"an epoch of run {known.run!r} has about {known.middle:.3g} updates, and one of {epoch.run!r}"
        elif isinstance(examples, int) and "tokens_per_example" not in settings:
            steps = math.ceil(examples / size)
            if not epoch.is_like(max(1, examples // size), steps):  # with or without the smaller last batch
                why = f"{examples:,} training examples are {steps:,} batches, and an epoch of {epoch.run!r}"
        if why:
            _tell(made, f"at batch size {size:,} {why} has about {epoch.middle:.3g} updates")
            return


def _tell(made: Gathering, found: str) -> None:
    """Refuse a log for this, or note it if the user said what a batch size is."""
    if "batch_size" in {*made.asked.columns, *made.asked.set_otherwise}:
        made.notes[f"{found}, as if batch sizes counted parts of updates in some runs"] = None
        return
    column = next(iter(made.read_as["batch_size"]))
    raise ImportRefused(
        f"{found}. A batch size counts the examples of a whole update. If {column} counts one part of it, as with "
        f"gradient accumulation: --map 'batch_size={column}*N' for N parts in all runs, --map "
        f"'batch_size={column}*COLUMN' with the parts of each, or --map batch_size=COLUMN with whole batch sizes; if "
        f"runs had other training data: --map dataset=COLUMN; if {column} counts the whole: --map batch_size={column}."
    )


def _epochs(made: Gathering) -> list[Epoch]:
    """Bounds on the number of updates in an epoch of each run that logs steps and epochs, from its last row.

    A whole number e of an epoch, counted from 0 or 1, may be that of its begin or its end; a fraction is exact.
    """
    found = [
        pd.DataFrame({"run": each.run.to_numpy(), **{role: numbers(each.rows[each.roles[role]])[0] for role in AXES}})
        for each in made.tables
        if each.position == "step" and "epoch" in each.roles
    ]
    rows = pd.concat(found).dropna() if found else pd.DataFrame(columns=["run", *AXES])
    epochs = []
    for run, own in rows.groupby("run", sort=False):
        at, step = own["epoch"].to_numpy(), float(own["step"].max())
        last, is_exact = float(at[own["step"].argmax()]), bool((at % 1 > 0).any())
        before = 0 if is_exact or at.min() == 0 else 1
        if last > before and step > 0 and last == at.max():
            epochs.append(Epoch(str(run), step / (last + (not is_exact)), step / (last - before)))
    return epochs
