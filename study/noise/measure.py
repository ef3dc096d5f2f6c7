"""Measures gradients along tuned runs: what it will cost, and then point after point."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console

from analysis.labels import about, counted, short_count
from study import whole_sweep
from study.devices import generators
from study.devices.machine import git_commit, versions
from study.engine.cost import least_seconds
from study.engine.run import Run
from study.engine.timing import update_seconds
from study.engine.trial.evaluation import measure as measure_errors
from study.noise import one_step
from study.noise.gradients import Gradients
from study.noise.point import BLOCKS, measured
from study.noise.preconditioner import preconditioner
from study.noise.tuned_run import NOISE, ONE_STEP, TunedRun
from study.store import noise, now
from study.tuned.runs import retrain

PACKAGES = ("torch", "numpy")
TIMED = 256
"""The most examples in the batch whose gradient is timed: those of larger batches take as long for each example."""


@dataclass(frozen=True)
class NoiseCost:
    """What the missing points of a tuned run take.

    Attributes:
        retraining: gradients of single examples to retrain up to the last missing point.
        measuring: gradients of single examples to measure; batches count by their examples.
        losses: of single examples, without a gradient.
        seconds: predicted from one update, and one block or one loss.
    """

    retraining: int
    measuring: int
    seconds: float
    losses: int = 0

    def __str__(self) -> str:
        losses = f" and {short_count(self.losses)} losses" if self.losses else ""
        both = f"{short_count(self.retraining)} gradients of examples to retrain, {short_count(self.measuring)}{losses}"
        return f"{both} to measure, {about(self.seconds)}"


def cost(tuned: TunedRun, device: str) -> NoiseCost:
    """Measure the cost of the missing points on a run of its own."""
    run, missing = tuned.begin(device), tuned.missing
    with generators.restored(run.data.device):
        retraining = missing[-1] * update_seconds(run)
        of_point = OF_KIND[tuned.kind].cost(tuned, run)
    each = [len(missing) * number for number in (of_point.measuring, of_point.losses)]
    seconds = retraining + len(missing) * of_point.seconds
    return NoiseCost(run.phases.examples(missing[-1]), each[0], seconds, each[1])


def _noise_cost(tuned: TunedRun, run: Run) -> NoiseCost:
    """The cost of the gradient noise at one point."""
    examples = tuned.settings["examples_per_block"]
    gradients = Gradients(run, examples)
    inputs, targets = gradients.block(0)
    calls: list[Callable[[], Any]] = [lambda: gradients.of_batch(0, inputs, targets).sum().item()]
    if gradients.separable:
        calls.append(lambda: sum(each.sum().item() for each in gradients.of_each(0, inputs, targets)))
    seconds = BLOCKS * sum(least_seconds(call, budget=0) for call in calls)
    return NoiseCost(0, BLOCKS * examples * len(calls), seconds)


def _one_step_cost(tuned: TunedRun, run: Run) -> NoiseCost:
    """The cost of the losses after one step at one point."""
    sizes, examples = tuned.settings["batch_sizes"], tuned.settings["loss_examples_per_batch"]
    few = min(TIMED, sizes[-1])
    gradients, objective = Gradients(run, few), one_step.Objective(run, examples)
    inputs, targets = gradients.block(0)
    each = least_seconds(lambda: gradients.of_batch(0, inputs, targets).sum().item(), budget=0) / few
    loss = least_seconds(lambda: objective.after(0, objective.base, 0.0), budget=0)
    forms = 1 if preconditioner(run) is None else 2
    losses, gradients_needed = forms * len(sizes) * one_step.LOSSES, tuned.settings["batches"] * sum(sizes)
    return NoiseCost(0, gradients_needed, gradients_needed * each + losses * loss, losses * examples)


def measure(tuned: TunedRun, device: str, console: Console, plan: bool) -> None:
    """Retrain a tuned run and measure at its missing points; each is on file as soon as it is measured.

    The cost is said before.

    Arguments:
        plan: only say the cost.

    Raises:
        StoreError: a point cannot be written.
        Failed: the run diverges, which it did not in the sweep.
    """
    if not (missing := tuned.missing):
        if plan:
            console.print(whole_sweep.COMPLETE)
        return
    points = f"{counted(len(missing), 'point')} of trial {tuned.curve.trial.index}"
    console.print(f"{tuned.name}: {points}: {cost(tuned, device)}.", markup=False, highlight=False)
    if plan:
        return
    run = tuned.begin(device)
    with generators.restored(run.data.device), console.status("") as status:
        for step in missing:
            status.update(f"Retraining to step {step:,} ...")
            retrain(run, step, tuned.name, "Measure at another --batch-size.")
            status.update(f"Measuring {OF_KIND[tuned.kind].what} at step {step:,} ...")
            noise.save_point(tuned.folder, _point(tuned, run))


def _point(tuned: TunedRun, run: Run) -> dict[str, Any]:
    """The record of one point."""
    found = OF_KIND[tuned.kind].measured(tuned, run)
    return {
        "checksum": tuned.checksum,
        "step": run.step,
        "examples_seen": run.phases.examples(run.step),
        "error": _error(run),
        "recorded_error": _or_none(tuned.recorded_error(run.step)),
        **found,
        "question": tuned.question,
        "measured": now(),
        "versions": versions(PACKAGES),
        "git_commit": git_commit(),
    }


def _noise(tuned: TunedRun, run: Run) -> dict[str, Any]:
    return measured(run, tuned.settings["examples_per_block"])._asdict()


def _one_step(tuned: TunedRun, run: Run) -> dict[str, Any]:
    settings = tuned.settings
    return one_step.measured(run, settings["loss_examples_per_batch"], settings["batch_sizes"], settings["batches"])


@dataclass(frozen=True)
class Kind:
    """What is measured at a point: in a message, its cost, and the measurement, whose record is plain data."""

    what: str
    cost: Callable[[TunedRun, Run], NoiseCost]
    measured: Callable[[TunedRun, Run], dict[str, Any]]


OF_KIND = {
    NOISE: Kind("gradients", _noise_cost, _noise),
    ONE_STEP: Kind("losses after one step", _one_step_cost, _one_step),
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
