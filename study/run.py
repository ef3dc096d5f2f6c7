"""Trains searches: the tuner proposes trials, workers turn trials into curves, the store keeps the curves."""

import math
import os
import platform
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, Self, cast

import torch

from study import store
from study.config.code_fingerprint import code_of_command
from study.devices.machine import git_commit, processor, versions
from study.devices.precision import uses_tf32
from study.engine.arithmetic import fused
from study.engine.trial import checkpoints
from study.errors import Failed
from study.records import COMMAND, Curve, Study, Trial
from study.search.optuna_storage import Storage
from study.search.rounds import Point, Pool
from study.search.tuner import Tuner
from study.store.claims import WHOLE, Claim, Held, Shard
from study.store.curves import Reader
from study.workers.dispatch import Queue
from study.workers.pool import TrialTooLarge, Workers
from workloads.command import Command
from workloads.user_code.importing import build

Watch = Callable[["SearchRun", Tuner, Curve | None], None]
"""Called with a finished trial; and with None at the start of a search and when it is complete."""
Tick = Callable[["SearchRun", Mapping[int, int]], None]
"""Called while trials of a search are under way: trial index -> its step."""
POLL = 2.0
"""Seconds between two reads of the trials of other processes."""
REPEATS = {
    True: "bit for bit on this kind of CPU",
    False: "to rounding: kernels of GPUs may add in another order each time",
}
"""Whether the device is a CPU -> how well a trial that is repeated or resumed agrees with itself."""


@dataclass(frozen=True)
class SearchRun:
    """One search to train, and how to train it.

    Attributes:
        command: recorded with the results.
        storage: of Optuna's trials; None: in memory.
        shards: number of shards of the trials; different processes can train different shards.
        first_shard: the shard that this process tries to take first.
        fingerprint, notes: of the workload, as in `study.config.jobs.Job`; recorded with the results.
        pool: with `search=refine`, proposes the points of the trials.
    """

    study: Study
    results: Path
    command: str = ""
    storage: Storage | None = None
    shards: int = 1
    first_shard: int = 0
    fingerprint: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    pool: Pool | None = None

    def points(self) -> Sequence[Point]:
        """The points of the trials by index, up to the first unknown one; empty if the tuner finds them itself."""
        return self.pool.points(self.study.batch_size) if self.pool else ()


def run_all(
    lines: Sequence[Iterable[SearchRun]],
    workers: Workers,
    watch: Watch,
    waits: bool = True,
    tick: Tick = lambda search, steps: None,
    chores: Iterable[object] = (),
) -> list[TrialTooLarge]:
    """Train the missing trials of several lines of searches at once; returns when the trials of all shards are on file.

    The process claims one free shard of a search at a time. When there is none, it waits for the processes that train
    the others. A worker without a trial of one search trains those of the next.

    Arguments:
        lines: searches that follow one another, each taken from its line when the one before is complete.
        watch: called at the start of a search, after each of its trials, and when it is complete.
        waits: wait for other processes. False: return when there has been nothing to train for two looks in a row.
        tick: called every second or so for each worker that trains.
        chores: iterated over while workers train, or before the return; each step of it should take little time.

    Returns:
        An error for each search that fits on no worker; the rest of its line is not trained.

    Raises:
        StoreError: the results folder holds another question or cannot be written, or another process
            trains the search.
        WorkerError: a worker process failed.
    """
    idle = 0
    with _Lines((_Line(line, workers, watch, tick) for line in lines), chores) as supply:
        while supply.left and (waits or idle < 2):
            trained = False
            for part, curve in workers.train(supply):
                assert isinstance(part, _Part)
                part.keep(curve)
                trained = True
            supply.settle(trained)
            idle = 0 if trained else idle + 1
        supply.do_chores()
    return supply.errors


class _Part:
    """A claimed shard of a search, with the trials on file and those under way.

    Attributes:
        spent: seconds of the trials trained here, and the number of duplicate trials.
        changed: the files of a command that changed since the sweep began, so that no further trial begins.
    """

    def __init__(self, search: SearchRun, claim: Claim, workers: Workers, watch: Watch, tick: Tick) -> None:
        study, shard = search.study, claim.shard
        self.study, self.claim, self._pool = study, claim, search.pool
        self._search, self._watch, self._tick = search, watch, tick
        self.folder = store.study_folder(search.results, study)
        made = provenance(study, workers, search.command, shard) | {"fingerprint": dict(search.fingerprint)}
        made |= {"warnings": [*search.notes]} if search.notes else {}
        self._record = store.open_study(search.results, study, made)
        self.checkpoints = store.Checkpoints(self.folder, shard, store.start_file(search.results, study))
        reader = Reader(self.folder)
        finished = reader.new()
        under_way = checkpoints.trials(self.checkpoints)
        others = _at_intervals(reader.new, shard)
        self.tuner = Tuner(study, finished, under_way, search.storage, shard, others, search.points)
        self._unfinished = {curve.trial.index for curve in finished} - self.tuner.outcomes.keys()
        self.spent: Counter[str] = Counter(doubled_trials=0)
        self._under_way = 0
        self.changed: list[str] = []
        self._words = cast(Command, build(study.workload)).words if study.arithmetic == COMMAND else ()

    def ask(self) -> Trial | None:
        if self._words and self.begins_more and self._other_code():
            return None  # trials under way end, and are kept
        trial = self.tuner.ask()
        self._under_way += trial is not None
        return trial

    def _other_code(self) -> bool:
        """Whether the code of a command is not the recorded one: each trial reads it as it is then."""
        if held := self._search.fingerprint:
            now = code_of_command(self._words)
            differ = [key for key in sorted({*held, *now} - {"code"}) if held.get(key) != now.get(key)]
            self.changed = [key.removeprefix("code ") for key in differ]
        return bool(self.changed)

    @property
    def learns(self) -> bool:
        return self.tuner.learns

    def step_limit(self, index: int) -> int:
        return self.tuner.step_limit(index)

    def keep(self, curve: Curve) -> None:
        """Write a finished trial and tell the tuner."""
        self.claim.check()
        replaces = curve.trial.index in self._unfinished
        self.spent["doubled_trials"] += not store.save(self.folder, curve, replaces=replaces)
        self.spent.update({f"seconds_{what}": seconds for what, seconds in curve.seconds.items()})
        self.tuner.tell(curve)
        if self._pool:
            self._pool.add(self.study.batch_size, curve)
        self._under_way -= 1
        self._watch(self._search, self.tuner, curve)

    def reached(self, steps: Mapping[int, int]) -> None:
        """Trials under way have reached these steps."""
        self._tick(self._search, steps)

    @property
    def over(self) -> bool:
        """True if all trials of the shard have ended."""
        shard = self.claim.shard
        done = shard != WHOLE and self.tuner.next_index(shard) is None
        return self._under_way == 0 and (done or self.tuner.complete)

    @property
    def begins_more(self) -> bool:
        """Whether a trial can begin now."""
        return self.tuner.next_index(self.claim.shard) is not None

    def end(self) -> None:
        """Record the end of the run."""
        spent = {what: round(amount, 3) for what, amount in self.spent.items()}
        store.end_run(self._record, {"ended": store.now(), **spent})


class _Line:
    """Searches that follow one another, and the shard of the current one that this process trains, if any."""

    def __init__(self, searches: Iterable[SearchRun], workers: Workers, watch: Watch, tick: Tick) -> None:
        self._searches, self._workers, self._watch, self._tick = iter(searches), workers, watch, tick
        self.search = next(self._searches, None)
        self.part: _Part | None = None
        self._ended: Tuner | None = None
        self._held = ExitStack()
        self._poll = -math.inf

    def open(self) -> None:
        """Claim a shard with missing trials of the first search that is not complete."""
        while self.part is None and self.search is not None and time.monotonic() >= self._poll:
            search = self.search
            folder = store.study_folder(search.results, search.study)
            view = self._ended or Tuner(search.study, store.load(folder), points=search.points)
            self._ended = None
            self._watch(search, view, None)
            if view.complete:
                store.gather(folder)
                self.search = next(self._searches, None)
            elif not self._claim(search, view):
                self._poll = time.monotonic() + POLL  # other processes train the missing trials

    def _claim(self, search: SearchRun, view: Tuner) -> bool:
        """Claim a free shard. Raises Held if it is the whole search."""
        folder, count = store.study_folder(search.results, search.study), search.shards
        for shard in (Shard((search.first_shard + index) % count, count) for index in range(count)):
            if view.next_index(shard) is None:
                continue
            try:
                claim = self._held.enter_context(store.claimed(folder, shard))
            except Held:
                if count == 1:
                    raise
                continue
            self.part = _Part(search, claim, self._workers, self._watch, self._tick)
            return True
        return False

    def close(self) -> None:
        """Release the claimed shard, whose trials have ended."""
        if self.part is not None:
            self.part.end()
            # It knows every trial of a whole search, which need not be read for it.
            self._ended = self.part.tuner if self.part.claim.shard == WHOLE else None
            self.part = None
            self._held.close()

    def abandon(self) -> None:
        """Leave out the current search and all that follow."""
        self.close()
        self.search = None

    def release(self) -> None:
        """Release the claim after an error."""
        self._held.close()


class _Lines:
    """The lines of searches, as a pool of workers sees them (`study.workers.dispatch.Supply`).

    Attributes:
        errors: of the searches that fit on no worker.
    """

    def __init__(self, lines: Iterable[_Line], chores: Iterable[object]) -> None:
        self._lines, self._chores = list(lines), iter(chores)
        self.errors: list[TrialTooLarge] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for line in self._lines:
            line.release()

    @property
    def left(self) -> bool:
        """True while a search is missing."""
        return any(line.search is not None for line in self._lines)

    def queues(self) -> Iterator[_Part]:
        """The open searches, in the order of the lines. A search is claimed when those before it have no trials left
        to begin."""
        begun = [line for line in self._lines if line.part is not None and not line.part.over]
        yield from [line.part for line in begun if line.part is not None]
        for line in self._lines:
            if line not in begun and (part := self._next_part(line)) is not None:
                yield part

    def prepare(self) -> bool:
        """Settle a search that is over, do a chore, or claim the next search if the open ones have no trials left to
        begin; returns False if there is nothing to do. A search that several processes share is not claimed ahead."""
        for _ in self._chores:
            return True
        for line in self._lines:
            alone = line.search is not None and line.search.shards == 1
            if alone if line.part is None else line.part.over:
                self._next_part(line)
                return True
            if line.part is not None and line.part.begins_more:
                return False
        return False

    def _next_part(self, line: _Line) -> _Part | None:
        """What this process trains of a line whose open search, if there is one, is over."""
        line.close()
        line.open()
        return line.part

    def do_chores(self) -> None:
        """Do the chores that are left."""
        for _ in self._chores:
            pass

    def too_large(self, queue: Queue, reason: str) -> None:
        self.errors.append(TrialTooLarge(reason))
        line = next(line for line in self._lines if line.part is queue)
        if line.search and line.search.pool:
            line.search.pool.drop(queue.study.batch_size)
        line.abandon()

    def settle(self, trained: bool) -> None:
        """No trial is under way: close all parts, and wait if no trial was trained: other processes have the rest.
        Raises Failed if the code of a command changed, so that its other trials did not begin."""
        for line in self._lines:
            if line.part is not None and line.part.changed:
                raise Failed(
                    f"the code of {line.part.study.name} changed while it trained ({', '.join(line.part.changed)}). "
                    "Finished trials are kept: undo the change and repeat the same command, train on beside these "
                    "trials with --mix, or choose another results=DIR."
                )
            line.close()
        if not trained and self.left:
            time.sleep(POLL)


def _at_intervals(read: Callable[[], list[Curve]], shard: Shard) -> Callable[[], list[Curve]]:
    """Limit `read`, which returns the curves of other processes, to one call per POLL seconds; never call it if the
    shard is the whole search, because then no other process trains it."""
    last = time.monotonic()

    def news() -> list[Curve]:
        nonlocal last
        if shard == WHOLE or time.monotonic() < last + POLL:
            return []
        last = time.monotonic()
        return read()

    return news


def provenance(study: Study, workers: Workers, command: str, shard: Shard) -> dict[str, Any]:
    """The record of a run: command, machine, devices, workers, package versions and commit."""
    package, by_import_path, _ = study.optimizer.partition(".")
    theirs = packages_distributions().get(package, []) if by_import_path else []
    packages = ("torch", "optuna", "numpy", "scipy", "pandas", "hydra-core", *theirs)
    placement, cost = workers.placement, workers.cost_of(study)
    return {
        "command": command,
        "started": store.now(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "platform": platform.platform(),
        "processor": processor(),
        "device": placement.device,
        "gpu": torch.cuda.get_device_name(placement.device_of(0)) if placement.device != "cpu" else None,
        "devices": placement.devices,
        "batch": cost.composition(study.batch_size),
        "workers": workers.count,
        "threads_per_worker": 1,
        "engine": "lanes" if fused(study) else COMMAND if study.arithmetic == COMMAND else "serial",
        "lanes": 1 if study.differs_by_trial else cost.lanes,
        "compiled": fused(study) and workers.compiles(study),
        "shard": str(shard),
        "tf32": uses_tf32(placement.device, study.precision),
        "cudnn_benchmark": placement.device != "cpu",
        "repeats": "as the command does" if study.arithmetic == COMMAND else REPEATS[placement.device == "cpu"],
        "python": sys.version.split()[0],
        "versions": versions(packages),
        "git_commit": git_commit(),
    }
