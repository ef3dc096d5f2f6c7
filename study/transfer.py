"""Transfers tuned configurations to other batch sizes by rules and trains them there, to compare with retuning.

Each transfer is one more search in the folder of its new batch size (`analysis.counting.Branch`): one configuration,
with one trial per seed. All rules and bases use the same seeds. The configuration tuned at the new batch size is also
trained again with these seeds: the best trial of its search was partly lucky, which would be unfair to the rules.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from rich.console import Console

from analysis.counting import RECORDED, TUNED, Branch
from analysis.labels import counted
from analysis.question import searches
from study import store, whole_sweep
from study.config import checked
from study.config.jobs import Job
from study.devices.placement import Placement
from study.engine.cost import Cost, Work
from study.errors import UsageError
from study.records import NUMERICS_VERSION, Study, Trial
from study.search import stages
from study.search.transfer_rules import RULES, Move, Values
from study.search.tuner import Tuner
from study.terminal import costs as cost_table
from workloads.suggest import suggest
from workloads.user_code.importing import build, importable

SEEDS = 10
CHEAPER = "--seeds 5, one --base-batch-size or fewer --rules"


@dataclass(frozen=True)
class TransferRequest:
    """Which configurations to transfer, and how.

    Attributes:
        bases: batch sizes whose tuned configurations are transferred. Empty: the smallest batch size of each curve that
            reached the goal, from which every transfer goes up, and the middle one, for transfers up and down.
        rules: names in RULES. Empty: all rules that can change the configuration.
        seeds: trainings of each transferred configuration.
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
class Transfers:
    """All transfers to one batch size: that batch size's own study, and one study per configuration to train there."""

    job: Job
    studies: Sequence[Study]

    @property
    def missing(self) -> list[Study]:
        """The studies with seeds that are not trained yet."""
        load = whole_sweep.on_file(self.job)
        return [study for study in self.studies if not Tuner(study, load(study)).complete]


def transfers(
    results: Path,
    request: TransferRequest,
    placement: Placement,
    config_dir: Path | None = None,
    mix: bool = False,
) -> tuple[list[Transfers], list[str]]:
    """(the transfers to each batch size of a finished sweep, why others are not possible); writes nothing.

    Arguments:
        mix: train on beside trials of other code or data.

    Raises:
        Refused: nothing can be transferred, the results cannot be read or continued, or data are missing.
    """
    importable(config_dir)  # creating a Study imports its optimizer
    jobs = whole_sweep.settled([Job(study, results, placement, mix=mix) for study in recorded(results, "rules")])
    found: list[Transfers] = []
    left_out: dict[str, list[str]] = {}  # a reason -> the curves that it holds for
    for key, curve in groupby(jobs, key=lambda job: (job.study.name, job.study.series)):
        by_size = {job.study.batch_size: job for job in curve}
        planned, refused = transfers_of_curve(by_size, request)
        found += planned
        for reason in refused:
            left_out.setdefault(reason, []).append(", ".join(key))
    told = [f"{'; '.join(curves)}: {reason}." for reason, curves in left_out.items()]
    if not found:
        raise UsageError(" ".join(told))
    check(found)
    return found, told


def check(found: Sequence[Transfers]) -> None:
    """Raise Refused if trainings beside those on file cannot be made: code, data or the configuration forbid them."""
    whole_sweep.check_changes([each.job for each in found if each.missing], lambda _: True)
    for each in found:
        if each.missing and (why := whole_sweep.refusal(each.job)):
            raise store.StoreError(why)
        workload = build(each.job.study.workload)
        for study in each.studies:
            checked.check_names(study, workload)


def recorded(results: Path, verb: str) -> list[Study]:
    """Every study of a results folder, by workload, optimizer and batch size, in the current numerics version.

    Raises:
        UsageError: there is none, or `verb` cannot train one again.
    """
    paths = [path for path in results.glob("studies/*/*/*/study.json") if path.parent.name.isdecimal()]
    if not paths:
        raise UsageError(searches.nothing_in(results))
    questions = [store.read(path)["question"] for path in paths]
    for question in questions:
        if question["stopping"] == RECORDED:
            raise UsageError(
                f"{verb} must train, but {question['workload']['name']} in {results} was imported: its files do not "
                "say how its model is built. Sweep a workload of your own."
            )
    try:
        studies = [replace(Study.from_question(held), numerics_version=NUMERICS_VERSION) for held in questions]
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{results} cannot be continued: {error}") from error
    return sorted(studies, key=lambda study: (study.name, study.series, study.batch_size))


def transfers_of_curve(jobs: Mapping[int, Job], request: TransferRequest) -> tuple[list[Transfers], list[str]]:
    """(the transfers to each batch size of one curve, why others are not possible).

    Arguments:
        jobs: batch size -> job.
    """
    made = {size: stages.last_stages(job.study, whole_sweep.on_file(job)) for size, job in jobs.items()}
    complete = {size: tuners for size, tuners in made.items() if tuners[-1].complete}
    tuned = {size: best for size, tuners in complete.items() if (best := stages.fastest(tuners)) is not None}
    sizes = list(tuned)
    usual = dict.fromkeys([*sizes[:1], *sizes[len(sizes) // 2 :][:1]])
    bases = [base for base in dict.fromkeys(request.bases or usual) if base in tuned]
    found = []
    for size in complete:
        study = jobs[size].study
        moved = [one for base in bases if base != size for one in _transferred(study, tuned[base], base, request)]
        if moved and size in tuned:
            moved.insert(0, _trained_at(study, tuned[size], TUNED, size, _tuned(tuned[size]), request))
        if moved:
            found.append(Transfers(jobs[size], moved))
    return found, list(_left_out(jobs, complete, {base: _tuned(tuned[base]) for base in tuned}, request))


def _left_out(
    measured: Collection[int], complete: Collection[int], tuned: Mapping[int, Values], request: TransferRequest
) -> Iterator[str]:
    """A message for each request that this curve cannot meet, with the cure."""
    for size in sorted({*measured} - {*complete}):
        yield f"batch size {size:,} is not tuned yet; finish its sweep first"
    known = f"choose among {', '.join(f'{size:,}' for size in tuned)}"
    for base in request.bases if tuned else ():
        if base not in measured:
            yield f"batch size {base:,} was not swept; {known}"
        elif base in complete and base not in tuned:
            yield f"no trial of batch size {base:,} reached the goal, so it has no tuned configuration; {known}"
    if not tuned:
        yield "no trial reached the goal, so nothing is tuned; `study report` says what to sweep next"
    elif len(complete) < 2:
        yield f"batch size {next(iter(complete)):,} is the only one, so there is none to transfer to; sweep another"
    for rule in request.rules if tuned else ():
        if not any(RULES[rule].applies_to(configuration) for configuration in tuned.values()):
            yield f"rule {rule} changes decay rates, but the optimizer has none; choose another rule"


def _tuned(tuner: Tuner) -> Values:
    return _tuned_trial(tuner).hyperparameters


def _tuned_trial(tuner: Tuner) -> Trial:
    trial = tuner.tuned
    assert trial is not None
    return trial


def _transferred(study: Study, tuner: Tuner, base: int, request: TransferRequest) -> list[Study]:
    """The configuration tuned at batch size `base`, transferred to the batch size of `study` by each rule."""
    tuned = _tuned(tuner)
    steps = replace(study, branch=tuner.study.branch).train_steps
    move = Move(base, study.batch_size, study.workload["train_examples"], steps)
    rules = [name for name in dict.fromkeys(request.rules or RULES) if RULES[name].applies_to(tuned)]
    return [_trained_at(study, tuner, name, base, RULES[name].move(tuned, move), request) for name in rules]


def _trained_at(
    study: Study, tuner: Tuner, rule: str, base: int, hyperparameters: Values, request: TransferRequest
) -> Study:
    branch = tuner.study.branch._replace(rerun=_tuned_trial(tuner).index, rule=rule, base=base)
    return stages.trained_again(study, hyperparameters, request.seeds, branch)


def train(
    found: Sequence[Transfers],
    config_dir: Path | None,
    command: str,
    console: Console,
    cheaper: str = CHEAPER,
    plan: bool = False,
) -> None:
    """Train the missing transfers; shows their cost and progress.

    Arguments:
        cheaper: advice on how to make it cheaper.
        plan: show the cost, and train nothing.

    Raises:
        StoreError: a file cannot be written, or another process trains a study.
        TrialTooLarge: some transfers do not fit in memory; raised after all others are trained.
    """
    waiting = [(each.job, missing) for each in found if (missing := each.missing)]
    if not waiting:
        if plan:
            console.print(whole_sweep.COMPLETE)
        return
    with whole_sweep.workers_for([job for job, _ in waiting], config_dir) as workers:
        # Measure a transfer, not the batch size's own study: the lane count depends on the number of trials.
        costs, too_large = whole_sweep.measured(
            [((job, missing), missing[0]) for job, missing in waiting], workers, console
        )
        rows = [_together(job, missing, cost) for (job, missing), cost in costs]
        cost_table.show(console, rows, workers.placement.place, workers.count, cheaper)
        if plan:
            whole_sweep.raise_any(too_large)
            return
        left = [Work(each, cost, _untrained(job, each)) for (job, missing), cost in costs for each in missing]
        searches = [
            whole_sweep.Waiting(
                job,
                searches=missing,
                known=missing,
                summary=f"{counted(len(missing), 'configuration')} with {missing[0].search.trials} seeds each",
            )
            for (job, missing), _ in costs
        ]
        too_large += whole_sweep.train_searches(searches, left, workers, command, console)
    whole_sweep.raise_any(too_large)


def _together(job: Job, missing: Sequence[Study], cost: Cost) -> Work:
    """All transfers to one batch size as if they were one search, for a table with one row per batch size."""
    trials = sum(_untrained(job, study) for study in missing)
    if len(missing) == 1:
        return Work(missing[0], cost, trials)
    longest = max(missing, key=lambda study: study.train_steps)
    branch = Branch(budget=longest.branch.budget)
    one = replace(job.study, search=longest.search, stopping=longest.stopping, branch=branch)
    return Work(one, cost, trials)


def _untrained(job: Job, study: Study) -> int:
    """The number of seeds that are not trained yet."""
    return study.search.trials - Tuner(study, whole_sweep.on_file(job)(study)).feasible
