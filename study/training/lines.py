"""Trains searches: the tuner proposes trials, workers turn trials into curves, the store keeps the curves."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Self

from study import store
from study.search.tuner import Tuner
from study.store.claims import WHOLE, Held, Shard
from study.training.part import POLL, Part
from study.training.search import SearchRun, Watcher
from study.workers.dispatch import Queue
from study.workers.pool import TrialTooLarge, Workers


def run_all(
    lines: Sequence[Iterable[SearchRun]],
    workers: Workers,
    watcher: Watcher | None = None,
    waits: bool = True,
    chores: Iterable[object] = (),
) -> list[TrialTooLarge]:
    """Train the missing trials of several lines of searches at once; returns when the trials of all shards are on file.

    The process claims one free shard of a search at a time. When there is none, it waits for the processes that train
    the others. A worker without a trial of one search trains those of the next.

    Arguments:
        lines: searches that follow one another, each taken from its line when the one before is complete.
        waits: wait for other processes. False: return when there has been nothing to train for two looks in a row.
        chores: iterated over while workers train, or before the return; each step of it should take little time.

    Returns:
        An error for each search that fits on no worker; the rest of its line is not trained.

    Raises:
        StoreError: the results folder holds another question or cannot be written, or another process
            trains the search.
        WorkerError: a worker process failed.
    """
    idle, watcher = 0, watcher or Watcher()
    with _Lines((_Line(line, workers, watcher) for line in lines), chores) as supply:
        while supply.left and (waits or idle < 2):
            trained = False
            for part, curve in workers.train(supply):
                assert isinstance(part, Part)
                part.keep(curve)
                trained = True
            supply.settle(trained)
            idle = 0 if trained else idle + 1
        supply.do_chores()
    return supply.errors


class _Line:
    """Searches that follow one another, and the shard of the current one that this process trains, if any.

    Attributes:
        search: the current one; None if all are complete.
    """

    def __init__(self, searches: Iterable[SearchRun], workers: Workers, watcher: Watcher) -> None:
        self._searches, self._workers, self._watcher = iter(searches), workers, watcher
        self.search = next(self._searches, None)
        self.part: Part | None = None
        self._last: Tuner | None = None
        """Of the current search, if this process has just trained all of it: its trials need not be read again."""
        self._claims = ExitStack()
        self._poll = -math.inf

    def next_part(self) -> Part | None:
        """Claim a shard with missing trials of the first search that is not complete, in place of the one that is over;
        returns None if there is none now."""
        self.close()
        while self.part is None and self.search is not None and time.monotonic() >= self._poll:
            search = self.search
            folder = store.study_folder(search.results, search.study)
            view = self._last or Tuner(search.study, store.load(folder), points=search.points)
            self._last = None
            self._watcher.search(search, view)
            if view.complete:
                store.gather(folder)
                self.search = next(self._searches, None)
            elif (part := self._claimed(search, view)) is not None:
                self.part = part
            else:
                self._poll = time.monotonic() + POLL  # other processes train the missing trials
        return self.part

    def _claimed(self, search: SearchRun, view: Tuner) -> Part | None:
        """A free shard with missing trials. Raises Held if another process has the whole search."""
        folder, count = store.study_folder(search.results, search.study), search.shards
        for shard in (Shard((search.first_shard + index) % count, count) for index in range(count)):
            if view.next_index(shard) is None:
                continue
            try:
                claim = self._claims.enter_context(store.claimed(folder, shard))
            except Held:
                if count == 1:
                    raise
                continue
            return Part(search, claim, self._workers, self._watcher)
        return None

    @property
    def goes_on(self) -> bool:
        """Whether there is something to settle or to claim now. A shard of several is not claimed ahead: another
        process may have time for it first."""
        if self.part is not None:
            return self.part.over
        return self.search is not None and self.search.shards == 1

    def close(self) -> None:
        """Release the claimed shard, if any, whose trials have ended."""
        if self.part is not None:
            self.part.end()
            self._last = self.part.tuner if self.part.claim.shard == WHOLE else None
            self.part = None
            self.release()

    def abandon(self) -> None:
        """Leave out the current search and all that follow."""
        self.close()
        self.search = None

    def release(self) -> None:
        """Release the claim; after an error the record of the run stays without an end."""
        self._claims.close()


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

    def queues(self) -> Iterator[Part]:
        """The open searches, in the order of the lines. A search is claimed when those before it have no trials left
        to begin."""
        under_way = [line.part for line in self._lines if line.part is not None and not line.part.over]
        yield from under_way
        for line in self._lines:
            if line.part not in under_way and (part := line.next_part()) is not None:
                yield part

    def prepare(self) -> bool:
        """Settle a search that is over, do a chore, or claim the next search if the open ones have no trials left to
        begin; returns False if there is nothing to do."""
        for _ in self._chores:
            return True
        for line in self._lines:
            if line.goes_on:
                line.next_part()
                return True
            if line.part is not None and line.part.begins_more:
                return False
        return False

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
            if line.part is not None:
                line.part.refuse_changes()
            line.close()
        if not trained and self.left:
            time.sleep(POLL)
