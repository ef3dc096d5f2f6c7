"""The advice as frames of text for the terminal, and as plain data for programs."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.advice.comparisons import KNOWN
from analysis.advice.splits import HOUR, SPLIT, ranked
from analysis.labels import counted, curve_text, duration, number
from analysis.load import CURVE
from analysis.units import TOKENS


def overview(found: pd.DataFrame) -> pd.DataFrame:
    """The fastest split of each batch size, and the cheapest of all; `found`: from `splits.table`.

    >>> from analysis.advice.splits import Machine, table
    >>> from analysis.advice.step_times import StepTimes
    >>> studies = [study]
    >>> overview(table(studies, Machine([1, 2], StepTimes({32: 0.010, 64: 0.013})))).T
                          0           1
    batch size           64          64
    split        1 x 64 x 1  2 x 32 x 1
    steps                21          21
    a step            13 ms       10 ms
    time             273 ms      210 ms
    up to            1.27 s      980 ms
    device time      273 ms      420 ms
                   cheapest     fastest
    """
    best = ranked(found, "seconds", "device_hours").drop_duplicates("batch_size")
    others = found[~found["batch_size"].isin(best["batch_size"])].drop_duplicates("batch_size")
    rows = found.loc[sorted({*best.index, *others.index, *found.index[found["cheapest"]]})]
    frame = pd.DataFrame([_without(row) if row.name in others.index else _with(row) for _, row in rows.iterrows()])
    if found["cost"].isna().all():
        frame = frame.drop(columns="cost")
    frame.attrs["title"] = (
        f"{curve_text(*rows.iloc[0][CURVE])}: batch size = devices x per-device batch x accumulation steps"
    )
    return frame.fillna("")


def _sizes(row: pd.Series) -> dict[str, str]:
    """The batch size in examples and, if the workload has tokens, in tokens."""
    tokens = {"tokens": f"{row['batch_size'] * row[TOKENS]:,}"} if TOKENS in row.index else {}
    return {"batch size": f"{row['batch_size']:,}", **tokens}


def _with(row: pd.Series) -> dict[str, str]:
    bound = _bound(row)
    said = [name for name in ("fastest", "cheapest") if row[name]]
    return {
        **_sizes(row),
        "split": " x ".join(f"{row[name]:,}" for name in SPLIT),
        "steps": number(row["steps"]),
        "a step": bound + duration(row["seconds_per_step"]),
        "time": bound + duration(row["seconds"]),
        "up to": duration(row["seconds_high"]) if np.isfinite(row["seconds_high"]) else "?",
        "device time": bound + duration(row["device_hours"] * HOUR),
        "cost": number(row["cost"]),
        "": ", ".join(said) or ("" if row["shown_slower"] else "not timed" if bound else _rival(row)),
    }


def _rival(row: pd.Series) -> str:
    return "tied" if row["comparison"] == KNOWN else "not known"


def _without(row: pd.Series) -> dict[str, str]:
    """The row of a batch size that cannot be advised."""
    return {**_sizes(row), "steps": f"> {row['train_steps']:,}", "": "not reached"}


def _bound(row: pd.Series) -> str:
    return "< " if row["seconds_bound"] == "<" else ""


def alternatives(found: pd.DataFrame) -> pd.DataFrame:
    """Every split of the fastest batch size; `found`: from `analysis.advice.splits.table`.

    A row for each number of accumulation steps, a column for each number of devices; cells: `per-device batch: time`.

    >>> from analysis.advice.splits import Machine, table
    >>> from analysis.advice.step_times import StepTimes
    >>> studies = [study]
    >>> machine = Machine([1, 2], StepTimes({16: 0.008, 32: 0.010, 64: 0.013}), largest=32)
    >>> print(alternatives(table(studies, machine)).head(3).to_csv(index=False, sep="|"), end="")
    accumulation|1 device|2 devices
    1|64: does not fit|32: 210 ms *
    2|32: 420 ms|16: 336 ms
    4|16: 672 ms|8: < 672 ms
    """
    fastest = found[found["fastest"]].iloc[0]
    rows = found[found["batch_size"] == fastest["batch_size"]]
    cells = rows.assign(cell=[_cell(row) for _, row in rows.iterrows()])
    frame = cells.pivot(index="accumulation_steps", columns="devices", values="cell").fillna("")
    frame = frame.rename(columns=lambda count: counted(count, "device"))
    frame = frame.rename_axis("accumulation").rename_axis(columns=None).reset_index()
    frame["accumulation"] = frame["accumulation"].map("{:,}".format)
    frame.attrs["title"] = (
        f"Batch size {fastest['batch_size']:,}: per-device batch and time of each split; *: the fastest"
    )
    return frame


def _cell(row: pd.Series) -> str:
    if not row["fits"] or row["seconds_bound"] == ">":
        return f"{row['per_device_batch']:,}: {'not timed' if row['fits'] else 'does not fit'}"
    return f"{row['per_device_batch']:,}: {_bound(row)}{duration(row['seconds'])}{' *' if row['fastest'] else ''}"


def plain(found: pd.DataFrame, sentences: Sequence[str], notes: Sequence[str]) -> dict[str, Any]:
    """The advice as plain data for JSON; infinity becomes null.

    >>> plain(pd.DataFrame({"seconds": [1.5, np.inf]}), ["It pays."], [])
    {'splits': [{'seconds': 1.5}, {'seconds': None}], 'sentences': ['It pays.'], 'notes': []}
    """
    return {"splits": json.loads(found.to_json(orient="records")), "sentences": [*sentences], "notes": [*notes]}
