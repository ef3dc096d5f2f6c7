"""Chooses what a batch-size schedule is verified against, and the studies that train each arm with fresh seeds."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.counting import Branch
from analysis.labels import listed
from analysis.question.batch_schedules import PARAMETERS
from analysis.question.branches import TUNED, VERIFIED, VERIFIED_FOLDER
from study import whole_sweep
from study.config.jobs import Job
from study.devices.placement import Placement
from study.errors import UsageError
from study.records import Study
from study.search import stages
from study.search.transfer_rules import RULES, Move, Values, usual
from study.search.tuner import Tuner
from study.settings import Budget
from study.transfer import Transfers, recorded
from workloads.suggest import suggest
from workloads.user_code.importing import importable

SEEDS = 8
MOVES = ("constant", "square_root", "linear")
"""The rules that may move the learning rate of the schedule to the large batch size."""


@dataclass(frozen=True)
class VerifyRequest:
    """What to verify, and against what.

    Attributes:
        seeds: of each arm.
        rule: moves the learning rate to a large batch size that was not tuned itself; None: the usual one
            for the optimizer.
        large: the large batch size; None: the last one of the schedule.
        workload, optimizer: only these curves; None: each.
    """

    seeds: int = SEEDS
    rule: str | None = None
    large: int | None = None
    workload: str | None = None
    optimizer: str | None = None

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise UsageError(f"--seeds must be at least 2, for an interval, but got {self.seeds}.")
        if self.rule not in (None, *MOVES):
            raise UsageError(f"unknown rule {self.rule!r}{suggest(str(self.rule), MOVES)}")


def arms(
    results: Path, request: VerifyRequest, placement: Placement, config_dir: Path | None, mix: bool
) -> tuple[list[Transfers], list[str]]:
    """(the arms of each schedule of a finished sweep, why others cannot be verified); writes nothing.

    Raises:
        Refused: nothing can be verified, the results cannot be read, data are missing, or code or data changed.
    """
    importable(config_dir)  # creating a Study imports its optimizer
    jobs = whole_sweep.settled([Job(study, results, placement, mix=mix) for study in recorded(results, "verify")])
    chosen = [job for job in jobs if job.study.batch_schedule and _asked(job.study, request)]
    if not chosen:
        there = sorted({f"{job.study.name} with {job.study.series}" for job in jobs})
        raise UsageError(
            f"{results} has no curve with a batch-size schedule that was asked for, but {listed(there)}; sweep with "
            "batch_schedule=step, ramp or doubling first."
        )
    whole_sweep.check_changes(chosen, lambda _: True)
    found: list[Transfers] = []
    left_out = []
    for job in chosen:
        tuner = whole_sweep.tuned(job)
        if tuner is None:
            left_out.append(f"{_name(job.study)}: its search is not complete or did not reach the goal.")
        else:
            found += _settled(job, list(_of_schedule(job, tuner, jobs, request)))
    if not found:
        raise UsageError(f"{' '.join(left_out)} Finish the sweep, or choose a looser goal.")
    return found, left_out


def _asked(study: Study, request: VerifyRequest) -> bool:
    pairs = ((request.workload, study.name), (request.optimizer, study.series))
    return all(wanted in (None, got) for wanted, got in pairs)


def _name(study: Study) -> str:
    return f"{study.name} with {study.series} from batch size {study.batch_size:,}"


def _settled(job: Job, studies: Sequence[Study]) -> list[Transfers]:
    """The arms as jobs of a results folder of their own, with the settings of this machine."""
    own = job.results / VERIFIED_FOLDER / job.study.name / job.study.series / str(job.study.batch_size)
    made = [replace(job, study=study, results=own, together=()) for study in studies]
    return [Transfers(each, [each.study]) for each in whole_sweep.settled(made)]


def _of_schedule(job: Job, tuner: Tuner, jobs: Collection[Job], request: VerifyRequest) -> Iterator[Study]:
    """The arms of one schedule: constantly small, constantly large, and the schedule itself."""
    study, trial = job.study, tuner.tuned
    assert trial is not None
    scheduled = tuner.study.of_trial(trial)
    budget = scheduled.first_steps * study.batch_size
    values = {name: value for name, value in trial.hyperparameters.items() if name not in PARAMETERS}
    large = request.large or scheduled.batch_sizes[-1]
    if large <= study.batch_size:
        raise UsageError(
            f"{_name(study)}: the large batch size must be above its first one, but got {large:,}; give --large B."
        )
    rule = request.rule or usual(study.optimizer)
    for size, moved_by in ((study.batch_size, "constant"), (large, rule)):
        own = _own(jobs, study, size)
        move = Move(study.batch_size, size, study.workload["train_examples"], -(-budget // size))
        moved = RULES[moved_by].move(values, move)
        yield _arm(study.constant, size, budget, own or moved, TUNED if own else moved_by, trial.index, request.seeds)
    yield _arm(study, study.batch_size, budget, trial.hyperparameters, TUNED, trial.index, request.seeds)


def _own(jobs: Collection[Job], study: Study, size: int) -> Values | None:
    """The tuned configuration of a constant batch size, if the same results folder has its complete search."""
    alike = (study.name, study.optimizer, size)
    for job in jobs:
        if not job.study.batch_schedule and (job.study.name, job.study.series, job.study.batch_size) == alike:
            tuner = whole_sweep.tuned(job)
            if tuner is not None and tuner.tuned is not None:
                return tuner.tuned.hyperparameters
    return None


def _arm(study: Study, size: int, budget: int, values: Mapping[str, float], rule: str, trial: int, seeds: int) -> Study:
    """One configuration, trained with fresh seeds for `budget` examples. Every arm has the same seeds."""
    sized = replace(study, batch_size=size, budget=Budget(epochs=0, steps=-(-budget // size)), micro_batch=None)
    branch = Branch(rerun=trial, rule=f"{VERIFIED}{rule}", base=study.batch_size)
    again = stages.trained_again(sized, values, seeds, branch)
    # Errors at the end are a part of the measurement, so that no trial may stop at its goal.
    evaluation = replace(again.evaluation, exact=True, every=None)
    return replace(again, stopping="budget", evaluation=evaluation)
