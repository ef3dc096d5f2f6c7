"""Chooses the tuned runs of a results folder along which gradient noise is measured, and where along them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from study import store
from study.config.jobs import Job
from study.devices.placement import Placement, usable
from study.engine.run import Run
from study.errors import UsageError
from study.noise.one_step import BATCHES, EXAMPLES
from study.noise.point import BLOCKS
from study.records import Curve, Study
from study.store import noise
from study.transfer import recorded
from study.tuned.runs import (
    asked,
    begun,
    check_unchanged,
    checksum,
    conditions,
    of_each_curve,
    spread,
    tuned_search,
)
from workloads.user_code.importing import importable

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


def _run(job: Job, request: NoiseRequest) -> TunedRun | None:
    """The tuned run of a batch size; None if it is not tuned to its goal."""
    found = tuned_search(job)
    if found is None or found[0].steps_to_result is None:
        return None
    best, curve = found
    study = replace(best.study.of_trial(curve.trial), arithmetic="plain")
    steps = spread(best, curve, request.points)
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
