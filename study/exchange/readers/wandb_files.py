"""Reads the charts that Weights & Biases exports as CSV, and its offline files (with the package `wandb`).

A chart has one column for its x axis and three for each metric of a run: `RUN - METRIC`, and the same with `__MIN` and
`__MAX`. The hyperparameters are in another export, the table of runs, which has a column `Name`.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from study.exchange.importing import ImportRefused
from study.exchange.readers.tables import PROJECT, Table, flat, refuse

BETWEEN = " - "
"""Between the name of a run and of a metric. The names of runs may contain it, too."""
BOUNDS = ("__MIN", "__MAX")
STEP = "_step"
"""The column of W&B's own step."""
TIMES = ("Relative Time", "Wall Time", "_runtime", "_timestamp")
"""Beginnings of axes that are times."""
MAGIC = b":W&B"
HEADER, BLOCK = 7, 32 * 1024
"""Bytes at the beginning of a file and of each part of a record (checksum, length, kind); and of a block."""
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
"""Kinds of parts."""


def is_chart(table: Table) -> bool:
    """True if every column but the first belongs to a run."""
    names = [str(name) for name in table.rows]
    return len(names) > 1 and BETWEEN not in names[0] and all(BETWEEN in name for name in names[1:])


def chart(table: Table) -> Iterator[Table]:
    """A table for each run of an exported chart.

    W&B adds its own step of each run where the axis is another: it counts if the axis is a time.
    """
    axis = str(table.rows.columns[0])
    runs: dict[str, dict[str, str]] = {}
    for name in map(str, table.rows.columns[1:]):
        run, _, metric = name.rpartition(BETWEEN)
        if not name.endswith(BOUNDS) and (metric != STEP or axis.startswith(TIMES)):
            runs.setdefault(run, {})[name] = metric
    for run, columns in runs.items():
        rows = table.rows[[axis, *columns]].rename(columns=columns)
        yield Table(table.where, rows, run=run, locate=table.locate, steps_of_wandb=axis == "Step")


def offline(path: Path, where: str) -> Table:
    """A run that was logged offline, from its `.wandb` file.

    Raises:
        ImportRefused: the package is missing or the file is malformed.
    """
    try:
        from wandb.proto import wandb_internal_pb2
    except ImportError as error:
        cure = "pip install wandb, or export the history of the runs as CSV"
        raise ImportRefused(f"{where} is a file of the package wandb, which is not installed; {cure}.") from error
    make: Any = vars(wandb_internal_pb2)["Record"]
    rows: list[dict[str, Any]] = []
    settings: dict[str, Any] = {}
    identifier = path.stem.removeprefix("run-")
    name, status, project = identifier, "", ""
    try:
        for data in _records(path.read_bytes()):
            record = make.FromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                name, project = record.run.display_name or name, record.run.project
                settings |= _items(record.run.config.update)
            elif kind == "config":
                settings |= _items(record.config.update)
            elif kind == "history":
                rows.append(_items(record.history.item))
            elif kind == "exit":
                status = "failed" if record.exit.exit_code else "finished"
    except Exception as error:  # protobuf has errors of its own
        raise refuse(where, f"it is torn or no file of wandb ({error}).") from error
    settings = {key: value for key, value in settings.items() if not key.startswith("_")}
    settings = ({PROJECT: project} if project else {}) | settings
    settings |= {"run_id": identifier} | ({"status": status} if status else {})
    return Table(where, pd.DataFrame(rows, dtype=object), settings, run=name)


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a file, which is a LevelDB log: blocks of 32 KiB, and records in one or several parts.

    The package has no reader of its own for them any more. What a killed process wrote in part is left out.
    """
    if not data.startswith(MAGIC):
        raise ValueError("it does not begin with :W&B")
    at, parts = HEADER, list[bytes]()
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:  # too little room for a record: zeros
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        part = data[at + HEADER : at + HEADER + length]
        if len(part) < length:
            return
        if kind not in (FULL, FIRST, MIDDLE, LAST):
            raise ValueError(f"part of kind {kind}")
        parts = [part] if kind in (FULL, FIRST) else [*parts, part]
        if kind in (FULL, LAST):
            yield b"".join(parts)
        at += HEADER + length


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
