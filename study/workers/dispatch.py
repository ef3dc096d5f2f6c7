"""Decides what each worker trains: the bookkeeping of the pool, without processes and pipes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from study.records import Study, Trial
from study.workers import messages

Pipe = Any
"""Stands for a worker."""


class Queue(Protocol):
    """The trials of one search.

    Attributes:
        checkpoints: trial index -> latest checkpoint; read to continue trials, and updated.
    """

    @property
    def study(self) -> Study: ...

    @property
    def checkpoints(self) -> MutableMapping[int, bytes]: ...

    def ask(self) -> Trial | None:
        """The next trial to train; None if there is none now."""

    def step_limit(self, index: int) -> int:
        """The step beyond which trial `index` need not run, given the trials known now."""


class Supply(Protocol):
    """The searches that a pool trains at once."""

    def queues(self) -> Iterable[Queue]:
        """The searches that may have trials to train now, the most urgent first. They may change after every trial."""

    def too_large(self, queue: Queue, reason: str) -> None:
        """The trials of a search fit on no worker. It must not be among `queues` any more."""


@dataclass
class _Order:
    """The search that a worker trains, its trials under way, and a trial that it has not asked for yet."""

    queue: Queue
    under_way: dict[int, Trial]
    first: messages.Proposal | None = None
    waiting: bool = False


class Dispatch:
    """Gives every worker trials. A worker stays with a search while it has trials, and then trains another one.

    Arguments:
        pipes: of all workers.
    """

    def __init__(self, supply: Supply, pipes: Sequence[Pipe]) -> None:
        self._supply, self._pipes = supply, pipes
        self._orders: dict[Pipe, _Order] = {}
        self._returned: dict[Queue, list[Trial]] = {}
        """Trials of workers with too little memory."""
        self._too_small: dict[Queue, set[Pipe]] = {}
        """The workers on whose devices the trials of a search do not fit."""

    @property
    def busy(self) -> list[Pipe]:
        """The workers that will send a message."""
        return [pipe for pipe in self._pipes if pipe in self._orders and not self._orders[pipe].waiting]

    def queue(self, pipe: Pipe) -> Queue:
        """The search that a worker trains."""
        return self._orders[pipe].queue

    def hand_out(self) -> Iterator[tuple[Pipe, Queue | messages.Proposal | None]]:
        """Yield what to send to workers with nothing to do: a proposal, a search to train, or None, which ends the
        search that the worker trained. When no trial is under way any more, all workers get None."""
        for pipe in [pipe for pipe in self._pipes if pipe not in self.busy]:
            order = self._orders.get(pipe)
            if order and (proposal := self._proposal(order.queue)):
                order.waiting = False
                order.under_way[proposal.trial.index] = proposal.trial
                yield pipe, proposal
            elif (other := self._other(pipe)) is not None:
                if order:
                    yield pipe, None
                self._orders[pipe] = other
                yield pipe, other.queue
        if not self.busy:
            for pipe in list(self._orders):
                del self._orders[pipe]
                yield pipe, None

    def _other(self, pipe: Pipe) -> _Order | None:
        """The most urgent search with a trial for a worker."""
        for queue in self._supply.queues():
            if pipe not in self._too_small.get(queue, ()) and (proposal := self._proposal(queue)):
                return _Order(queue, {proposal.trial.index: proposal.trial}, proposal)
        return None

    def answer(self, pipe: Pipe, question: messages.Question) -> tuple[bool, Any]:
        """(whether there is an answer now, the answer to a worker's question)."""
        order = self._orders[pipe]
        if isinstance(question, messages.AskStepLimit):
            return True, order.queue.step_limit(question.index)
        if isinstance(question, messages.AskCheckpoint):
            return True, order.queue.checkpoints.get(question.index)
        if order.first is not None:
            first, order.first = order.first, None
            return True, first
        if question.wait:
            order.waiting = True
            return False, None
        proposal = self._proposal(order.queue)
        if proposal is not None:
            order.under_way[proposal.trial.index] = proposal.trial
        return True, proposal

    def finished(self, pipe: Pipe, index: int) -> None:
        """A worker finished a trial."""
        del self._orders[pipe].under_way[index]

    def too_large(self, pipe: Pipe, reason: str) -> bool:
        """The trials of a search do not fit on a worker's device: others get them, and the worker gets other ones.

        Returns:
            True if they fit on no worker.
        """
        order = self._orders.pop(pipe)
        self._returned.setdefault(order.queue, []).extend(order.under_way.values())
        self._too_small.setdefault(order.queue, set()).add(pipe)
        nowhere = len(self._too_small[order.queue]) == len(self._pipes)
        if nowhere:
            self._supply.too_large(order.queue, reason)
        return nowhere

    def _proposal(self, queue: Queue) -> messages.Proposal | None:
        returned = self._returned.get(queue)
        trial = returned.pop(0) if returned else queue.ask()
        return None if trial is None else messages.Proposal(trial, trial.index in queue.checkpoints)
