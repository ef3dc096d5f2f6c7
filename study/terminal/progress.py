"""Live progress on the terminal for a sweep, for jobs on a cluster, and for studies that are read or written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from analysis.labels import duration
from analysis.question.stages import REFINE

if TYPE_CHECKING:
    from study.engine.cost import Cost, Work
    from study.records import Study
    from study.search.tuner import Tuner


@dataclass
class _Shown:
    """A search with a bar. `weight`: seconds of a trial at full budget; `done`: the part of its trials that ended."""

    task: TaskID
    weight: float
    started: float
    done: float = 0.0


class SweepProgress:
    """A live bar for each current search and one for the whole sweep; a line for each finished search.

    Arguments:
        left: the remaining work of the searches that are known at the start.
        cost_of: the cost of a trial of a study.
    """

    def __init__(self, console: Console, left: Sequence[Work], cost_of: Callable[[Study], Cost]) -> None:
        self.console, self.cost_of = console, cost_of
        self.known = [work.study for work in left]
        self.curves = {(study.name, study.optimizer) for study in self.known}
        self.total = sum(work.cost.trial(work.study) * work.study.search.trials for work in left)
        self.done = self.held = 0.0
        self.started = time.monotonic()
        self.bars = _bars(console)
        self.shown: dict[str, _Shown] = {}
        self.overall = self.bars.add_task("whole sweep", total=max(self.total, 1e-9), status="")

    def __enter__(self) -> SweepProgress:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def watch(self, study: Study, tuner: Tuner) -> None:
        """Show the progress of a search; called at its start and after each of its trials."""
        name, wanted = self._name(study), study.search.trials
        starting = name not in self.shown
        if starting:
            weight = self.cost_of(study).trial(study)
            self.shown[name] = _Shown(self.bars.add_task(name, total=wanted, status=""), weight, time.monotonic())
            if study not in self.known:  # a stage or a rerun, unknown at the start
                self.known.append(study)
                self.total += weight * wanted
        shown, launched, fewest = self.shown[name], tuner.feasible + tuner.infeasible, tuner.steps_to_result
        best = "goal not reached yet" if fewest is None else f"best {fewest:,} steps"
        status = f"{launched} done, {tuner.feasible} feasible, {tuner.infeasible} infeasible, {best}"
        self.bars.update(shown.task, completed=min(tuner.done, wanted), status=status)
        gained = shown.weight * min(tuner.done, wanted) - shown.done
        shown.done += gained
        self.done += gained
        if starting:
            self.held += gained  # trained by an earlier run: says nothing about the speed of this one
        self._estimate()
        if tuner.complete:
            self._end(study, tuner, status)

    def _estimate(self) -> None:
        """Show the time left on the bar of the whole sweep."""
        elapsed, progress = time.monotonic() - self.started, self.done - self.held
        left = f"{duration(elapsed * (self.total - self.done) / progress)} left" if progress else ""
        self.bars.update(self.overall, total=self.total, completed=self.done, status=left or "time left: measuring")

    def _end(self, study: Study, tuner: Tuner, status: str) -> None:
        """Replace the bar of a complete search by a line."""
        name, wanted = self._name(study), study.search.trials
        shown = self.shown.pop(name)
        self.bars.remove_task(shown.task)
        self.done += shown.weight * wanted - shown.done
        if study.branch.rule is not None:  # transfers are many and short: `note` sums them up
            return
        took = duration(time.monotonic() - shown.started)
        self.console.print(f"{name}: {status.replace('goal not reached yet', 'goal not reached')}, {took}")
        if tuner.feasible < wanted and study.branch.rerun is None and study.search.sampler != REFINE:
            self.console.print(
                f"[yellow]only {tuner.feasible} of {wanted} trials were feasible after "
                f"{tuner.feasible + tuner.infeasible} launches (search.max_launches); lower "
                "search.space.learning_rate.high or raise search.max_launches.[/]"
            )

    def note(self, study: Study, text: str) -> None:
        """Print a line that stays."""
        self.console.print(f"{self._name(study)}: {text}")

    def _name(self, study: Study) -> str:
        prefix = f"{study.name}, {study.optimizer}, " if len(self.curves) > 1 else ""
        search = study.branch.path if study.branch.rule is None else str(study.branch)
        return f"{prefix}batch size {study.batch_size:,}{f', {search}' if search else ''}"


class JobsProgress:
    """Progress of studies that jobs train: a live table on a terminal, otherwise a line at each step of progress."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.said: dict[str, object] = {}
        self.live = Live(console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> JobsProgress:
        if self.console.is_terminal:
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
            row = next((row for row in rows if row["state"] != "done"), rows[-1]) if rows else {}
            counts = Counter("done" if row.get("state") == "done" else state for state in states)
            how = ", ".join(f"{count} {state}" if len(states) > 1 else state for state, count in counts.items())
            complete, wanted = row.get("complete", 0), row.get("wanted", study.search.trials)
            search = f", {row['search']}" if row.get("search") else ""
            best = "" if pd.isna(row.get("best")) else f"{row['best']:,} steps"
            cells = study_name(study), how, f"{complete} of {wanted}{search}", str(row.get("infeasible", 0)), best
            table.add_row(*cells)
            far = (how, search, 4 * complete // wanted)
            if not self.console.is_terminal and self.said.get(cells[0]) != far:
                self.said[cells[0]] = far
                self.console.print(f"{cells[0]}: {how}, {cells[2]} trials{best and f', best {best}'}")
        self.live.update(table, refresh=self.console.is_terminal)


def study_name(study: Study) -> str:
    """The full name of a study, for lines that name no other."""
    return f"{study.name}, {study.optimizer}, batch size {study.batch_size:,}"


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
        return f"{self.studies:,} studies with {self.rows:,} measurements in {duration(took)}."


def _bars(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[status]}"))
    return Progress(*columns, console=console, transient=True)
