"""Trains a tuned configuration with fresh seeds up to a fixed step, to test whether its mean error is below a goal.

Each certificate is one more search in the folder of its batch size (`analysis.counting.Branch`): one configuration,
with one trial per seed. Its seeds are those of no search, rerun or transfer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from study import whole_sweep
from study.config.jobs import Job
from study.devices.placement import Placement
from study.errors import UsageError
from study.records import Study
from study.search import stages
from study.search.tuner import Tuner
from study.transfer import Transfers, check, recorded
from study.tuned.runs import asked, of_each_curve
from workloads.user_code.importing import importable

SEEDS = 20


@dataclass(frozen=True)
class CertifyRequest:
    """Which tuned configurations to certify, and how.

    Attributes:
        seeds: trainings of each configuration.
        batch_size: of the tuned configurations; None: the smallest complete one of each curve.
        steps: the step at which errors are tested; None: the steps of the tuned configuration (`tuned_steps`).
        workload, optimizer: only these; None: each.
    """

    seeds: int = SEEDS
    batch_size: int | None = None
    steps: int | None = None
    workload: str | None = None
    optimizer: str | None = None

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise UsageError(f"--seeds must be at least 2, since one has no standard error, but got {self.seeds}.")
        if self.steps is not None and self.steps < 1:
            raise UsageError(f"--steps must be at least 1, but got {self.steps}.")


def certificates(
    results: Path, request: CertifyRequest, placement: Placement, config_dir: Path | None
) -> tuple[list[Transfers], list[str]]:
    """(the trainings that certify a tuned configuration of each curve, why there are none of others); writes nothing.

    Raises:
        Refused: there is no tuned configuration, the results cannot be read or continued, data are missing, or the step
            is beyond the budget.
    """
    importable(config_dir)  # creating a Study imports its optimizer
    studies = asked(recorded(results, "certify"), request.workload, request.optimizer)
    jobs = [Job(study, results, placement) for study in studies]
    chosen, left_out = of_each_curve(jobs, request.batch_size, lambda job: job if whole_sweep.tuned(job) else None)
    if not chosen:
        raise UsageError(f"{' '.join(left_out)} Finish the sweep, choose a looser goal, or another --batch-size.")
    found = [_certified(job, request) for job in whole_sweep.settled(chosen)]
    check(found)
    return found, left_out


def _certified(job: Job, request: CertifyRequest) -> Transfers:
    best = whole_sweep.tuned(job)
    assert best is not None
    steps = request.steps or tuned_steps(job, best)
    budget = best.study.train_steps
    if steps > budget:
        raise UsageError(
            f"--steps must be at most the budget of {best.study.name} at batch size {best.study.batch_size:,}, "
            f"{budget:,} steps, but got {steps:,}."
        )
    return Transfers(job, [trainings(best, steps, request.seeds)])


def trainings(best: Tuner, steps: int, seeds: int) -> Study:
    """The search that trains a tuned configuration with fresh seeds, each up to this step and whatever its errors are.

    The schedule is that of the tuned run, whose budget may be longer.
    """
    trial = best.tuned
    assert trial is not None
    branch = best.study.branch._replace(rerun=trial.index, certify=steps)
    whole = replace(best.study, stopping="budget", evaluation=replace(best.study.evaluation, exact=True))
    return stages.trained_again(whole, trial.hyperparameters, seeds, branch, best.study.search.fresh_data)


def tuned_steps(job: Job, best: Tuner) -> int:
    """The median steps to the goal over the fresh seeds of the sweep, the higher of the middle two; if there are none
    or half of them missed the goal, the fewest steps of the search."""
    assert best.steps_to_result is not None
    if not best.study.search.reruns:
        return best.steps_to_result
    again = stages.rerun(best)
    ended = Tuner(again, whole_sweep.on_file(job)(again)).outcomes.values()
    steps: Sequence[float] = sorted(outcome.result or math.inf for outcome in ended)
    middle = steps[len(steps) // 2] if steps else math.inf
    return int(middle) if math.isfinite(middle) else best.steps_to_result
