"""What every reader of logs hands over: rows of one run or of several, and settings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from study.exchange.importing import ImportRefused

LIGHTNING = "hparams.yaml"
"""The file that Lightning's loggers write beside a log."""
PROJECT = "project"
"""The setting that names the project of W&B, or the experiment of MLflow, that a run is in."""
NOT_FINITE = ("nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity")
EMPTY = ("", "none", "null", "na", "n/a", "-", "<na>")
"""Cells that hold nothing, in lower case."""


@dataclass(frozen=True)
class Table:
    """Rows of one file.

    Attributes:
        where: the file, for messages.
        rows: columns by their names in the file: text, or numbers, which are NaN where nothing was measured and
            infinite where the measured value was not finite.
        settings: hyperparameters and the like, the same for all rows.
        run: the name of the run; None: a column names it.
        locate: row number from 0 -> its place in the file, such as `line 3`.
        facts: how its cells were read, as sentences without a full stop.
        from_zero: the tool that wrote it counts steps from 0: the number of an update, not of updates made.
        steps_of_wandb: its steps are those of W&B itself, which counts calls of `log` unless they give a step.
        is_file: `run` is the name of the file, which a column with several names of runs replaces.
    """

    where: str
    rows: pd.DataFrame
    settings: Mapping[str, Any] = field(default_factory=dict)
    run: str | None = None
    locate: Callable[[int], str] = lambda row: f"row {row + 1}"
    facts: tuple[str, ...] = ()
    from_zero: bool = False
    steps_of_wandb: bool = False
    is_file: bool = False


def numbers(column: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """(a column as numbers, which cells are neither numbers nor empty).

    Empty cells become NaN; cells that say NaN or infinity become infinite.

    >>> values, odd = numbers(pd.Series(["0.5", "", "NaN", "many"]))
    >>> values.tolist(), odd.tolist()
    ([0.5, nan, inf, nan], [False, False, False, True])
    """
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        values = column.to_numpy(dtype=float, na_value=math.nan)
        return np.where(np.isinf(values), math.inf, values), np.zeros(len(column), dtype=bool)
    text = column.astype("string").fillna("").str.strip().str.lower()
    found = pd.to_numeric(text, errors="coerce").to_numpy(dtype=float, na_value=math.nan)
    empty, bad = text.isin(EMPTY).to_numpy(dtype=bool), text.isin(NOT_FINITE).to_numpy(dtype=bool)
    found = np.where(bad | np.isinf(found), math.inf, found)
    return found, np.isnan(found) & ~empty


def number_cure(cell: Any) -> str:
    """How to write a number with a comma or in per cent; empty for other cells.

    >>> number_cure("1,024"), number_cure("91.5 %"), number_cure("many")
    ('; write a point for a decimal comma, and nothing between thousands', '; write a fraction: 0.915', '')
    """
    text = str(cell).strip()
    if re.fullmatch(r"[+-]?\d[\d.]*,[\d,.]+(e[+-]?\d+)?", text, re.IGNORECASE):
        return "; write a point for a decimal comma, and nothing between thousands"
    percent = re.fullmatch(r"([+-]?\d+(?:\.\d+)?)\s*%", text)
    return f"; write a fraction: {float(percent[1]) / 100:g}" if percent else ""


def measured(value: float) -> float:
    """A measured value as tables hold it: infinite if it is not finite."""
    return value if math.isfinite(value) else math.inf


def value(cell: Any) -> Any:
    """A setting as a whole number, a number or text; None if it is empty.

    >>> value("64"), value("1e-3"), value(True), value(" adam "), value("")
    (64, 0.001, 'True', 'adam', None)
    """
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return None
    text = str(cell).strip()
    if text.lower() in EMPTY:
        return None
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        return text
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def written(cell: Any) -> str | None:
    """A name as it is written, also if it looks like a number; None if it is empty.

    >>> written("007"), written("1e5"), written(7.0), written("")
    ('007', '1e5', '7', None)
    """
    return None if value(cell) is None else label(cell)


def label(cell: Any) -> str:
    """The name of a run as it is written: digits with a point are no number. `None` if it is empty.

    >>> label("8123.10"), label(" 2024_01 "), label("3.0"), label(3.0), label("")
    ('8123.10', '2024_01', '3', '3', 'None')
    """
    return "None" if value(cell) is None else re.sub(r"^(-?\d+)\.0$", r"\1", str(cell).strip())


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with the keys joined by `/`; lists become text.

    >>> flat({"optimizer": {"name": "adam", "betas": [0.9, 0.95]}, "seed": 1})
    {'optimizer/name': 'adam', 'optimizer/betas': '[0.9, 0.95]', 'seed': 1}
    """
    if not isinstance(tree, Mapping):
        return {prefix: str(tree) if isinstance(tree, (list, tuple, set)) else tree}
    found: dict[str, Any] = {}
    for key, branch in tree.items():
        found |= flat(branch, f"{prefix}/{key}" if prefix else str(key))
    return found


def refuse(where: str, why: str) -> ImportRefused:
    """The refusal of a file."""
    return ImportRefused(f"cannot read {where}: {why}")
