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
        validation: one evaluation of the validation set.
        others: one evaluation of the training subset and the test set together.
        heights: admitted stack heights, increasing.
        lanes: trials that a worker trains at once; 1 if they are not fused.
        parts: for each device, the number of examples in each of its micro-batches; empty if one device takes the whole
            batch at once.
    """

    step: float
    validation: float
    others: float
    heights: tuple[int, ...] = (1,)
    lanes: int = 1
    parts: tuple[tuple[int, ...], ...] = ()

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
        """Seconds of one trial that runs its whole step budget: an upper bound under early stopping."""
        evaluations = len(study.evaluation_steps)
        return (
            study.train_steps * self.step
            + evaluations * self.validation
            + (evaluations // study.evaluation.every + 1) * self.others
        )


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
        """The expected work at full budget, as plain data."""
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
