"""Says before training what a sweep can show: the factor between optimizers, and the width of its estimates."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from study.commands.report import STUDIES

if TYPE_CHECKING:
    import pandas as pd

    from study.config.jobs import Job


def sentences(jobs: Sequence[Job]) -> list[str]:
    """What the sweep of each workload can show, with its own noise where it has finished trials."""
    from analysis.estimates import power

    said = []
    workloads = {job.study.name for job in jobs}
    for (name, _), group in groupby(sorted(jobs, key=_place), key=_place):
        mine = list(group)
        steps = _steps(mine[0])
        noises = {job.study.series: power.noise(job.study.search.sampler, _curve(steps, job)) for job in mine}
        sizes = sorted({job.study.batch_size for job in mine})
        subject = f"{name}: " if len(workloads) > 1 else ""
        said += power.sentences(vars(mine[0].study.search), sizes, noises, subject)
    options = jobs[0].options
    if options.until is not None:
        more = f"up to {options.until_cost:g} times the trainings"
        said.append(f"search.until='{options.until}' goes on from there, {more}.")
    return said


def _place(job: Job) -> tuple[str, str]:
    return job.study.name, str(job.results)


def _steps(job: Job) -> pd.DataFrame | None:
    """The estimates of the trials on file; None if there are none."""
    if not any(job.results.glob(STUDIES)):
        return None
    from analysis.report.build import estimates  # imports Matplotlib

    return estimates(job.results)


def _curve(steps: pd.DataFrame | None, job: Job) -> pd.DataFrame | None:
    if steps is None:
        return None
    return steps[(steps["workload"] == job.study.name) & (steps["optimizer"] == job.study.series)]
