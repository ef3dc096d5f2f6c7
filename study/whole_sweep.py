"""A whole sweep: which of its studies are missing, what they would cost, and their training one after another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from analysis.counting import ADAPTIVE_SAMPLERS
from study import store
from study.config import preflight
from study.config.jobs import Job, parse_jobs
from study.devices.placement import place
from study.engine import older
from study.engine.arithmetic import fused
from study.engine.cost import Cost, Work
from study.run import run
from study.search import stages
from study.search.optuna_storage import Storage
from study.store.claims import refuse_held
from study.terminal import costs as cost_table
from study.terminal.progress import SweepProgress
from study.workers.pool import TrialTooLarge, Workers
from workloads.base import importable

FINGERPRINT_TOLERANCE = 1e-3


def jobs_of(overrides: Sequence[str], config_dir: Path | None, here: bool = True) -> tuple[list[Job], list[Job]]:
    """(every job that the overrides ask for, those that are not done); nothing is written.

    Arguments:
        here: this machine trains them; else what depends on the machine is left as asked.

    Raises:
        UsageError, DataError: the overrides ask for something impossible, or the data cannot be had.
        StoreError: a results folder holds another question or cannot be written.
    """
    importable(config_dir)  # studies import their optimizers when they are made
    jobs = ready(parse_jobs(overrides, config_dir), here)
    return jobs, missing(jobs)


def ready(jobs: Sequence[Job], here: bool = True) -> list[Job]:
    """The jobs as this machine, or one that is not known yet, can train them; raises as `jobs_of` does."""
    jobs = preflight.materialise(jobs, here)
    for folder in {job.results: None for job in jobs}:
        store.check(folder, [job.study for job in jobs if job.results == folder])
    for job in jobs:
        if (why := refusal(job)) and stages.next_search(job.study, on_file(job)) is not None:
            raise store.StoreError(why)
    return jobs


def refusal(job: Job) -> str | None:
    """Why what is on file of a job must not be continued, and the cure; None if it can, or nothing is there."""
    held = store.held(job.results, job.study)
    why = older.refusal(job.study, held[1]) if held else None
    if why is None:
        return None
    name = f"{job.study.name} with {job.study.optimizer} at batch size {job.study.batch_size:,}"
    return (
        f"{job.results} holds trials of {name} that can be reported but not continued: {why}; choose another "
        "results=DIR."
    )


def missing(jobs: Sequence[Job]) -> list[Job]:
    """Those that are not done, by what is on file."""
    return [job for job in jobs if stages.next_search(job.study, on_file(job)) is not None]


def on_file(job: Job) -> stages.Load:
    """How the curves of a job's searches are had."""
    return lambda search: store.load(store.study_folder(job.results, search))


def train(jobs: Sequence[Job], config_dir: Path | None, command: str, console: Console) -> None:
    """Train what is missing of these jobs, showing what it will cost and how far it is.

    Raises:
        TrialTooLarge: after everything that does fit, with a line for each study that does not.
    """
    for job in jobs:
        search = stages.next_search(job.study, on_file(job))
        if search is not None and job.shards == 1:  # before minutes are spent on measuring
            refuse_held(store.study_folder(job.results, search))
    storages = {results: _storage(job) for results, job in {job.results: job for job in jobs}.items()}
    with workers_for(jobs, config_dir) as workers:
        costs, too_large = _measured(jobs, workers, console)
        left = _left(costs)
        cost_table.show(console, left, workers.engine.place, workers.count)
        adaptive = [job.study.search.sampler for job, _ in costs if job.study.search.sampler in ADAPTIVE_SAMPLERS]
        if adaptive and (workers.count > 1 or any(cost.lanes > 1 for _, cost in costs)):
            console.print(
                f"search={adaptive[0]} learns from trials as they finish, several at once here: another run may "
                "propose others. engine=serial engine.workers=1 is reproducible.\n",
                highlight=False,
            )
        warn_of_devices(costs, console)
        warn_of_lanes(jobs, console)
        warn_of_changes(jobs, console)
        for job, _ in costs:
            for known in stages.planned(job.study):
                store.announce(job.results, known)
        with SweepProgress(console, left) as progress:
            for job, cost in costs:
                try:
                    while (search := stages.next_search(job.study, on_file(job))) is not None:
                        watch, storage = partial(progress.watch, cost), storages[job.results]
                        shares = job.shards, job.shard
                        run(search, workers, job.results, watch, command, storage, *shares, fingerprint=job.fingerprint)
                        for said in workers.short:
                            console.print(f"[yellow]{said} The other workers trained it.[/]", highlight=False)
                except TrialTooLarge as error:
                    too_large.append(error)
    raise_any(too_large)


def warn_of_devices(costs: Sequence[tuple[Job, Cost]], console: Console) -> None:
    """Trials are the same bit for bit on one kind and number of devices only."""
    for job, _ in costs:
        begun = store.held(job.results, job.study)
        runs = begun[1] if begun else []
        mine = place(job.engine.device.partition(":")[0], job.engine.devices or 1)
        kinds = {place(run["device"].partition(":")[0], run.get("devices", 1)) for run in runs if "device" in run}
        if other := kinds - {mine}:
            console.print(
                f"[yellow]{job.results} holds trials that were trained on {' and '.join(sorted(other))}; those on "
                f"{mine} agree with them to a tolerance only.[/]\n",
                highlight=False,
            )
            return


def warn_of_changes(jobs: Sequence[Job], console: Console) -> None:
    """A question names its workload's code, which may have been edited since trials of it were made."""
    for (results, name), known in {(job.results, job.study.name): job.fingerprint for job in jobs}.items():
        held = store.fingerprint(results, name)
        changed = [what for what in held.keys() & known.keys() if not _alike(held[what], known[what])]
        if changed:
            told = ", ".join(f"{what} {held[what]:.6g}, now {known[what]:.6g}" for what in sorted(changed))
            console.print(
                f"[yellow]{results} holds trials of another {name} ({told}): its code or data were changed. Choose "
                "another results=DIR, or undo the change.[/]\n",
                highlight=False,
            )


def _alike(one: float, other: float) -> bool:
    """But for rounding, which differs from machine to machine."""
    return math.isclose(one, other, rel_tol=FINGERPRINT_TOLERANCE) or (math.isnan(one) and math.isnan(other))


def warn_of_lanes(jobs: Sequence[Job], console: Console) -> None:
    """Trials that are asked to be fused may be of a kind that cannot be."""
    alone = [job.study for job in jobs if job.engine.name == "lanes" and not fused(job.study)]
    if alone:
        told = ", ".join(dict.fromkeys(f"{study.name} with {study.optimizer}" for study in alone))
        console.print(
            f"[yellow]engine=lanes, but {told} cannot be fused at batch size "
            f"{', '.join(f'{size:,}' for size in sorted({study.batch_size for study in alone}))}: trials are trained "
            "one at a time (docs/methods.md, Arithmetic).[/]\n",
            highlight=False,
        )


def _storage(job: Job) -> Storage:
    try:
        return Storage(job.storage, job.results)
    except ValueError as error:
        raise store.StoreError(str(error)) from error


def plan(jobs: Sequence[Job], config_dir: Path | None, console: Console | None) -> list[dict[str, Any]]:
    """What training these jobs would cost, by a few real steps, shown if there is a console; nothing is written.

    Returns:
        For each search that is known by now: workload, optimizer, batch_size, search (empty for the first of a study),
        the trials that it still wants and their sum of steps, examples and seconds at full budget, the seconds that a
        step takes, and the share of evaluations.
    """
    with workers_for(jobs, config_dir) as workers:
        costs, too_large = _measured(jobs, workers, console)
        left = _left(costs)
        if console is not None:
            cost_table.show(console, left, workers.engine.place, workers.count)
            warn_of_lanes(jobs, console)
    raise_any(too_large)
    return [work.plan(workers.count) for work in left]


def _left(costs: Sequence[tuple[Job, Cost]]) -> list[Work]:
    """What is not on file yet."""
    return [
        Work(tuner.study, cost, max(1, tuner.study.search.trials - tuner.feasible))
        for job, cost in costs
        for tuner in stages.missing(job.study, on_file(job))
    ]


def workers_for(jobs: Sequence[Job], config_dir: Path | None) -> Workers:
    """The pool that trains them all."""
    fewest = min((job.engine for job in jobs), key=lambda engine: engine.workers or 1)
    return Workers(fewest, config_dir)


def _measured(
    jobs: Sequence[Job], workers: Workers, console: Console | None
) -> tuple[list[tuple[Job, Cost]], list[TrialTooLarge]]:
    """(what a trial of each job costs, why those of the others cannot be trained)."""
    with console.status("Measuring what it will cost ...") if console else nullcontext():
        found = workers.measure([job.study for job in jobs])
    costs = [(job, cost) for job, cost in zip(jobs, found, strict=True) if isinstance(cost, Cost)]
    return costs, [error for error in found if isinstance(error, TrialTooLarge)]


def raise_any(too_large: Sequence[TrialTooLarge]) -> None:
    """Say at the end what could not be trained."""
    if too_large:
        raise TrialTooLarge("\n".join(map(str, too_large)))
