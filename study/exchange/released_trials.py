"""Reads the trials of a released study: a record for each trial, and columns of all measurements.

A trial keeps the status that it was released with. All files of a study are parsed in one call, because a call of the
parser costs as much as a thousand rows.

Shapes: M measurements of all trials of a study.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from analysis.counting import COMPLETE, INCOMPLETE, INFEASIBLE
from study.exchange.released_tree import Released, as_error, columns_of, named, trial_folders
from study.space import finite

Odd = dict[str, list[int]]
"""Rule of the layout -> ids of the trials that break it."""

NO_ROWS = pa.table({"trial": pa.array([], pa.int32()), "step": pa.array([], pa.int64())})


def read(study: Released, metric: str) -> tuple[list[dict[str, Any]], dict[str, np.ndarray], list[str]]:
    """All trials of a study, by trial id.

    Arguments:
        metric: the goal's metric. Its empty cells and NaNs raise a warning; of other metrics, only NaNs do.

    Returns:
        (a record for each trial; the columns trial (index), step and each metric [M]; warnings).
    """
    odd: Odd = defaultdict(list)
    records: list[dict[str, Any]] = []
    files: dict[int, bytes] = {}
    names = named(study)
    for trial_id, folder in trial_folders(study):
        metadata = _metadata(folder, trial_id, odd)
        if metadata is None:
            continue
        try:
            with open(f"{folder}/measurements.csv", "rb") as file:
                files[len(records)] = file.read()
        except FileNotFoundError:
            odd["no measurements.csv: taken as empty"].append(trial_id)
        except OSError:
            files[len(records)] = b""  # a malformed file
        parameters = _parameters(metadata.get("parameters"), names, trial_id, odd)
        records.append(_record(len(records), trial_id, metadata, study.train_steps == 0, odd) | parameters)
    ids = [record["trial_id"] for record in records]
    table = _table(files, ids, odd)
    measured, with_gaps = set(np.unique(table["trial"]).tolist()), _with_gaps(table, metric)
    for record in records:
        if record["status"] == COMPLETE and record["index"] not in measured:
            odd["COMPLETE without measurements: counted as INCOMPLETE"].append(record["trial_id"])
            record["status"] = INCOMPLETE
        if record["status"] != INFEASIBLE and record["index"] in with_gaps:
            odd["NaN cells: taken as not measured"].append(record["trial_id"])
    frame = _in_order(_errors(table), ids, odd)
    return records, {name: frame[name].to_numpy() for name in frame}, [_text(*item) for item in odd.items()]


def _text(rule: str, ids: Sequence[int]) -> str:
    some = ", ".join([*map(str, ids[:5]), *(["..."] if len(ids) > 5 else [])])
    return f"{rule} ({len(ids):,} trial{'s' if len(ids) > 1 else ''}: {some})"


def _metadata(folder: str, trial_id: int, odd: Odd) -> dict[str, Any] | None:
    try:
        with open(f"{folder}/metadata.json", "rb") as file:
            found = json.loads(file.read())
    except FileNotFoundError:
        odd["no metadata.json: left out"].append(trial_id)
        return None
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        odd["malformed metadata.json: left out"].append(trial_id)
        return None
    return found


def _record(index: int, trial_id: int, metadata: Mapping[str, Any], timed: bool, odd: Odd) -> dict[str, Any]:
    """The record of a trial in the form of `study.store`; `timed`: the trial ran under a time budget."""
    status, steps = (metadata.get(key) for key in ("status", "steps"))
    if status == INCOMPLETE and timed:
        odd["INCOMPLETE under a time budget (train_steps 0): counted as COMPLETE"].append(trial_id)
        status = COMPLETE
    elif status not in (COMPLETE, INCOMPLETE, INFEASIBLE):
        odd[f"odd status {status!r:.40}: counted as INCOMPLETE"].append(trial_id)
        status = INCOMPLETE
    if metadata.get("trial_id", trial_id) != trial_id:
        odd["metadata.json has another trial_id: taken by its folder"].append(trial_id)
    return {
        "index": index,
        "trial_id": trial_id,
        "status": status,
        "seed": None,
        "order_seed": None,
        "hyperparameters": {},
        "first_bad_step": int(steps) if status == INFEASIBLE and finite(steps) and steps >= 1 else None,
        "seconds": {"training": None, "evaluation": None},
        "micro_batch": None,
    }


def _parameters(parameters: Any, names: Collection[str], trial_id: int, odd: Odd) -> dict[str, Any]:
    """The hyperparameters of a trial: numbers, and text for those in `names`."""
    parameters = parameters if isinstance(parameters, dict) else {}
    known = {n: value for n, value in parameters.items() if finite(value) or (n in names and isinstance(value, str))}
    if len(known) < len(parameters) or not parameters:
        odd["odd parameters: those that are not numbers are left out"].append(trial_id)
    return {"hyperparameters": known}


def _table(files: Mapping[int, bytes], ids: Sequence[int], odd: Odd) -> pa.Table:
    """All rows of all files: `trial` (its index), `step` and the metrics (null: an empty cell)."""
    alike: dict[bytes, dict[int, bytes]] = defaultdict(dict)
    for index, content in files.items():
        header, _, rows = content.partition(b"\n")
        alike[header][index] = rows if rows.endswith(b"\n") or not rows else rows + b"\n"
    malformed: list[int] = []
    tables = [table for header, rows in alike.items() for table in _parsed(header, rows, malformed)]
    for index in sorted(malformed):
        odd["malformed measurements.csv: taken as empty"].append(ids[index])
    return pa.concat_tables([NO_ROWS, *tables], promote_options="default")


def _parsed(header: bytes, rows: Mapping[int, bytes], malformed: list[int]) -> Iterator[pa.Table]:
    """Parse files with the same header together; if one of them is malformed, parse each half."""
    try:
        names = columns_of(header.decode())
        if "step" not in names or len({"trial", *names}) == len(names):
            raise pa.ArrowInvalid("no step, or a name twice")
        types = {name: pa.float64() for name in names} | {"step": pa.int64()}
        table = csv.read_csv(
            pa.BufferReader(b"".join([header, b"\n", *rows.values()])),
            read_options=csv.ReadOptions(use_threads=False, column_names=names, skip_rows=1),
            # An empty cell was not measured; NaN was measured.
            convert_options=csv.ConvertOptions(column_types=types, null_values=[""]),
        )
        if table["step"].null_count:
            raise pa.ArrowInvalid("a row without its step")
        lengths = [len(table)] if len(rows) == 1 else [text.count(b"\n") for text in rows.values()]
        # Arrow skips blank lines; the column is then too long, and Arrow refuses it.
        yield table.append_column("trial", pa.array(np.repeat(np.array([*rows], dtype=np.int32), lengths)))
    except ValueError:  # ArrowInvalid is a ValueError
        if len(rows) == 1:
            malformed.extend(rows)
            return
        indexes = list(rows)
        for half in (indexes[: len(rows) // 2], indexes[len(rows) // 2 :]):
            yield from _parsed(header, {index: rows[index] for index in half}, malformed)


def _metrics(table: pa.Table) -> list[str]:
    return [name for name in table.column_names if name not in ("trial", "step")]


def _with_gaps(table: pa.Table, metric: str) -> set[int]:
    """Indices of trials with a NaN, or with a row without the goal's metric."""
    gaps = np.full(len(table), metric not in map(as_error, _metrics(table)))
    for name in _metrics(table):
        gaps |= pc.is_nan(table[name]).fill_null(as_error(name) == metric).to_numpy()
    return set(table["trial"].to_numpy()[gaps].tolist())


def _errors(table: pa.Table) -> pd.DataFrame:
    """The rows, with each metric converted to an error."""
    columns = {name: table[name].to_numpy() for name in ("trial", "step")}
    for name in _metrics(table):
        values = table[name].to_numpy()
        columns[as_error(name)] = values if as_error(name) == name else 1 - values
    return pd.DataFrame(columns)


def _in_order(frame: pd.DataFrame, ids: Sequence[int], odd: Odd) -> pd.DataFrame:
    """Sort by trial and step; rows of the same step become one row with the smallest errors.

    A search through all rows would find the same minimum.
    """
    later, further = np.diff(frame["trial"]), np.diff(frame["step"])
    if ((later > 0) | ((later == 0) & (further > 0))).all():
        return frame
    unsorted = frame["trial"][frame.groupby("trial")["step"].diff() < 0]
    if len(unsorted):
        odd["unsorted steps: sorted"] += [ids[index] for index in sorted(set(unsorted))]
    doubled = frame["trial"][frame.duplicated(["trial", "step"])]
    if len(doubled):
        odd["duplicate steps: the smaller errors count"] += [ids[index] for index in sorted(set(doubled))]
    return frame.groupby(["trial", "step"], as_index=False).min()
