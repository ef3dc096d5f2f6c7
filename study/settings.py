"""The settings of a study, which are parts of its record: frozen plain data, and each checks its own invariants."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from typing import Any

from analysis.counting import ADAPTIVE_SAMPLERS, EARLY, Goal, evaluation_grid, launch_limit
from analysis.labels import listed
from analysis.question.branches import SPLIT, VALIDATION, Branch
from analysis.question.goals import OF_EXAMPLES
from analysis.question.stages import INDEXED_SAMPLERS, REFINE, STAGE, ends
from analysis.units import TOKENS
from study.schedules import conditional
from study.space import Dimension
from workloads.suggest import suggest

SAMPLERS = (*INDEXED_SAMPLERS, *ADAPTIVE_SAMPLERS, REFINE)
ROUNDS = ("scouts", "refine", "candidates", "screens", "added", "pool")
"""The settings of the sampler `refine` alone."""


NEWER = {
    "Study": ("no_decay", TOKENS, "batch_schedule"),
    "Budget": ("tokens", "single_pass"),
    "Evaluation": ("part",),
    "Search": ("fresh_data",),
    "Branch": ("certify", "start"),
}
"""Class -> fields that its records in questions lack if they are empty: questions on file may be older than these."""


def at_least(name: str, value: Any, least: float) -> None:
    """Raise ValueError unless a value is a number of at least `least`."""
    if not (isinstance(value, int | float) and math.isfinite(value) and value >= least):
        raise ValueError(f"{name} must be a number of at least {least:g}, but got {value!r}.")


def plain(value: Any) -> Any:
    """A study, or a part of one, as plain data: mappings, lists, numbers and text.

    The empty fields of NEWER are left out.
    """
    if isinstance(value, Dimension):
        return value.to_dict()
    fields = vars(value) if is_dataclass(value) else value._asdict() if hasattr(value, "_asdict") else None
    if fields is not None:
        newer = NEWER.get(type(value).__name__, ())
        return {name: plain(part) for name, part in fields.items() if part or name not in newer}
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, tuple | list) else value


@dataclass(frozen=True)
class Budget:
    """train_steps(B) = max(epochs * D / B, tokens / (B * T), steps), at most max_steps.

    D training examples, batch size B, T tokens in each example.

    Arguments:
        tokens: without it, there is no such term. Only for workloads with tokens.
        single_pass: refuse budgets in which an example would be seen twice, train_steps(B) * B > D. Epochs and tokens
            are then rounded down to whole steps, so that one epoch is a single pass at every batch size.
    """

    epochs: float
    steps: int
    max_steps: int | None = None
    tokens: float | None = None
    single_pass: bool = False

    def __post_init__(self) -> None:
        at_least("budget.epochs", self.epochs, 0)
        at_least("budget.steps", self.steps, 1)
        if self.tokens is not None:
            at_least("budget.tokens", self.tokens, 1)
        if self.max_steps is not None and self.max_steps < self.steps:
            raise ValueError(
                f"`budget.steps <= budget.max_steps` must hold, but got {self.steps} and {self.max_steps}."
            )

    def train_steps(self, examples: int, batch_size: int, tokens_per_example: int | None = None) -> int:
        """The step budget of every trial at this batch size."""
        whole = math.floor if self.single_pass else math.ceil
        steps = max(whole(self.epochs * examples / batch_size), self.steps)
        if self.tokens is not None:
            assert tokens_per_example is not None
            steps = max(whole(self.tokens / (batch_size * tokens_per_example)), steps)
        return steps if self.max_steps is None else min(steps, self.max_steps)


def check_certificate(step: int | None, train_steps: int) -> None:
    """Raise ValueError if the step of a certificate (None: it is none) is not one of the budget."""
    if step is not None and not 1 <= step <= train_steps:
        raise ValueError(
            f"a certificate is tested at a step from 1 to the budget of {train_steps:,}, but got {step:,}."
        )


def check_single_pass(needed: Mapping[int, int], examples: int, name: str) -> None:
    """Raise ValueError if a single pass over the training examples is shorter than a step budget.

    Arguments:
        needed: batch size -> training examples in its step budget.
        examples: the training examples that there are.
        name: of the workload.
    """
    short = {size: count for size, count in needed.items() if count > examples}
    if short:
        each = ", ".join(f"{count:,} at batch size {size:,}" for size, count in short.items())
        raise ValueError(
            f"budget.single_pass=true shows no training example twice, but {name} has {examples:,}, and the budget "
            f"needs {each}; give more data or a smaller budget: budget.epochs of at most 1, budget.tokens of at most "
            f"those of all examples, and budget.steps of at most {max(1, examples // max(short)):,}."
        )


def check_ends_early(stopping: str, sampler: str, goal: Goal) -> None:
    """Raise ValueError unless `evaluation.exact=false` leaves everything known that a study needs."""
    for key, value, known, cure in (
        ("stopping", stopping, EARLY, "stopping=race or goal"),
        ("search", sampler, INDEXED_SAMPLERS, "search=sobol or random"),
        ("the error of the goal", goal.error, OF_EXAMPLES, "a goal on val/classification_error or cross_entropy_error"),
    ):
        if value not in known:
            raise ValueError(
                "evaluation.exact=false ends evaluations that miss the goal, so their errors are not known: "
                f"{key} must be {listed(known, 'or')}, but got {value}; choose {cure}, or evaluation.exact=true."
            )


@dataclass(frozen=True)
class Evaluation:
    """The steps at which a trial is evaluated, relative to its budget and so alike at all batch sizes.

    Arguments:
        first: the first evaluation, as a fraction of the step budget.
        ratio: each evaluation is at about this multiple of the step before it; steps to result are that coarse.
        every: every `every`-th evaluation also measures the training subset and the test set; so do the first one that
            meets the goal and the one at the end of the budget. None: only these two.
        examples: most evaluated examples of a split, a fixed random part of it; None: all.
        part: the number of that part. Only fresh seeds have another one than 0 (`study.records.Study.of_trial`).
        exact: False: an evaluation ends as soon as it is certain that it misses the goal, and keeps no validation error
            then. It is whole where the goal is met and at the end of the budget.
    """

    first: float = 0.02
    ratio: float = 1.1
    every: int | None = None
    examples: int | None = None
    part: int = 0
    exact: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.first <= 1:
            raise ValueError(f"evaluation.first must be in (0, 1], but got {self.first:g}.")
        if not (math.isfinite(self.ratio) and self.ratio > 1):
            raise ValueError(f"evaluation.ratio must be above 1, but got {self.ratio:g}.")
        if self.every is not None:
            at_least("evaluation.every", self.every, 1)
        if self.examples is not None:
            at_least("evaluation.examples", self.examples, 1)

    def grid(self, train_steps: int, end: int | None = None) -> tuple[int, ...]:
        """Increasing steps, the last of them `end`; None: `train_steps`."""
        return _grid(train_steps, self.first, self.ratio, end)


@lru_cache(maxsize=256)
def _grid(train_steps: int, first: float, ratio: float, end: int | None) -> tuple[int, ...]:
    """The grid of `Evaluation.grid`, which tuners and engines read at every evaluation."""
    return tuple(evaluation_grid(train_steps, first, ratio, end))


@dataclass(frozen=True)
class Seeds:
    """The seeds of the points of a search, of initialisation and dropout, and of the order of training data.

    Arguments:
        shared: all batch sizes have the same points and seeds, as in studies of older versions.
    """

    search: int = 0
    trial: int = 0
    data_order: int = 0
    shared: bool = False

    def __post_init__(self) -> None:
        for name in ("search", "trial", "data_order"):
            at_least(f"seeds.{name}", getattr(self, name), 0)

    def of(self, purpose: str, index: int, branch: str = "") -> int:
        """A 63-bit seed for trial `index`: a pure function of (purpose, its seed, index, branch).

        Arguments:
            purpose: the name of a field of this class.
        """
        text = f"{purpose}:{getattr(self, purpose)}:{index}{branch}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def check_fresh_data(search: Search, branch: Branch, workload: Mapping[str, Any], evaluation: Evaluation) -> None:
    """Raise ValueError if the `search.fresh_data` that a study asks for would vary nothing."""
    what, name = search.fresh_data, workload["name"]
    if branch.rerun is None and not search.reruns:
        key = "confirm" if search.refines else "reruns"
        raise ValueError(f"search.fresh_data={what} varies fresh seeds, but there are none; give search.{key}=4.")
    if what == SPLIT and not isinstance(workload.get("split_seed"), int):
        raise ValueError(
            f"search.fresh_data={SPLIT} varies workload.split_seed, but the configuration of {name} has none, so "
            "nothing would vary; list split_seed: 0 in its file if its class takes this argument, else leave out "
            "search.fresh_data."
        )
    if what == VALIDATION and evaluation.examples is None:
        raise ValueError(
            f"search.fresh_data={VALIDATION} varies the evaluated part of the validation set, but all of it is "
            "evaluated; give evaluation.examples=N, fewer than it has."
        )


def usual_scouts(space: Mapping[str, Dimension]) -> int:
    """The number of scouts for D tuned parameters: 6 for at most four of them, else 2 D + 2 (see docs/methods.md)."""
    tuned = sum(each.tuned for each in space.values())
    return 6 if tuned <= 4 else 2 * tuned + 2


@dataclass(frozen=True)
class Search:
    """How trials are proposed: the sampler, the search space and the number of trials.

    Arguments:
        trials: wanted number of feasible trials (trials that do not diverge).
        max_launches: most trials launched, feasible or not; None: ten times `trials`.
        extend: if the best trials lie at open edges of the search space, widen it there and search again. The rounds of
            `refine` go beyond such edges by themselves.
        extend_factor: the factor by which a range grows on its scale each time.
        extend_limit: the most times that the space is widened.
        budgets: multiples of the step budget, 1 among them. The search runs under each; the fewest steps count.
        repeats: repetitions of the whole search, with other seeds.
        reruns: trainings of the tuned configuration with fresh seeds.
        fresh_data: what else is fresh in each of these trainings. SPLIT: the split into training and validation data;
            VALIDATION: the random part of the validation set that is evaluated; None: nothing, all have the same data.
        scouts, refine, candidates, screens, added, pool: of the sampler `refine`, whose `trials` follow from them.
            Scouts are quasi-random points (None: `usual_scouts`); each number of `refine` is a round of points that a
            model of the trials so far proposes; each of the best `candidates` is repeated with `screens` other seeds to
            choose the tuned configuration. `added`: this many times, another round as long as the last one, and
            screens, follow. `pool`: the model is of all batch sizes together.
    """

    sampler: str
    trials: int
    space: Mapping[str, Dimension]
    max_launches: int | None = None
    extend: bool = False
    extend_factor: float = 1.5
    extend_limit: int = 3
    budgets: tuple[float, ...] = (1.0,)
    repeats: int = 0
    reruns: int = 0
    fresh_data: str | None = None
    scouts: int | None = None
    refine: tuple[int, ...] = (4, 4, 4, 4, 3)
    candidates: int = 2
    screens: int = 2
    added: int = 0
    pool: bool = True

    def __post_init__(self) -> None:
        if self.scouts is None:
            object.__setattr__(self, "scouts", usual_scouts(self.space))
        if self.sampler not in SAMPLERS:
            raise ValueError(f"unknown search.sampler {self.sampler!r}{suggest(self.sampler, SAMPLERS)}")
        ranges = sorted({name for name in self.space if self.space[name].choices is None} - conditional(self.space))
        if self.sampler == "cmaes" and len(ranges) < 2:
            raise ValueError(
                f"search=cmaes needs two ranges or more in search.space, but got {', '.join(ranges) or 'none'}; choose "
                "search=tpe or gp."
            )
        at_least("search.trials", self.trials, 1)
        if self.max_launches is not None and self.max_launches < self.trials:
            raise ValueError(
                f"`search.trials <= search.max_launches` must hold, but got {self.trials} and {self.max_launches}."
            )
        if not (math.isfinite(self.extend_factor) and self.extend_factor >= 1.1):
            raise ValueError(f"search.extend_factor must be at least 1.1, but got {self.extend_factor:g}.")
        for name in ("extend_limit", "repeats", "reruns"):
            at_least(f"search.{name}", getattr(self, name), 0)
        if self.fresh_data not in (known := (None, SPLIT, VALIDATION)):
            raise ValueError(f"unknown search.fresh_data {self.fresh_data!r}{suggest(str(self.fresh_data), known[1:])}")
        if self.refines:
            self._check_rounds()
        if not all(math.isfinite(multiple) and multiple > 0 for multiple in self.budgets) or 1 not in self.budgets:
            raise ValueError(
                "search.budgets must be multiples above 0 of the step budget, 1 among them, but got "
                f"{list(self.budgets)}."
            )

    def _check_rounds(self) -> None:
        for name, least in (("scouts", 2), ("candidates", 1), ("screens", 1), ("added", 0)):
            at_least(f"search.{name}", getattr(self, name), least)
        for count in self.refine or (0,):
            at_least("each round of search.refine", count, 1)
        if self.trials != (total := ends(vars(self), STAGE)[-1]):
            raise ValueError(f"search.trials of search=refine follows from its rounds: {total}, not {self.trials}.")

    @property
    def refines(self) -> bool:
        """True if rounds of `search=refine` propose the trials."""
        return self.sampler == REFINE

    @property
    def configurations(self) -> int:
        """The number of different points of a search space without ranges."""
        return math.prod(len(each.choices or ()) for each in self.space.values())

    @property
    def launch_limit(self) -> int:
        """The most trials launched: `max_launches`, or ten times `trials`."""
        return self.trials if self.refines else launch_limit(self.trials, self.max_launches)
