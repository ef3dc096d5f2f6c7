"""The jobs of a command: checked against the machine and the results folder, and those with missing trials."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from study import store
from study.config import fingerprint, preflight
from study.config.jobs import Job, parse_jobs
from study.devices import folder
from study.engine import older
from study.search import stages
from study.search.tuner import Tuner


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
