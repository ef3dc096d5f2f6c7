"""Chooses tuned runs of a results folder, and trains them again in the plain engine."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from study import store, whole_sweep
from study.config import fingerprint
from study.config.jobs import Job
from study.data import streaming
from study.devices.placement import settle_arithmetic
from study.engine.run import Run
from study.errors import Failed, UsageError
from study.records import Curve, Study, Trial
from study.search import stages
from study.search.tuner import Tuner
from workloads.suggest import suggest
from workloads.user_code.importing import build

T = TypeVar("T")


def asked(studies: Sequence[Study], workload: str | None, optimizer: str | None) -> list[Study]:
    """The studies of this workload and optimizer; None: of each. Raises UsageError if there is none."""
    for what, wanted, name_of in (
        ("workload", workload, lambda study: study.name),
        ("optimizer", optimizer, lambda study: study.series),
    ):
        there = {name_of(study) for study in studies}
        if wanted is not None and wanted not in there:
            raise UsageError(f"no {what} {wanted!r} in these results{suggest(wanted, there)}")
        studies = [study for study in studies if wanted in (None, name_of(study))]
    return list(studies)


def of_each_curve(
    jobs: Sequence[Job], batch_size: int | None, make: Callable[[Job], T | None]
) -> tuple[list[T], list[str]]:
    """(what `make` finds first at the batch sizes of each workload and optimizer, why there is nothing for others).

    Arguments:
        jobs: by workload, optimizer and batch size.
        batch_size: the only one to look at; None: the smallest with a result.
    """
    found: list[T] = []
    left_out: list[str] = []
    for (workload, optimizer), curve in groupby(jobs, key=lambda job: (job.study.name, job.study.series)):
        curve_jobs = list(curve)
        wanted = [job for job in curve_jobs if batch_size in (None, job.study.batch_size)]
        one = next((made for job in wanted if (made := make(job)) is not None), None)
        if not wanted:
            sizes = ", ".join(f"{job.study.batch_size:,}" for job in curve_jobs)
            left_out.append(
                f"{workload} with {optimizer}: batch size {batch_size:,} was not swept; there are: {sizes}."
            )
        elif one is None:
            which = "no batch size" if batch_size is None else f"batch size {batch_size:,}"
            verb = "is" if batch_size is None else "is not"
            left_out.append(f"{workload} with {optimizer}: {which} {verb} completely tuned to its goal.")
        else:
            found.append(one)
    return found, left_out


def tuned_search(job: Job) -> tuple[Tuner, Curve] | None:
    """(the search whose best trial is the tuned one of a batch size, what this trial recorded); None if the batch size
    is not completely searched. If no trial reached the goal, it is the trial with the least error."""
    load = whole_sweep.on_file(job)
    made = stages.last_stages(job.study, load)
    best = stages.fastest(made) or made[-1]
    trial = best.tuned or next(iter(best.best_trials), None)
    if not made[-1].complete or trial is None:
        return None
    return best, next(each for each in load(best.study) if each.trial.index == trial.index)


def spread(best: Tuner, curve: Curve, points: int) -> list[int]:
    """At most `points` recorded evaluations of a trial, spread evenly up to its goal, or up to its end if it
    missed the goal."""
    until = best.outcomes[curve.trial.index].result
    steps = [int(step) for step in curve.steps if until is None or step <= until]
    places = {round(place) for place in np.linspace(len(steps) - 1, 0, points)}  # one: the last
    return [steps[place] for place in sorted(places)]


def conditions(study: Study, trial: Trial) -> dict[str, Any]:
    """All that the weights along a trial depend on, as plain data."""
    beside = ("search", "stopping", "race_factor", "race_over", "goal", "evaluation")
    asked = {key: value for key, value in study.question().items() if key not in beside}
    return asked | {"trial": asdict(trial)}


def checksum(question: Mapping[str, Any]) -> str:
    """SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()


def begun(study: Study, trial: Trial, device: str) -> Run:
    """A trial at step 0, in the plain engine. Raises UsageError if its training data are a stream."""
    settle_arithmetic()
    workload = build(study.workload)
    data = streaming.of_workload(workload, device, gigabytes=None, loaders=0)
    run = Run(study, workload, data, trial, study.micro_batch)
    if run.stream() is not None:
        raise UsageError(f"the training data of {study.name} are a stream, which cannot be read at random.")
    return run


def retrain(run: Run, step: int, name: str, cure: str) -> None:
    """Train a run that a sweep has trained before up to a step. Raises Failed if it diverges, which it did not then."""
    run.advance(step - run.step)
    if run.log.first_bad_step is not None:
        raise Failed(
            f"{name} diverged at step {run.log.first_bad_step} when it was trained again, but not in the sweep: its "
            f"result hangs on the last bits. {cure}"
        )


def check_unchanged(jobs: Sequence[Job], to_do: str = "measure its gradients") -> None:
    """Raise StoreError if code, data or initial weights of a workload differ from those of its sweep."""
    for (results, name, _), changed in fingerprint.changes(whole_sweep.settled(jobs)).items():
        raise store.StoreError(f"{results} holds trials of another {name}: {changed}; undo the change to {to_do}.")
