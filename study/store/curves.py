"""Curves in parquet files, one trial or all trials of a search in each. For the format see `study.store`."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.question.searches import matching
from study.records import Curve, Trial
from study.store.atomic import StoreError

COMPACTED = "curves.parquet"
RECORDED, UNLESS_EMPTY = ("first_bad_step", "seconds", "micro_batch", "evaluation_chunk"), ("at_least", "command")
"""Fields of a Curve in its record; those of older versions lack `evaluation_chunk`."""


def begun(folder: Path) -> bool:
    """Whether a search has a finished trial, or one that a later run may continue."""
    files = (COMPACTED, "trials/*.parquet", "checkpoints/*.pt")
    # A command without trial.json begins again.
    commands = (each for each in matching(folder, "commands/*") if (each / "trial.json").exists())
    return any(matching(folder, each) for each in files) or any(matching(each, "folder/*") for each in commands)


def load(folder: Path) -> list[Curve]:
    """All finished trials in index order."""
    return Reader(folder).new()


class Reader:
    """Reads the finished trials of a search; later calls read only trials that finished in the meantime."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: set[tuple[str, int, int]] = set()
        self._known: set[int] = set()

    def new(self) -> list[Curve]:
        """Finished trials in index order, except trials that an earlier call returned."""
        curves: dict[int, Curve] = {}
        # A trial's own file wins over curves.parquet, because it is newer. curves.parquet is read last, because a
        # compaction that runs meanwhile moves the trials' files into it.
        for path in [*sorted((self.folder / "trials").glob("[0-9]*.parquet")), self.folder / COMPACTED]:
            with suppress(FileNotFoundError):
                stat = path.stat()
                if (file := (path.name, stat.st_ino, stat.st_mtime_ns)) not in self._read:
                    curves = {curve.trial.index: curve for curve in _read_curves(path)} | curves
                    self._read.add(file)
        new = sorted(curves.keys() - self._known)
        self._known |= curves.keys()
        return [curves[index] for index in new]


def write_curves(curves: Sequence[Curve], path: Path) -> None:
    """Write one or more curves to a parquet file. A metric that a curve lacks is NaN there."""
    metrics = list(dict.fromkeys(metric for curve in curves for metric in curve.errors))
    columns = {
        "trial": np.concatenate([np.full(len(c.steps), c.trial.index, dtype=np.int32) for c in curves]),
        "step": np.concatenate([c.steps for c in curves]).astype(np.int64),
        **{metric: np.concatenate([_errors(c, metric) for c in curves]).astype(np.float64) for metric in metrics},
    }
    trials = [asdict(c.trial) | {name: getattr(c, name) for name in RECORDED} for c in curves]
    for record, curve in zip(trials, curves, strict=True):
        record |= {name: dict(getattr(curve, name)) for name in UNLESS_EMPTY if getattr(curve, name)}
    write_table(columns, trials, path)


def _errors(curve: Curve, metric: str) -> np.ndarray:
    return curve.errors[metric] if metric in curve.errors else np.full(len(curve.steps), np.nan)


def write_table(columns: Mapping[str, np.ndarray], trials: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write measurements to a parquet file.

    Arguments:
        columns: name -> one value per measurement.
        trials: one record per trial, as plain data.
    """
    table = pa.table(dict(columns)).replace_schema_metadata({"trials": json.dumps(trials)})
    pq.write_table(table, path, compression="zstd", write_page_checksum=True)


def _read_curves(path: Path) -> list[Curve]:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read(use_threads=False)  # the cores have work, and the files are small
        trials = json.loads(table.schema.metadata[b"trials"])
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
        said = str(error).rstrip(". ")
        raise StoreError(f"cannot read {path}: {said}; remove it to train its trials again.") from error
    columns = {name: table[name].to_numpy() for name in table.column_names}
    curves = []
    for record in trials:
        rows = columns["trial"] == record["index"]
        trial = Trial(record["index"], record["seed"], record["order_seed"], record["hyperparameters"])
        errors = {name: values[rows] for name, values in columns.items() if name not in ("trial", "step")}
        own = {name: record[name] for name in (*RECORDED, *UNLESS_EMPTY) if name in record}
        curves.append(Curve(trial, steps=columns["step"][rows], errors=errors, **own))
    return curves
