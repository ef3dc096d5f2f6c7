"""Live progress on the terminal for a sweep, for jobs on a cluster, and for studies that are read or written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from analysis.labels import duration

if TYPE_CHECKING:
    from study.engine.cost import Cost, Work
    from study.records import Study
    from study.search.tuner import Tuner


class SweepProgress:
    """A live bar for the current search and one for the whole sweep; a line for each finished search.

    Arguments:
        left: the remaining work of the searches that are known at the start.
    """

    def __init__(self, console: Console, left: Sequence[Work]) -> None:
        self.console = console
        self.known = [work.study for work in left]
        self.curves = {(study.name, study.optimizer) for study in self.known}
        self.total = sum(work.cost.trial(work.study) * work.study.search.trials for work in left)
        self.done_before = self.held = 0.0
        self.started = time.monotonic()
        self.bars = _bars(console)
        self.current: TaskID | None = None
        self.study: Study | None = None
        self.overall = self.bars.add_task("whole sweep", total=max(self.total, 1e-9), status="")

    def __enter__(self) -> SweepProgress:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def watch(self, cost: Cost, study: Study, tuner: Tuner) -> None:
        """Show the progress of a search; called at its start and after each of its trials."""
        wanted, weight = study.search.trials, cost.trial(study)
        if self.current is not None and study != self.study:  # the previous search was abandoned: it does not fit
            self.bars.remove_task(self.current)
            self.current = None
        starting = self.current is None
        if self.current is None:
            self.current = self.bars.add_task(self._name(study), total=wanted, status="")
            self.study, self.study_started = study, time.monotonic()
            if study not in self.known:  # a stage or a rerun, unknown at the start
                self.known.append(study)
                self.total += weight * wanted
        launched = tuner.feasible + tuner.infeasible
        fewest = tuner.steps_to_result
        best = "goal not reached yet" if fewest is None else f"best {fewest:,} steps"
        status = f"{launched} done, {tuner.feasible} feasible, {tuner.infeasible} infeasible, {best}"
        self.bars.update(self.current, completed=min(tuner.feasible, wanted), status=status)
        done = self.done_before + weight * min(tuner.feasible, wanted)
        if starting:
            self.held += done - self.done_before  # trained by an earlier run: says nothing about the speed of this one
        elapsed, progress = time.monotonic() - self.started, done - self.held
        left = f"{duration(elapsed * (self.total - done) / progress)} left" if progress else "time left: measuring"
        self.bars.update(self.overall, total=self.total, completed=done, status=left)
        if tuner.complete:
            self.bars.remove_task(self.current)
            self.current = None
            self.done_before += weight * wanted
            took = duration(time.monotonic() - self.study_started)
            if study.branch.rule is not None:  # transfers are many and short: `note` sums them up
                return
            self.console.print(
                f"{self._name(study)}: {status.replace('goal not reached yet', 'goal not reached')}, {took}"
            )
            if tuner.feasible < wanted and study.branch.rerun is None:
                self.console.print(
                    f"[yellow]only {tuner.feasible} of {wanted} trials were feasible after {launched} launches "
                    "(search.max_launches); lower search.space.learning_rate.high or raise search.max_launches.[/]"
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
