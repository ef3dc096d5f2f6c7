"""Worker processes with one thread each: the parent owns the search and the store, and workers ask it for trials.

One thread, because two OpenMP threads on a busy machine are up to a hundred times slower than two processes of one
thread, and because the bits of a trial then do not depend on the load of the machine.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from study.engine.cost import Cost
from study.errors import Failed
from study.records import Curve, Study
from study.workers import messages, start
from study.workers.dispatch import Dispatch, Queue, Supply
from study.workers.process import Setting

if TYPE_CHECKING:
    from study.devices.distributed import Rank
    from study.devices.placement import Placement


LOOK = 2.0
"""Seconds between two looks for step limits that trials of other processes lower."""
REPLACED = 3
"""The number of dead workers that a pool replaces: a trial that ends its worker each time must end the sweep."""


class WorkerError(Failed):
    """A worker process failed; the message holds its last error."""


class WorkerDied(WorkerError):
    """A worker process ended without an error of its own, such as by a signal; `reason` says how."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}. Finished trials are kept, and the same command continues.")
        self.reason = reason

    def of(self, study: Study) -> WorkerDied:
        """The same, with the study that the worker trained or measured."""
        return WorkerDied(f"{study.name} with {study.optimizer} at batch size {study.batch_size:,}: {self.reason}")


class TrialTooLarge(Failed):
    """The trials of one study do not fit on any worker's device; the message says what to change."""


class Workers:
    """A pool of worker processes for many studies, so that each process imports torch and loads the data once.

    Arguments:
        placement: settled for this machine. Its `name` is not used: every study records its arithmetic.
        import_path: extra folder from which workloads are imported.
        data: `workload_key` of a study -> the digest that the data of its workload must have in each worker.
    """

    def __init__(
        self,
        placement: Placement,
        import_path: Path | None = None,
        data: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        self.placement = placement
        self._costs: dict[tuple[str, int, int | None], Cost] = {}
        """`_key` of a study -> cost."""
        self.too_small: dict[Queue, list[str]] = {}
        """Searches that do not fit on the devices of some workers, with their messages; the other workers train
        them."""
        self.notes: list[str] = []
        """Messages for the user that nothing has shown yet."""
        self._not_recorded: dict[str, set[int]] = {}
        """`curve_key` of studies that cannot be recorded -> the places in the pool of the workers that tried."""
        self._deaths = 0
        """Number of workers that died and were replaced."""
        self._import_path, self._data = import_path, data or {}
        self._pipes: list[Connection] = []
        self._followers: list[Connection] = []
        self._processes: dict[Connection, BaseProcess] = {}
        try:
            for number, ranks in enumerate(self._ranks(placement.workers or 1)):
                self._pipes.append(self._start(number, ranks[0]))
                self._followers += [self._start(number, rank) for rank in ranks[1:]]
        except BaseException:
            self.__exit__()
            raise

    def _ranks(self, count: int) -> Sequence[Sequence[Rank | None]]:
        """For each worker, the ranks of its processes that the pool starts (None: a process without a team). Torchrun
        starts all ranks above 0 itself."""
        if self.placement.devices in (None, 1):
            return [[None]] * count
        from study.devices import distributed

        if (rank := distributed.launched()) is not None:
            return [[rank]]
        self._meeting, ranks = distributed.ranks(count, self.placement.devices)
        return ranks

    def _start(self, number: int, rank: Rank | None) -> Connection:
        """Start a process at this place in the pool; returns the parent's end of the pipe to it."""
        try:
            process, pipe = start.worker()
        except (EOFError, ConnectionError) as error:
            raise WorkerError(f"{start.death(start.SERVER_DIED)}. The same command continues.") from error
        self._processes[pipe] = process
        setting = Setting(self.placement, self._import_path, number, self._data, dict(os.environ))
        self._send(pipe, (setting, rank))
        return pipe

    def _replaced(self, pipe: Connection) -> Connection:
        """Start another process in the place of a worker of one process; returns the parent's end of the pipe to it."""
        number, process = self._pipes.index(pipe), self._processes.pop(pipe)
        process.kill()
        process.join()
        pipe.close()
        self._pipes[number] = self._start(number, None)
        return self._pipes[number]

    def _not_recording(self, pipe: Connection, study: Study, reason: str) -> Connection:
        """Replace a worker that could not record an update of a study; such updates are not recorded any more. Teams
        record nothing. Returns the parent's end of the pipe to the other process.

        Raises:
            WorkerError: the worker was not to record that update.
        """
        number, tried = self._pipes.index(pipe), self._not_recorded.setdefault(curve_key(study), set())
        if number in tried:
            raise WorkerError(f"{study.name} with {study.optimizer} was recorded again, although {reason}.")
        if not tried:
            self.notes.append(
                f"{study.name} with {study.optimizer}: {reason}. So it is launched kernel by kernel, which takes "
                "longer. Look for .item(), for copies between host and GPU and for linear algebra in the model, the "
                "loss and the errors."
            )
        tried.add(number)
        return self._replaced(pipe)

    def _replaced_dead(self, pipe: Connection, study: Study, death: WorkerDied) -> Connection:
        """Replace a worker that died while it trained a study. Returns the parent's end of the pipe to the other
        process.

        Raises:
            WorkerDied: too many have died, or it is one process of a team.
        """
        if self._deaths == REPLACED or self.placement.devices not in (None, 1):
            raise death.of(study)
        self._deaths += 1
        self.notes.append(
            f"{death.of(study).reason}. Another process takes its place and continues its trials. A "
            f"sweep replaces {REPLACED} dead workers; this was number {self._deaths}."
        )
        return self._replaced(pipe)

    def _may_record(self, study: Study) -> bool:
        return curve_key(study) not in self._not_recorded

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()  # workers own no files, so nothing is lost
        for process in self._processes.values():
            process.join()

    @property
    def count(self) -> int:
        """Number of workers; each is one process or a team of processes."""
        return len(self._pipes)

    def train(self, supply: Supply) -> Iterator[tuple[Queue, Curve]]:
        """Yield the search and the curve of each finished trial, in the order in which they end, until no trial is
        left; the caller adds each curve to its search.

        `measure` must have measured the studies: it sets the lane count. If trials do not fit on one worker's device,
        the other workers train them.

        Raises:
            WorkerError: a worker failed, or more than REPLACED workers died.
        """
        dispatch, told = Dispatch(supply, self._pipes, self._room), time.monotonic()
        while True:
            self._give(dispatch.hand_out())
            self._give(dispatch.end())
            if not dispatch.busy:
                return
            while not self._ready(dispatch.busy, 0) and supply.prepare():
                pass
            ended, others = self._news(dispatch)
            if not others and not any(queue.learns for queue, _ in ended):
                self._give(dispatch.hand_out())  # before the caller writes files, which workers need not wait for
            for each in ended:
                yield each
                self._tell_limits(dispatch)
            for pipe, message in others:
                self._heard(dispatch, pipe, message)
            if time.monotonic() > told + LOOK:
                self._tell_limits(dispatch)
                told = time.monotonic()

    def _tell_limits(self, dispatch: Dispatch) -> None:
        for pipe, limits in dispatch.lowered():
            self._send(pipe, messages.StepLimits(limits))

    def _give(self, given_out: Iterable[tuple[Connection, Queue | None, tuple[messages.Proposal, ...]]]) -> None:
        """Send what `Dispatch` gives out."""
        for pipe, queue, given in given_out:
            self._send(pipe, self._order(queue, given) if queue else messages.Given(given))

    def _news(self, dispatch: Dispatch) -> tuple[list[tuple[Queue, Curve]], list[tuple[Connection, Any]]]:
        """Wait for messages and read all that have come.

        Returns:
            (search, curve) of each trial that ended; (worker, message) if a worker failed or cannot go on.
        """
        ended: list[tuple[Queue, Curve]] = []
        for pipe in self._ready(dispatch.busy, LOOK):
            while True:
                try:
                    message = self._receive(pipe)
                except WorkerError as error:
                    return ended, [(pipe, error)]  # trials that ended before it are kept
                if isinstance(message, messages.Finished):
                    dispatch.finished(pipe, message.curve.trial.index)
                    ended.append((dispatch.queue(pipe), message.curve))
                elif isinstance(message, messages.AskTrials):
                    dispatch.asked(pipe, message)
                elif isinstance(message, messages.TooLarge | messages.NotRecorded):
                    return ended, [(pipe, message)]
                else:
                    self._heard(dispatch, pipe, message)
                if not pipe.poll():
                    break
        return ended, []

    def _heard(self, dispatch: Dispatch, pipe: Connection, message: Any) -> None:
        """Act on a message that is not about the end of a trial. Raises WorkerError if it is that."""
        queue = dispatch.queue(pipe)
        if isinstance(message, messages.TooLarge):
            self.too_small.setdefault(queue, []).append(message.reason)
            if dispatch.too_large(pipe, message.reason):
                del self.too_small[queue]
        elif isinstance(message, messages.NotRecorded):
            dispatch.replaced(pipe, self._not_recording(pipe, queue.study, message.reason))
        elif isinstance(message, WorkerDied):
            dispatch.replaced(pipe, self._replaced_dead(pipe, queue.study, message))
        elif isinstance(message, messages.Checkpoint):
            queue.checkpoints[message.index] = message.content
        elif isinstance(message, messages.Reached):
            queue.reached(message.steps)
        elif isinstance(message, messages.AskCheckpoint):
            self._send(pipe, messages.Stored(queue.checkpoints.get(message.index)))
        else:
            raise message

    def _order(self, queue: Queue, proposals: tuple[messages.Proposal, ...]) -> messages.Train:
        study, cost = queue.study, self.cost_of(queue.study)
        room, records, compiled = self._room(queue), self._may_record(study), self.compiles(study)
        return messages.Train(study, cost.heights, cost.lanes, proposals, room, records, compiled, queue.folder)

    def _room(self, queue: Queue) -> int:
        """Number of trials of a search that a worker trains at once."""
        return 1 if queue.study.differs_by_trial else self.cost_of(queue.study).lanes

    def compiles(self, study: Study) -> bool:
        """Whether the workers compile the update of a study's lanes, by `engine.compile`."""
        asked = self.placement.compile
        # Else each trial, or each batch size, would compile its own.
        if self.placement.device == "cpu" or study.differs_by_trial or study.batch_schedule:
            return False
        return self.cost_of(study).pays_to_compile(study, self.count) if asked == "auto" else bool(asked)

    def cost_of(self, study: Study) -> Cost:
        """The cost of a trial of a study that `measure` measured."""
        return self._costs[_key(study)]

    def measure(self, studies: Sequence[Study]) -> list[Cost | TrialTooLarge]:
        """Measure the cost of a trial of each study, with all workers busy as in training.

        If a study does not fit on one worker's device, another worker measures it. If it fits on none, a TrialTooLarge
        takes the place of its cost.
        """
        found: dict[int, Cost | TrialTooLarge] = {}
        everyone: Sequence[int] = range(self.count)
        todo = [(number, everyone) for number in range(len(studies))]  # with the workers not tried yet
        busy: dict[int, tuple[int, Sequence[int]]] = {}
        while todo or busy:
            for worker, pipe in enumerate(self._pipes):
                mine = next((each for each in todo if worker in each[1]), None)
                if worker not in busy and mine is not None:
                    todo.remove(mine)
                    busy[worker] = mine
                    self._send(pipe, self._measurement(studies[mine[0]]))
            for pipe in self._ready([self._pipes[worker] for worker in busy]):
                worker = self._pipes.index(pipe)
                number, able = busy.pop(worker)
                try:
                    message = self._receive(pipe)
                except WorkerDied as death:
                    raise death.of(studies[number]) from death
                study, others = studies[number], [other for other in able if other != worker]
                if isinstance(message, messages.Measured):
                    self._costs[_key(study)] = found[number] = message.cost
                elif isinstance(message, messages.NotRecorded):
                    self._not_recording(pipe, study, message.reason)
                    todo.insert(0, (number, able))
                elif others:
                    todo.append((number, others))
                else:
                    found[number] = TrialTooLarge(message.reason)
        return [found[number] for number in range(len(studies))]

    def _measurement(self, study: Study) -> messages.Measure:
        """The order to measure a study, with at most a worker's share of the trials as lanes. It starts from what is
        known about the nearest batch size."""
        mine = curve_key(study)
        known = {size: cost for (of_curve, size, _), cost in self._costs.items() if of_curve == mine}
        nearest = min(known, key=lambda size: abs(math.log(size / study.batch_size)), default=None)
        most = -(-study.search.trials // self.count)
        neighbour = None if nearest is None else known[nearest]
        return messages.Measure(study, most, self.placement.lanes, neighbour, self._may_record(study))

    def _ready(self, pipes: list[Connection], timeout: float | None = None) -> list[Connection]:
        """Wait for a message; returns the pipes that have one, in the order of `pipes`. None has one after `timeout`
        seconds.

        Followers (ranks above 0) send a message only when they fail; `_receive` raises their errors.
        """
        ready = wait([*pipes, *self._followers], timeout)
        for pipe in self._followers:
            if pipe in ready:
                self._receive(pipe)
        return [pipe for pipe in pipes if pipe in ready]

    def _receive(self, pipe: Connection) -> Any:
        """The next message of a worker. Raises WorkerError if it failed or died, even in the middle of a message."""
        try:
            message = pipe.recv()
        except (EOFError, OSError) as error:
            raise self._died(pipe) from error
        if isinstance(message, messages.Crashed):
            for other, process in self._processes.items() if self._followers else ():
                process.join(timeout=0 if other is pipe else 0.5)
                if process.exitcode:  # a rank that died caused the reported error
                    raise self._died(other)
            raise WorkerError(self._cause(message).error)
        return message

    def _cause(self, crash: messages.Crashed) -> messages.Crashed:
        """The error that ended a team: ranks that outlive the first error report only that a rank is gone."""
        for pipe in self._processes if crash.lost else ():
            with suppress(EOFError, ConnectionError):
                while pipe.poll(0.5):
                    message = pipe.recv()
                    if isinstance(message, messages.Crashed) and not message.lost:
                        return message
        return crash

    def _send(self, pipe: Connection, message: object) -> None:
        """Send a message to a worker. If it died, `_receive` says so, after what it sent before."""
        with suppress(ConnectionError):
            pipe.send(message)

    def _died(self, pipe: Connection) -> WorkerDied:
        process = self._processes[pipe]
        process.join(timeout=5)
        return WorkerDied(start.death(process.exitcode))


def _key(study: Study) -> tuple[str, int, int | None]:
    """The settings that decide the cost of a step. All searches of a study have the same key."""
    return curve_key(study), study.batch_size, study.micro_batch


def curve_key(study: Study) -> str:
    """The settings besides the batch size that decide the cost of a step and of an evaluation."""
    optimizer = study.optimizer, dict(study.optimizer_arguments), study.no_decay
    how = (optimizer, study.arithmetic, study.precision, study.averages)
    evaluated = (study.evaluation.examples, study.evaluation_chunk)
    grows = asdict(study.batch_schedule) if study.batch_schedule else None
    return json.dumps([study.workload, how, evaluated, grows], sort_keys=True)
