"""The branches of a trunk: searches that start from its checkpoints, at several batch sizes over the same examples."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from analysis.labels import counted
from analysis.question.branches import Branch, Start
from study import whole_sweep
from study.branch import trunk as of_trunk
from study.branch.request import RULES, BranchRequest
from study.branch.trunk import Trunk
from study.config.jobs import Job
from study.devices.placement import Placement, usable
from study.engine.cost import Cost, Work
from study.records import PLAIN, Study
from study.search import stages
from study.search.tuner import Tuner
from study.settings import Budget, Evaluation, Search
from study.space import Dimension
from study.store import trunks
from study.terminal import costs as cost_table
from workloads.user_code.importing import build

CHEAPER = "fewer checkpoints, multiples or seeds, or a shorter window"


@dataclass(frozen=True)
class Branches:
    """All branches of one trunk.

    Attributes:
        rule: of the learning rate, a name in `study.branch.request.RULES`.
        window: examples that every branch trains on.
        jobs: one for each batch size; `searches` replaces the start of its study.
    """

    trunk: Trunk
    request: BranchRequest
    rule: str
    window: int
    jobs: Sequence[Job]

    def searches(self, job: Job) -> list[Study]:
        """The searches of one batch size, by checkpoint; the trunk is trained."""
        return self._from(job, map(self.trunk.start, self.trunk.steps))

    def _from(self, job: Job, starts: Iterable[Start]) -> list[Study]:
        rerun = self.trunk.trial.index
        return [replace(job.study, branch=Branch(rerun=rerun, start=start)) for start in starts]

    def missing(self, job: Job) -> list[Study]:
        """The searches of one batch size with branches that are not trained yet."""
        load = whole_sweep.on_file(job)
        return [search for search in self.searches(job) if _left(search, load)]

    def left(self, job: Job) -> int:
        """The number of branches of one batch size that are not trained yet; the trunk need not be trained."""
        load, known = whole_sweep.on_file(job), trunks.checkpoints(self.trunk.folder)
        there = [self.trunk.start(step) for step in self.trunk.steps if step in known]
        begun = sum(_left(search, load) for search in self._from(job, there))
        return begun + (len(self.trunk.steps) - len(there)) * job.study.search.trials

    def record(self) -> dict[str, object]:
        """What a report must know of the measurement, as plain data."""
        request, study = self.request, self.trunk.study
        return {
            "workload": study.name,
            "optimizer": study.optimizer,
            "batch_size": study.batch_size,
            "goal": {"metric": study.goal.metric, "threshold": study.goal.threshold},
            "trial": self.trunk.trial.index,
            "learning_rate": self.trunk.trial.hyperparameters["learning_rate"],
            "checkpoints": [*self.trunk.steps],
            "batch_sizes": [job.study.batch_size for job in self.jobs],
            "window": self.window,
            "rule": self.rule,
            "factors": [*request.factors],
            "tolerance": request.tolerance,
            "seeds": request.seeds,
            "metric": of_trunk.loss_metric(study, build(study.workload)),
        }

    @property
    def folder(self) -> Path:
        """The results folder of the branches."""
        return self.jobs[0].results


def branches(trunk: Trunk, request: BranchRequest, placement: Placement, mix: bool) -> Branches:
    """The branches of a trunk; writes nothing.

    Arguments:
        mix: train on beside branches of other code or data.

    Raises:
        Refused: a batch size or the window does not fit, or the branches on file cannot be continued.
    """
    study = trunk.study
    sizes = request.batch_sizes(study.batch_size, study.workload["train_examples"])
    window, rule = request.examples(sizes, study.tokens_per_example, study.name), request.rule_of(study.optimizer)
    factors = "" if request.factors == (1.0,) else f"-x{'-'.join(f'{factor:g}' for factor in request.factors)}"
    folder = trunk.folder / f"{rule}-{window}{factors}"
    known = trunks.checkpoints(trunk.folder)
    start = next((trunk.start(step) for step in trunk.steps if step in known), None)  # what it settled is kept
    made = [_study(trunk, request, rule, size, window // size, start) for size in sizes]
    jobs = whole_sweep.settled([Job(each, folder, placement, mix=mix) for each in made])
    return Branches(trunk, request, rule, window, jobs)


def _study(trunk: Trunk, request: BranchRequest, rule: str, size: int, steps: int, start: Start | None) -> Study:
    """The study of the branches at one batch size: each learning rate with each seed, to the end of the window."""
    study, values = trunk.study, trunk.trial.hyperparameters
    rate = values["learning_rate"] * (size / study.batch_size) ** RULES[rule]
    space = {name: Dimension(choices=(value,)) for name, value in values.items()}
    space["learning_rate"] = Dimension(choices=tuple(rate * factor for factor in request.factors))
    trials = request.seeds * len(request.factors)
    return replace(
        study,
        batch_size=size,
        budget=Budget(epochs=0, steps=steps),
        search=Search("sobol", trials=trials, space=space, max_launches=trials),
        stopping="budget",
        evaluation=Evaluation(1.0, every=1, examples=study.evaluation.examples, part=study.evaluation.part),
        arithmetic=PLAIN,
        micro_batch=None,
        branch=Branch(rerun=trunk.trial.index, start=start),
    )


def train(found: Sequence[Branches], config_dir: Path | None, command: str, console: Console, plan: bool) -> None:
    """Train what is missing of trunks and branches; shows its cost before.

    Arguments:
        plan: show the cost, and neither train nor write anything.

    Raises:
        StoreError: a file cannot be written, or another process trains a search.
        Failed: a trunk cannot be trained again.
        TrialTooLarge: some branches do not fit in memory; raised after all others are trained.
    """
    for each in () if plan else found:
        trunks.save_request(each.folder, each.record())
    waiting = [(each, job) for each in found for job in each.jobs if each.left(job)]
    if not waiting:
        if plan:
            console.print(whole_sweep.COMPLETE)
        return
    lacking = {each.folder: each.trunk for each, _ in waiting if each.trunk.missing}.values()
    with whole_sweep.workers_for([job for _, job in waiting], config_dir) as workers:
        device = usable(workers.placement.device)
        for trunk in lacking:
            what = f"{counted(len(trunk.missing), 'checkpoint')} of trial {trunk.trial.index}"
            console.print(f"{trunk.name}: {what}: {of_trunk.cost(trunk, device)}.", markup=False, highlight=False)
        costs, too_large = whole_sweep.measured([((each, job), job.study) for each, job in waiting], workers, console)
        rows = [Work(replace(job.study, branch=Branch()), cost, each.left(job)) for (each, job), cost in costs]
        cost_table.show(console, rows, workers.placement.place, workers.count, CHEAPER)
        if plan:
            whole_sweep.raise_any(too_large)
            return
        for trunk in lacking:
            of_trunk.prepare(trunk, device, console)
        todo = [(job, each.missing(job), cost) for (each, job), cost in costs]
        left = [work for job, missing, cost in todo for work in _works(job, missing, cost)]
        searches = [_waiting(job, missing) for job, missing, _ in todo]
        too_large += whole_sweep.train_searches(searches, left, workers, command, console)
    whole_sweep.raise_any(too_large)


def _waiting(job: Job, missing: Sequence[Study]) -> whole_sweep.Waiting:
    """The branches of a job as searches to train."""
    summary = f"{counted(len(missing), 'checkpoint')} with {missing[0].search.trials} branches each"
    named = replace(job, study=replace(job.study, branch=Branch()))
    return whole_sweep.Waiting(named, searches=missing, known=missing, summary=summary)


def _works(job: Job, missing: Sequence[Study], cost: Cost) -> list[Work]:
    """The branches of each search that are not trained yet."""
    load = whole_sweep.on_file(job)
    return [Work(search, cost, _left(search, load)) for search in missing]


def _left(search: Study, load: stages.Load) -> int:
    """The number of branches of a search that are not trained yet."""
    tuner = Tuner(search, load(search))
    return 0 if tuner.complete else search.search.trials - tuner.done
