"""Chooses the tuned runs of a results folder along which gradient noise is measured, and retrains them."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from study import store, whole_sweep
from study.config import fingerprint
from study.config.jobs import Job
from study.data import streaming
from study.devices.placement import Placement, settle_arithmetic, usable
from study.engine.serial import Run
from study.errors import Failed, UsageError
from study.noise.one_step import BATCHES, EXAMPLES
from study.noise.point import BLOCKS
from study.records import Curve, Study, Trial
from study.search import stages
from study.search.tuner import Tuner
from study.store import noise
from study.transfer import recorded
from workloads.base import build, importable
from workloads.suggest import suggest

T = TypeVar("T")

NOISE, ONE_STEP = "noise", "one_step"
"""What is measured along a run, and the folder of its points."""
GRADIENTS = 2048
"""Examples whose gradients are measured at a point, unless the user says how many."""
FEWEST = 2
"""Examples in a block. With one, batches and single examples would be the same."""
LARGEST, PART = 4096, 4
"""Unless the user names them, batches of one step have powers of 4 examples up to this many, and up to a quarter of the
training set: larger ones share most of their examples."""


@dataclass(frozen=True)
class NoiseRequest:
    """What to measure along each tuned run.

    Attributes:
        batch_size: of the tuned runs; None: the smallest complete one of each curve.
        points: the number of recorded evaluations to measure at, spread evenly up to the goal.
        examples: the number of training examples whose gradients are measured at each point, or whose losses after one
            step against each batch; None: GRADIENTS, or `study.noise.one_step.EXAMPLES`.
        workload, optimizer: only these; None: each.
        one_step: measure the loss after one step in place of the gradient noise.
        step_batch_sizes: of these steps; empty: powers of 4.
    """

    batch_size: int | None = None
    points: int = 6
    examples: int | None = None
    workload: str | None = None
    optimizer: str | None = None
    one_step: bool = False
    step_batch_sizes: Sequence[int] = ()

    def __post_init__(self) -> None:
        if self.points < 1:
            raise UsageError(f"--points must be at least 1, but got {self.points}.")
        least, why = (1, "") if self.one_step else (FEWEST * BLOCKS, f", {FEWEST} in each of {BLOCKS} blocks")
        if self.examples is not None and self.examples < least:
            raise UsageError(f"--examples must be at least {least}{why}, but got {self.examples}.")
        if self.step_batch_sizes and not self.one_step:
            raise UsageError("--step-batch-sizes are those of --one-step; give both.")

    @property
    def kind(self) -> str:
        """NOISE or ONE_STEP."""
        return ONE_STEP if self.one_step else NOISE


@dataclass(frozen=True)
class TunedRun:
    """The tuned trial of one batch size, and where along it to measure.

    Attributes:
        job: of its batch size.
        study: the search that it is from, in the arithmetic of the plain engine.
        curve: what the trial recorded.
        steps: the evaluations to measure at, increasing.
        kind: NOISE or ONE_STEP.
        settings: how it is measured: `blocks` and `examples_per_block`; or `batches`,
            `loss_examples_per_batch`, `batch_sizes`.
    """

    job: Job
    study: Study
    curve: Curve
    steps: Sequence[int]
    kind: str
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.study.name} with {self.study.series} at batch size {self.study.batch_size:,}"

    @property
    def folder(self) -> Path:
        """The folder of its points, in that of the study of its batch size."""
        return store.study_folder(self.job.results, self.job.study) / self.kind

    @property
    def question(self) -> dict[str, Any]:
        """All that the measurements depend on, as plain data."""
        return conditions(self.study, self.curve.trial) | {**self.settings}

    @property
    def checksum(self) -> str:
        """SHA-256 of the question."""
        return checksum(self.question)

    @property
    def missing(self) -> list[int]:
        """The steps that are not measured yet."""
        known = noise.points(self.folder, self.checksum)
        return [step for step in self.steps if step not in known]

    def recorded_error(self, step: int) -> float:
        """The goal's metric as the sweep measured it; NaN where it did not."""
        [at] = np.flatnonzero(self.curve.steps == step)
        return float(self.curve.errors[self.study.goal.metric][at])

    def begin(self, device: str) -> Run:
        """The trial at step 0, in the plain engine."""
        return begun(self.study, self.curve.trial, device)


def tuned_runs(
    results: Path, request: NoiseRequest, device: str = "auto", config_dir: Path | None = None
) -> tuple[list[TunedRun], list[str]]:
    """(a tuned run of each workload and optimizer, why there is none for others); writes nothing.

    Raises:
        Refused: there is no tuned run, the results cannot be read, or code or data changed since the sweep.
    """
    importable(config_dir)  # creating a Study imports its optimizer
    placement = Placement(device=usable(device, "--device"))
    studies = asked(recorded(results, "noise"), request.workload, request.optimizer)
    jobs = [Job(study, results, placement) for study in studies]
    found, left_out = of_each_curve(jobs, request.batch_size, lambda job: _run(job, request))
    if not found:
        raise UsageError(f"{' '.join(left_out)} Finish the sweep, choose a looser goal, or another --batch-size.")
    check_unchanged([run.job for run in found if run.missing])
    return found, left_out


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
        wanted = [job for job in curve if batch_size in (None, job.study.batch_size)]
        one = next((made for job in wanted if (made := make(job)) is not None), None)
        if one is None:
            which = "no batch size" if batch_size is None else f"batch size {batch_size:,}"
            verb = "is" if batch_size is None else "is not"
            left_out.append(f"{workload} with {optimizer}: {which} {verb} completely tuned to its goal.")
        else:
            found.append(one)
    return found, left_out


def _run(job: Job, request: NoiseRequest) -> TunedRun | None:
    """The tuned run of a batch size; None if it is not tuned to its goal."""
    found = tuned_search(job)
    if found is None or found[0].steps_to_result is None:
        return None
    best, curve = found
    study, steps = (
        replace(best.study.of_trial(curve.trial), arithmetic="plain"),
        spread(curve, reached(best, curve), request.points),
    )
    return TunedRun(job, study, curve, steps, request.kind, _settings(study, request))


def _settings(study: Study, request: NoiseRequest) -> dict[str, Any]:
    """How a run is measured. Raises UsageError if there are too few training examples."""
    there = study.workload["train_examples"]
    examples = min(request.examples or (GRADIENTS if request.kind == NOISE else EXAMPLES), there)
    if request.kind == NOISE:
        if examples // BLOCKS < FEWEST:
            raise UsageError(f"noise needs {FEWEST * BLOCKS} training examples, but {study.name} has {there}.")
        return {"blocks": BLOCKS, "examples_per_block": examples // BLOCKS}
    sizes = sorted({*request.step_batch_sizes})
    if not sizes:
        sizes = [size for size in (4**power for power in range(1, 12)) if size <= min(LARGEST, there // PART)]
    if len(sizes) < 3 or sizes[0] < 1 or sizes[-1] > there // 2:
        raise UsageError(
            f"--one-step needs three batch sizes or more from 1 to half of the {there:,} training examples of "
            f"{study.name}, but got {', '.join(map(str, sizes)) or 'none'}; give --step-batch-sizes."
        )
    return {"batches": BATCHES, "loss_examples_per_batch": examples, "batch_sizes": sizes}


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


def reached(best: Tuner, curve: Curve) -> int | None:
    """The step at which a trial of a search reached the goal; None if it missed it.

    With `search=refine` the tuned trial need not be the fastest one of its search.
    """
    return best.outcomes[curve.trial.index].result


def spread(curve: Curve, until: int | None, points: int) -> list[int]:
    """At most `points` recorded evaluations of a trial, spread evenly up to a step; None: up to its end."""
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
