"""Results folders -> frames. The file format is the interface: nothing here knows how the numbers were measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.counting import Branch, Goal, Rule, evaluation_grid


class LoadError(Exception):
    """A results folder cannot be read; the message names the file and what to do."""


@dataclass(frozen=True)
class StudyData:
    """One search of a study as it stands on disk; most studies have one.

    Attributes:
        question: what was asked, as recorded when it was asked.
        provenance: one record for each run that worked on it.
        trials: a row a trial, by `trial` (index): seed, first_bad_step (NA if finite), seconds_training,
            seconds_evaluation, and a column for each hyperparameter.
        measurements: a row an evaluation: trial, step, and a column for each metric (NaN where not measured).
    """

    folder: Path
    question: dict[str, Any]
    provenance: list[dict[str, Any]]
    trials: pd.DataFrame
    measurements: pd.DataFrame

    @property
    def workload(self) -> str:
        return str(self.question["workload"]["name"])

    @property
    def optimizer(self) -> str:
        return str(self.question["optimizer"])

    @property
    def batch_size(self) -> int:
        return int(self.question["batch_size"])

    @property
    def branch(self) -> Branch:
        return Branch.of(self.question)

    @property
    def train_steps(self) -> int:
        return int(self.question["train_steps"])

    @property
    def goal(self) -> Goal:
        return Goal(**self.question["goal"])

    def rule(self, goal: Goal, stopping: str | None = None) -> Rule:
        """When trials end under a goal: by the study's own stopping rule, or read under another."""
        evaluation = self.question["evaluation"]
        grid = evaluation_grid(self.train_steps, evaluation["first"], evaluation["ratio"])
        return Rule(stopping or self.question["stopping"], goal.threshold, grid, self.question["race_factor"])

    @property
    def hyperparameters(self) -> list[str]:
        """Names of the tuned parameters, the learning rate first."""
        return sorted(self.question["search"]["space"], key=lambda name: (name != "learning_rate", name))


def load(results: Path | str) -> Iterator[StudyData]:
    """The searches in a results folder, one at a time, by workload, optimizer and batch size, a study's first first.

    Raises:
        LoadError: no results are there, or a file is torn.
    """
    top = Path(results) / "studies"
    below = [path.parent.relative_to(top).parts for path in top.rglob("study.json")]
    folders = [parts for parts in below if len(parts) >= 3 and parts[2].isdigit()]
    if not folders:
        raise LoadError(f"no studies in {results}; a results folder is what `python -m study sweep` wrote to.")
    for parts in sorted(folders, key=lambda parts: (*parts[:2], int(parts[2]), parts[3:])):
        yield load_study(top.joinpath(*parts))


def load_study(folder: Path) -> StudyData:
    """One search's folder; a trial that stands in two files is one trial."""
    try:
        held = json.loads((folder / "study.json").read_text())
        # A trial's own file is newer than the one that gathers them, which holds whatever is gathered meanwhile.
        files = [*sorted((folder / "trials").glob("[0-9]*.parquet")), folder / "curves.parquet"]
        tables = [table for path in files if (table := _table(path)) is not None]
    except (OSError, ValueError, pa.ArrowException) as error:
        raise LoadError(f"cannot read {folder}: {error}; remove the torn file and sweep again.") from error
    records: dict[int, dict[str, Any]] = {}
    frames = []
    for table in tables:
        new = [r for r in json.loads(table.schema.metadata[b"trials"]) if r["index"] not in records]
        records |= {record["index"]: record for record in new}
        frame = table.to_pandas()
        frames.append(frame[frame["trial"].isin([record["index"] for record in new])])
    measurements = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame({"trial": [], "step": []})
    return StudyData(
        folder, held["question"], held["provenance"], _trials(records), measurements.sort_values(["trial", "step"])
    )


def _table(path: Path) -> pa.Table | None:
    """What a file of curves holds, or None if there is none (any more)."""
    try:
        return pq.read_table(path)
    except FileNotFoundError:
        return None


def _trials(records: dict[int, dict[str, Any]]) -> pd.DataFrame:
    rows = [
        {
            "trial": index,
            "seed": record["seed"],
            "first_bad_step": record["first_bad_step"],
            "seconds_training": record["seconds"]["training"],
            "seconds_evaluation": record["seconds"]["evaluation"],
            **record["hyperparameters"],
        }
        for index, record in sorted(records.items())
    ]
    columns = ["trial", "seed", "first_bad_step", "seconds_training", "seconds_evaluation"]
    frame = pd.DataFrame(rows, columns=None if rows else columns)
    return frame.astype({"trial": "int64", "first_bad_step": "Int64"}).set_index("trial")
