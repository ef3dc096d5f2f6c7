"""What the terminal shows: costs before a sweep, progress during it, the table after it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import pandas as pd
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from study.cost import Cost, Work
from study.optimizers import OPTIMIZERS
from study.records import Study
from study.tuner import Tuner

QUICK_TRIALS = 8
"""Of preset=quick, which makes nothing smaller that asks for as few."""
SHOWN_WARNINGS = 3


def costs(console: Console, left: Sequence[Work], place: str, workers: int, smaller: str | None = None) -> None:
    """What this will take if every trial runs its whole budget, and how to make it smaller."""
    if not left:
        return

    def curve(work: Work) -> tuple[str, str]:
        return work.study.name, work.study.optimizer

    total = sum(work.seconds(workers) for work in left)
    for (workload, optimizer), group in groupby(sorted(left, key=curve), key=curve):
        console.print(f"[bold]{workload}, {optimizer}[/]: what it will cost", highlight=False)
        rows = list(group)
        searches = ["search"] if any(work.study.branch.path for work in rows) else []
        headings = ("trials", "steps each", "examples", "ms a step", "evaluating", "at full budget")
        table = columns("batch size", *searches, *headings)
        for work in rows:
            plan = work.plan(workers)
            table.add_row(
                f"{work.study.batch_size:,}",
                *(work.study.branch.path for _ in searches),
                f"{work.trials:,}",
                f"{work.study.train_steps:,}",
                rounded(plan["examples"]),
                f"{1000 * work.cost.step:,.2f}",
                f"{plan['evaluation_share']:.0%}",
                duration(plan["seconds"]),
            )
        console.print(table)
    for batch_size, cost in {work.study.batch_size: work.cost for work in left if work.cost.parts}.items():
        console.print(f"Batch size {cost.composition(batch_size)}.", highlight=False)
    early = {
        "budget": "",
        "goal": " Trials that reach the goal or diverge stop early.",
        "race": " Trials that reach the goal, fall behind or diverge stop early.",
    }[left[0].study.stopping]
    console.print(
        f"\nAbout {duration(total)} at full budget with {workers} worker{'s' if workers > 1 else ''} on "
        f"{place}, by a few real steps.{early}",
        highlight=False,
    )
    search = left[0].study.search
    more = [*(["wider boxes"] if search.extend else []), *(["reruns"] if search.reruns else [])]
    if more:
        console.print(f"Not counted: {' and '.join(more)}, which depend on what is found.", highlight=False)
    if total > 600:
        console.print(f"To make it smaller: {smaller or ways_to_less([work.study for work in left])}.", highlight=False)
    console.print()


def ways_to_less(studies: Sequence[Study]) -> str:
    """What makes a sweep of these searches cost less."""
    search, epochs = studies[0].search, studies[0].budget.epochs
    sizes = sorted({study.batch_size for study in studies})
    ways = [
        *(["preset=quick"] if search.trials > QUICK_TRIALS else []),
        *([f"search.trials={search.trials // 2}"] if search.trials > 1 else []),
        *([f"batch_size={sizes[len(sizes) // 4]},{sizes[3 * len(sizes) // 4]}"] if len(sizes) > 2 else []),
        *([f"budget.epochs={epochs / 2:g}"] if epochs else []),
    ]
    return " or ".join([text for text in (", ".join(ways[:-1]), *ways[-1:]) if text]) or "a smaller model"


class SweepProgress:
    """A live bar for the search under way and one for the whole sweep; a line for each search that is done.

    Arguments:
        left: of the searches known by now.
    """

    def __init__(self, console: Console, left: Sequence[Work]) -> None:
        self.console = console
        self.known = [work.study for work in left]
        self.curves = {(study.name, study.optimizer) for study in self.known}
        self.total = sum(work.cost.trial(work.study) * work.study.search.trials for work in left)
        self.done_before = self.held = 0.0
        self.started = time.monotonic()
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[status]}"),
            console=console,
            transient=True,
        )
        self.current: TaskID | None = None
        self.study: Study | None = None
        self.overall = self.bars.add_task("whole sweep", total=max(self.total, 1e-9), status="")

    def __enter__(self) -> SweepProgress:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def watch(self, cost: Cost, study: Study, tuner: Tuner) -> None:
        """Show where a search stands; called at its start and after each of its trials."""
        wanted, weight = study.search.trials, cost.trial(study)
        if self.current is not None and study != self.study:  # the last one was given up: it does not fit
            self.bars.remove_task(self.current)
            self.current = None
        starting = self.current is None
        if self.current is None:
            self.current = self.bars.add_task(self._name(study), total=wanted, status="")
            self.study, self.study_started = study, time.monotonic()
            if study not in self.known:  # a stage or a rerun
                self.known.append(study)
                self.total += weight * wanted
        launched = tuner.feasible + tuner.infeasible
        fewest = tuner.steps_to_result
        best = "goal not reached yet" if fewest is None else f"best {fewest:,} steps"
        status = f"{launched} done, {tuner.feasible} feasible, {tuner.infeasible} infeasible, {best}"
        self.bars.update(self.current, completed=min(tuner.feasible, wanted), status=status)
        done = self.done_before + weight * min(tuner.feasible, wanted)
        if starting:
            self.held += done - self.done_before  # what an earlier run did took no time of this one
        elapsed, progress = time.monotonic() - self.started, done - self.held
        left = f"{duration(elapsed * (self.total - done) / progress)} left" if progress else "time left: measuring"
        self.bars.update(self.overall, total=self.total, completed=done, status=left)
        if tuner.complete:
            self.bars.remove_task(self.current)
            self.current = None
            self.done_before += weight * wanted
            took = duration(time.monotonic() - self.study_started)
            if study.branch.rule is not None:  # many and short: `note` sums them up
                return
            self.console.print(
                f"{self._name(study)}: {status.replace('goal not reached yet', 'goal not reached')}, {took}",
                highlight=False,
            )
            if tuner.feasible < wanted and study.branch.rerun is None:
                self.console.print(
                    f"[yellow]only {tuner.feasible} of {wanted} trials were feasible after {launched} launches "
                    "(search.max_launches); lower search.space.learning_rate.high or allow more launches.[/]"
                )

    def note(self, study: Study, text: str) -> None:
        """A line that stays."""
        self.console.print(f"{self._name(study)}: {text}", highlight=False)

    def _name(self, study: Study) -> str:
        prefix = f"{study.name}, {study.optimizer}, " if len(self.curves) > 1 else ""
        search = study.branch.path if study.branch.rule is None else str(study.branch)
        return f"{prefix}batch size {study.batch_size:,}{f', {search}' if search else ''}"


class JobsProgress:
    """Studies that are trained elsewhere: a live table on a terminal, else a line whenever one has got further."""

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
        """Show how far each is.

        Arguments:
            studies: each with the states of its jobs and the rows of `analysis.status.table` of its searches.
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
                self.console.print(f"{cells[0]}: {how}, {cells[2]} trials{best and f', best {best}'}", highlight=False)
        self.live.update(table, refresh=self.console.is_terminal)


def study_name(study: Study) -> str:
    """In a line of its own."""
    return f"{study.name}, {study.optimizer}, batch size {study.batch_size:,}"


class StudiesProgress:
    """A live bar over studies that are read or written; `done` says in words what came."""

    def __init__(self, console: Console, doing: str) -> None:
        self.doing, self.studies, self.rows = doing, 0, 0
        self.started = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[status]}"))
        self.bars = Progress(*columns, console=console, transient=True)

    def __enter__(self) -> StudiesProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def begin(self, studies: int) -> None:
        """So many are to come."""
        self.bars.start()
        self.task = self.bars.add_task(self.doing, total=studies, status="")

    def watch(self, study: object, rows: int = 0) -> None:
        """One more is done."""
        self.studies, self.rows = self.studies + 1, self.rows + rows
        self.bars.update(self.task, completed=self.studies, status=f"{study}")

    @property
    def done(self) -> str:
        """In words."""
        took = time.monotonic() - self.started
        return f"{self.studies:,} studies with {self.rows:,} measurements in {duration(took)}."


def results(console: Console, steps: pd.DataFrame, sentences: Sequence[str], warnings: Sequence[str]) -> None:
    """The table of steps to result (frame of `analysis.steps_to_result.table`), what was found, and what to know first.

    Arguments:
        warnings: the heaviest first, of which a terminal has room for some.
    """
    several = len(steps[["goal_metric", "goal_threshold"]].drop_duplicates()) > 1
    for key, curve in steps.groupby(["workload", "optimizer", "goal_metric", "goal_threshold"]):
        workload, optimizer, metric, threshold = key
        goal = f" to {metric} < {threshold:g}" if several else ""
        console.print(f"\n[bold]{workload}, {optimizer}{goal}[/]", highlight=False)
        # The schedule's own parameters are in the report; here the line must fit a terminal.
        known = OPTIMIZERS[optimizer if optimizer in OPTIMIZERS else "momentum"].hyperparameters
        tuned = [name for name in known if name in curve and curve[name].notna().any()]
        counts = ["complete", *(["incomplete"] if curve["incomplete"].any() else []), "infeasible"]
        varied = [name for name in tuned if name in tuned[:2] or curve[name].nunique() > 1]
        table = columns("batch size", "steps", "examples", *varied, *counts)
        for row in curve.to_dict("records"):
            table.add_row(
                f"{row['batch_size']:,}",
                _steps_or_why_not(row),
                f"{row['examples_to_result']:,}" if row["reached"] else "",
                *(f"{row[name]:.4g}" if row["reached"] else "" for name in varied),
                *(str(row[count]) for count in counts),
            )
        console.print(table)
    console.print()
    if (~steps["reached"] & (steps["complete"] > 0)).any():
        console.print("> n: the goal was not reached within the budget of n steps.", highlight=False)
    for sentence in sentences:
        console.print(sentence, style="bold", highlight=False)
    if warnings:
        console.print()
    for warning in warnings[:SHOWN_WARNINGS]:
        console.print(f"Warning: {warning}", style="yellow", markup=False, highlight=False)
    if (more := len(warnings) - SHOWN_WARNINGS) > 0:
        console.print(f"{more} more warning{'s' if more > 1 else ''} in the report.", style="yellow", highlight=False)


def _steps_or_why_not(row: Mapping[str, Any]) -> str:
    if row["reached"]:
        return f"{row['steps_to_result']:,}"
    return f"> {row['train_steps']:,}" if row["complete"] else "diverged" if row["infeasible"] else "unknown"


def rules(console: Console, moved: pd.DataFrame, sentences: Sequence[str]) -> None:
    """What moving by rules lost (frame of `analysis.rules.table`), a table a base, and what was found."""
    for key, part in moved.groupby(["workload", "optimizer", "base_batch_size"], sort=False):
        workload, optimizer, base = key
        console.print(
            f"\n[bold]{workload}, {optimizer}, tuned at batch size {base:,}[/]: times the steps of tuning anew"
        )
        names = list(dict.fromkeys(part["rule"]))
        table = columns("batch size", "tuned steps", *names)
        for size, rows in part.groupby("batch_size"):
            by_rule = rows.set_index("rule")
            steps = by_rule["tuned_steps"].iloc[0]
            cells = [_lost(by_rule.loc[name]) if name in by_rule.index else "" for name in names]
            table.add_row(f"{size:,}", "" if pd.isna(steps) else f"{steps:,.0f}", *cells)
        console.print(table)
    if moved["missed"].any():
        console.print("\n(n): so many seeds missed the goal; >: more than half did.", highlight=False)
    console.print()
    for sentence in sentences:
        console.print(sentence, style="bold", highlight=False)


def advice(
    console: Console, overview: pd.DataFrame, alternatives: pd.DataFrame, sentences: Sequence[str], notes: Sequence[str]
) -> None:
    """Which batch size to train with on which devices (frames of words of `analysis.split_tables`)."""
    for frame in (overview, alternatives):
        console.print(f"\n[bold]{frame.attrs['title']}[/]", highlight=False)
        table = columns(*frame.columns, left=[""])
        for row in frame.itertuples(index=False):
            table.add_row(*row, style="bold" if row[-1].startswith(("fastest", "cheapest")) else None)
        console.print(table)
    console.print()
    for sentence in sentences:
        console.print(sentence, style="bold", highlight=False)
    console.print()
    for note in notes:
        console.print(note, style="dim", markup=False, highlight=False)


def _lost(row: pd.Series) -> str:
    lost = (
        "" if pd.isna(row["steps_lost"]) else ">" if row["steps_lost"] == float("inf") else f"{row['steps_lost']:.2f}"
    )
    return f"{lost} ({row['missed']})" if row["missed"] else lost


def status(console: Console, progress: pd.DataFrame) -> None:
    """How far every study is (frame of `analysis.status.table`)."""
    for (workload, optimizer), curve in progress.groupby(["workload", "optimizer"]):
        console.print(f"[bold]{workload}, {optimizer}[/]", highlight=False)
        searches = ["search"] if curve["search"].any() else []
        headings = ("state", "complete", "infeasible", "best so far", "time left")
        table = columns("batch size", *searches, *headings, left=("search", "state"))
        for row in curve.to_dict("records"):
            left = row["seconds_left"]
            table.add_row(
                f"{row['batch_size']:,}",
                *(row[name] for name in searches),
                row["state"] + (f" in {row['processes']} processes" if row["processes"] > 1 else ""),
                f"{row['complete']} of {row['wanted']}",
                str(row["infeasible"]),
                "" if pd.isna(row["best"]) else f"{row['best']:,} steps",
                "" if row["state"] == "done" else "unknown" if pd.isna(left) else duration(left),
            )
        console.print(table)
        console.print()
    if doubled := progress["doubled"].sum():
        console.print(
            f"Discarded: {doubled} trial{'s' if doubled > 1 else ''} that a process which was taken for dead made too.",
            highlight=False,
        )
    left, unknown = progress["seconds_left"].sum(), progress["seconds_left"].isna().sum()
    about = f"About {duration(left)} left" if left else "Time left: unknown" if unknown else "Done"
    more = f"; of {unknown} search{'es' if unknown > 1 else ''} no trial has ended yet" if unknown else ""
    console.print(f"{about}{more}.", highlight=False)


def columns(*headings: str, left: Sequence[str] = ()) -> Table:
    """An empty table without lines, its columns right-aligned but for those named in `left`."""
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading.replace("_", " "), justify="left" if heading in left else "right")
    return table


def rounded(count: float) -> str:
    """A count as a person reads it.

    >>> rounded(4_096_000), rounded(900)
    ('4.1 M', '900')
    """
    for size, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= size:
            return f"{count / size:,.2g}{unit}" if count < 99.5 * size else f"{count / size:,.0f}{unit}"
    return f"{count:,.0f}"


def duration(seconds: float) -> str:
    """Seconds as a person says them.

    >>> duration(75), duration(5400)
    ('1.2 min', '1.5 h')
    """
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
