"""What a study will cost on this device, measured from a few real steps and evaluations before it starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from study.records import Study

if TYPE_CHECKING:
    from workloads.base import Splits, Workload

MEASURING_SECONDS = 0.25


@dataclass(frozen=True)
class Cost:
    """Measured seconds of one step, of one evaluation of the validation set, and of the other two splits together."""

    step: float
    validation: float
    others: float

    def trial(self, study: Study) -> float:
        """Seconds that one trial takes when it runs its whole step budget: an upper bound under early stopping."""
        evaluations = len(study.evaluation_steps)
        every = study.evaluation.every
        return study.train_steps * self.step + evaluations * self.validation + (evaluations // every + 1) * self.others

    def study(self, study: Study, workers: int) -> float:
        """Seconds for all the feasible trials wanted; diverging ones come on top, early stopping takes off."""
        return self.trial(study) * study.search.trials / workers


def measure(study: Study, workload: Workload, splits: Splits) -> Cost:
    """Time a few steps and evaluations of the study's first trial."""
    from study.serial import Data, Run
    from study.space import values
    from study.tuner import point

    trial = study.trial(0, values(study.search.space, point(study, 0)))
    run = Run(study, workload, Data.of(study, splits), trial)
    run.model.train()

    def step() -> None:
        run.update().item()  # waits for the device
        run.step += 1

    return Cost(
        step=_seconds(step),
        validation=_seconds(lambda: run.measure("val")),
        others=_seconds(lambda: (run.measure("train"), run.measure("test"))),
    )


def _seconds(call: Callable[[], object]) -> float:
    """The least of several timings after a first, untimed call; the least, since noise only ever adds."""
    call()
    least, spent = float("inf"), 0.0
    while spent < MEASURING_SECONDS:
        start = time.perf_counter()
        call()
        elapsed = time.perf_counter() - start
        least, spent = min(least, elapsed), spent + elapsed
    return least
