"""Reads the charts that Weights & Biases exports as CSV, and its offline files (with the package `wandb`).

A chart has one column for its x axis and three for each run: `RUN - METRIC`, and the same with `__MIN` and `__MAX`. The
hyperparameters are in another export, the table of runs, which has a column `Name`.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from study.exchange.importing import ImportRefused
from study.exchange.readers.tables import Table, flat, refuse

BETWEEN = " - "
"""Between the name of a run and of a metric. The names of runs may contain it, too."""
BOUNDS = ("__MIN", "__MAX")


def is_chart(table: Table) -> bool:
    """True if every column but the first belongs to a run."""
    names = [str(name) for name in table.rows]
    return len(names) > 1 and BETWEEN not in names[0] and all(BETWEEN in name for name in names[1:])


def chart(table: Table) -> Iterator[Table]:
    """A table for each run of an exported chart."""
    axis = str(table.rows.columns[0])
    for name in map(str, table.rows.columns[1:]):
        if not name.endswith(BOUNDS):
            run, _, metric = name.rpartition(BETWEEN)
            rows = table.rows[[axis, name]].rename(columns={name: metric})
            yield Table(table.where, rows, run=run, locate=table.locate)


def offline(path: Path, where: str) -> Table:
    """A run that was logged offline, from its `.wandb` file.

    Raises:
        ImportRefused: the package is missing or the file is malformed.
    """
    try:
        from wandb.proto import wandb_internal_pb2
        from wandb.sdk.internal import datastore
    except ImportError as error:
        cure = "pip install wandb, or export the history of the runs as CSV"
        raise ImportRefused(f"{where} is a file of the package wandb, which is not installed; {cure}.") from error
    store = datastore.DataStore()
    rows: list[dict[str, Any]] = []
    settings: dict[str, Any] = {}
    identifier = path.stem.removeprefix("run-")
    name, status = identifier, ""
    try:
        store.open_for_scan(str(path))
        while (data := _scanned(store)) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                name = record.run.display_name or record.run.run_id or name
                settings |= _items(record.run.config.update)
            elif kind == "config":
                settings |= _items(record.config.update)
            elif kind == "history":
                rows.append(_items(record.history.item))
            elif kind == "exit":
                status = "failed" if record.exit.exit_code else "finished"
    except Exception as error:  # its reader raises AssertionError, and protobuf its own errors
        raise refuse(where, f"it is torn or no file of wandb ({type(error).__name__}).") from error
    settings = {key: value for key, value in settings.items() if not key.startswith("_")}
    settings |= {"run_id": identifier} | ({"status": status} if status else {})
    return Table(where, pd.DataFrame(rows, dtype=object), settings, run=name)


def _scanned(store: Any) -> bytes | None:
    """The next record; None at the end, also where a killed process left half a record."""
    try:
        found: bytes | None = store.scan_data()
    except AssertionError:
        if store.in_last_block():
            return None
        raise
    return found


def _items(items: Any) -> dict[str, Any]:
    """Key -> value of protobuf items; nested keys are joined by `/`, and NaN becomes infinite."""
    found: dict[str, Any] = {}
    for item in items:
        key = "/".join(item.nested_key) if item.nested_key else item.key
        value = json.loads(item.value_json, parse_constant=lambda _: math.inf)
        found |= flat(value, key) if isinstance(value, Mapping) else {key: _plain(value)}
    return found


def _plain(value: Any) -> Any:
    """Values that W&B writes as the text of a number that JSON lacks stay text; lists become text."""
    return str(value) if isinstance(value, list) else value
