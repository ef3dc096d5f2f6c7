"""Worker processes of one thread each: the parent owns the search and the store, workers ask it for trials.

One thread a worker: two OpenMP threads on a busy machine are up to a hundred times slower than two one-thread
processes, and one thread makes a trial's bits independent of what else runs.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from study.devices import signals
from study.engine.cost import Cost
from study.errors import Failed
from study.records import Curve, Study, Trial
from study.search.tuner import Tuner
from study.workers.process import Setting, work

if TYPE_CHECKING:
    from study.devices.distributed import Rank
    from study.devices.placement import Placement

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Large tensors come from the heap and stay there: page faults on fresh mappings cost up to half the time.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
}
_HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""Where the system lets programs ask for them: a step of ResNet-8 takes 5 to 30 % less (docs/speed.md)."""


class WorkerError(Failed):
    """A worker process failed; the message holds what it said last."""


class TrialTooLarge(Failed):
    """The trials of one study do not fit on the device; the message says what to change. Other studies can go on."""


class Workers:
    """A pool that outlives studies, so that torch is imported and data loaded once per process.

    Arguments:
        engine: settled on this machine; its name is no matter, since each study's arithmetic is.
        import_path: extra folder from which workloads are imported.
    """

    def __init__(self, engine: Placement, import_path: Path | None = None) -> None:
        self.engine = engine
        self._costs: dict[str, Cost] = {}
        self.short: list[str] = []
        """What each worker said that had too little room for the latest study, which the others trained."""
        self._pipes: list[Connection] = []
        self._followers: list[Connection] = []
        self._processes: dict[Connection, Any] = {}
        try:
            for number, ranks in enumerate(self._ranks(engine.workers or 1)):
                setting = Setting(engine, import_path, number)
                self._pipes.append(self._start(setting, ranks[0]))
                self._followers += [self._start(setting, rank) for rank in ranks[1:]]
        except BaseException:
            self.__exit__()
            raise

    def _ranks(self, count: int) -> Sequence[Sequence[Rank | None]]:
        """Of the processes to be started for each worker; torchrun has started all but the leader's."""
        if self.engine.devices in (None, 1):
            return [[None]] * count
        from study.devices import distributed

        if (rank := distributed.launched()) is not None:
            return [[rank]]
        self._meeting, ranks = distributed.ranks(count, self.engine.devices)
        return ranks

    def _start(self, setting: Setting, rank: Rank | None) -> Connection:
        """A process of the pool, by the pipe to it."""
        context = mp.get_context("spawn")
        ours, theirs = context.Pipe()
        # No daemon, since those may have no children, which read data; it ends with us by itself.
        process = context.Process(target=work, args=(theirs, os.getpid(), setting, rank))
        with one_thread_environment(), signals.ignored():
            process.start()
        theirs.close()
        self._processes[ours] = process
        return ours

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()  # workers own no files: there is nothing to save
        for process in self._processes.values():
            process.join()

    def _measurement(self, study: Study) -> tuple[object, ...]:
        """The order to measure a study, with no more lanes than leave each worker its share of the trials."""
        return ("measure", study, -(-study.search.trials // self.count), self.engine.lanes)

    @property
    def count(self) -> int:
        """Workers, each of one process or a team of them."""
        return len(self._pipes)

    def train(self, study: Study, tuner: Tuner, kept: MutableMapping[int, bytes]) -> Iterator[Curve]:
        """Curves of finished trials, in the order in which they end; the caller tells each to the tuner.

        The study was measured before: lanes are fused as was found best. What a worker has too little room for, others
        take: their devices may have more, or fewer others on them.

        Arguments:
            kept: index -> the checkpoint that a trial goes on from; new ones are put there.

        Raises:
            TrialTooLarge: no worker has room.
            WorkerError: a worker failed.
        """
        cost = self._costs[_key(study)]
        under_way: dict[Connection, dict[int, Trial]] = {pipe: {} for pipe in self._pipes}
        returned: list[Trial] = []
        idle: list[Connection] = []
        self.short = []

        def proposal(pipe: Connection) -> tuple[Trial, bool] | None:
            """The next trial and whether it has a checkpoint, if there is one."""
            trial = returned.pop(0) if returned else tuner.ask()
            if trial is None:
                return None
            under_way[pipe][trial.index] = trial
            return trial, trial.index in kept

        for pipe in under_way:
            self._send(pipe, ("train", study, cost.heights, cost.lanes))
        while True:
            waiting, idle = idle, []
            for pipe in waiting:
                if (proposed := proposal(pipe)) is None:
                    idle.append(pipe)
                else:
                    self._send(pipe, proposed)
            if len(idle) == len(under_way):
                break
            for pipe in self._ready(list(under_way)):
                kind, content = self._receive(pipe)
                if kind == "ask" and content:  # willing to wait
                    idle.append(pipe)
                elif kind == "ask":
                    self._send(pipe, proposal(pipe))
                elif kind == "limit":
                    self._send(pipe, tuner.step_limit(content))
                elif kind == "checkpoint":
                    self._send(pipe, kept.get(content))
                elif kind == "keep":
                    kept[content[0]] = content[1]
                elif kind == "too large":
                    returned += under_way.pop(pipe).values()
                    if not under_way:
                        raise TrialTooLarge(content)
                    self.short.append(content)
                else:
                    del under_way[pipe][content.trial.index]
                    yield content
        for pipe in idle:
            self._send(pipe, None)

    def cost_of(self, study: Study) -> Cost:
        """What was measured of a study."""
        return self._costs[_key(study)]

    def measure(self, studies: Sequence[Study]) -> list[Cost | TrialTooLarge]:
        """What a trial of each study costs, all workers busy as they will be in earnest.

        Those for which a worker has too little room are measured by the next.
        """
        found: dict[int, Cost | TrialTooLarge] = {}
        todo = [(number, self._pipes) for number in range(len(studies))]  # and who may have room for it
        busy: dict[Connection, tuple[int, Sequence[Connection]]] = {}
        while todo or busy:
            for pipe in self._pipes:
                mine = next((each for each in todo if pipe in each[1]), None)
                if pipe not in busy and mine is not None:
                    todo.remove(mine)
                    busy[pipe] = mine
                    self._send(pipe, self._measurement(studies[mine[0]]))
            for pipe in self._ready(list(busy)):
                kind, content = self._receive(pipe)
                number, able = busy.pop(pipe)
                others = [other for other in able if other is not pipe]
                if kind == "measured":
                    self._costs[_key(studies[number])] = found[number] = content
                elif others:
                    todo.append((number, others))
                else:
                    found[number] = TrialTooLarge(content)
        return [found[number] for number in range(len(studies))]

    def _ready(self, pipes: list[Connection]) -> list[Connection]:
        """Those with something to say, waiting until there is one; in the pool's order.

        Whatever a follower says, or its death, is the end.
        """
        ready = wait([*pipes, *self._followers])
        for pipe in self._followers:
            if pipe in ready:
                self._receive(pipe)
        return [pipe for pipe in pipes if pipe in ready]

    def _receive(self, pipe: Connection) -> tuple[str, Any]:
        with self._alive(pipe):
            kind, content = pipe.recv()
        if kind == "error":
            for other, process in self._processes.items():
                process.join(timeout=0.5 if self._followers and other is not pipe else 0)
                if process.exitcode:  # of whose death this is the consequence
                    raise self._died(other)
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
            raise self._died(pipe) from error

    def _died(self, pipe: Connection) -> WorkerError:
        process = self._processes[pipe]
        process.join(timeout=5)
        return WorkerError(
            f"a worker process died (exit code {process.exitcode}), most likely for want of memory; "
            "try fewer with engine.workers=1. Finished trials are kept, and the same command continues."
        )


def _key(study: Study) -> str:
    """What decides the cost of a step; its searches, stages and reruns share it."""
    how = (study.optimizer, study.batch_size, study.arithmetic, study.precision, study.micro_batch, study.averages)
    return json.dumps([study.workload, how], sort_keys=True)


@contextmanager
def one_thread_environment() -> Iterator[None]:
    """Processes started in this block have one thread and keep their memory; glibc reads it when a process starts."""
    tunables = [*filter(None, [os.environ.get("GLIBC_TUNABLES")]), _HUGE_PAGES]
    ours = _ENVIRONMENT | {"GLIBC_TUNABLES": ":".join(tunables)}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
