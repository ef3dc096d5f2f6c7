"""Trackers: a sweep in the tools that people already use. One run a study, its trials as steps, and a table of them.

A step is the position of a trial in the order in which they finished, not its index: TensorBoard drops the points
before a smaller step, and MLflow takes the value at the largest step for the last one.

Each tracker is a file of this folder with a class `Run`, so that its package is imported only if it is chosen. Files go
to `tracking/` in the results folder, unless the package's own environment variables name another place.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from study.observers.base import Ended, Finished, Observer, Search, State, Sweep
from study.observers.trackers.journal import Journal

FOLDER = "tracking"
"""Folder in a results folder for the files of trackers."""
PROJECT = "batch-size-study"
"""The project of the runs, unless the package's own environment variable names another one."""


@dataclass(frozen=True)
class About:
    """What a run is about.

    Attributes:
        folder: for the files of all trackers of a results folder.
        identity: the same whenever the sweep is resumed, so that the run goes on.
        name, group: for people; the group is the workload.
        settings: plain values that hold for the whole run.
        command: of the sweep.
        steps: what a step of the run is: `finished trials`, or `training step` in the run of a trial.
    """

    folder: Path
    identity: str
    name: str
    group: str
    settings: Mapping[str, Any]
    command: str
    steps: str = "finished trials"


StudyKey = tuple[Path, str, str, int]
"""A results folder, and the workload, optimizer and batch size of a study."""


@dataclass(frozen=True)
class Table:
    """A table: names of its columns, and rows of numbers, texts and None."""

    columns: Sequence[str]
    rows: Sequence[Sequence[float | str | None]]


class Run(Protocol):
    """A run of a tracker. It is opened with what it is about."""

    def __init__(self, about: About) -> None: ...

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record finite numbers at a step. Steps of one name increase; those of other names may be smaller."""

    def table(self, name: str, table: Table) -> None:
        """Record a table, in place of an earlier one of this name."""

    def end(self, failed: bool) -> None:
        """Write everything and close the run."""


class Tracker(Observer):
    """Tells one tracker of a sweep.

    Arguments:
        tracker: the name of its file in this folder.
        identities: results folder -> its identifier, the same whenever the sweep is resumed.
        trials: also one run a trial, with its learning curves.
        studies: (results folder, workload, optimizer, batch size) of each study that is complete when the sweep ends.
    """

    def __init__(
        self,
        tracker: str,
        identities: Mapping[Path, str],
        trials: bool = False,
        studies: Sequence[StudyKey] = (),
    ) -> None:
        self.name = f"track={tracker}"
        self._tracker, self._identities, self._trials = tracker, dict(identities), trials
        self._sweep: Sweep | None = None
        self._studies = tuple(studies)
        self._runs: dict[StudyKey, Run] = {}
        self._journals: dict[Path, Journal] = {}

    @property
    def has_left(self) -> bool:
        return any(not self._journal(study[0]).is_ended(self._identity(study[0], study[1:])) for study in self._studies)

    def begin(self, sweep: Sweep) -> None:
        """Raises ImportError with the cure if the tracker's package is missing."""
        if importlib.util.find_spec(self._tracker) is None:
            raise ImportError(f"its package is missing: pip install 'batch-size-study[{self._tracker}]'")
        self._sweep = sweep

    def trial(self, search: Search, state: State, finished: Finished | None) -> None:
        if finished is None:
            return
        key, journal = search.key[:4], self._journal(search.results)
        identity = self._identity(search.results, key[1:])
        if journal.has(identity, search.name, finished.index):
            return
        if key not in self._runs:
            self._runs[key] = self._opened(search)
        step = journal.claim(identity, search.name, finished.index, finished.position)
        if step is None:
            return
        prefix = f"{search.name}/" if search.name else ""
        values = _values(search, state, finished)
        self._runs[key].log(step, {f"{prefix}{name}": value for name, value in values.items()})
        if self._trials:
            self._record(search, finished)

    def report(self, ended: Ended) -> None:
        failed = ended.interrupted or ended.error is not None
        if not failed:
            self._runs |= {study: self._open(about) for study, about in self._left().items()}
        for (results, *study), run in self._runs.items():
            table = None if failed else trials_of(results, [str(each) for each in study])
            if table is not None:
                run.table("trials", table)
            run.end(failed)
            if not failed:
                self._journal(results).ended(self._identity(results, study))
        self._runs.clear()

    def _left(self) -> dict[StudyKey, About]:
        """The studies of this sweep whose run an earlier sweep opened and did not end well."""
        found = {}
        for study in self._studies:
            results, *rest = study
            about = self._journal(results).unfinished(self._identity(results, rest))
            if about is not None and study not in self._runs:
                found[study] = About(results / FOLDER, **about)
        return found

    def _journal(self, results: Path) -> Journal:
        if results not in self._journals:
            self._journals[results] = Journal(results / FOLDER / f"told-{self._tracker}.jsonl")
        return self._journals[results]

    def _identity(self, results: Path, parts: Sequence[object]) -> str:
        return "-".join([*map(str, parts), self._identities[results][:8]])

    def _record(self, search: Search, finished: Finished) -> None:
        """One run with the learning curves of a trial."""
        result = {"status": finished.status, "steps_to_goal": finished.steps_to_goal, **finished.hyperparameters}
        run = self._opened(search, finished.index, result)
        for position, step in enumerate(finished.steps):
            values = {name: errors[position] for name, errors in finished.errors.items()}
            if known := {name: value for name, value in values.items() if math.isfinite(value)}:
                run.log(step, known)
        if finished.first_bad_step is not None:
            run.log(finished.first_bad_step, {"diverged": 1.0})
        run.end(failed=False)

    def _opened(self, search: Search, trial: int | None = None, result: Mapping[str, Any] | None = None) -> Run:
        """The run of a study, or of one trial of a search."""
        assert self._sweep is not None
        study: list[object] = [search.workload, search.optimizer, search.batch_size]
        name = f"{search.optimizer}, batch size {search.batch_size:,}"
        if trial is not None:
            study += [*filter(None, [search.name.replace("/", "-")]), f"trial-{trial}"]
            name = ", ".join([name, *filter(None, [search.name]), f"trial {trial}"])
        about = About(
            folder=search.results / FOLDER,
            identity=self._identity(search.results, study),
            name=name,
            group=search.workload,
            settings={
                "workload": search.workload,
                "optimizer": search.optimizer,
                "batch_size": search.batch_size,
                "goal": search.goal,
                "train_steps": search.train_steps,
                **(result or {}),
            },
            command=self._sweep.command,
            steps="finished trials" if trial is None else "training step",
        )
        if trial is None:
            held = {name: value for name, value in vars(about).items() if name != "folder"}
            self._journal(search.results).opened(held)
        return self._open(about)

    def _open(self, about: About) -> Run:
        made: Run = importlib.import_module(f"study.observers.trackers.{self._tracker}").Run(about)
        return made


def _values(search: Search, state: State, finished: Finished) -> dict[str, float]:
    """What is recorded of a finished trial: finite numbers by name."""
    errors = [error for error in finished.errors.get(search.metric, ()) if math.isfinite(error)]
    numbers = {name: value for name, value in finished.hyperparameters.items() if isinstance(value, int | float)}
    values = {
        "trial": finished.index,
        "steps_to_goal": finished.steps_to_goal,
        "best_steps_to_goal": state.best,
        "least_error": min(errors, default=None),
        "diverged": float(finished.first_bad_step is not None),
        "trained_steps": finished.trained,
        "seconds": sum(finished.seconds.values()),
        **{f"hyperparameters/{name}": value for name, value in numbers.items()},
    }
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}


def trials_of(results: Path, study: Sequence[str]) -> Table | None:
    """The trials of a study as the report tabulates them; None without such a table.

    Arguments:
        study: workload, optimizer and batch size.
    """
    path = results / "tables/trials.csv"
    if not path.exists():
        return None
    with path.open(newline="") as file:
        header, *lines = csv.reader(file)
    mine = [line[3:] for line in lines if line[:3] == list(study)]
    kept = [column for column in range(len(header) - 3) if any(line[column] for line in mine)]
    return Table([header[3 + column] for column in kept], [[_cell(line[column]) for column in kept] for line in mine])


def _cell(text: str) -> float | str | None:
    try:
        return float(text) if text else None
    except ValueError:
        return text
