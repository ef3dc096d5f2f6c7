"""The trunk of a branched measurement: the tuned run of a small batch size, and its checkpoints.

The plain engine trains it again, because its state fits every engine. Each checkpoint is on file with its SHA-256; a
file that is gone is trained again and must have the same one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from analysis.labels import about, listed, short_count
from analysis.question.branches import Start
from study.branch.request import BranchRequest
from study.config.jobs import Job
from study.devices import generators
from study.devices.machine import git_commit, versions
from study.devices.placement import Placement
from study.engine.run import Run
from study.engine.timing import update_seconds
from study.engine.trial import checkpoints
from study.engine.trial.evaluation import measure as measure_errors
from study.errors import Failed, UsageError
from study.records import COMMAND, PLAIN, Study, Trial
from study.store import now, trunks
from study.transfer import recorded
from study.tuned.runs import (
    asked,
    begun,
    check_unchanged,
    checksum,
    conditions,
    of_each_curve,
    retrain,
    spread,
    tuned_search,
)
from workloads.base import Workload
from workloads.user_code.importing import importable

LOSS = "cross_entropy_error"
"""The error by which branches are compared, where a workload has it: it is smoother than a share of wrong answers."""


@dataclass(frozen=True)
class Trunk:
    """A run to branch from.

    Attributes:
        job: of its batch size.
        study: the search that its configuration is from, in the arithmetic of the plain engine.
        steps: the checkpoints, increasing.
    """

    job: Job
    study: Study
    trial: Trial
    steps: Sequence[int]

    @property
    def name(self) -> str:
        return f"{self.study.name} with {self.study.optimizer} at batch size {self.study.batch_size:,}"

    @property
    def question(self) -> dict[str, Any]:
        """All that its checkpoints depend on, as plain data."""
        return conditions(self.study, self.trial)

    @property
    def folder(self) -> Path:
        return trunks.trunk_folder(self.job.results, self.study, checksum(self.question))

    @property
    def missing(self) -> list[int]:
        """The checkpoints that are not on file."""
        known = trunks.checkpoints(self.folder)
        return [step for step in self.steps if step not in known or not self._file(step).exists()]

    def _file(self, step: int) -> Path:
        return trunks.checkpoint_file(self.folder, step)

    def start(self, step: int) -> Start:
        """The checkpoint at a step, for the searches that start there."""
        known = trunks.checkpoints(self.folder)[step]
        return Start(step, known["checksum"], self.study.batch_size, self.study.train_steps)

    def latest(self, before: int, run: Run) -> checkpoints.Checkpoint | None:
        """The latest readable checkpoint on file before a step, for a run to resume."""
        for step, known in sorted(trunks.checkpoints(self.folder).items(), reverse=True):
            if step < before and self._file(step).exists():
                found = checkpoints.read(self._file(step).read_bytes(), run.data.device)
                if found is not None and checkpoints.checksum(found) == known["checksum"]:
                    return found
        return None


def find(
    results: Path,
    request: BranchRequest,
    placement: Placement,
    workload: str | None = None,
    optimizer: str | None = None,
    batch_size: int | None = None,
    config_dir: Path | None = None,
) -> tuple[list[Trunk], list[str]]:
    """(a trunk of each workload and optimizer, why there is none for others); writes nothing.

    Arguments:
        batch_size: of the trunks; None: the smallest complete one of each curve.

    Raises:
        Refused: there is no trunk, the results cannot be read, or code or data changed since the sweep.
    """
    importable(config_dir)  # creating a Study imports its optimizer
    studies = [each for each in recorded(results, "branch") if not each.batch_schedule]  # a trunk has one batch size
    studies = asked(studies, workload, optimizer)
    jobs = [Job(study, results, placement) for study in studies]
    found, left_out = of_each_curve(jobs, batch_size, partial(_trunk, request=request))
    if not found:
        raise UsageError(f"{' '.join(left_out)} Finish the sweep, or choose another batch_size.")
    check_unchanged([trunk.job for trunk in found], "branch from it")
    return found, left_out


def _trunk(job: Job, request: BranchRequest) -> Trunk | None:
    """The tuned run of a batch size; None if it is not completely searched."""
    if job.study.arithmetic == COMMAND:
        raise UsageError(
            f"{job.study.name} is a command, whose checkpoints are its own; branch from a workload in Python."
        )
    if (found := tuned_search(job)) is None:
        return None
    best, curve = found
    steps = request.checkpoints
    if isinstance(steps, int):
        steps = tuple(spread(best, curve, steps))
    study = replace(best.study, arithmetic=PLAIN)
    if beyond := [step for step in steps if step > study.train_steps]:
        raise UsageError(
            f"checkpoints must be at most {study.train_steps:,}, the step budget of {study.name} at batch size "
            f"{study.batch_size:,}, but got {listed(beyond)}."
        )
    return Trunk(job, study, curve.trial, steps)


def loss_metric(study: Study, workload: Workload) -> str:
    """The validation error by which branches are compared: the cross entropy, or else the error of the goal."""
    known = list(workload.errors)
    return f"val/{LOSS if LOSS in known else study.goal.error if study.goal.error in known else known[0]}"


def cost(trunk: Trunk, device: str) -> str:
    """What the missing checkpoints take, as text; measured on a run of its own."""
    run, last = begun(trunk.study, trunk.trial, device), trunk.missing[-1]
    first = trunk.latest(trunk.missing[0], run)
    steps = last - (first.step if first else 0)
    with generators.restored(run.data.device):
        seconds = steps * update_seconds(run) if steps else 0.0
    return f"{short_count(steps * trunk.study.batch_size)} gradients of examples, {about(seconds)}"


def prepare(trunk: Trunk, device: str, console: Console) -> None:
    """Train a trunk up to its last missing checkpoint; each is on file as soon as it is reached.

    Raises:
        StoreError: a checkpoint cannot be written.
        Failed: the run diverges, its state fits in no checkpoint, or a checkpoint differs from the recorded one.
    """
    if not (missing := trunk.missing):
        return
    run = begun(trunk.study, trunk.trial, device)
    with generators.restored(run.data.device), console.status("") as status:
        if (first := trunk.latest(missing[0], run)) is not None and not run.resume(first):
            run = begun(trunk.study, trunk.trial, device)
        for step in missing:
            status.update(f"Training the trunk to step {step:,} ...")
            retrain(run, step, trunk.name, "Branch from another batch_size.")
            _save(trunk, run)


def _holds_all(found: checkpoints.Checkpoint, run: Run) -> bool:
    """Whether another run goes on from a checkpoint with all state of the optimizer; if not, a warning says why."""
    if "seal" not in found.state:  # the optimizer has no other state than its checkpoint
        return True
    return Run(run.study, run.workload, run.data, run.trial, run.micro_batch).resume(found)


def _save(trunk: Trunk, run: Run) -> None:
    """Put the checkpoint at the present step on file, with its checksum and the loss there."""
    content = run.packed()
    found = checkpoints.read(content, run.data.device) if content else None
    if not content or found is None or not _holds_all(found, run):
        raise Failed(
            f"{trunk.name} cannot be branched from: no checkpoint can hold the state of its model and optimizer. Keep "
            "it in buffers of the model and in optimizer.state, as numbers and tensors."
        )
    made, recorded_ = checkpoints.checksum(found), trunks.checkpoints(trunk.folder).get(run.step, {}).get("checksum")
    if recorded_ not in (None, made):
        raise Failed(
            f"{trunk.name}, trained again, has another checkpoint at step {run.step} ({made[:12]}… in place of "
            f"{recorded_[:12]}…): this machine or its versions compute other last bits. Remove {trunk.folder} to "
            "branch from the new run."
        )
    metric = loss_metric(run.study, run.workload)
    [errors] = measure_errors([run.log], "val", partial(run.predict, averaged=False))
    record = {
        "step": run.step,
        "examples_seen": run.step * run.study.batch_size,
        "checksum": made,
        "metric": metric,
        "loss": errors[metric.partition("/")[2]],
        "made": now(),
        "versions": versions(("torch", "numpy")),
        "git_commit": git_commit(),
    }
    trunks.save_checkpoint(trunk.folder, trunk.question, record, content)
