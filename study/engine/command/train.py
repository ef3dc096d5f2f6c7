"""Trials -> curves by running the command of a workload: one process for each trial."""

import errno
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.counting import STOPPING
from analysis.labels import TIMEOUT, end_text, failed
from study.engine.command.log import MetricLog, drop_half_line
from study.engine.command.process import Process
from study.engine.command.progress import Progress
from study.engine.cost import Cost
from study.engine.trial.proposals import Proposals
from study.errors import Failed, unwritable
from study.records import Curve, Study, Trial
from study.schedules import SCHEDULE
from workloads.command import INFEASIBLE, Command

POLL = 0.05
"""Seconds between two looks at a command and its metrics."""
LOG, OUTPUT, FOLDER, TRIAL, PROGRESS = "metrics", "output.txt", "folder", "trial.json", "progress.json"
"""Files of a trial: its metrics, what it printed, its own folder, its seeds and hyperparameters, and how far it is."""
NO_ROOM, ROOM = (errno.ENOSPC, errno.EDQUOT), 2**16
"""Errors of a disk without room, which scripts print; and the bytes that a disk with room takes."""
SEEDS = 2**31
"""Seeds are below this number: some libraries take no larger ones."""
UNKNOWN = Cost(step=1e-3, validation=0.0, others=0.0, known=False)
"""The cost of a command: unknown before a trial has ended. Until then each step counts alike."""


@dataclass(frozen=True)
class Place:
    """Where commands run.

    Attributes:
        folder: of the search; each trial has a folder in it.
        environment: the variables of the commands.
        timeout: seconds without a new line of metrics after which a command counts as failed; None: no limit.
        pipe: file descriptor of the pipe to the parent. It stays open until the command has ended, even if this process
            is killed: only then may the parent give the trial, and so its files, to another process.
    """

    folder: Path
    environment: Mapping[str, str]
    timeout: float | None = None
    pipe: int | None = None

    def of(self, trial: Trial) -> Path:
        """The folder of a trial."""
        return (self.folder / "commands" / f"{trial.index:06d}").absolute()


def train(study: Study, workload: Command, proposals: Proposals, place: Place) -> Iterator[Curve]:
    """Train proposed trials one after the other.

    Raises:
        Failed: a command fails, or its metrics cannot be used.
    """
    while (trial := proposals.ask(wait=True)) is not None:
        try:
            curve = _Run(study, workload, trial, place).curve(proposals)
        except ConnectionError:  # the parent has ended
            raise
        except OSError as error:
            raise Failed(unwritable(error.filename or place.of(trial), error)) from error
        yield curve


class _Run:
    """One trial.

    Its metrics decide what it measured, whatever else happens: early stopping only ends it sooner. A trial that was
    interrupted begins again, with an empty file of metrics unless the script keeps checkpoints in its folder, and these
    are of the same hyperparameters: a search that learns may propose others when it is continued.
    """

    def __init__(self, study: Study, workload: Command, trial: Trial, place: Place) -> None:
        self.study, self.workload, self.trial = study, workload, trial
        self.place, self.folder = place, place.of(trial)
        record = json.dumps(asdict(trial), default=float)
        if not (workload.keeps_folder and _content(self.folder / TRIAL) == record):
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / TRIAL).write_text(record)
        (self.folder / FOLDER).mkdir(exist_ok=True)
        drop_half_line(self.folder / LOG)
        self.log = MetricLog(self.folder / LOG, study.goal.metric, study.goal.threshold)
        given = {
            "batch_size": study.batch_size,
            "steps": study.train_steps,
            "seed": trial.seed % SEEDS,
            "order_seed": trial.order_seed % SEEDS,
            "log": self.folder / LOG,
            "folder": self.folder / FOLDER,
            "optimizer": study.optimizer,
            "schedule": trial.hyperparameters.get(SCHEDULE, study.schedule),
        }
        self.words = workload.filled(given, hyperparameters(study, trial.hyperparameters))

    def curve(self, proposals: Proposals) -> Curve:
        """Run the command until its metrics end the trial, or it ends."""
        progress = Progress(self.folder / PROGRESS)
        self._read(earlier=True)  # the lines of an interrupted trial, before the script can overwrite them
        with ExitStack() as ends:
            ends.callback(progress.write, self.log, ended=True)
            output, place = self.folder / OUTPUT, self.place
            process = ends.enter_context(Process(self.words, output, place.environment, place.pipe))
            while True:
                status = process.poll()  # first: what it wrote before it ended is read
                if self._read(ended=status == 0):
                    progress.moved()
                hangs = status is None and progress.silent > (self.place.timeout or math.inf)
                ended_by = self._ended_by(proposals.step_limit(self.trial.index), hangs)
                if ended_by or status is not None:
                    break
                progress.write(self.log)
                proposals.reached(lambda: {self.trial.index: self.log.last_step})
                time.sleep(POLL)
            if ended_by and status is None:
                status = process.stop()
            last = process.last_output()
        assert status is not None
        ended = {"status": status, "stopped": ended_by or "", "output": last}
        return self._curve(ended, progress.seconds)

    def _read(self, ended: bool = False, earlier: bool = False) -> bool:
        """Read the new metrics; returns whether there are some."""
        try:
            return self.log.read(ended, earlier)
        except Failed:
            self._forget()
            raise

    def _forget(self) -> None:
        """Let the trial begin again in an empty folder: a script that is mended cannot go on from these metrics."""
        (self.folder / TRIAL).unlink()

    def _ended_by(self, limit: int, hangs: bool) -> str | None:
        """Why the metrics so far end the trial: `diverged`, `goal`, `limit` if it has fallen behind or passed its
        budget, or TIMEOUT; None if they do not. A trial at the end of its budget ends by itself, unless it hangs."""
        if STOPPING[self.study.stopping].ends_at_goal and self.log.first_met is not None:
            return "goal"
        if self.log.first_bad_step is not None:
            return "diverged"
        budget = self.study.train_steps
        if self.log.passed(limit) if limit < budget else self.log.last_step > budget:
            return "limit"
        if hangs:
            return "limit" if self.log.passed(budget) else TIMEOUT
        return None

    def _curve(self, ended: Mapping[str, Any], seconds: float) -> Curve:
        """The curve: the metrics up to the goal, if the trial stops there, or to where it diverged.

        Raises:
            Failed: the command failed, ended before its budget or within a line, or did not report the goal's metric.
        """
        log, bad, error = self.log, self.log.first_bad_step, None
        if log.may_be_cut and not log.would_end(self.study.train_steps):
            error = Failed(self._cut())
        elif failed(ended):
            self._check_room(ended)
            if self.workload.failed != INFEASIBLE:
                raise Failed(self._failure(ended))
            bad = log.last_step + 1
        elif not ended["stopped"]:
            if not log.rows:
                error = Failed(self._no_metrics())
            elif not log.would_end(self.study.train_steps):
                error = Failed(self._too_short())
            else:
                log.rows.setdefault(self.study.train_steps, {})  # it made them all, and measured nothing there
        if error := error or (log.missing() if bad is None else None):
            self._forget()
            self._check_room(ended)
            raise error
        crossing = self.log.first_met if ended["stopped"] == "goal" else None
        bad = None if crossing else bad
        end = crossing + 1 if crossing else bad or np.inf
        rows = {step: row for step, row in log.rows.items() if step < end}
        names = sorted({self.study.goal.metric}.union(*rows.values()))
        errors = {name: np.array([row.get(name, np.nan) for row in rows.values()]) for name in names}
        steps, spent = np.array([*rows], dtype=np.int64), {"training": seconds, "evaluation": 0.0}
        return Curve(self.trial, bad, steps, errors, spent, command=dict(ended))

    def _check_room(self, ended: Mapping[str, Any]) -> None:
        """Raise Failed if a script could not write: that says nothing of the script or its hyperparameters."""
        error = next((OSError(each, "") for each in NO_ROOM if os.strerror(each) in ended["output"]), None)
        probe = self.folder / ".room"
        try:
            with probe.open("wb") as file:
                file.write(bytes(ROOM))
                os.fsync(file.fileno())
        except OSError as found:
            error = found
        finally:
            probe.unlink(missing_ok=True)
        if error is not None:
            raise Failed(f"{unwritable(self.folder, error)} {self._name} {end_text(ended)}.") from error

    @property
    def _name(self) -> str:
        return f"trial {self.trial.index} of {self.study.name} at batch size {self.study.batch_size:,}"

    def _failure(self, ended: Mapping[str, Any]) -> str:
        said = f"Its last lines are:\n{ended['output']}\nThe" if ended["output"] else "It printed nothing. The"
        limit = f", engine.timeout={self.place.timeout:g} seconds, which null or more lifts" if ended["stopped"] else ""
        return (
            f"{self._name} {end_text(ended)}{limit}. {said} same command continues once the script is mended, with "
            f"--mix if trials of the script as it was are on file; workload.failed={INFEASIBLE} counts such trials as "
            f"diverged. All output: {self.folder / OUTPUT}"
        )

    def _no_metrics(self) -> str:
        return (
            f"{self._name} ended with exit status 0, but wrote no metrics: {self.log.path} has no line with a step. "
            f"Let the script append step and {self.study.goal.metric} to {{log}} at each evaluation. "
            f"All output: {self.folder / OUTPUT}"
        )

    def _too_short(self) -> str:
        return (
            f"{self._name} ended with exit status 0 after step {self.log.last_step:,} of {self.log.path}, before its "
            f"budget of {self.study.train_steps:,} steps; let the script make {{steps}} updates, whatever ends it now."
        )

    def _cut(self) -> str:
        return (
            f"{self._name} ended with exit status 0 after step {self.log.last_step:,}, before its budget of "
            f"{self.study.train_steps:,} steps, and the last line of {self.log.path} has no line break: it may be half "
            "a line of a script that was killed. Let the script end each line with a line break, and the command pass "
            "on the script's exit status, as exec or set -e do in a shell."
        )


def _content(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def hyperparameters(study: Study, values: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters of a trial by name, with decay rates in place of half-lives and examples in place of
    tokens."""
    schedule = {SCHEDULE: values[SCHEDULE]} if SCHEDULE in values else {}
    return {**study.resolved(values), **schedule}
