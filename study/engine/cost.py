"""What a study will cost on this device, measured from a few real steps and evaluations before it starts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from study.data.hardest import MOST
from study.records import Curve, Study

COMPILED_SECONDS = 600.0
"""Fewest seconds of training on a worker, at the full budget, for which `engine.compile=auto` compiles the update. Most
compilations take up to a minute, in which a GPU times its candidates, so they then cost at most a tenth."""

LEAST_EVALUATED = 50
"""Fewer evaluated examples would make errors too noisy to say when a goal is met."""


def cost_steps(study: Study) -> int:
    """The steps that a trial would take at most if all batches had the first size: they measure its cost."""
    end = study.branch.certify
    return study.first_steps if end is None else math.ceil(study.phases.examples(end) / study.batch_size)


def parts_of(shares: Sequence[Sequence[slice]], batch_size: int) -> tuple[tuple[int, ...], ...]:
    """`Cost.parts` of a batch that is divided into these shares (`study.data.order.places`)."""
    parts = tuple(tuple(part.stop - part.start for part in taken) for taken in shares)
    return () if parts == ((batch_size,),) else parts


@dataclass(frozen=True)
class Cost:
    """Measured seconds, with every worker busy.

    Attributes:
        step: one update of one trial.
        validation: one evaluation of the validation set.
        others: one evaluation of the training subset and the test set together.
        heights: admitted stack heights, increasing.
        lanes: trials that a worker trains at once; 1 if they are not fused.
        parts: for each device, the number of examples in each of its micro-batches; empty if one device takes the whole
            batch at once.
        evaluated: examples in an evaluation of the validation set, the training subset and the test set.
        predicted_from: the two batch sizes by which `step` was predicted; empty if it was measured.
        known: False if nothing can be timed before a trial has ended: `step` is then a weight, not seconds.
    """

    step: float
    validation: float
    others: float
    heights: tuple[int, ...] = (1,)
    lanes: int = 1
    parts: tuple[tuple[int, ...], ...] = ()
    evaluated: tuple[int, int, int] = (0, 0, 0)
    predicted_from: tuple[int, ...] = ()
    known: bool = True

    def composition(self, batch_size: int) -> str:
        """How a global batch is split over devices and accumulation steps, as text.

        >>> Cost(0, 0, 0, parts=((100, 100, 50), (100, 100, 50))).composition(500)
        '500 = 2 devices x 3 accumulation steps of at most 100 examples'
        """
        parts = self.parts or ((batch_size,),)
        assert sum(map(sum, parts)) == batch_size
        steps = max(map(len, parts))
        devices = f"{len(parts)} device{'s' if len(parts) > 1 else ''}"
        each = f"{steps} accumulation step{'s' if steps > 1 else ''} of at most {max(map(max, parts)):,} examples"
        return f"{batch_size:,} = {devices} x {each}"

    def trial(self, study: Study) -> float:
        """Seconds of one trial that runs its whole step budget: an upper bound under early stopping, and if the batch
        size grows: `step` is one of the first size, and larger batches take no longer for each example."""
        return cost_steps(study) * self.step + self.evaluations(study)

    def of_trials(self, curves: Iterable[Curve]) -> Cost:
        """This cost; if it is not known, with the seconds of a step of trials that have ended, starts included."""
        if self.known:
            return self
        ended = [(sum(curve.seconds.values()), int(curve.steps[-1])) for curve in curves if len(curve.steps)]
        steps = sum(count for _, count in ended)
        return replace(self, step=sum(seconds for seconds, _ in ended) / steps, known=True) if steps else self

    def pays_to_compile(self, study: Study, workers: int) -> bool:
        """Whether training, by the steps as they were measured, takes much longer than compiling them."""
        return study.search.trials * cost_steps(study) * self.step >= COMPILED_SECONDS * workers

    def evaluations(self, study: Study, examples: int | None = None) -> float:
        """Seconds of all evaluations of one trial. Those that may end early measure about MOST of the validation set.

        Arguments:
            examples: if at most this many examples of each split were evaluated; None: as the study has it.
        """
        count: float = len(study.evaluation_steps)
        others = (count // study.evaluation.every if study.evaluation.every else 0) + 1
        if not study.evaluation.exact:
            count = 1 + MOST * (count - 1)
        if examples is None:
            return count * self.validation + others * self.others
        of_val, *rest = (min(examples, each) for each in self.evaluated)
        return (count * of_val + others * sum(rest)) * self.validation / max(1, self.evaluated[0])


@dataclass(frozen=True)
class Work:
    """Training still to be done: the number of feasible trials that a search still needs, and the cost of one."""

    study: Study
    cost: Cost
    trials: int

    def seconds(self, workers: int) -> float:
        """Seconds at full budget. Diverging trials add to it, and early stopping reduces it."""
        return self.cost.trial(self.study) * self.trials / workers

    def plan(self, workers: int) -> dict[str, Any]:
        """The expected work at full budget, as plain data. Seconds are None if they are not known."""
        known = self.cost.known
        steps, each = self.trials * self.study.last_step, self.study.tokens_per_example
        examples = self.trials * cost_steps(self.study) * self.study.batch_size
        return {
            "workload": self.study.name,
            "optimizer": self.study.series,
            "batch_size": self.study.batch_size,
            "search": self.study.branch.path,
            "trials": self.trials,
            "steps": steps,
            "examples": examples,
            **({} if each is None else {"tokens": examples * each}),
            "seconds": self.seconds(workers) if known else None,
            "seconds_per_step": self.cost.step if known else None,
            **({"predicted_from": list(self.cost.predicted_from)} if self.cost.predicted_from else {}),
            "evaluation_share": 1 - cost_steps(self.study) * self.cost.step / self.cost.trial(self.study),
        }


def evaluation_share(works: Sequence[Work], examples: int | None = None) -> float:
    """The share of the seconds of all this work that its evaluations take.

    Arguments:
        examples: as in `Cost.evaluations`.
    """
    evaluating = sum(work.trials * work.cost.evaluations(work.study, examples) for work in works)
    training = sum(work.trials * cost_steps(work.study) * work.cost.step for work in works)
    return evaluating / (evaluating + training) if evaluating else 0.0


def fewer_examples(works: Sequence[Work], share: float) -> int | None:
    """The most evaluated examples of each split, to one digit, with which evaluations take at most this share.

    None if no number of at least LEAST_EVALUATED does.
    """
    most = max((max(work.cost.evaluated) for work in works), default=0)
    powers = (10**power for power in range(len(str(most)), -1, -1))
    counts = (digit * power for power in powers for digit in range(9, 0, -1))
    return next(
        (n for n in counts if LEAST_EVALUATED <= n < most and evaluation_share(works, n) <= share),
        None,
    )


def least_seconds(
    call: Callable[[], object],
    budget: float = 0.25,
    broadcast: Callable[[Callable[[], bool]], bool] = lambda call: call(),
) -> float:
    """The shortest of several timings of `call` in seconds, because noise only adds time.

    Arguments:
        call: called once untimed, then timed at least once.
        budget: timing stops once the timings exceed this many seconds together.
        broadcast: runs a function on rank 0 and returns its result on every rank, so that all ranks call equally often.
    """
    call()
    timings: list[float] = []
    while broadcast(lambda: sum(timings) <= budget):
        start = time.perf_counter()
        call()
        timings.append(time.perf_counter() - start)
    return min(timings)
