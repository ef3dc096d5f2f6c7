"""Batch-size schedules as a part of a question: the record, and the names of its curves.

Budgets are in examples, so that a schedule takes fewer steps than its first batch size alone. `study` imports these
names from here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from analysis.labels import listed as listed_names
from analysis.question.phases import CONSTANT as CONSTANT
from analysis.question.phases import KINDS, LISTED
from analysis.question.phases import PARAMETERS as PARAMETERS
from analysis.question.phases import Phases as Phases

COLUMN = "batch_schedule"
"""The key of a question, and a column of tables in which there are schedules."""
COUPLINGS = {"none": 0.0, "linear": 1.0, "square_root": 0.5}
"""Rule that moves the learning rate with the batch size b -> the power of b / B that multiplies it."""


@dataclass(frozen=True)
class BatchSchedule:
    """How the batch size grows during a trial, and how the learning rate follows. False if it is constant.

    Arguments:
        kind: a key of KINDS. `listed`: at each of `switches` (examples seen) the batch size becomes that of `sizes`.
        coupling: a key of COUPLINGS.
        most: the largest batch size; None: the training examples.
        source, checksum: of a listed schedule that was read from results: their path, and the SHA-256 of the table.
    """

    kind: str = CONSTANT
    coupling: str = "none"
    most: int | None = None
    switches: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    source: str | None = None
    checksum: str | None = None

    def __post_init__(self) -> None:
        for what, name, known in (("batch_schedule", self.kind, KINDS), ("coupling", self.coupling, COUPLINGS)):
            if name not in known:
                raise ValueError(f"unknown {what} {name!r}; choose {listed_names([*known], 'or')}.")
        if self.most is not None and self.most < 1:
            raise ValueError(f"batch_schedule.most must be at least 1, but got {self.most}.")
        points = list(zip(self.switches, self.sizes, strict=False))
        later = all(a[0] < b[0] and a[1] <= b[1] for a, b in itertools.pairwise([(0, 1), *points]))
        if not later or len(self.switches) != len(self.sizes) or bool(points) != (self.kind == LISTED):
            raise ValueError(
                "batch_schedule.switches must be increasing numbers of examples above 0, each with its batch size in "
                f"batch_schedule.sizes, which never shrink, for batch_schedule=listed alone, but got {self.kind} with "
                f"{list(self.switches)} and {list(self.sizes)}."
            )
        if self.kind == CONSTANT and (self.coupling != "none" or self.most is not None):
            coupling = [f"batch_schedule.coupling={self.coupling}"] if self.coupling != "none" else []
            given = [*coupling, *([] if self.most is None else [f"batch_schedule.most={self.most}"])]
            raise ValueError(
                f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} for batch sizes that grow, but "
                "batch_schedule=constant; choose step, ramp or doubling."
            )

    def __bool__(self) -> bool:
        return self.kind != CONSTANT

    @classmethod
    def of(cls, question: Mapping[str, Any]) -> Self:
        """The batch-size schedule of a recorded question.

        >>> bool(BatchSchedule.of({})), BatchSchedule.of({"batch_schedule": {"kind": "ramp"}}).kind
        (False, 'ramp')
        """
        recorded = dict(question.get(COLUMN) or {})
        return cls(**recorded | {name: tuple(recorded.get(name, ())) for name in ("switches", "sizes")})

    @property
    def parameters(self) -> Mapping[str, str]:
        """Its parameters -> the interval of their legal values."""
        return KINDS[self.kind].parameters

    @property
    def label(self) -> str:
        """What tells its curves from those of other schedules.

        >>> BatchSchedule("ramp").label, BatchSchedule("ramp", "square_root").label
        ('ramp', 'ramp-square_root')
        """
        return self.kind if self.coupling == "none" else f"{self.kind}-{self.coupling}"

    def factor(self, size: int, first: int) -> float:
        """The factor on the learning rate at a batch size.

        >>> BatchSchedule("ramp", "square_root").factor(32, first=8)
        2.0
        """
        return float((size / first) ** COUPLINGS[self.coupling])

    def points(self, first: int, budget: int, examples: int, values: Mapping[str, Any]) -> list[tuple[int, int]]:
        """(examples seen, batch size from there on), whole and increasing, within the budget.

        Arguments:
            first: B.
            budget: E.
            examples: in the training set, more than which no batch has.
            values: of its parameters; others are left out.

        >>> values = {"batch_first_switch_fraction": 0.2, "batch_switch_ratio": 2, "learning_rate": 0.1}
        >>> BatchSchedule("doubling", most=40).points(8, 1000, examples=600, values=values)
        [(200, 16), (400, 32), (800, 40)]
        """
        given = {name: values[name] for name in self.parameters}
        made = KINDS[self.kind].points(first, budget, **given)
        found: list[tuple[int, int]] = []
        last, most = first, min(examples, self.most or examples)
        for exact, wanted in itertools.chain(zip(self.switches, self.sizes, strict=True), made):
            place = max(1, math.ceil(round(exact, 6)))  # rounding of fractions must not add an example
            size = max(last, min(most, round(wanted)))
            if place >= budget:
                break
            if size > last:
                found = [point for point in found if point[0] < place]  # of points at one place the last one counts
                found.append((place, size))
                last = size
        return found

    def phases(
        self, first: int, budget: int, examples: int, values: Mapping[str, Any], single_pass: bool = False
    ) -> Phases:
        """The batch size of each update; with the arguments of `points`.

        The budget ends with the first update that completes it; with `single_pass`, with the last one within it.

        >>> BatchSchedule("listed", switches=(100,), sizes=(32,)).phases(8, 400, examples=600, values={})
        Phases(starts=(0, 13), sizes=(8, 32), steps=23)
        """
        starts, sizes, seen = [0], [first], 0
        for place, size in self.points(first, budget, examples, values):
            made = max(0, -(-(place - seen) // sizes[-1]))  # updates until as many examples are seen
            if seen + made * sizes[-1] >= budget:
                break
            seen += made * sizes[-1]
            if made:
                starts.append(starts[-1] + made)
                sizes.append(size)
            else:  # one update passed several points
                sizes[-1] = size
        last = (budget - seen) // sizes[-1] if single_pass else -(-(budget - seen) // sizes[-1])
        return Phases(tuple(starts), tuple(sizes), max(1, starts[-1] + last))

    def resolved(self, first: int, budget: int, examples: int, values: Mapping[str, Any]) -> BatchSchedule:
        """The same schedule with its points as explicit numbers; with the arguments of `points`.

        >>> found = BatchSchedule("ramp").resolved(8, 1000, 600, {"batch_growth": 2, "batch_ramp_fraction": 0.5})
        >>> found.switches, found.sizes, bool(BatchSchedule("ramp").resolved(8, 9, 9, dict.fromkeys(PARAMETERS, 1)))
        ((500,), (16,), False)
        """
        points = self.points(first, budget, examples, values)
        if not points:
            return BatchSchedule()
        switches, sizes = zip(*points, strict=True)
        return BatchSchedule(LISTED, self.coupling, self.most, switches, sizes)


def phases_of(question: Mapping[str, Any], values: Mapping[str, Any]) -> Phases:
    """The batch size of each update of a trial.

    Arguments:
        question: as recorded.
        values: hyperparameters of the trial.

    >>> phases_of({"batch_size": 8, "train_steps": 30}, {}).examples(30)
    240
    """
    schedule, first = BatchSchedule.of(question), int(question["batch_size"])
    if not schedule:
        return Phases((0,), (first,), int(question["train_steps"]))
    examples, once = question["workload"]["train_examples"], question["budget"].get("single_pass", False)
    return schedule.phases(first, question["budget_examples"], examples, values, once)


def tuned(question: Mapping[str, Any]) -> bool:
    """True if trials of a recorded question differ in their batch sizes.

    >>> space = {"batch_growth": {"low": 1, "high": 16}, "batch_ramp_fraction": {"choices": [0.5]}}
    >>> tuned({"batch_schedule": {"kind": "ramp"}, "search": {"space": space}})
    True
    """
    space = question["search"]["space"] if question.get(COLUMN) else {}
    names = BatchSchedule.of(question).parameters if space else ()
    return any(len(space[name].get("choices") or (0, 1)) > 1 for name in names)


def series(question: Mapping[str, Any]) -> str:
    """The name of the curve that a recorded question belongs to: its optimizer, and its schedule if the batch size
    grows. Such curves are no points of S(B).

    >>> series({"optimizer": "sgd"}), series({"optimizer": "sgd", "batch_schedule": {"kind": "doubling"}})
    ('sgd', 'sgd+doubling')
    """
    return named(str(question["optimizer"]), BatchSchedule.of(question))


def named(optimizer: str, schedule: BatchSchedule) -> str:
    """The name of a curve (see `series`).

    >>> named("adam", BatchSchedule("ramp", "square_root"))
    'adam+ramp-square_root'
    """
    return f"{optimizer}+{schedule.label}" if schedule else optimizer
