"""A whole sweep: finds the missing studies, measures their cost, and trains them."""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from analysis.counting import Branch
from study import store, warn
from study.config import fingerprint, preflight
from study.config.jobs import Job, parse_jobs
from study.devices import folder
from study.devices.imports import imported_aside
from study.engine import older
from study.engine.cost import Cost, Work
from study.observers.base import Guarded, Observer, Search, Sweep
from study.observers.events import finished_of, search_of, state_of
from study.records import Curve, Study
from study.search import stages
from study.search.optuna_storage import Storage
from study.search.rounds import Pool
from study.search.tuner import Tuner
from study.store.claims import refuse_held
from study.terminal import costs as cost_table
from study.terminal.progress import SweepProgress
from study.training.lines import run_all
from study.training.search import SearchRun, Watcher
from study.workers import predicted
from study.workers.pool import TrialTooLarge, Workers
from study.workers.process import workload_key

T = TypeVar("T")

SOON = "scipy.stats"
"""The first trials need it; imported while the workers start, because they would wait for it."""
LATER = "analysis.report.build"
"""The report, with Matplotlib; imported while the workers train."""
COMPLETE = "Nothing is left to train."
"""What a plan says of a sweep without missing trials."""


def jobs_here(overrides: Sequence[str], config_dir: Path | None, mix: bool = False) -> tuple[list[Job], list[Job]]:
    """(all jobs of these overrides, the jobs with missing trials) for training on this machine; writes nothing.

    Arguments:
        mix: train on beside recorded trials of other code or data.

    Raises:
        Refused: the configuration is invalid, data are missing, or a results folder holds another question or trials of
            other code or data, or cannot be written.
    """
    jobs = settled(_parsed(overrides, config_dir, mix))
    return jobs, missing(jobs)


def jobs_elsewhere(overrides: Sequence[str], config_dir: Path | None, mix: bool = False) -> tuple[list[Job], list[Job]]:
    """`jobs_here` for other machines: settings that depend on the machine stay as configured."""
    jobs = _parsed(overrides, config_dir, mix)
    with folder.of_user():
        jobs = preflight.judge(jobs)
    check_results(jobs)
    return jobs, missing(jobs)


def _parsed(overrides: Sequence[str], config_dir: Path | None, mix: bool) -> list[Job]:
    with folder.kept():
        return [replace(job, mix=mix) for job in parse_jobs(overrides, config_dir)]


def settled(jobs: Sequence[Job]) -> list[Job]:
    """The jobs with all settings that depend on this machine filled in. Raises Refused as `jobs_here` does."""
    with folder.of_user():
        jobs = preflight.settle(jobs)
    check_results(jobs)
    return jobs


def check_results(jobs: Sequence[Job]) -> None:
    """Raise StoreError if a results folder holds another question, or cannot be written or continued."""
    for results in {job.results: None for job in jobs}:
        store.check(results, [job.study for job in jobs if job.results == results])
    for job in jobs:
        if (why := refusal(job)) and stages.next_search(job.study, on_file(job)) is not None:
            raise store.StoreError(why)
    check_changes(jobs, lambda job: bool(missing([job])))


def check_changes(jobs: Sequence[Job], trains: Callable[[Job], bool]) -> None:
    """Raise StoreError if a job that `trains` has other code, data or initial weights than the trials on file.

    A job that mixes is not checked.
    """
    changed = fingerprint.changes(job for job in jobs if not job.mix)
    for job in jobs:
        key = job.results, job.study.name, job.study.series
        if key in changed and not job.mix and trains(job):
            raise store.StoreError(
                f"{job.results} holds trials of another {job.study.name}: {changed[key]}; choose another results=DIR, "
                "undo the change, or train on beside these trials with --mix."
            )


def refusal(job: Job) -> str | None:
    """Why the recorded trials of a job cannot be continued, with the cure; None if they can or there are none."""
    recorded = store.recorded(job.results, job.study)
    why = older.refusal(job.study, recorded.runs) if recorded else None
    if why is None:
        return None
    name = f"{job.study.name} with {job.study.series} at batch size {job.study.batch_size:,}"
    return (
        f"{job.results} holds trials of {name} that can be reported but not continued: {why}; choose another "
        "results=DIR."
    )


def missing(jobs: Sequence[Job]) -> list[Job]:
    """The jobs whose searches are not all complete on file."""
    return [job for job in jobs if stages.next_search(job.study, on_file(job)) is not None]


def on_file(job: Job) -> stages.Load:
    """The function that reads the finished curves of a search of this job."""
    return lambda search: store.load(store.study_folder(job.results, search))


def tuned(job: Job) -> Tuner | None:
    """The search that holds the tuned configuration of a job; None if it is not complete or missed the goal."""
    return stages.tuned(job.study, on_file(job))


@dataclass(frozen=True)
class Waiting:
    """The searches of one job that must be trained.

    Attributes:
        searches: in order. The results of one search may decide the next, so each is requested when the one before is
            complete.
        known: searches that no result decides. All get a folder before training starts, so that reports name them.
        storage: of Optuna's trials; None: in memory.
        summary: a line for the terminal after all searches; empty: each search prints its own line.
    """

    job: Job
    searches: Iterable[Study]
    known: Sequence[Study]
    storage: Storage | None = None
    summary: str = ""


def train(
    jobs: Sequence[Job],
    config_dir: Path | None,
    command: str,
    console: Console,
    said: Sequence[str] = (),
    waits: bool = True,
    observers: Sequence[Observer] = (),
) -> None:
    """Train the missing searches of these jobs; shows their cost and progress.

    Arguments:
        said: lines to print before.
        waits: wait for the trials of other processes; False: return when nothing is left to train now.
        observers: are told, too.

    Raises:
        StoreError: a file cannot be written, or another process trains a study.
        TrialTooLarge: some studies do not fit in memory; raised after all other studies are trained.
    """
    for job in jobs:
        search = stages.next_search(job.study, on_file(job))
        if search is not None and job.shards == 1:  # refuse before measuring, which takes minutes
            refuse_held(store.study_folder(job.results, search))
    storages = {results: _storage(job) for results, job in {job.results: job for job in jobs}.items()}
    for line in said:
        console.print(line, markup=False)
    with workers_for(jobs, config_dir) as workers:
        importlib.import_module(SOON)
        costs, too_large = measured([(job, job.study) for job in jobs], workers, console)
        left = _left(costs)
        _show_cost(jobs, costs, left, workers, console)
        warn.of_order(costs, workers.count, console)
        waiting = [_waiting(job, storages[job.results]) for job, _ in costs]
        fit = [job for job, _ in costs]
        unfit = [job for job in jobs if job not in fit]
        too_large += train_searches(waiting, left, workers, command, console, unfit, waits, observers)
    raise_any(too_large)


def _waiting(job: Job, storage: Storage) -> Waiting:
    remaining = stages.remaining(job.study, on_file(job))
    return Waiting(job, searches=remaining, known=stages.planned(job.study), storage=storage)


def train_searches(
    waiting: Sequence[Waiting],
    left: Sequence[Work],
    workers: Workers,
    command: str,
    console: Console,
    unfit: Sequence[Job] = (),
    waits: bool = True,
    observers: Sequence[Observer] = (),
) -> list[TrialTooLarge]:
    """Train searches and show their progress; returns one error per job that does not fit in memory.

    Arguments:
        left: the work that is known now, for the progress bar.
        unfit: jobs whose trials do not fit in memory; the others do not wait for them.
        waits, observers: as for `train`.

    Raises:
        StoreError: a file cannot be written, or another process trains a study.
    """
    jobs = [each.job for each in waiting]
    warn.of_torch(console)
    for warn_of in (warn.of_devices, warn.of_changes, warn.of_precision):
        warn_of(jobs, console)
    with SweepProgress(console) as progress, imported_aside(LATER) as begin_import:
        guarded = Guarded([progress, *observers], partial(console.print, style="yellow", markup=False))
        relay = _Relay(guarded, workers, console)
        relay.begin(command, jobs, [work.study for work in left])
        pools = _Pools(unfit, waits)
        lines = [_line(each, command, progress, pools) for each in waiting]
        too_large = run_all(lines, workers, relay, waits, _chores(waiting, begin_import))
        for reason in chain(*workers.too_small.values()):
            console.print(f"{reason} The other workers trained it.", style="yellow", markup=False)
        _show_notes(workers, console)
    return too_large


def _show_notes(workers: Workers, console: Console) -> None:
    while workers.notes:
        console.print(f"{workers.notes.pop(0)}\n", style="yellow", markup=False)


class _Relay(Watcher):
    """Tells observers what happens, and shows the notes of the workers."""

    def __init__(self, observers: Observer, workers: Workers, console: Console) -> None:
        self._observers, self._workers, self._console = observers, workers, console

    def begin(self, command: str, jobs: Sequence[Job], left: Sequence[Study]) -> None:
        folders = {(job.study.name, job.study.series, job.study.batch_size): job.results for job in jobs}
        searches = [self._search(each, folders[each.name, each.series, each.batch_size]) for each in left]
        self._observers.begin(Sweep(command, searches))

    def search(self, search: SearchRun, tuner: Tuner) -> None:
        self._observers.trial(self._search(search.study, search.results), state_of(tuner), None)

    def trial(self, search: SearchRun, tuner: Tuner, curve: Curve) -> None:
        finished = finished_of(tuner, curve, len(tuner.outcomes))
        self._observers.trial(self._search(search.study, search.results), state_of(tuner), finished)

    def tick(self, search: SearchRun, steps: Mapping[int, int]) -> None:
        self._observers.tick(self._search(search.study, search.results), steps)
        _show_notes(self._workers, self._console)

    def _search(self, study: Study, results: Path) -> Search:
        return search_of(study, results, self._workers.cost_of(study).trial(study))


def _chores(waiting: Sequence[Waiting], last: Callable[[], None]) -> Iterator[None]:
    """What need not be done before the workers train, in small steps."""
    for each in waiting:
        for known in each.known:
            store.announce(each.job.results, known)
            yield
    last()
    yield


class _Pools:
    """The pools of the searches that `search=refine` trains: one for each curve, repetition and step budget."""

    def __init__(self, unfit: Sequence[Job], waits: bool) -> None:
        self._waits = waits
        self._unfit = {(job.results, job.study.name, job.study.series, job.study.batch_size) for job in unfit}
        self._made: dict[tuple[Path, str, str, Branch, int | None], Pool] = {}

    def of(self, job: Job, search: Study) -> Pool | None:
        """The pool of a search; None if its sampler proposes without one."""
        if not search.search.refines:
            return None
        pools, size = search.search.pool, search.batch_size
        key = (job.results, search.name, search.series, search.branch, None if pools else size)
        if key not in self._made:
            sizes = job.together if pools and job.together else (size,)
            fit = [each for each in sizes if (*key[:3], each) not in self._unfit]
            self._made[key] = Pool([replace(search, batch_size=each) for each in fit], job.results, self._waits)
        return self._made[key]


def _line(each: Waiting, command: str, progress: SweepProgress, pools: _Pools) -> Iterator[SearchRun]:
    """The searches of one job, as they are trained."""
    job = each.job
    for search in each.searches:
        yield SearchRun(
            search,
            job.results,
            command=command,
            storage=each.storage,
            shards=job.shards,
            first_shard=job.shard,
            fingerprint=job.fingerprint,
            notes=job.notes,
            pool=pools.of(job, search),
        )
    if each.summary:
        progress.note(search_of(job.study, job.results, 0.0), each.summary)


def _storage(job: Job) -> Storage:
    try:
        return Storage(job.storage, job.results)
    except ValueError as error:
        raise store.StoreError(str(error)) from error


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
        left = _left(costs)
        if console is not None:
            _show_cost(jobs, costs, left, workers, console)
            warn.of_precision(jobs, console)
    raise_any(too_large)
    return [work.plan(workers.count) for work in left]


def _show_cost(
    jobs: Sequence[Job], costs: Sequence[tuple[Job, Cost]], left: Sequence[Work], workers: Workers, console: Console
) -> None:
    """Show the cost of the work that is `left`, and what may be expensive or unexpected about it."""
    cost_table.show(console, left, workers.placement.place, workers.count)
    warn.of_checkpoints(costs, workers.count, console)
    warn.of_notes(jobs, console)
    warn.of_lanes(jobs, console)


def _left(costs: Sequence[tuple[Job, Cost]]) -> list[Work]:
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
        _show_notes(workers, console)
    costs = [(what, cost) for (what, _), cost in zip(work, found, strict=True) if isinstance(cost, Cost)]
    return costs, [error for error in found if isinstance(error, TrialTooLarge)]


def raise_any(too_large: Sequence[TrialTooLarge]) -> None:
    """Raise one TrialTooLarge with the messages of all errors, if there are any."""
    if too_large:
        raise TrialTooLarge("\n".join(map(str, too_large)))
