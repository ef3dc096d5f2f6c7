"""The record Study: frozen plain data that checks its own invariants. Trial and Curve are imported from here, too."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from analysis import counting
from analysis.counting import STOPPING_RULES, Branch, Goal, Rule, TrialCurve
from analysis.labels import listed
from analysis.question import batch_schedules, older
from analysis.question.batch_schedules import BatchSchedule, Phases
from analysis.question.branches import SPLIT, Start
from analysis.question.stages import EARLIER, STAGE, ends
from analysis.units import HALF_LIVES, TOKENS, counts_tokens, in_examples, stem
from study import optimizers
from study.optimizers.base import Optimizer, resolved
from study.optimizers.per_parameter import patterns
from study.schedules import SCHEDULE, Schedule, check_warmup, learning_rate, offered, required, taken
from study.schedules.batch_sizes import batch_sizes, by_examples, check_half_lives, phases, tunes_batches
from study.settings import (
    ROUNDS,
    Budget,
    Evaluation,
    Search,
    Seeds,
    at_least,
    check_certificate,
    check_ends_early,
    check_fresh_data,
    check_single_pass,
    plain,
)
from study.space import Legal, Space, Values, parse_space
from study.trials import Curve as Curve
from study.trials import Trial as Trial
from workloads.suggest import suggest

NUMERICS_VERSION = 4
"""Increase it with every change that alters the numbers that a trial produces."""

PLAIN, COMMAND = "plain", "command"
ARITHMETICS = ("linear_blocks_onednn", "linear_blocks", "linear_chain_onednn", "linear_chain", "vmap", PLAIN, COMMAND)
"""The keys of the table in `study.engine.arithmetic`, which imports this file."""
PRECISIONS = ("fp32", "tf32", "bf16")
"""See `study.devices.precision`, which imports torch."""
LEGAL_IN_WORKLOADS = {"label_smoothing": Legal("[0, 1)")}
"""Legal values of loss parameters. Every other parameter of a workload may take any value."""


@dataclass(frozen=True)
class Study:
    """The configuration of one workload, optimizer and batch size: everything that the curves of its trials depend on.

    Arguments:
        workload: `_target_`, `name`, `train_examples` and the other constructor arguments of the workload.
        optimizer, schedule: registered names; an optimizer may also be the import path of a torch.optim class, and a
            schedule is `tuned` if `search.space.schedule` lists names.
        optimizer_arguments: further keyword arguments of that class.
        no_decay: patterns of parameters without weight decay (`study.optimizers.per_parameter.patterns`).
        batch_size: examples per parameter update, over all devices and micro-batches; the first if `batch_schedule`
            lets it grow.
        stopping: when a trial stops. `budget`: after all steps; `goal`: when it reaches the goal; `race`: also at
            `race_factor` times the fewest steps to the goal among the trials that `race_over` names.
        race_over: `stage`, or `earlier` in studies of older versions (`analysis.question.stages.ends`).
        precision: of matrix products and convolutions, one of PRECISIONS; weights are in fp32.
        arithmetic: how a step is computed, one of ARITHMETICS; they differ in the last bits.
        micro_batch: most examples in one forward pass, if memory is too small for the batch; None: the whole batch.
        evaluation_chunk: most examples in one forward pass of an evaluation.
        branch: which search of the study this is: its stage, budget, repetition or rerun.
        tokens_per_example: tokens in each example; None for workloads without tokens.
    """

    workload: Mapping[str, Any]
    optimizer: str
    schedule: str
    batch_size: int
    goal: Goal
    budget: Budget
    search: Search
    stopping: str = "race"
    race_factor: float = 2.0
    race_over: str = STAGE
    evaluation: Evaluation = field(default_factory=Evaluation)
    seeds: Seeds = field(default_factory=Seeds)
    precision: str = "fp32"
    arithmetic: str = PLAIN
    micro_batch: int | None = None
    evaluation_chunk: int = 1024
    branch: Branch = field(default_factory=Branch)
    optimizer_arguments: Mapping[str, Any] = field(default_factory=dict)
    no_decay: tuple[str, ...] = ()
    tokens_per_example: int | None = None
    batch_schedule: BatchSchedule = field(default_factory=BatchSchedule)
    numerics_version: int = NUMERICS_VERSION

    def __post_init__(self) -> None:
        self._check_optimizer()
        for what, name, known in (
            ("stopping rule", self.stopping, STOPPING_RULES),
            ("arithmetic", self.arithmetic, (*ARITHMETICS, *older.REMOVED_ARITHMETICS)),
            ("precision", self.precision, PRECISIONS),
            ("race_over", self.race_over, (STAGE, EARLIER)),
        ):
            if name not in known:
                raise ValueError(f"unknown {what} {name!r}{suggest(name, known)}")
        given = self.workload["name"]
        if not re.fullmatch(r"\w[\w.,+=-]*", self.name) or not isinstance(given, str):
            end = "." if isinstance(given, str) else f"; quote it: \"workload.name='{given}'\"."
            raise ValueError(f"workload.name names a folder: letters, digits and any of _.,+=-, but got {given!r}{end}")
        examples = self.workload["train_examples"]
        at_least("workload.train_examples", examples, 1)
        at_least("batch_size", self.batch_size, 1)
        if self.batch_size > examples:
            raise ValueError(
                f"batch_size must be at most the {examples} training examples of {self.name}, "
                f"but got {self.batch_size}."
            )
        at_least("race_factor", self.race_factor, 1)
        self._check_budget()
        check_certificate(self.branch.certify, self.train_steps)
        if counting.STOPPING[self.stopping].ends_at_goal and not self.goal.metric.startswith("val/"):
            raise ValueError(
                f"stopping at the goal needs a metric measured at every evaluation, val/..., but got "
                f"{self.goal.metric}; choose one or stopping=budget."
            )
        self._check_evaluation()
        if self.search.fresh_data:
            check_fresh_data(self.search, self.branch, self.workload, self.evaluation)
        self._check_space()
        # A side at the end of the legal interval cannot be widened, whether or not it was declared hard.
        hardened = {name: each.hardened(self.legal(name)) for name, each in self.search.space.items()}
        object.__setattr__(self, "search", replace(self.search, space=hardened))

    def _check_budget(self) -> None:
        if self.tokens_per_example is not None:
            at_least(f"{TOKENS} of {self.name}", self.tokens_per_example, 1)
        elif self.budget.tokens is not None:
            raise ValueError(
                f"budget.tokens={self.budget.tokens:g} counts tokens, but {self.name} has no {TOKENS}; give "
                "budget.epochs or budget.steps."
            )
        if self.budget.single_pass:
            needed = {self.batch_size: self.phases.examples(self.train_steps)}
            check_single_pass(needed, self.workload["train_examples"], self.name)

    def _check_evaluation(self) -> None:
        if self.evaluation.every is None and not self.goal.metric.startswith("val/"):
            raise ValueError(f"a goal on {self.goal.metric} needs evaluation.every, the evaluations that measure it.")
        if not self.evaluation.exact:
            check_ends_early(self.stopping, self.search.sampler, self.goal)

    def _check_space(self) -> None:
        for name in self.asked_hyperparameters:
            if {name, *(f"{name}{suffix}" for suffix in HALF_LIVES)}.isdisjoint(self.search.space):
                asking = f"optimizer {self.optimizer} with {self.scheduled_by}"
                cure = "give it, or choose them by optimizer=NAME and schedule=NAME, whose files bring it"
                raise ValueError(f"{asking} needs search.space.{name}, but it is missing; {cure}.")
        space = self.search.space
        if self.branch.rerun is None:  # a rerun may fix a tuned warmup of 0 beside its initial factor
            check_warmup(space)
        check_half_lives(space, self.batch_schedule)
        for name, dimension in space.items():
            beta = stem(name)
            for other in {beta, *(f"{beta}{suffix}" for suffix in HALF_LIVES)} - {name} if beta != name else ():
                if other in space:
                    raise ValueError(f"search.space has both {other} and {name}; give one of them.")
            if counts_tokens(name) and self.tokens_per_example is None:
                raise ValueError(
                    f"search.space.{name} counts tokens, but {self.name} has no {TOKENS}; give {name[:-6]}examples."
                )
            if name in self.optimizer_arguments:
                raise ValueError(f"{name} is both searched and in optimizer.arguments; give one of them.")
            if name != SCHEDULE:
                self.legal(name).check(name, dimension)

    def _check_optimizer(self) -> None:
        takes = {**self.algorithm.hyperparameters, **self.algorithm.optional}  # raises if the optimizer is unknown
        object.__setattr__(self, "no_decay", patterns(self.no_decay))
        if self.no_decay and "weight_decay" not in takes:
            raise ValueError(f"{self.optimizer} takes no weight_decay; leave out optimizer.no_decay.")

    def legal(self, name: str) -> Legal:
        """The values that a tuned parameter may take."""
        known = self.asked_hyperparameters | self.optional_hyperparameters | LEGAL_IN_WORKLOADS
        return known.get(name, Legal("(-inf, inf)"))

    @property
    def asked_hyperparameters(self) -> dict[str, Legal]:
        """Required hyperparameters of optimizer and schedules -> their legal values."""
        of_batches = {name: Legal(interval) for name, interval in self.batch_schedule.parameters.items()}
        return {**self.algorithm.hyperparameters, **required(self.schedules), **of_batches}

    @property
    def scheduled_by(self) -> str:
        """The schedules of the learning rate and the batch size, as text."""
        grows = f" and batch_schedule {self.batch_schedule.kind}" if self.batch_schedule else ""
        return f"schedule {listed(self.schedules, 'or')}{grows}"

    @property
    def schedules(self) -> tuple[str, ...]:
        """The schedules among which trials choose; one if the schedule is not tuned."""
        return offered(self.schedule, self.search.space)

    @property
    def algorithm(self) -> Optimizer:
        """The optimizer named by `optimizer`."""
        return optimizers.find(self.optimizer, self.optimizer_arguments)

    @property
    def averages(self) -> bool:
        """True if trials also evaluate an average of their weights."""
        return any(stem(name) == "ema_decay" for name in self.search.space)

    def resolved(self, hyperparameters: Values) -> dict[str, float]:
        """The numbers among the hyperparameters of a trial, with half-lives replaced by decay rates."""
        numbers = {name: value for name, value in hyperparameters.items() if name != SCHEDULE}
        return resolved(in_examples(numbers, self.tokens_per_example), self.batch_size)

    def learning_rate(self, hyperparameters: Values) -> Callable[[int], float]:
        """The function from an update's number, from 0, to its learning rate (`study.schedules.learning_rate`).

        In a branch the schedule of its trunk goes on, by the examples seen.
        """
        values = in_examples(hyperparameters, self.tokens_per_example)
        if (start := self.start) is not None:
            of_trunk = learning_rate(self.schedule, start.train_steps, start.batch_size, values)
            return lambda step: of_trunk(start.step + step * self.batch_size // start.batch_size)
        rate = learning_rate(self.schedule, self.first_steps, self.batch_size, values)
        return by_examples(rate, self.phases, self.batch_schedule.factor) if self.batch_schedule else rate

    @property
    def optional_hyperparameters(self) -> dict[str, Legal]:
        """Optional hyperparameters of the optimizer and the schedule -> their legal values."""
        return {**self.algorithm.optional_hyperparameters, **Schedule.optional_hyperparameters}

    @property
    def name(self) -> str:
        """The workload's name."""
        return str(self.workload["name"])

    @property
    def series(self) -> str:
        """The name of the curve that the study belongs to: its optimizer and its batch-size schedule."""
        return batch_schedules.named(self.optimizer, self.batch_schedule)

    @property
    def first_steps(self) -> int:
        """The step budget if all batches had the first size. Times that size, it is the budget in examples."""
        steps = self.budget.train_steps(self.workload["train_examples"], self.batch_size, self.tokens_per_example)
        return max(1, round(self.branch.budget * steps))

    @property
    def last_step(self) -> int:
        """The step at which a trial ends that no stopping rule ends before: the budget, or that of a certificate."""
        return self.branch.certify or self.train_steps

    @property
    def train_steps(self) -> int:
        """The step budget of every trial; of trials that tune their batch sizes, more than any of them takes."""
        return self.phases.steps if self.batch_schedule else self.first_steps

    @property
    def _batches(self) -> tuple[BatchSchedule, Space, int, int, int, bool]:
        budget, examples = self.first_steps * self.batch_size, self.workload["train_examples"]
        return self.batch_schedule, self.search.space, self.batch_size, budget, examples, self.budget.single_pass

    @property
    def tunes_batches(self) -> bool:
        """True if trials differ in their batch sizes; `of_trial` knows them."""
        return tunes_batches(self.batch_schedule, self.search.space)

    @property
    def phases(self) -> Phases:
        """The batch size of each update of every trial; the first one throughout if trials tune it."""
        return phases(*self._batches)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes of a trial, increasing; if trials tune them, the first one and the largest of any."""
        return batch_sizes(*self._batches)

    @property
    def constant(self) -> Study:
        """The study with its first batch size throughout."""
        return replace(self, batch_schedule=BatchSchedule()) if self.batch_schedule else self

    @property
    def evaluation_steps(self) -> tuple[int, ...]:
        """The steps at which every trial is evaluated."""
        return self.evaluation.grid(self.train_steps, self.branch.certify)

    @property
    def rule(self) -> Rule:
        """The stopping rule of the trials."""
        stages = ends(vars(self.search), self.race_over)
        return Rule(self.stopping, self.goal.threshold, self.evaluation_steps, self.race_factor, stages)

    def grid_of(self, trial: Trial) -> tuple[int, ...] | None:
        """The steps at which a trial is evaluated, if trials have grids of their own; else None."""
        return self.of_trial(trial).evaluation_steps if self.tunes_batches else None

    def measured(self, curve: Curve) -> TrialCurve:
        """The curve of the goal's metric."""
        errors = curve.errors[self.goal.metric]
        return TrialCurve(curve.steps, errors, curve.first_bad_step, grid=self.grid_of(curve.trial))

    @property
    def seed_key(self) -> str:
        """The key that points and seeds derive from: another one at every batch size and in every branch. Trainings of
        a tuned configuration, and branches of a checkpoint, have the same seeds at all batch sizes, by their number, so
        that they form pairs."""
        own = not self.seeds.shared and self.branch.rerun is None
        return f"{self.branch.seed_key}:batch-size-{self.batch_size}" if own else self.branch.seed_key

    def trial(self, index: int, hyperparameters: Values) -> Trial:
        """Trial `index` with its seeds and these hyperparameters, less those that its schedule does not take.

        In a branch all configurations take turns with each seed (`study.search.points.point`).
        """
        number = index // self.search.configurations if self.start else index
        trial, order = (self.seeds.of(purpose, number, self.seed_key) for purpose in ("trial", "data_order"))
        return Trial(index, trial, order, taken(hyperparameters))

    @property
    def start(self) -> Start | None:
        """The checkpoint that trials start from; None: from a newly initialised model."""
        return self.branch.start

    @property
    def has_fresh_data(self) -> bool:
        """True if each trial has data of its own (`of_trial`)."""
        return self.branch.rerun is not None and self.search.fresh_data is not None

    @property
    def differs_by_trial(self) -> bool:
        """True if trials differ in their data or batch sizes, so that they train one after another."""
        return self.has_fresh_data or self.tunes_batches

    def of_trial(self, trial: Trial) -> Study:
        """The study with the data and the batch sizes of one trial.

        Without `search.fresh_data`, these are the study's own. With it, fresh seed number k has another split, of split
        seed + 1 + k, or evaluates part 1 + k: a pure function of the number, so that equal numbers have equal data at
        all batch sizes and for all optimizers, and form pairs.
        """
        if self.tunes_batches:
            resolved = self.batch_schedule.resolved(*self._batches[2:5], trial.hyperparameters)
            return replace(self, batch_schedule=resolved).of_trial(trial)
        if not self.has_fresh_data:
            return self
        if self.search.fresh_data == SPLIT:
            seed = self.workload["split_seed"] + 1 + trial.index
            return replace(self, workload={**self.workload, "split_seed": seed})
        return replace(self, evaluation=replace(self.evaluation, part=1 + trial.index))

    def question(self) -> dict[str, Any]:
        """The study as plain data for study.json; `from_question` reads it back, without what is derived."""
        question = plain(self) | {"train_steps": self.train_steps}
        search = question["search"] | {"space": dict(sorted(question["search"]["space"].items()))}
        question["search"] = {key: value for key, value in search.items() if self.search.refines or key not in ROUNDS}
        if self.batch_schedule:
            question["budget_examples"] = self.first_steps * self.batch_size
        return question

    @classmethod
    def from_question(cls, question: Mapping[str, Any]) -> Study:
        """The study with this question. Raises ValueError if a value breaks an invariant."""
        plain = {key: value for key, value in question.items() if key not in ("train_steps", "budget_examples")}
        kinds = {"goal": Goal, "budget": Budget, "evaluation": Evaluation, "seeds": Seeds}
        parts = {key: kind(**question[key]) for key, kind in kinds.items()}
        parts["batch_schedule"] = BatchSchedule.of(question)
        space, budgets = parse_space(question["search"]["space"]), tuple(question["search"]["budgets"])
        search = question["search"] | {"space": space, "budgets": budgets}
        if "refine" in search:
            search["refine"] = tuple(search["refine"])
        return cls(**plain | parts | {"search": Search(**search), "branch": Branch.of(question)})
