"""Worker processes of one thread each: the parent owns the search and the store, workers ask it for trials.

One thread a worker: two OpenMP threads on a busy machine are up to a hundred times slower than two one-thread
processes, and one thread makes a trial's bits independent of what else runs.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from study import interrupts
from study.cost import Cost
from study.records import Curve, Study, Trial
from study.tuner import Tuner

if TYPE_CHECKING:
    from study.checkpoints import Pace

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Large tensors come from the heap and stay there: page faults on fresh mappings cost up to half the time.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
}


class WorkerError(Exception):
    """A worker process failed; the message holds what it said last."""


class TrialTooLarge(Exception):
    """The trials of one study do not fit on the device; the message says what to change. Other studies can go on."""


class Workers:
    """A pool that outlives studies, so that torch is imported and data loaded once per process.

    Arguments:
        count: processes.
        device: where they train, such as `cpu` or `cuda`.
        lanes: trials that each trains at once; None: as many as pay.
        import_path: extra folder from which workloads are imported.
        checkpoint_minutes: from one checkpoint of the trials under way to the next; None: never.
    """

    def __init__(
        self,
        count: int,
        device: str,
        lanes: int | None = None,
        import_path: Path | None = None,
        checkpoint_minutes: float | None = None,
    ) -> None:
        self.device, self.lanes = device, lanes
        self._costs: dict[str, Cost] = {}
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        context = mp.get_context("spawn")
        with one_thread_environment(), interrupts.ignored():
            for _ in range(count):
                ours, theirs = context.Pipe()
                how = (theirs, os.getpid(), device, import_path, checkpoint_minutes)
                process = context.Process(target=_work, args=how, daemon=True)
                process.start()
                theirs.close()
                self._pipes.append(ours)
                self._processes.append(process)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()  # workers own no files: there is nothing to save
        for process in self._processes:
            process.join()

    def _measurement(self, study: Study) -> tuple[object, ...]:
        """The order to measure a study, with no more lanes than leave each worker its share of the trials."""
        return ("measure", study, -(-study.search.trials // self.count), self.lanes)

    @property
    def count(self) -> int:
        """Worker processes."""
        return len(self._processes)

    def train(self, study: Study, tuner: Tuner, kept: MutableMapping[int, bytes]) -> Iterator[Curve]:
        """Curves of finished trials, in the order in which they end; the caller tells each to the tuner.

        The study was measured before: lanes are fused as was found best.

        Arguments:
            kept: index -> the checkpoint that a trial goes on from; new ones are put there.

        Raises:
            TrialTooLarge: after the trials that did fit have ended.
            WorkerError: a worker failed.
        """
        cost = self._costs[_key(study)]
        at_work = list(self._pipes)
        idle: list[Connection] = []
        too_large = None
        for pipe in at_work:
            self._send(pipe, ("train", study, cost.heights, cost.lanes))
        while True:
            waiting, idle = idle, []
            for pipe in waiting:
                proposal = None if too_large else _proposal(tuner, kept)
                if proposal is None:
                    idle.append(pipe)
                else:
                    self._send(pipe, proposal)
            if len(idle) == len(at_work):
                break
            for pipe in self._ready(at_work):
                kind, content = self._receive(pipe)
                if kind == "ask" and content:  # willing to wait
                    idle.append(pipe)
                elif kind == "ask":
                    self._send(pipe, None if too_large else _proposal(tuner, kept))
                elif kind == "limit":
                    self._send(pipe, tuner.step_limit(content))
                elif kind == "checkpoint":
                    self._send(pipe, kept.get(content))
                elif kind == "keep":
                    kept[content[0]] = content[1]
                elif kind == "too large":
                    too_large = TrialTooLarge(content)
                    at_work.remove(pipe)
                else:
                    yield content
        for pipe in idle:
            self._send(pipe, None)
        if too_large:
            raise too_large

    def lanes_of(self, study: Study) -> int:
        """How many trials of a measured study each worker trains at once."""
        return self._costs[_key(study)].lanes

    def measure(self, studies: Sequence[Study]) -> list[Cost | TrialTooLarge]:
        """What a trial of each study costs, all workers busy as they will be in earnest."""
        found: dict[int, Cost | TrialTooLarge] = {}
        todo = list(reversed(range(len(studies))))
        busy: dict[Connection, int] = {}
        idle = list(self._pipes)
        while todo or busy:
            while todo and idle:
                pipe = idle.pop(0)
                busy[pipe] = todo.pop()
                self._send(pipe, self._measurement(studies[busy[pipe]]))
            for pipe in self._ready(list(busy)):
                kind, content = self._receive(pipe)
                number = busy.pop(pipe)
                idle.append(pipe)
                if kind == "measured":
                    self._costs[_key(studies[number])] = content
                found[number] = content if kind == "measured" else TrialTooLarge(content)
        return [found[number] for number in range(len(studies))]

    def _ready(self, pipes: list[Connection]) -> list[Connection]:
        """Those with something to say, waiting until there is one; in the pool's order."""
        ready = wait(pipes)
        return [pipe for pipe in pipes if pipe in ready]

    def _receive(self, pipe: Connection) -> tuple[str, Any]:
        with self._alive(pipe):
            kind, content = pipe.recv()
        if kind == "error":
            raise WorkerError(content)
        return kind, content

    def _send(self, pipe: Connection, message: object) -> None:
        with self._alive(pipe):
            pipe.send(message)

    @contextmanager
    def _alive(self, pipe: Connection) -> Iterator[None]:
        """Talk to a worker, or say that it died."""
        try:
            yield
        except (EOFError, ConnectionError) as error:
            process = self._processes[self._pipes.index(pipe)]
            process.join(timeout=5)
            raise WorkerError(
                f"a worker process died (exit code {process.exitcode}), most likely for want of memory; "
                "try fewer with engine.workers=1. Finished trials are kept, and the same command continues."
            ) from error


def _key(study: Study) -> str:
    """What decides the cost of a step; its searches, stages and reruns share it."""
    how = (study.optimizer, study.batch_size, study.arithmetic, study.precision, study.micro_batch)
    return json.dumps([study.workload, how], sort_keys=True)


def _proposal(tuner: Tuner, kept: MutableMapping[int, bytes]) -> tuple[Trial, bool] | None:
    """The next trial and whether it has a checkpoint, if there is one."""
    trial = tuner.ask()
    return None if trial is None else (trial, trial.index in kept)


class _Remote:
    """The tuner and the store, seen from a worker through its pipe."""

    def __init__(self, pipe: Connection, pace: Pace) -> None:
        self.pipe, self.pace = pipe, pace
        self.kept: set[int] = set()
        """Trials that have a checkpoint: nobody is asked for those of others."""

    def ask(self, wait: bool) -> Trial | None:
        self.pipe.send(("ask", wait))
        proposal = self.pipe.recv()
        if proposal is None:
            return None
        trial, kept = proposal
        if kept:
            self.kept.add(trial.index)
        return trial

    def step_limit(self, index: int) -> int:
        self.pipe.send(("limit", index))
        return self.pipe.recv()

    def checkpoint(self, index: int) -> bytes | None:
        if index not in self.kept:
            return None
        self.pipe.send(("checkpoint", index))
        return self.pipe.recv()

    def keep(self, index: int, checkpoint: bytes) -> None:
        self.kept.add(index)
        self.pipe.send(("keep", (index, checkpoint)))


def _work(
    pipe: Connection, parent: int, device: str, import_path: Path | None, checkpoint_minutes: float | None
) -> None:
    """The life of a worker: import torch, then train or measure whatever study it is handed."""
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    if import_path is not None:
        sys.path.insert(0, str(import_path.resolve()))
    import torch

    from study import engine
    from study.checkpoints import Pace
    from study.evaluation import Data
    from study.memory import out_of_memory, too_large
    from workloads.base import Workload, build

    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # fp32 means fp32
    torch.set_flush_denormal(True)  # dead units' velocities decay into denormals, which are very slow
    loaded: dict[str, tuple[Workload, Data]] = {}
    while True:
        try:
            kind, study, *how = pipe.recv()
            key = json.dumps(study.workload, sort_keys=True)
            if key not in loaded:
                loaded.clear()  # one data set at a time on the device
                workload = build(study.workload)
                loaded[key] = workload, Data.of(workload.splits(torch.device(device)))
            workload, data = loaded[key]
            if kind == "measure":
                pipe.send(("measured", engine.measure(study, workload, data, *how)))
                continue
            remote = _Remote(pipe, Pace(checkpoint_minutes))
            for curve in engine.train(study, workload, data, remote, *how):
                pipe.send(("curve", curve))
        except (EOFError, ConnectionError):
            return
        except Exception as error:
            if out_of_memory(error):
                pipe.send(("too large", too_large(study, device)))
            else:
                pipe.send(("error", traceback.format_exc()))


def _die_with(parent: int) -> None:
    """A restart must never race the orphans of a killed parent."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


@contextmanager
def one_thread_environment() -> Iterator[None]:
    """Processes started in this block have one thread and keep their memory; glibc reads it when a process starts."""
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
