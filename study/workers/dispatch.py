"""Decides what each worker trains: the bookkeeping of the pool, without processes and pipes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from study.records import Study, Trial
from study.workers import messages

Pipe = Any
"""Stands for a worker."""


class Queue(Protocol):
    """The trials of one search.

    Attributes:
        checkpoints: trial index -> latest checkpoint; read to continue trials, and updated.
        folder: of the search.
        learns: whether its next trials depend on the results of those that ended.
    """

    @property
    def study(self) -> Study: ...

    @property
    def checkpoints(self) -> MutableMapping[int, bytes]: ...

    @property
    def folder(self) -> Path: ...

    @property
    def learns(self) -> bool: ...

    def ask(self) -> Trial | None:
        """The next trial to train; None if there is none now."""

    def step_limit(self, index: int) -> int:
        """The step beyond which trial `index` need not run, given the trials known now."""

    def reached(self, steps: Mapping[int, int]) -> None:
        """Trials under way have reached these steps: trial index -> step."""


class Supply(Protocol):
    """The searches that a pool trains at once."""

    def queues(self) -> Iterable[Queue]:
        """The searches that may have trials to train now, the most urgent first. They may change after every trial."""

    def prepare(self) -> bool:
        """No worker waits now: do a part of what could make one wait later; returns False if nothing is left to do."""

    def too_large(self, queue: Queue, reason: str) -> None:
        """The trials of a search fit on no worker. It must not be among `queues` any more."""


@dataclass
class _Order:
    """The search that a worker trains, and its trials under way.

    Attributes:
        wanted: number of further trials that the worker asked for.
        idle: the worker waits for them.
        limits: trial index -> the step limit that the worker knows.
    """

    queue: Queue
    under_way: dict[int, Trial]
    wanted: int = 0
    idle: bool = False
    limits: dict[int, int] = field(default_factory=dict)


class Dispatch:
    """Gives every worker trials. A worker stays with a search while it has trials, and then trains another one.

    Arguments:
        pipes: of all workers.
        room: number of trials of a search that a worker trains at once.
    """

    def __init__(self, supply: Supply, pipes: Sequence[Pipe], room: Callable[[Queue], int]) -> None:
        self._supply, self._pipes, self._room = supply, list(pipes), room
        self._orders: dict[Pipe, _Order] = {}
        self._returned: dict[Queue, list[Trial]] = {}
        """Trials of workers that have too little memory for them, or that ended."""
        self._too_small: dict[Queue, set[Pipe]] = {}
        """The workers on whose devices the trials of a search do not fit."""

    @property
    def busy(self) -> list[Pipe]:
        """The workers that will send a message."""
        return [pipe for pipe in self._pipes if pipe in self._orders and not self._orders[pipe].idle]

    def queue(self, pipe: Pipe) -> Queue:
        """The search that a worker trains."""
        return self._orders[pipe].queue

    def hand_out(self) -> Iterator[tuple[Pipe, Queue | None, tuple[messages.Proposal, ...]]]:
        """Yield (worker, search, trials). If the search is None, the trials belong to the search that the worker trains
        already; if there are no trials either, that search ends."""
        for pipe in self._pipes:
            order = self._orders.get(pipe)
            if order and (given := self._begin(order, order.wanted)):
                order.wanted -= len(given)
                order.idle = False
                yield pipe, None, given
            elif order is None or order.idle:
                for queue in self._supply.queues():
                    new = _Order(queue, {})
                    if pipe not in self._too_small.get(queue, ()) and (given := self._begin(new, self._room(queue))):
                        if order:
                            yield pipe, None, ()
                        self._orders[pipe] = new
                        yield pipe, queue, given
                        break

    def end(self) -> Iterator[tuple[Pipe, Queue | None, tuple[messages.Proposal, ...]]]:
        """As `hand_out`: when no trial is under way any more, all workers end their searches."""
        if not self.busy:
            for pipe in list(self._orders):
                del self._orders[pipe]
                yield pipe, None, ()

    def _begin(self, order: _Order, most: int) -> tuple[messages.Proposal, ...]:
        """Up to `most` trials of the search of an order, now under way."""
        queue, returned = order.queue, self._returned.get(order.queue, [])
        given: list[messages.Proposal] = []
        while len(given) < most and (trial := returned.pop(0) if returned else queue.ask()) is not None:
            order.under_way[trial.index] = trial
            order.limits[trial.index] = limit = queue.step_limit(trial.index)
            given.append(messages.Proposal(trial, trial.index in queue.checkpoints, limit))
        return tuple(given)

    def asked(self, pipe: Pipe, request: messages.AskTrials) -> None:
        """A worker asked for trials. Its message may have crossed those that it was given: then it is not idle."""
        order = self._orders[pipe]
        order.wanted += request.more
        order.idle = request.idle and not order.under_way

    def lowered(self) -> Iterator[tuple[Pipe, dict[int, int]]]:
        """Yield (worker, the step limits of its trials that changed), given the trials known now."""
        for pipe, order in self._orders.items():
            limits = {index: order.queue.step_limit(index) for index in order.under_way}
            if changed := dict(limits.items() - order.limits.items()):
                order.limits.update(changed)
                yield pipe, changed

    def finished(self, pipe: Pipe, index: int) -> None:
        """A worker finished a trial."""
        del self._orders[pipe].under_way[index]

    def too_large(self, pipe: Pipe, reason: str) -> bool:
        """The trials of a search do not fit on a worker's device: others get them, and the worker gets other ones.

        Returns:
            True if they fit on no worker.
        """
        queue = self._taken_back(pipe)
        self._too_small.setdefault(queue, set()).add(pipe)
        nowhere = len(self._too_small[queue]) == len(self._pipes)
        if nowhere:
            self._supply.too_large(queue, reason)
        return nowhere

    def replaced(self, pipe: Pipe, other: Pipe) -> None:
        """A worker has ended, and another process has taken its place: the trials under way are given out again."""
        self._taken_back(pipe)
        self._pipes[self._pipes.index(pipe)] = other
        for workers in self._too_small.values():
            if pipe in workers:
                workers.remove(pipe)
                workers.add(other)

    def _taken_back(self, pipe: Pipe) -> Queue:
        """The search of a worker that ends its order; its trials under way are returned."""
        order = self._orders.pop(pipe)
        self._returned.setdefault(order.queue, []).extend(order.under_way.values())
        return order.queue
