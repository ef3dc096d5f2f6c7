"""What the searches of a sweep cost, measured from a few real steps."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from study import warn
from study.config.jobs import Job
from study.engine.cost import Cost, Work
from study.records import Study
from study.search import stages
from study.terminal import costs as cost_table
from study.whole_sweep.asked import on_file
from study.workers import predicted
from study.workers.pool import TrialTooLarge, Workers
from study.workers.process import workload_key

T = TypeVar("T")


def plan(jobs: Sequence[Job], config_dir: Path | None, console: Console | None) -> list[dict[str, Any]]:
    """Measure the cost of these jobs from a few real steps; writes nothing. A console shows the cost.

    Large batch sizes, whose steps take long, are predicted from smaller ones (`study.workers.predicted`).

    Returns:
        `study.engine.cost.Work.plan` of each search that is known now.

    Raises:
        TrialTooLarge: some of the measured studies do not fit in memory; predicted ones are not tried.
    """
    with workers_for(jobs, config_dir) as workers:
        measure = partial(predicted.costs, measure=workers.measure, devices=workers.placement.devices or 1)
        costs, too_large = measured([(job, job.study) for job in jobs], workers, console, measure)
        left = left_of(costs)
        if console is not None:
            show(jobs, costs, left, workers, console)
            warn.of_precision(jobs, console)
    raise_any(too_large)
    return [work.plan(workers.count) for work in left]


def show(
    jobs: Sequence[Job], costs: Sequence[tuple[Job, Cost]], left: Sequence[Work], workers: Workers, console: Console
) -> None:
    """Show the cost of the work that is `left`, and what may be expensive or unexpected about it."""
    cost_table.show(console, left, workers.placement.place, workers.count)
    warn.of_checkpoints(costs, workers.count, console)
    warn.of_notes(jobs, console)
    warn.of_lanes(jobs, console)


def left_of(costs: Sequence[tuple[Job, Cost]]) -> list[Work]:
    """The trials of each known search that are not on file."""
    return [
        Work(tuner.study, cost.of_trials(on_file(job)(tuner.study)), max(1, tuner.study.search.trials - tuner.done))
        for job, cost in costs
        for tuner in stages.missing(job.study, on_file(job))
    ]


def workers_for(jobs: Sequence[Job], config_dir: Path | None) -> Workers:
    """One pool for all jobs: as many workers as the job with the fewest allows."""
    fewest = min((job.placement for job in jobs), key=lambda placement: placement.workers or 1)
    data = {workload_key(job.study): job.fingerprint for job in jobs}
    return Workers(fewest, config_dir, data)


def measured(
    work: Sequence[tuple[T, Study]],
    workers: Workers,
    console: Console | None,
    measure: Callable[[Sequence[Study]], Sequence[Cost | TrialTooLarge]] | None = None,
) -> tuple[list[tuple[T, Cost]], list[TrialTooLarge]]:
    """Measure the cost of a trial of each study.

    Arguments:
        work: pairs of an item to train and the study to measure for it.
        measure: studies -> cost of each; None: `workers.measure`.

    Returns:
        Pairs of item and cost, and one error per study that does not fit in memory.
    """
    with console.status("Measuring the cost ...") if console else nullcontext():
        found = (measure or workers.measure)([study for _, study in work])
    if console:
        show_notes(workers, console)
    costs = [(what, cost) for (what, _), cost in zip(work, found, strict=True) if isinstance(cost, Cost)]
    return costs, [error for error in found if isinstance(error, TrialTooLarge)]


def raise_any(too_large: Sequence[TrialTooLarge]) -> None:
    """Raise one TrialTooLarge with the messages of all errors, if there are any."""
    if too_large:
        raise TrialTooLarge("\n".join(map(str, too_large)))


def show_notes(workers: Workers, console: Console) -> None:
    """Show what the workers have to say since the last call."""
    while workers.notes:
        console.print(f"{workers.notes.pop(0)}\n", style="yellow", markup=False)
