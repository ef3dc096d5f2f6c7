"""Measures gradient noise along tuned runs: what it will cost, and then point after point."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console

from analysis.labels import counted, duration, short_count
from study.devices import generators
from study.engine.cost import least_seconds
from study.engine.evaluation import measure as measure_errors
from study.engine.serial import Run
from study.engine.timing import update_seconds
from study.errors import Failed
from study.noise.gradients import Gradients
from study.noise.point import BLOCKS, measured
from study.noise.tuned_run import TunedRun
from study.run import git_commit, versions
from study.store import noise, now

PACKAGES = ("torch", "numpy")


@dataclass(frozen=True)
class NoiseCost:
    """What the missing points of a tuned run take.

    Attributes:
        retraining: gradients of single examples to retrain up to the last missing point.
        measuring: gradients of single examples to measure; batches count by their examples.
        seconds: predicted from one update and one block.
    """

    retraining: int
    measuring: int
    seconds: float

    def __str__(self) -> str:
        both = f"{short_count(self.retraining)} gradients of examples to retrain, {short_count(self.measuring)}"
        return f"{both} to measure, about {duration(self.seconds)}"


def cost(tuned: TunedRun, device: str) -> NoiseCost:
    """Measure the cost of the missing points on a run of its own."""
    run, missing = tuned.begin(device), tuned.missing
    with generators.restored(run.data.device):
        seconds = missing[-1] * update_seconds(run)
        gradients = Gradients(run, tuned.examples)
        inputs, targets = gradients.block(0)
        calls = [lambda: gradients.of_batch(0, inputs, targets).sum().item()]
        if gradients.separable:
            calls.append(lambda: sum(each.sum().item() for each in gradients.of_each(0, inputs, targets)))
        seconds += len(missing) * BLOCKS * sum(least_seconds(call, budget=0) for call in calls)
    measuring = len(missing) * BLOCKS * tuned.examples * len(calls)
    return NoiseCost(run.phases.examples(missing[-1]), measuring, seconds)


def measure(tuned: TunedRun, device: str, console: Console) -> None:
    """Retrain a tuned run and measure at its missing points; each is on file as soon as it is measured.

    The cost is said before.

    Raises:
        StoreError: a point cannot be written.
        Failed: the run diverges, which it did not in the sweep.
    """
    if not (missing := tuned.missing):
        return
    points = f"{counted(len(missing), 'point')} of trial {tuned.curve.trial.index}"
    console.print(f"{tuned.name}: {points}: {cost(tuned, device)}.", markup=False, highlight=False)
    run = tuned.begin(device)
    with generators.restored(run.data.device), console.status("") as status:
        for step in missing:
            status.update(f"Retraining to step {step:,} ...")
            run.advance(step - run.step)
            if run.log.first_bad_step is not None:
                raise Failed(
                    f"{tuned.name} diverged at step {run.log.first_bad_step} when it was trained again, but not in the "
                    "sweep: its result hangs on the last bits. Measure at another --batch-size."
                )
            status.update(f"Measuring gradients at step {step:,} ...")
            noise.save_point(tuned.folder, _point(tuned, run))


def _point(tuned: TunedRun, run: Run) -> dict[str, Any]:
    """The record of one point."""
    found = measured(run, tuned.examples)
    return {
        "checksum": tuned.checksum,
        "step": run.step,
        "examples_seen": run.phases.examples(run.step),
        "error": _error(run),
        "recorded_error": _or_none(tuned.recorded_error(run.step)),
        **found._asdict(),
        "question": tuned.question,
        "measured": now(),
        "versions": versions(PACKAGES),
        "git_commit": git_commit(),
    }


def _error(run: Run) -> float | None:
    """The goal's metric now; None if it is not one of the weights on the validation set."""
    split, _, name = run.study.goal.metric.partition("/")
    if split != "val":
        return None
    [errors] = measure_errors([run.log], split, partial(run.predict, averaged=False))
    return _or_none(errors.get(name, math.nan))


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
