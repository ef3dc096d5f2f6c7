"""Chooses the tuned runs of a results folder: one batch size of each workload and optimizer."""

from collections.abc import Sequence
from itertools import groupby

from study import whole_sweep
from study.config.jobs import Job
from study.errors import UsageError
from study.records import Study
from study.search import stages
from study.search.tuner import Tuner
from workloads.suggest import suggest


def asked(studies: Sequence[Study], workload: str | None, optimizer: str | None) -> list[Study]:
    """The studies of this workload and optimizer; None: of each. Raises UsageError if there is none."""
    for what, wanted, name_of in (
        ("workload", workload, lambda study: study.name),
        ("optimizer", optimizer, lambda study: study.optimizer),
    ):
        there = {name_of(study) for study in studies}
        if wanted is not None and wanted not in there:
            raise UsageError(f"no {what} {wanted!r} in these results{suggest(wanted, there)}")
        studies = [study for study in studies if wanted in (None, name_of(study))]
    return list(studies)


def tuned(job: Job) -> Tuner | None:
    """The search that holds the tuned configuration of a job; None if it is not complete or missed the goal."""
    made = stages.last_stages(job.study, whole_sweep.on_file(job))
    best = stages.fastest(made) if made[-1].complete else None
    return None if best is None or best.tuned is None or best.steps_to_result is None else best


def one_of_each_curve(jobs: Sequence[Job], batch_size: int | None) -> tuple[list[tuple[Job, Tuner]], list[str]]:
    """(the job and the search of a tuned configuration of each curve, why there is none for others).

    Arguments:
        jobs: by workload, optimizer and batch size.
        batch_size: of the tuned configurations; None: the smallest complete one of each curve.

    Raises:
        UsageError: no curve has one.
    """
    found: list[tuple[Job, Tuner]] = []
    left_out: list[str] = []
    for (workload, optimizer), curve in groupby(jobs, key=lambda job: (job.study.name, job.study.optimizer)):
        wanted = [job for job in curve if batch_size in (None, job.study.batch_size)]
        pair = next(((job, best) for job in wanted if (best := tuned(job)) is not None), None)
        if pair is None:
            which = "no batch size" if batch_size is None else f"batch size {batch_size:,}"
            verb = "is" if batch_size is None else "is not"
            left_out.append(f"{workload} with {optimizer}: {which} {verb} completely tuned to its goal.")
        else:
            found.append(pair)
    if not found:
        raise UsageError(f"{' '.join(left_out)} Finish the sweep, choose a looser goal, or another --batch-size.")
    return found, left_out
