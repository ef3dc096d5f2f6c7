"""Which reader reads what: a file by its name, a folder by what is in it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from study.exchange.importing import ImportRefused
from study.exchange.readers import mlflow_store, settings, tabular, tensorboard, wandb_files
from study.exchange.readers.tables import LIGHTNING, Table, refuse
from study.exchange.released_tree import is_result, results_folder

DATABASES = (".db", ".sqlite", ".sqlite3")
SPLITS = ("train", "training", "val", "valid", "validation", "eval", "dev", "test")
"""Names of files, in lower case, that hold one split of a run."""
EXECUTED = (".pkl", ".pickle", ".pt", ".pth", ".npy", ".npz", ".joblib")
"""Formats that may run code when they are read."""
KNOWN = (
    "a CSV, TSV, JSON-lines, JSON or parquet file, TensorBoard event files, a .wandb file, MLflow's mlruns or its "
    "SQLite database, or a folder of these"
)


def read(source: Path) -> list[Table]:
    """All tables of a file or folder, without the results of this project in it (`results_in`).

    Raises:
        ImportRefused: there is no log, or a file is malformed.
    """
    results = set(results_in(source))
    if not source.exists():
        raise ImportRefused(f"there is no file or folder {source}; give {KNOWN}.")
    tables = _apart(list(_folder(source, results) if source.is_dir() else _file(source, source.name)))
    if not tables:
        some = "no log besides results of this project" if results else "no log"
        raise ImportRefused(f"{source} holds {some}; give {KNOWN}.")
    return tables


def results_in(source: Path) -> list[Path]:
    """The results folders of this project below a source: they hold no logs.

    Raises:
        ImportRefused: the source itself is a results folder.
    """
    found = dict.fromkeys(
        results_folder(source, path.parent) for path in sorted(source.rglob("study.json")) if is_result(path)
    )
    if source in found:
        raise ImportRefused(
            f"{source} is a results folder of this project, which `study report {source}` reads. If it holds logs, "
            "too, give these files, or move them to another folder."
        )
    return list(found)


def _apart(tables: list[Table]) -> list[Table]:
    """Runs with identifiers of their own that share a name get the identifier in their name."""
    held: dict[str | None, set[str]] = {}
    for table in tables:
        if "run_id" in table.settings:
            held.setdefault(table.run, set()).add(str(table.settings["run_id"]))
    return [
        replace(table, run=f"{table.run} {table.settings['run_id']}") if len(held.get(table.run, ())) > 1 else table
        for table in tables
    ]


def _file(path: Path, where: str) -> Iterator[Table]:
    if path.name.endswith(EXECUTED):
        raise refuse(where, f"files of this kind can run code, so they are not read; write {KNOWN}.")
    if tensorboard.PART in path.name:
        yield from tensorboard.read(path, where)
    elif path.suffix == ".wandb":
        yield wandb_files.offline(path, where)
    elif path.suffix in DATABASES:
        yield from mlflow_store.database(path, where)
    elif path.name.endswith(tabular.SUFFIXES):
        table = tabular.read(path, where)
        if table is not None:
            yield from wandb_files.chart(table) if wandb_files.is_chart(table) else [table]
    else:
        raise refuse(where, f"the format is not known; give {KNOWN}.")


def _folder(root: Path, results: set[Path]) -> Iterator[Table]:
    """The tables of all files below a folder. Files that are no logs are passed over."""
    runs = [path.parent for path in sorted(root.rglob("meta.yaml")) if mlflow_store.is_run(path.parent)]
    for run in runs:
        table = mlflow_store.run(run, run.relative_to(root).as_posix())
        if table is not None:
            yield table
    yield from tensorboard.read(root, root.name) if tensorboard.folders(root) else []
    for path in sorted(root.rglob("*")):
        if path.suffix in (".wandb", *DATABASES) and path.is_file() and results.isdisjoint(path.parents):
            yield from _file(path, path.relative_to(root).as_posix())
    yield from _of_files(root, {*runs, *results})


def _of_files(root: Path, taken: set[Path]) -> Iterator[Table]:
    """The CSV, JSON and parquet files of a folder, with the settings beside them."""
    paths = [path for path in sorted(root.rglob("*")) if path.name.endswith(tabular.SUFFIXES) and path.is_file()]
    paths = [path for path in paths if taken.isdisjoint(path.parents) and not _hidden(path.relative_to(root))]
    paths = _last_checkpoints(paths)
    read = {path: list(_file(path, path.relative_to(root).as_posix())) for path in paths}
    logs = {path: tables for path, tables in read.items() if tables}
    for path, tables in logs.items():
        given = _settings(path, root, set(logs))
        for table in tables:
            name = table.run or _run_name(path, root, list(logs))
            rows = table.rows
            if table.run is None and path.parent != root and tabular.stem(path).lower() in SPLITS:
                rows = rows.assign(split=tabular.stem(path).lower())
            table = replace(table, settings={**given, **table.settings}, from_zero=_is_of_lightning(path, rows))
            yield replace(table, rows=rows, run=name, is_file=table.run is None)


def _is_of_lightning(path: Path, rows: pd.DataFrame) -> bool:
    """True for `metrics.csv` as Lightning's CSVLogger writes it: with `hparams.yaml` beside it."""
    beside = path.name == "metrics.csv" and path.with_name(LIGHTNING).is_file()
    return beside and {"epoch", "step"} <= set(map(str, rows))


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _last_checkpoints(paths: list[Path]) -> list[Path]:
    """Of the states that Hugging Face's Trainer wrote for a run, with each checkpoint, only the last one."""
    kept, states = [], dict[Path, tuple[int, Path]]()
    for path in paths:
        if path.name != tabular.TRAINER_STATE:
            kept.append(path)
            continue
        name, _, step = path.parent.name.rpartition("-")
        is_checkpoint = name == "checkpoint" and step.isdecimal()
        run = path.parent.parent if is_checkpoint else path.parent
        states[run] = max(states.get(run, (-1, path)), (int(step) if is_checkpoint else 2**62, path))
    return sorted([*kept, *(path for _, path in states.values())])


def _settings(path: Path, root: Path, logs: set[Path]) -> dict[str, Any]:
    """The settings that apply to a log: from `root` down to its folder, then the file of the same name.

    A file of settings with the name of another log is that log's.
    """
    stems = {(log.parent, tabular.stem(log)) for log in logs}
    found: dict[str, Any] = {}
    between = [folder for folder in reversed(path.parents) if root == folder or root in folder.parents]
    own = path.parent, tabular.stem(path)
    for folder in between:
        files = [file for file in settings.of_folder(folder, root) if file not in logs]
        files.sort(key=lambda file: (file.parent, file.stem) == own)
        for file in files:
            if (file.parent, file.stem) == own or (file.parent, file.stem) not in stems:
                found |= settings.read(file, file.relative_to(root).as_posix())
    return found


def _run_name(path: Path, root: Path, logs: list[Path]) -> str:
    """The name of the run that a file logs: its folder if it is the only log there or that of a split, such as
    `train.csv`; else its own."""
    folder = path.parent
    if path.name == tabular.TRAINER_STATE and folder.name.startswith("checkpoint-") and folder != root:
        folder = folder.parent
    alone = sum(log.parent == path.parent for log in logs) == 1 or tabular.stem(path).lower() in SPLITS
    named = folder if alone and folder != root else path.with_name(tabular.stem(path))
    return named.relative_to(root).as_posix()
