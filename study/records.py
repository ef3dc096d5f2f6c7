"""The records Study -> Trial -> Curve: frozen plain data, and each checks its own invariants.

Shapes: E evaluations of one trial.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from analysis import counting
from analysis.counting import STOPPING_RULES, Branch, Goal, Rule
from analysis.labels import listed
from analysis.question import older
from analysis.question.branches import SPLIT, VALIDATION, Start
from analysis.question.stages import EARLIER, REFINE, STAGE, ends
from analysis.units import HALF_LIVES, TOKENS, counts_tokens, in_examples, stem
from study import optimizers
from study.optimizers.base import Optimizer, resolved
from study.optimizers.per_parameter import patterns
from study.schedules import SCHEDULE, Schedule, check_warmup, learning_rate, offered, required, taken
from study.settings import ROUNDS, Budget, Evaluation, Search, Seeds, at_least, check_ends_early, check_single_pass
from study.space import Legal, Values, parse_space
from workloads.suggest import suggest

NUMERICS_VERSION = 4
"""Increase it with every change that alters the numbers that a trial produces."""

PLAIN, COMMAND = "plain", "command"
ARITHMETICS = ("linear_blocks", "linear_chain", "vmap", PLAIN, COMMAND)
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
        batch_size: examples per parameter update, over all devices and micro-batches.
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
        if not re.fullmatch(r"\w[\w.,+=-]*", self.name) or not isinstance(self.workload["name"], str):
            raise ValueError(
                f"workload.name names a folder: letters, digits and any of _.,+=-, but got {self.workload['name']!r}."
            )
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
        if self.branch.certify is not None and not 1 <= self.branch.certify <= self.train_steps:
            raise ValueError(
                f"a certificate is tested at a step from 1 to the budget of {self.train_steps:,}, but got "
                f"{self.branch.certify:,}."
            )
        if counting.STOPPING[self.stopping].ends_at_goal and not self.goal.metric.startswith("val/"):
            raise ValueError(
                f"stopping at the goal needs a metric measured at every evaluation, val/..., but got "
                f"{self.goal.metric}; choose one or stopping=budget."
            )
        self._check_evaluation()
        self._check_fresh_data()
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
            needed = {self.batch_size: self.train_steps * self.batch_size}
            check_single_pass(needed, self.workload["train_examples"], self.name)

    def _check_evaluation(self) -> None:
        if self.evaluation.every is None and not self.goal.metric.startswith("val/"):
            raise ValueError(f"a goal on {self.goal.metric} needs evaluation.every, the evaluations that measure it.")
        if not self.evaluation.exact:
            check_ends_early(self.stopping, self.search.sampler, self.goal)

    def _check_fresh_data(self) -> None:
        """Refuse `search.fresh_data` where nothing would vary."""
        what = self.search.fresh_data
        if what and self.branch.rerun is None and not self.search.reruns:
            key = "confirm" if self.search.sampler == REFINE else "reruns"
            raise ValueError(f"search.fresh_data={what} varies fresh seeds, but there are none; give search.{key}=4.")
        if what == SPLIT and not isinstance(self.workload.get("split_seed"), int):
            raise ValueError(
                f"search.fresh_data={SPLIT} varies workload.split_seed, but the configuration of {self.name} has none, "
                "so nothing would vary; list split_seed: 0 in its file if its class takes this argument, else leave "
                "out search.fresh_data."
            )
        if what == VALIDATION and self.evaluation.examples is None:
            raise ValueError(
                f"search.fresh_data={VALIDATION} varies the evaluated part of the validation set, but all of it is "
                "evaluated; give evaluation.examples=N, fewer than it has."
            )

    def _check_space(self) -> None:
        for name in self.asked_hyperparameters:
            if {name, *(f"{name}{suffix}" for suffix in HALF_LIVES)}.isdisjoint(self.search.space):
                asking = f"optimizer {self.optimizer} with schedule {listed(self.schedules, 'or')}"
                raise ValueError(f"{asking} needs search.space.{name}, but it is missing.")
        space = self.search.space
        if self.branch.rerun is None:  # a rerun may fix a tuned warmup of 0 beside its initial factor
            check_warmup(space)
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
        """Required hyperparameters of the optimizer and the schedule -> their legal values."""
        return {**self.algorithm.hyperparameters, **required(self.schedules)}

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
        if (start := self.start) is None:
            return learning_rate(self.schedule, self.train_steps, self.batch_size, values)
        of_trunk = learning_rate(self.schedule, start.train_steps, start.batch_size, values)
        return lambda step: of_trunk(start.step + step * self.batch_size // start.batch_size)

    @property
    def optional_hyperparameters(self) -> dict[str, Legal]:
        """Optional hyperparameters of the optimizer and the schedule -> their legal values."""
        return {**self.algorithm.optional_hyperparameters, **Schedule.optional_hyperparameters}

    @property
    def name(self) -> str:
        """The workload's name."""
        return str(self.workload["name"])

    @property
    def train_steps(self) -> int:
        """The step budget of every trial."""
        steps = self.budget.train_steps(self.workload["train_examples"], self.batch_size, self.tokens_per_example)
        return max(1, round(self.branch.budget * steps))

    @property
    def last_step(self) -> int:
        """The step at which a trial ends that no stopping rule ends before: the budget, or that of a certificate."""
        return self.branch.certify or self.train_steps

    @property
    def evaluation_steps(self) -> tuple[int, ...]:
        """The steps at which every trial is evaluated."""
        return _grid(self.evaluation, self.train_steps, self.branch.certify)

    @property
    def rule(self) -> Rule:
        """The stopping rule of the trials."""
        stages = ends(vars(self.search), self.race_over)
        return Rule(self.stopping, self.goal.threshold, self.evaluation_steps, self.race_factor, stages)

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

    def of_trial(self, index: int) -> Study:
        """The study with the data of trial `index`.

        Without `search.fresh_data`, these are the study's own. With it, fresh seed number k has another split, of split
        seed + 1 + k, or evaluates part 1 + k: a pure function of the number, so that equal numbers have equal data at
        all batch sizes and for all optimizers, and form pairs.
        """
        if not self.has_fresh_data:
            return self
        if self.search.fresh_data == SPLIT:
            return replace(self, workload={**self.workload, "split_seed": self.workload["split_seed"] + 1 + index})
        return replace(self, evaluation=replace(self.evaluation, part=1 + index))

    def question(self) -> dict[str, Any]:
        """The study as plain data for study.json; `from_question` reads it back, without the derived `train_steps`."""
        space = {name: dimension.to_dict() for name, dimension in sorted(self.search.space.items())}
        # Left out if empty: questions on file may be older than this key.
        others = {k: v for k, v in vars(self).items() if k != "search" and (k not in ("no_decay", TOKENS) or v)}
        plain = {
            key: asdict(value) if hasattr(value, "__dataclass_fields__") else value for key, value in others.items()
        }
        search = vars(self.search) | {"space": space, "budgets": list(self.search.budgets)}
        # Left out of other searches: questions on file may be older than these keys.
        search = {k: v for k, v in search.items() if self.search.sampler == REFINE or k not in ROUNDS}
        if not search["fresh_data"]:
            del search["fresh_data"]
        for record, name in (("evaluation", "part"), ("budget", "tokens"), ("budget", "single_pass")):
            if not plain[record][name]:
                del plain[record][name]
        branch = self.branch._asdict() | {"widened": list(self.branch.widened)}
        if branch["certify"] is None:
            del branch["certify"]
        if self.start is None:
            del branch["start"]
        else:
            branch["start"] = self.start._asdict()
        alike = {"workload": dict(self.workload), "search": search, "branch": branch}
        alike["optimizer_arguments"] = dict(self.optimizer_arguments)
        return plain | alike | {"train_steps": self.train_steps}

    @classmethod
    def from_question(cls, question: Mapping[str, Any]) -> Study:
        """The study with this question. Raises ValueError if a value breaks an invariant."""
        plain = {key: value for key, value in question.items() if key != "train_steps"}
        kinds = {"goal": Goal, "budget": Budget, "evaluation": Evaluation, "seeds": Seeds}
        parts = {key: kind(**question[key]) for key, kind in kinds.items()}
        space, budgets = parse_space(question["search"]["space"]), tuple(question["search"]["budgets"])
        search = question["search"] | {"space": space, "budgets": budgets}
        if "refine" in search:
            search["refine"] = tuple(search["refine"])
        return cls(**plain | parts | {"search": Search(**search), "branch": Branch.of(question)})


@lru_cache(maxsize=64)
def _grid(evaluation: Evaluation, train_steps: int, end: int | None) -> tuple[int, ...]:
    """The grid of `Study.evaluation_steps`, which tuners and engines read at every evaluation."""
    return tuple(evaluation.grid(train_steps, end))


@dataclass(frozen=True)
class Trial:
    """One training of a study's model with one point of the search space.

    Attributes:
        index: position in the search, from 0.
        seed: of initialisation and dropout.
        order_seed: of the order of the training data.
    """

    index: int
    seed: int
    order_seed: int
    hyperparameters: Values


@dataclass(frozen=True)
class Curve:
    """What one trial measured.

    Attributes:
        first_bad_step: the update (from 1) with the first non-finite training loss, or the evaluation that found
            non-finite parameters; None if the trial stayed finite.
        steps: updates done at each evaluation [E], increasing.
        errors: metric such as `val/classification_error` -> values [E], NaN where it was not measured.
        seconds: `training` and `evaluation` wall time of this trial alone.
        micro_batch: most examples in one forward pass; None: the whole batch.
        evaluation_chunk: most examples in one forward pass of an evaluation.
        at_least: metric -> what it is at least where it is NaN, because these evaluations ended when they missed the
            goal (`evaluation.exact=false`). All other validation errors are unknown there.
        command: of a trial that a command trained: its exit `status`, why it was `stopped` (empty: it ended by itself),
            and the last lines of its `output`.
    """

    trial: Trial
    first_bad_step: int | None
    steps: np.ndarray
    errors: Mapping[str, np.ndarray]
    seconds: Mapping[str, float]
    micro_batch: int | None = None
    evaluation_chunk: int = 1024
    at_least: Mapping[str, float] = field(default_factory=dict)
    command: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (np.diff(self.steps) > 0).all():
            raise ValueError(f"a curve's steps must increase, but trial {self.trial.index} has {self.steps}.")
        for metric, values in self.errors.items():
            if len(values) != len(self.steps):
                raise ValueError(f"trial {self.trial.index} has {len(self.steps)} steps but {len(values)} of {metric}.")
