"""The storage of Optuna's trials: memory, a file, or a database that several processes share."""

import datetime
import hashlib
import json
import math
import time
import warnings
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import TrialState

from analysis.counting import TrialCurve
from study import store
from study.records import Study
from study.store.claims import STALE, Shard

JOURNAL = "optuna.journal"
CURVE_POINTS = 20
"""Most points of a learning curve in a storage: each is a write of some milliseconds."""


class Shown(NamedTuple):
    """What a dashboard shows of a trial: user attributes, and its learning curve (step -> error of the goal)."""

    attributes: Mapping[str, Any]
    curve: Mapping[int, float]

    def on(self, trial: optuna.Trial) -> None:
        """Write it to a trial that is not finished."""
        for name, value in self.attributes.items():
            trial.set_user_attr(name, value)
        for step, error in self.curve.items():
            trial.report(error, step)


class Storage:
    """Keeps Optuna's trials in memory, or in a place where other processes and optuna-dashboard see them live.

    The curves in the results folder are the truth. The storage is a copy, and opening a search repairs it from them.

    Arguments:
        where: `journal` (a file in the results folder), a database URL such as `sqlite:///optuna.db`, or None: memory.
        results: the results folder, whose identifier marks its trials in a storage that several sweeps share.

    Raises:
        ValueError: the storage cannot be used.
    """

    def __init__(self, where: str | None = None, results: Path = Path()) -> None:
        self.where, self.owner = where, ""
        self._unfinished: dict[int, int] = {}
        """Trial index -> Optuna's number, for trials that an earlier run of this sweep did not finish."""
        self._finished: set[int] = set()
        self._backend: optuna.storages.BaseStorage | None = None
        if where is None:
            return
        try:
            if where == "journal":
                results.mkdir(parents=True, exist_ok=True)
                path = results.resolve() / JOURNAL  # Optuna breaks a dead process's lock only if absolute
                _cut_torn_line(path)
                backend = JournalFileBackend(str(path))
                self._backend = optuna.storages.JournalStorage(backend)
            else:
                self._backend = _database(where)
        except Exception as error:  # database drivers raise errors of their own kinds
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"search.storage={where} cannot be used: {reason}; give journal, a database URL such as "
                "sqlite:///optuna.db, or null."
            ) from error
        self.owner = store.identity(results)

    @property
    def outside(self) -> bool:
        """True if other processes can see the trials."""
        return self.where is not None

    def open(self, study: Study) -> optuna.Study:
        """Optuna's study of one search. Sweeps share it if their questions differ at most in the number of trials and
        in what the first machine settled."""
        if self._backend is None:
            return optuna.create_study(direction="minimize")
        question = study.question()
        settled = ("micro_batch", "evaluation_chunk", "arithmetic")
        same = {key: value for key, value in question.items() if key not in settled}
        # Not what is new since the last version: searches that it began go on.
        evaluation = question["evaluation"].items()
        same["evaluation"] = {k: v for k, v in evaluation if v is not None and (k, v) != ("exact", True)}
        same["search"] = {key: question["search"][key] for key in ("sampler", "space")}  # but not the number of trials
        digest = hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:8]
        names = (study.name, study.series, f"batch size {study.batch_size}", study.branch.path, digest)
        found = optuna.create_study(
            study_name=", ".join(filter(None, names)), storage=self._backend, direction="minimize", load_if_exists=True
        )
        _describe(found, study)
        trials = found.get_trials(deepcopy=False)
        unsigned = [t for t in trials if not t.state.is_finished() and "owner" not in t.user_attrs]
        for trial in unsigned:  # its process died before it marked the trial, or will mark it soon
            begun = trial.datetime_start
            if begun is not None and (datetime.datetime.now() - begun).total_seconds() > STALE:
                found.tell(trial.number, state=TrialState.FAIL)
        mine = [trial for trial in trials if trial.user_attrs.get("owner") == self.owner]
        self._finished = {t.user_attrs["index"] for t in mine if t.state.is_finished()}
        self._unfinished = {t.user_attrs["index"]: t.number for t in mine if not t.state.is_finished()}
        return found

    def mark(self, index: int) -> dict[str, Any]:
        """Attributes that distinguish trial `index` of this sweep from other trials in the same storage."""
        return {"index": index, "owner": self.owner} if self._backend is not None else {}

    def shown(self, study: Study, curve: TrialCurve, steps_to_goal: int | None) -> Shown:
        """What a dashboard shows of a finished trial; nothing in memory, where no dashboard looks."""
        if self._backend is None:
            return Shown({}, {})
        about = {"batch_size": study.batch_size, "optimizer": study.series, "steps": steps_to_goal}
        steps, errors = np.asarray(curve.steps).tolist(), np.asarray(curve.errors).tolist()
        known = [(step, error) for step, error in zip(steps, errors, strict=True) if math.isfinite(error)]
        every = -(-len(known) // CURVE_POINTS) or 1
        return Shown(about, dict(known[::-1][::every][::-1]))  # the last point is always among them

    def finish(self, study: optuna.Study, index: int, value: float | None, state: TrialState, shown: Shown) -> bool:
        """Finish a trial whose curve is on file; returns False if the storage does not hold the trial."""
        if index in self._unfinished:
            number = self._unfinished.pop(index)
            trials = study.get_trials(deepcopy=False)
            shown.on(optuna.Trial(study, trials[number]._trial_id))
            study.tell(number, value, state=state)
            self._finished.add(index)
        return index in self._finished

    def abandon(self, study: optuna.Study, shard: Shard, under_way: Container[int]) -> None:
        """Mark as failed the unfinished trials of a shard that have no checkpoint (are not `under_way`): the tuner
        proposes them again."""
        for index in [index for index in self._unfinished if index in shard and index not in under_way]:
            study.tell(self._unfinished.pop(index), state=TrialState.FAIL)

    @contextmanager
    def errors_named(self) -> Iterator[None]:
        """Turn any error of the storage in this block, such as a database driver's, into a StoreError."""
        try:
            yield
        except Exception as error:
            if self._backend is None:
                raise
            raise store.StoreError(
                f"search.storage={self.where} failed: {str(error).splitlines()[0]}; finished trials are safe, and the "
                "same command continues once the storage answers."
            ) from error


def _describe(found: optuna.Study, study: Study) -> None:
    """Name the value and the study for a dashboard, once."""
    about = {"workload": study.name, "optimizer": study.series, "batch_size": study.batch_size}
    if found.user_attrs.keys() >= about.keys():
        return
    for name, value in about.items():
        found.set_user_attr(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        found.set_metric_names([f"log of the steps to {study.goal}"])


def _database(url: str) -> optuna.storages.RDBStorage:
    """Open a database. The first process creates the tables; if several try at once, all but one fail and try again."""
    try:
        return optuna.storages.RDBStorage(url)
    except Exception:  # database drivers raise errors of their own kinds
        time.sleep(1)
        return optuna.storages.RDBStorage(url)


def _cut_torn_line(path: Path) -> None:
    """Cut a journal back to its last whole line; Optuna cannot read past a torn one."""
    lock = JournalFileSymlinkLock(str(path))  # Optuna's own lock: another process may be writing a line
    lock.acquire()
    try:
        if path.exists() and not (held := path.read_bytes()).endswith(b"\n"):
            with path.open("r+b") as file:
                file.truncate(held.rfind(b"\n") + 1)
    finally:
        lock.release()
