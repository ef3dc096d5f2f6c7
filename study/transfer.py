"""Tuned configurations of some batch sizes, moved to the others by rules and trained there: what tuning anew saves.

Each is one more search below the batch size that it was moved to (`analysis.counting.Branch`): of one point, with as
many trials as seeds, which are the same for every rule and base. The batch size's own tuned configuration is trained
with them, too: the best of a search was lucky, and a rule must not be blamed for that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path

from rich.console import Console

from analysis.counting import RECORDED, TUNED, Branch
from study import store, whole_sweep
from study.config import preflight
from study.config.jobs import Job
from study.devices.placement import Placement
from study.engine.cost import Cost, Work
from study.errors import UsageError
from study.records import NUMERICS_VERSION, Study
from study.run import run
from study.search import stages
from study.search.transfer_rules import RULES, Move, Values
from study.search.tuner import Tuner
from study.terminal import costs as cost_table
from study.terminal.progress import SweepProgress
from study.workers.pool import TrialTooLarge
from workloads.base import build, importable
from workloads.suggest import suggest

SEEDS = 10
SMALLER = "--seeds 5, one --base-batch-size or fewer --rules"


@dataclass(frozen=True)
class Asked:
    """What is to be moved, and how.

    Attributes:
        bases: batch sizes whose tuned configurations are moved; none: of each curve the smallest that reached the goal,
            from where every move is upwards, and the middle one, from where half of them are downwards.
        rules: names; none: all that have something to change.
        seeds: trainings of each moved configuration.
    """

    bases: Sequence[int] = ()
    rules: Sequence[str] = ()
    seeds: int = SEEDS

    def __post_init__(self) -> None:
        for name in self.rules:
            if name not in RULES:
                raise UsageError(f"unknown rule {name!r}{suggest(name, RULES)}")
        if self.seeds < 1:
            raise UsageError(f"--seeds must be at least 1, but got {self.seeds}.")


@dataclass(frozen=True)
class Arrivals:
    """What arrives at one batch size: `job`, its own study, and every configuration to be trained there."""

    job: Job
    studies: Sequence[Study]

    @property
    def missing(self) -> list[Study]:
        """Those whose seeds have not all been trained."""
        load = whole_sweep.on_file(self.job)
        return [study for study in self.studies if not Tuner(study, load(study)).complete]


def arrivals(
    results: Path, asked: Asked, engine: Placement, config_dir: Path | None = None
) -> tuple[list[Arrivals], list[str]]:
    """(what is to be trained at each batch size of a finished sweep, what was left out and why); nothing is written.

    Raises:
        UsageError: nothing can be moved as asked.
        StoreError: the results cannot be read or gone on with.
        DataError: the data cannot be had.
    """
    importable(config_dir)  # studies import their optimizers when they are made
    jobs = whole_sweep.ready([Job(study, results, engine) for study in _studies(results)])
    found: list[Arrivals] = []
    left_out: list[str] = []
    for key, curve in groupby(jobs, key=lambda job: (job.study.name, job.study.optimizer)):
        by_size = {job.study.batch_size: job for job in curve}
        arrived, refused = of_curve(by_size, asked)
        found += arrived
        left_out += [f"{', '.join(key)}: {reason}." for reason in refused]
    if not found:
        raise UsageError(" ".join(left_out))
    for each in found:
        if each.missing and (why := whole_sweep.refusal(each.job)):
            raise store.StoreError(why)
        workload = build(each.job.study.workload)
        for study in each.studies:
            preflight.check(study, workload)
    return found, left_out


def _studies(results: Path) -> list[Study]:
    """Every study of a results folder, by workload, optimizer and batch size, as it would be asked for today."""
    paths = [path for path in results.glob("studies/*/*/*/study.json") if path.parent.name.isdecimal()]
    if not paths:
        raise UsageError(f"no studies in {results}; a results folder is what `python -m study sweep` wrote to.")
    questions = [store.read(path)["question"] for path in paths]
    for question in questions:
        if question["stopping"] == RECORDED:
            raise UsageError(
                f"rules must train, but {question['workload']['name']} in {results} was imported: its measurements say "
                "nothing of how to go on. Sweep a workload of your own."
            )
    try:
        studies = [replace(Study.from_question(held), numerics_version=NUMERICS_VERSION) for held in questions]
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{results} cannot be gone on with: {error}") from error
    return sorted(studies, key=lambda study: (study.name, study.optimizer, study.batch_size))


def of_curve(jobs: Mapping[int, Job], asked: Asked) -> tuple[list[Arrivals], list[str]]:
    """What arrives at each batch size of one curve, and what was left out of it."""
    made = {size: stages.last_stages(job.study, whole_sweep.on_file(job)) for size, job in jobs.items()}
    complete = {size: tuners for size, tuners in made.items() if tuners[-1].complete}
    tuned = {size: best for size, tuners in complete.items() if (best := stages.fastest(tuners)) is not None}
    sizes = list(tuned)
    usual = dict.fromkeys([*sizes[:1], *sizes[len(sizes) // 2 :][:1]])
    bases = [base for base in dict.fromkeys(asked.bases or usual) if base in tuned]
    found = []
    for size in complete:
        study = jobs[size].study
        moved = [arrival for base in bases if base != size for arrival in _moved(study, tuned[base], base, asked)]
        if moved and size in tuned:
            moved.insert(0, _at(study, tuned[size], TUNED, size, _tuned(tuned[size]), asked))
        if moved:
            found.append(Arrivals(jobs[size], moved))
    return found, list(_left_out(jobs, complete, {base: _tuned(tuned[base]) for base in tuned}, asked))


def _left_out(
    measured: Collection[int], complete: Collection[int], tuned: Mapping[int, Values], asked: Asked
) -> Iterator[str]:
    """What was asked for that this curve has not, and what to do."""
    for size in sorted({*measured} - {*complete}):
        yield f"batch size {size:,} is not tuned yet; finish its sweep first"
    known = f"choose among {', '.join(f'{size:,}' for size in tuned)}"
    for base in asked.bases if tuned else ():
        if base not in measured:
            yield f"batch size {base:,} was not swept; {known}"
        elif base in complete and base not in tuned:
            yield f"no trial of batch size {base:,} reached the goal, so it has no tuned configuration; {known}"
    if not tuned:
        yield "no trial reached the goal, so nothing is tuned; choose a looser goal or a larger budget"
    elif len(complete) < 2:
        yield f"there is no batch size but {next(iter(complete)):,} to move to; sweep another"
    for rule in asked.rules if tuned else ():
        if not any(RULES[rule].applies_to(configuration) for configuration in tuned.values()):
            yield f"rule {rule} is about decay rates, of which its optimizer has none"


def _tuned(tuner: Tuner) -> Values:
    return tuner.best_trials[0].hyperparameters


def _moved(study: Study, tuner: Tuner, base: int, asked: Asked) -> list[Study]:
    """The configuration that this search found at its batch size, moved to a study's by each rule."""
    tuned = _tuned(tuner)
    steps = replace(study, branch=tuner.study.branch).train_steps
    move = Move(base, study.batch_size, study.workload["train_examples"], steps)
    rules = [name for name in dict.fromkeys(asked.rules or RULES) if RULES[name].applies_to(tuned)]
    return [_at(study, tuner, name, base, RULES[name].move(tuned, move), asked) for name in rules]


def _at(study: Study, tuner: Tuner, rule: str, base: int, hyperparameters: Values, asked: Asked) -> Study:
    branch = tuner.study.branch._replace(rerun=tuner.best_trials[0].index, rule=rule, base=base)
    return stages.trained_again(study, hyperparameters, asked.seeds, branch)


def train(found: Sequence[Arrivals], config_dir: Path | None, command: str, console: Console) -> None:
    """Train what is missing, showing what it will cost and how far it is.

    Raises:
        StoreError: something cannot be written, or is being worked on.
        TrialTooLarge: after everything that does fit.
    """
    waiting = [(each.job, missing) for each in found if (missing := each.missing)]
    if not waiting:
        return
    with whole_sweep.workers_for([job for job, _ in waiting], config_dir) as workers:
        with console.status("Measuring what it will cost ..."):
            # Of a search for as many trials as there are seeds: lanes are measured for those.
            measured = workers.measure([missing[0] for _, missing in waiting])
        too_large = [cost for cost in measured if isinstance(cost, TrialTooLarge)]
        pairs = zip(waiting, measured, strict=True)
        fitting = [(job, missing, cost) for (job, missing), cost in pairs if isinstance(cost, Cost)]
        together = [_together(*each) for each in fitting]
        cost_table.show(console, together, workers.engine.place, workers.count, SMALLER)
        whole_sweep.warn_of_devices([(job, cost) for job, _, cost in fitting], console)
        for job, missing, _ in fitting:
            for study in missing:
                store.announce(job.results, study)
        each = [Work(study, cost, study.search.trials) for _, missing, cost in fitting for study in missing]
        with SweepProgress(console, each) as progress:
            for job, missing, cost in fitting:
                try:
                    for study in missing:
                        run(study, workers, job.results, partial(progress.watch, cost), command)
                    progress.note(
                        job.study, f"{len(missing)} configurations with {missing[0].search.trials} seeds each"
                    )
                except TrialTooLarge as error:
                    too_large.append(error)
    whole_sweep.raise_any(too_large)


def _together(job: Job, missing: Sequence[Study], cost: Cost) -> Work:
    """All that is to be trained at one batch size, as if it were one search: for people, who want one line."""
    longest = max(missing, key=lambda study: study.train_steps)
    branch = Branch(budget=longest.branch.budget)
    one = replace(job.study, search=longest.search, stopping=longest.stopping, branch=branch)
    return Work(one, cost, sum(study.search.trials for study in missing))
