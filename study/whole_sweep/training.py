"""Trains the missing searches of a sweep, and tells observers."""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from rich.console import Console

from analysis.counting import Branch
from study import store, warn
from study.config.jobs import Job
from study.devices.imports import imported_aside
from study.engine.cost import Work
from study.observers.base import Guarded, Observer, Search, Sweep
from study.observers.events import finished_of, search_of, state_of
from study.records import Curve, Study
from study.search import stages
from study.search.optuna_storage import Storage
from study.search.rounds import Pool
from study.search.tuner import Tuner
from study.store.claims import refuse_held
from study.terminal.progress import SweepProgress
from study.training.lines import run_all
from study.training.search import SearchRun, Watcher
from study.whole_sweep import costs as of_costs
from study.whole_sweep.asked import on_file
from study.workers.pool import TrialTooLarge, Workers

SOON = "scipy.stats"
"""The first trials need it; imported while the workers start, because they would wait for it."""
LATER = "analysis.report.build"
"""The report, with Matplotlib; imported while the workers train."""


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
    with of_costs.workers_for(jobs, config_dir) as workers:
        importlib.import_module(SOON)
        costs, too_large = of_costs.measured([(job, job.study) for job in jobs], workers, console)
        left = of_costs.left_of(costs)
        of_costs.show(jobs, costs, left, workers, console)
        warn.of_order(costs, workers.count, console)
        waiting = [_waiting(job, storages[job.results]) for job, _ in costs]
        fit = [job for job, _ in costs]
        unfit = [job for job in jobs if job not in fit]
        too_large += train_searches(waiting, left, workers, command, console, unfit, waits, observers)
    of_costs.raise_any(too_large)


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
        of_costs.show_notes(workers, console)
    return too_large


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
        of_costs.show_notes(self._workers, self._console)

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
