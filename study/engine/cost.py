"""What a study will cost on this device, measured from a few real steps and evaluations before it starts."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from study.records import Study


@dataclass(frozen=True)
class Cost:
    """Measured seconds, with every worker busy.

    Attributes:
        step: one update of one trial.
        validation, others: one evaluation of the validation set; of the training subset and the test set together.
        heights: the stack heights that may be computed.
        lanes: trials that a worker trains at once; 1 where they are not fused.
        parts: examples of each micro-batch of each device; none where one device takes the batch at once.
    """

    step: float
    validation: float
    others: float
    heights: tuple[int, ...] = (1,)
    lanes: int = 1
    parts: tuple[tuple[int, ...], ...] = ()

    def composition(self, batch_size: int) -> str:
        """What a global batch is made of, for people.

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
        """Seconds that one trial takes when it runs its whole step budget: an upper bound under early stopping."""
        evaluations = len(study.evaluation_steps)
        return (
            study.train_steps * self.step
            + evaluations * self.validation
            + (evaluations // study.evaluation.every + 1) * self.others
        )


@dataclass(frozen=True)
class Work:
    """Training that is still to be done: the feasible `trials` that a search wants, with the cost of one."""

    study: Study
    cost: Cost
    trials: int

    def seconds(self, workers: int) -> float:
        """At full budget; diverging trials come on top, early stopping takes off."""
        return self.cost.trial(self.study) * self.trials / workers

    def plan(self, workers: int) -> dict[str, Any]:
        """What it will take at full budget, as plain data."""
        steps = self.trials * self.study.train_steps
        return {
            "workload": self.study.name,
            "optimizer": self.study.optimizer,
            "batch_size": self.study.batch_size,
            "search": self.study.branch.path,
            "trials": self.trials,
            "steps": steps,
            "examples": steps * self.study.batch_size,
            "seconds": self.seconds(workers),
            "seconds_per_step": self.cost.step,
            "evaluation_share": 1 - self.study.train_steps * self.cost.step / self.cost.trial(self.study),
        }


def least_seconds(
    call: Callable[[], object],
    budget: float = 0.25,
    broadcast: Callable[[Callable[[], bool]], bool] = lambda call: call(),
) -> float:
    """The least of several timings within `budget` seconds, after a first, untimed call: noise only ever adds.
    `broadcast` calls what decides whether to go on, on the first process of a team alone, for all of them."""
    call()
    timings: list[float] = []
    while broadcast(lambda: sum(timings) <= budget):
        start = time.perf_counter()
        call()
        timings.append(time.perf_counter() - start)
    return min(timings)
