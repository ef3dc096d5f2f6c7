"""Live progress on the terminal for a sweep, for jobs on a cluster, and for studies that are read or written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from analysis.labels import counted, duration, rough
from study.observers.base import Finished, Observer, Search, State, Sweep

if TYPE_CHECKING:
    from study.records import Study


LINE_SECONDS = 60.0
"""Seconds between two lines where there is no terminal."""


@dataclass
class _Shown:
    """A search with a bar.

    Attributes:
        state: of its trials that ended.
        trained: steps of the trials that ended while it was shown.
        under_way: trial index -> step.
        counted: the trials' worth of its work that is counted as done.
    """

    task: TaskID
    search: Search
    started: float
    state: State
    trained: int = 0
    under_way: dict[int, int] = field(default_factory=dict)
    counted: float = 0.0

    @property
    def steps(self) -> int:
        return self.trained + sum(self.under_way.values())


class SweepProgress(Observer):
    """A live bar for each current search and one for the whole sweep; a line for each finished search. Where there is
    no terminal, also a line a minute.

    The work of a trial is its estimated time at full budget, and that of a running trial the share of its steps. Where
    finished trials were shorter than the budget, running ones are expected to be as short as they were on average.
    """

    name = "the progress display"

    def __init__(self, console: Console) -> None:
        self.console = console
        self.known: set[tuple[object, ...]] = set()
        self.curves: set[tuple[str, str]] = set()
        self.total = self.done = self.held = 0.0
        self.trials = self.wanted = self.trained = 0
        self.lengths: list[float] = []
        """Of each finished trial, the share of its step budget."""
        self.started = self.said = time.monotonic()
        self.bars = _bars(console)
        self.shown: dict[tuple[object, ...], _Shown] = {}
        self.best: dict[tuple[object, ...], tuple[Search, int]] = {}
        """By the key of each first search, complete ones included: its fewest steps."""
        self.overall = self.bars.add_task("whole sweep", total=1e-9, status="")

    def __enter__(self) -> SweepProgress:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def begin(self, sweep: Sweep) -> None:
        """Take note of the work that is known at the start."""
        self.started = self.said = time.monotonic()
        self.curves |= {(search.workload, search.optimizer) for search in sweep.searches}
        for search in sweep.searches:
            self._add(search)
        self._update()

    def trial(self, search: Search, state: State, finished: Finished | None) -> None:
        """Show the progress of a search; called at its start and after each of its trials."""
        if finished is not None and state.complete:
            return  # the search is reported as complete once no trial of it is under way
        starting = search.key not in self.shown
        if starting:
            task = self.bars.add_task(self._name(search), total=search.trials, status="")
            self.shown[search.key] = _Shown(task, search, time.monotonic(), state)
            self._add(search)
            self.trials += min(state.done, search.trials)
        shown = self.shown[search.key]
        self.trials += min(state.done, search.trials) - min(shown.state.done, search.trials)
        shown.state = state
        if state.best is not None and not search.title:
            self.best[search.key] = search, state.best
        if finished is not None:
            shown.under_way.pop(finished.index, None)
            shown.trained += finished.trained
            self.trained += finished.trained
            self.lengths.append(finished.trained / search.train_steps)
        self._count(shown)
        if starting:
            self.held += (
                search.seconds * shown.counted
            )  # trained by an earlier run: says nothing about this one's speed
        if state.complete:
            self._end(shown)
        self._update()

    def tick(self, search: Search, steps: Mapping[int, int]) -> None:
        """Show the steps of the trials under way."""
        if (shown := self.shown.get(search.key)) is not None:
            shown.under_way.update(steps)
            self._count(shown)
            self._update()

    def _add(self, search: Search) -> None:
        """Count the work of a search that was unknown so far, such as that of a stage."""
        if search.key not in self.known:
            self.known.add(search.key)
            self.total += search.seconds * search.trials
            self.wanted += search.trials

    def _count(self, shown: _Shown) -> None:
        """Bring the bar of a search and the work done up to date."""
        search, state = shown.search, shown.state
        length = search.train_steps * (sum(self.lengths) / len(self.lengths) if self.lengths else 1.0)
        running = sum(min(step / max(length, 1.0), 0.95) for step in shown.under_way.values())
        counted = min(state.done + running, search.trials)
        self.done += search.seconds * (counted - shown.counted)
        shown.counted = counted
        self.bars.update(shown.task, completed=counted, status=f"{_told(state)}, {shown.steps:,} steps")

    def _update(self) -> None:
        """Show the steps and the time left of the whole sweep; without a terminal, once a minute."""
        steps = self.trained + sum(sum(shown.under_way.values()) for shown in self.shown.values())
        left = self._left()
        total = max(self.total, 1e-9)
        self.bars.update(self.overall, total=total, completed=self.done, status=f"{steps:,} steps, {left}")
        now = time.monotonic()
        if not self.console.is_interactive and now >= self.said + LINE_SECONDS:
            self.said = now
            self.console.print(
                f"After {duration(now - self.started)}: {self.trials:,} of {self.wanted:,} trials, {steps:,} steps; "
                f"best so far: {self._best() or 'goal not reached yet'}; {left}.",
                soft_wrap=True,
            )

    def _best(self) -> str:
        """The fewest steps at each batch size; what all batch sizes of a curve have in common is said once."""
        curves: dict[str, list[str]] = {}
        for search, best in sorted(self.best.values(), key=lambda each: each[0].batch_size):
            said = curves.setdefault(self._curve(search), [])
            steps, at = ("", "at") if said else (" steps", "at batch size")
            said.append(f"{best:,}{steps} {at} {_place(search)}")
        return "; ".join(f"{curve}: {', '.join(said)}" if curve else ", ".join(said) for curve, said in curves.items())

    def _left(self) -> str:
        elapsed, progress = time.monotonic() - self.started, self.done - self.held
        if progress <= 0:
            return "time left: measuring"
        left = elapsed * (self.total - self.done) / progress
        return f"{'' if self.lengths or left < 1 else 'at most '}{rough(left)} left"

    def _end(self, shown: _Shown) -> None:
        """Replace the bar of a complete search by a line."""
        search, state = shown.search, shown.state
        del self.shown[search.key]
        self.bars.remove_task(shown.task)
        self.done += search.seconds * (search.trials - shown.counted)
        if search.is_transfer:  # transfers are many and short: `note` sums them up
            return
        took = duration(time.monotonic() - shown.started)
        status = _told(state).replace("goal not reached yet", "goal not reached")
        self.console.print(f"{self._name(search)}: {status}, {took}")
        if state.lacks:
            launches = state.feasible + state.infeasible
            some = f"only {state.feasible} of {search.trials} trials were feasible after {launches} launches"
            none = f"none of {launches} launches was feasible"
            said = some if state.feasible else none
            self.console.print(f"[yellow]{said}; the report says why and what to change.[/]")

    def note(self, search: Search, text: str) -> None:
        """Print a line that stays."""
        self.console.print(f"{self._name(search)}: {text}")

    def _name(self, search: Search) -> str:
        return ", ".join(filter(None, (self._curve(search), f"batch size {_place(search)}")))

    def _curve(self, search: Search) -> str:
        """Workload and optimizer, where the sweep has several."""
        return f"{search.workload}, {search.optimizer}" if len(self.curves) > 1 else ""


def _place(search: Search) -> str:
    """The place of a search on its curve: its batch size, and its title if it has one."""
    return f"{search.batch_size:,}{f', {search.title}' if search.title else ''}"


def _told(state: State) -> str:
    """The trials of a search, as the status of its bar."""
    best = "goal not reached yet" if state.best is None else f"best {counted(state.best, 'step')}"
    ended = state.feasible + state.infeasible
    return f"{ended} done, {state.feasible} feasible, {state.infeasible} infeasible, {best}"


class JobsProgress:
    """Progress of studies that jobs train: a live table on a terminal, otherwise a line at each step of progress."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.said: dict[str, object] = {}
        self.live = Live(console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> JobsProgress:
        if self.console.is_interactive:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def watch(self, studies: Sequence[tuple[Study, Sequence[str], Sequence[dict[str, Any]]]]) -> None:
        """Show the progress of each study.

        Arguments:
            studies: (study, states of its jobs, rows of `analysis.tables.status.table` of its searches).
        """
        table = Table(box=None, pad_edge=False)
        for heading in ("study", "jobs", "complete", "infeasible", "best so far"):
            table.add_column(heading, justify="left" if heading in ("study", "jobs") else "right")
        for study, states, rows in studies:
            row = next((row for row in rows if row["state"] != "done"), None) or _tuned(rows)
            counts = Counter("done" if row.get("state") == "done" else state for state in states)
            how = ", ".join(f"{count} {state}" if len(states) > 1 else state for state, count in counts.items())
            complete, wanted = row.get("complete", 0), row.get("wanted", study.search.trials)
            search = f", {row['search']}" if row.get("search") else ""
            best = "" if pd.isna(row.get("best")) else f"{row['best']:,} steps"
            cells = study_name(study), how, f"{complete} of {wanted}{search}", str(row.get("infeasible", 0)), best
            table.add_row(*cells)
            far = (how, search, 4 * complete // wanted)
            if not self.console.is_interactive and self.said.get(cells[0]) != far:
                self.said[cells[0]] = far
                said = f"{complete} of {wanted} trials{search}{best and f', best {best}'}"
                self.console.print(f"{cells[0]}: {how}, {said}")
        self.live.update(table, refresh=self.console.is_interactive)


def _tuned(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row of the search whose best trial was rerun, else the last row. The fewest steps of several fresh seeds are
    lucky, so that the best of the reruns is no result of the study."""
    tuned = next((row["reruns_of"] for row in rows if pd.notna(row["reruns_of"])), None)
    return next((row for row in rows if row["search"] == tuned), rows[-1] if rows else {})


def study_name(study: Study) -> str:
    """The full name of a study, for lines that name no other."""
    return f"{study.name}, {study.series}, batch size {study.batch_size:,}"


class StudiesProgress:
    """A live bar over studies that are read or written; `done` is the closing line."""

    def __init__(self, console: Console, doing: str) -> None:
        self.doing, self.studies, self.rows = doing, 0, 0
        self.started = time.monotonic()
        self.bars = _bars(console)

    def __enter__(self) -> StudiesProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def begin(self, studies: int) -> None:
        """Start the bar for this number of studies."""
        self.bars.start()
        self.task = self.bars.add_task(self.doing, total=studies, status="")

    def watch(self, study: object, rows: int = 0) -> None:
        """Count one more study."""
        self.studies, self.rows = self.studies + 1, self.rows + rows
        self.bars.update(self.task, completed=self.studies, status=f"{study}")

    @property
    def done(self) -> str:
        """A line with the number of studies, measurements and seconds."""
        took = time.monotonic() - self.started
        made = f"{counted(self.studies, 'study', 'studies')} with {counted(self.rows, 'measurement')}"
        return f"{made} in {duration(took)}."


def _bars(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[status]}"))
    live = console.is_interactive or console.is_jupyter  # elsewhere the bars would leave nothing but an empty line
    return Progress(*columns, console=console, transient=True, disable=not live)
