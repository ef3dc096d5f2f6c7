"""What a sweep tells the outside world: four events of plain data. No observer can stop a sweep.

The users are the progress on the terminal, the live report, the trackers and the notification. The events hold no
tensors and no records of `study`, so that they can be sent to another process, which needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Search:
    """One search of a study.

    Attributes:
        name: of the search among those of its study; empty for the first search.
        goal: such as `val/classification_error < 0.1`; `metric` is its error.
        train_steps: the step budget of a trial.
        trials: number of feasible trials that it wants.
        seconds: estimate of a trial at its full step budget.
        is_transfer: it trains a transferred configuration; there are many of them, and they are short.
        title: its name for people, such as `reruns of trial 5`; empty for the first search.
    """

    results: Path
    workload: str
    optimizer: str
    batch_size: int
    name: str
    goal: str
    metric: str
    train_steps: int
    trials: int
    seconds: float
    is_transfer: bool = False
    title: str = ""

    @property
    def key(self) -> tuple[Path, str, str, int, str]:
        """What distinguishes it from all other searches."""
        return self.results, self.workload, self.optimizer, self.batch_size, self.name


@dataclass(frozen=True)
class State:
    """How far a search has come.

    Attributes:
        done: finished trials that count towards those wanted.
        best: the fewest steps to the goal so far; None: not reached yet.
        lacks: it ended with fewer feasible trials than wanted.
    """

    done: int
    feasible: int
    infeasible: int
    best: int | None
    complete: bool
    lacks: bool = False


@dataclass(frozen=True)
class Finished:
    """A finished trial with its curve.

    Attributes:
        hyperparameters: numbers, or names such as that of a schedule.
        status: COMPLETE, INFEASIBLE or INCOMPLETE of `analysis.counting`, given the trials known when it finished.
        steps_to_goal: None if it missed the goal.
        first_bad_step: the step at which it diverged, or None.
        steps, errors: [E] the evaluations, and metric -> [E] errors, NaN where not measured.
        seconds: `training` and `evaluation`.
        position: of the trials of its search in the order in which they finished, earlier sweeps included; from 1. Of
            trials that are read from their files, in the order of their index.
    """

    index: int
    hyperparameters: Mapping[str, Any]
    status: str
    steps_to_goal: int | None
    first_bad_step: int | None
    steps: Sequence[int]
    errors: Mapping[str, Sequence[float]]
    seconds: Mapping[str, float]
    position: int

    @property
    def trained(self) -> int:
        """The last step that it trained."""
        return self.first_bad_step or (self.steps[-1] if self.steps else 0)


@dataclass(frozen=True)
class Sweep:
    """The begin of a sweep.

    Attributes:
        searches: those that are known at the start and are not complete.
    """

    command: str
    searches: Sequence[Search]


@dataclass(frozen=True)
class Ended:
    """The end of a sweep.

    Attributes:
        results: the folders with its reports and tables.
        sentences: the findings.
        error: why it failed, or None.
        interrupted: a person or a scheduler ended it.
    """

    results: Sequence[Path]
    sentences: Sequence[str] = ()
    error: str | None = None
    interrupted: bool = False


class Observer:
    """Is told of a sweep. Every method does nothing here."""

    @property
    def has_left(self) -> bool:
        """True if it must be told of a sweep that trained nothing, because it missed trials or the end of an earlier
        one."""
        return False

    def begin(self, sweep: Sweep) -> None:
        """Training starts. A sweep that goes on after a look at its intervals begins again."""

    def tick(self, search: Search, steps: Mapping[int, int]) -> None:
        """Trials are under way: trial index -> its step. Every second or so from each worker."""

    def trial(self, search: Search, state: State, finished: Finished | None) -> None:
        """A trial of a search finished; None: the search begins, or all of its trials have finished."""

    def report(self, ended: Ended) -> None:
        """The sweep ended, well or not; its reports are on disk if it could write them."""


class Guarded(Observer):
    """Passes each event on to several observers. One that fails is left out from then on, with one warning.

    Arguments:
        warn: shows a warning.
    """

    def __init__(self, observers: Sequence[Observer], warn: Callable[[str], None]) -> None:
        self._observers, self._warn = list(observers), warn

    @property
    def has_left(self) -> bool:
        return any(observer.has_left for observer in self._observers)

    def begin(self, sweep: Sweep) -> None:
        self._each("begin", sweep)

    def tick(self, search: Search, steps: Mapping[int, int]) -> None:
        self._each("tick", search, steps)

    def trial(self, search: Search, state: State, finished: Finished | None) -> None:
        self._each("trial", search, state, finished)

    def report(self, ended: Ended) -> None:
        self._each("report", ended)

    def _each(self, event: str, *arguments: object) -> None:
        for observer in list(self._observers):
            try:
                getattr(observer, event)(*arguments)
            except Exception as error:
                self._observers.remove(observer)
                self._warn(f"{name_of(observer)} failed, and the sweep goes on without it: {_reason(error)}")


def name_of(observer: Observer) -> str:
    """What a warning calls an observer."""
    return str(getattr(observer, "name", type(observer).__name__))


def _reason(error: Exception) -> str:
    """The first line of an error, or its kind if it has no text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
