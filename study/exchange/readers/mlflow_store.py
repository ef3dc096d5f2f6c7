"""Reads what MLflow keeps on disk: the folder `mlruns` and a SQLite database. The package is not needed.

mlruns/EXPERIMENT/RUN/meta.yaml         name, status and stage of life
                     /params/NAME       the value
                     /metrics/NAME      lines of `timestamp value step`; the name may contain `/`
"""

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from study.exchange.readers.tables import PROJECT, Table, measured, refuse

STATUSES = {1: "running", 2: "scheduled", 3: "finished", 4: "failed", 5: "killed"}
"""The numbers of statuses in meta.yaml."""
LARGEST = 1.7976931348623157e308
"""What the database holds for infinity."""


def is_run(folder: Path) -> bool:
    """True if a folder is a run of the folder `mlruns`."""
    return (folder / "meta.yaml").is_file() and (folder / "metrics").is_dir()


def run(folder: Path, where: str) -> Table | None:
    """A run of the folder `mlruns`; None if it was deleted.

    Raises:
        ImportRefused: a file is malformed; the message has the line.
    """
    try:
        meta = yaml.safe_load((folder / "meta.yaml").read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise refuse(f"{where}/meta.yaml", "it is not YAML.") from error
    if not isinstance(meta, dict):
        raise refuse(f"{where}/meta.yaml", "it holds no fields.")
    if meta.get("lifecycle_stage", "active") != "active":
        return None
    params, metrics = folder / "params", folder / "metrics"
    settings = {_name(path, params): path.read_text() for path in sorted(params.rglob("*")) if path.is_file()}
    columns = [
        _metric(path, _name(path, metrics), f"{where}/metrics/{_name(path, metrics)}")
        for path in sorted(metrics.rglob("*"))
        if path.is_file()
    ]
    held = meta.get("status")
    status = STATUSES[held] if held in STATUSES else str(held or "")
    name = str(meta.get("run_name") or folder.name)
    settings = _experiment(folder.parent / "meta.yaml") | settings
    return Table(where, _joined(columns), settings | {"status": status, "run_id": folder.name}, run=name)


def _experiment(meta: Path) -> dict[str, str]:
    """The name of an experiment, from its `meta.yaml`; empty without one."""
    held = yaml.safe_load(meta.read_text()) if meta.is_file() else None
    return {PROJECT: str(held["name"])} if isinstance(held, dict) and held.get("name") else {}


def _name(path: Path, top: Path) -> str:
    return path.relative_to(top).as_posix()


def _metric(path: Path, name: str, where: str) -> pd.DataFrame:
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            _, value, *step = line.split()
            rows.append((int(step[0]) if step else number, measured(float(value))))
        except ValueError as error:
            raise refuse(where, f"line {number} is {line[:40]!r}, not `timestamp value step`.") from error
    return pd.DataFrame(rows, columns=["step", name])


def _joined(columns: list[pd.DataFrame]) -> pd.DataFrame:
    """The metrics one below the other: steps that several share become one row later."""
    return pd.concat(columns, ignore_index=True) if columns else pd.DataFrame({"step": []})


def database(path: Path, where: str) -> Iterator[Table]:
    """The runs in a SQLite database that were not deleted. It is opened for reading only.

    Raises:
        ImportRefused: it is no such database.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as held:
            columns = {row[1] for row in held.execute("PRAGMA table_info(runs)")}
            experiment = "experiment_id" if "experiment_id" in columns else "NULL"
            query = f"SELECT run_uuid, name, status, {experiment} FROM runs WHERE lifecycle_stage = 'active'"
            experiments = _experiments(held)
            for run_id, name, status, number in held.execute(f"{query} ORDER BY start_time").fetchall():
                params = held.execute("SELECT key, value FROM params WHERE run_uuid = ?", (run_id,)).fetchall()
                settings: dict[str, Any] = {PROJECT: experiments[number]} if number in experiments else {}
                settings |= dict(params)
                rows = _of_database(held, run_id)
                settings |= {"status": str(status or "").lower(), "run_id": run_id}
                yield Table(f"{where}, run {name or run_id}", rows, settings, run=name or run_id)
    except sqlite3.Error as error:
        raise refuse(where, f"it is no database of MLflow ({error}).") from error


def _experiments(held: sqlite3.Connection) -> dict[int, str]:
    """Number -> name of the experiments."""
    if not held.execute("PRAGMA table_info(experiments)").fetchall():
        return {}
    return dict(held.execute("SELECT experiment_id, name FROM experiments").fetchall())


def _of_database(held: sqlite3.Connection, run_id: str) -> pd.DataFrame:
    query = "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY key, step, timestamp"
    columns: dict[str, list[tuple[int, float]]] = {}
    for key, step, value, is_nan in held.execute(query, (run_id,)):
        finite = not is_nan and abs(value) < LARGEST
        columns.setdefault(key, []).append((step, value if finite else math.inf))
    return _joined([pd.DataFrame(rows, columns=["step", key]) for key, rows in columns.items()])
