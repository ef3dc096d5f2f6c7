"""`search.until`: after a sweep, decide what to add until its intervals are narrow enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from analysis.question.until import FACTOR, Until
from study.errors import UsageError

if TYPE_CHECKING:
    from study.config.jobs import Job


def check(jobs: Sequence[Job]) -> None:
    """Refuse a comparison that the sweep cannot make. Raises UsageError."""
    from analysis.estimates.pairs import FEWEST

    until = jobs[0].options.until
    if until is None or until.kind != FACTOR:
        return
    optimizers = {job.study.series for job in jobs if not job.study.batch_schedule}
    sizes = {job.study.batch_size for job in jobs}
    if len(optimizers) < 2 or len(sizes) < FEWEST:
        raise UsageError(
            f"search.until='{until}' compares optimizers over {FEWEST} batch sizes or more, but got "
            f"{len(optimizers)} and {len(sizes)}; sweep optimizer=sgd,momentum, or give search.until='width "
            f"{until.value:g}' for S(B) itself."
        )


def further(jobs: Sequence[Job], first: Sequence[Job], console: Console) -> list[str]:
    """The overrides that continue a sweep; empty if its intervals are narrow enough, or the stated cost is reached.

    Only files decide, so that an interrupted sweep goes on in the same way.

    Arguments:
        jobs: the jobs of the sweep, which have ended.
        first: the jobs as the command line asks for them.
    """
    until = jobs[0].options.until
    if until is None:
        return []
    from analysis.estimates.until import override, trainings

    wanted: dict[str, int] = {}
    for results in {job.results: None for job in jobs}:
        mine = [job for job in jobs if job.results == results]
        for key, value in _added(mine, until, console).items():
            wanted[key] = max(value, wanted.get(key, 0))
    if not wanted:
        return []
    search, limit = first[0].study.search, first[0].options.until_cost
    after, before = trainings(vars(jobs[0].study.search) | wanted), trainings(vars(search))
    overrides = ["{}={}".format(*override(search.sampler, key, value)) for key, value in wanted.items()]
    if after > limit * before:
        console.print(
            f"Not added: {' '.join(overrides)} would be {after} trainings at each batch size, and "
            f"search.until_cost={limit:g} allows {limit:g} times the first {before}. Raise search.until_cost to go on.",
            markup=False,
        )
        return []
    console.print(f"Next: {' '.join(overrides)}.", markup=False)
    return overrides


def _added(jobs: Sequence[Job], until: Until, console: Console) -> dict[str, int]:
    """What the sweep in one results folder lacks; says how wide its intervals are."""
    from analysis.estimates.until import more, widest
    from analysis.report.build import read
    from study import store

    results = jobs[0].results
    tables = read([results]).tables
    steps, statements = tables["steps_to_result"], tables["compare"]
    workloads, optimizers = {job.study.name for job in jobs}, {job.study.series for job in jobs}
    steps = steps[steps["workload"].isin(workloads) & steps["optimizer"].isin(optimizers)]
    pairs = statements["a"].isin(optimizers) & statements["b"].isin(optimizers)
    statements = statements[statements["workload"].isin(workloads) & pairs]
    wide = widest(until, steps, statements)
    what = "the widest comparison over all batch sizes" if until.kind == FACTOR else "the widest interval of S(B)"
    console.print(
        f"\nsearch.until='{until}' is {'met' if wide <= until.value else 'not met yet'}: {what} spans a factor of "
        f"{wide:.3g} to either side.",
        markup=False,
    )
    if wide <= until.value:
        return {}
    # A search that missed the goal gets nothing more, so its question on file stays as it was.
    searches = [
        store.extended(job.study.search, recorded.question["search"])
        for job in jobs
        if (recorded := store.recorded(results, job.study))
    ]
    most = {key: max(getattr(search, key) for search in searches) for key in ("trials", "reruns", "added")}
    return more({"sampler": searches[0].sampler, **most}, steps)
