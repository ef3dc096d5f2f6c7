"""`study calibrate`: compares measurements of the noisy quadratic model with its exact solution.

The measurements come from a real sweep by the code of `study sweep`. This file reads them back and computes their exact
counterparts. Each trial crosses the goal at a random evaluation, and the exact moments bound its distribution. So the
expected median over reruns, and the expected fewest steps among the points of a search, are intervals.

Shapes: E steps of the evaluation grid, C configurations.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from analysis.question.stages import INDEXED_SAMPLERS, REFINE
from study.config.jobs import Job
from study.errors import UsageError
from study.records import Study
from study.search import stages
from study.search.tuner import Tuner
from study.whole_sweep import on_file
from workloads.noisy_quadratic_exact import Recursion, spectrum

OVERRIDES = ("workload=nqm,nqm_preconditioned", "optimizer=sgd,momentum")
SEEDS = 7
"""Fresh seeds of each tuned configuration."""
SOLVED = ("sgd", "momentum")
FALSE_ALARM = 0.01
"""The largest probability that any interval of a calibration excludes a correct measurement."""
WINDOW = 0.6
"""The pattern search evaluates neighbours of the best point from this fraction of its steps on."""
FINEST = 1 / 256
"""The resolution of the exact optimum, as a fraction of each range."""


@dataclass(frozen=True)
class Interval:
    """An interval of expected steps; `high` is infinite if the event may never happen."""

    low: float
    high: float

    def __contains__(self, steps: float) -> bool:
        return self.low <= steps <= self.high


@dataclass(frozen=True)
class Comparison:
    """One batch size of one curve: measured and exact numbers, in steps.

    Attributes:
        tuned: the tuned configuration: that of the trial with the fewest steps, or the one that `refine` confirmed.
        reruns: its steps with each fresh seed, increasing; infinite where the goal was missed.
        tuned_exact: the first evaluation with an expected loss below the goal.
        tuned_expected: interval of the (lower) median of the reruns.
        fewest: the measured S(B).
        fewest_exact: the fewest exact steps among the points that the search tried.
        fewest_expected: interval of S(B), from all points that the search tried; open if earlier trials chose them.
        optimum, optimum_at: the fewest exact steps anywhere in the search space, and their hyperparameters.
    """

    workload: str
    optimizer: str
    batch_size: int
    tuned: Mapping[str, float]
    reruns: Sequence[float]
    tuned_exact: float
    tuned_expected: Interval
    fewest: float
    fewest_exact: float
    fewest_expected: Interval
    optimum: float
    optimum_at: Mapping[str, float]

    @property
    def median(self) -> float:
        """The lower median of the reruns."""
        return self.reruns[(len(self.reruns) - 1) // 2]

    @property
    def agrees(self) -> bool:
        """Whether both measurements lie in their intervals."""
        return self.median in self.tuned_expected and self.fewest in self.fewest_expected


def check(jobs: Sequence[Job]) -> None:
    """Raise UsageError, before anything trains, for jobs that cannot be compared with the exact solution.

    The comparison needs the noisy quadratic model, an optimizer in SOLVED, a constant learning rate, a goal on
    val/loss, no other tuned parameters than learning_rate and momentum, one step budget, and reruns.
    """
    for study in (job.study for job in jobs):
        asked = (study.workload["_target_"], study.schedule)
        solved = asked == ("workloads.noisy_quadratic.NoisyQuadraticModel", "constant") and study.optimizer in SOLVED
        if not solved or study.batch_schedule:
            raise UsageError(
                "only the noisy quadratic model with sgd or momentum at a constant learning rate is solved exactly, "
                f"but got {study.name} under {study.optimizer} with {study.scheduled_by}."
            )
        tuned = {*study.search.space} - {"learning_rate", "momentum"}
        if tuned or study.goal.metric != "val/loss" or study.search.budgets != (1.0,):
            got = f"{', '.join(sorted(study.search.space))}, {study.goal} and {list(study.search.budgets)}"
            raise UsageError(
                "the exact solution needs a search of learning_rate and momentum alone, a goal of val/loss, and "
                f"search.budgets=[1], but got {got}."
            )
        if not study.search.reruns:
            raise UsageError("search.reruns must be at least 1, because calibration compares reruns, but got 0.")


def overrides(given: Sequence[str]) -> list[str]:
    """The overrides of a calibration: quasi-random searches unless others are `given`, and SEEDS fresh seeds."""
    refine = any(text in (f"search={REFINE}", f"+search={REFINE}") for text in given)
    search = [] if any(re.match(r"\+?search=", text) for text in given) else ["search=sobol"]
    return [*OVERRIDES, *search, f"search.{'confirm' if refine else 'reruns'}={SEEDS}", *given]


def intervals(jobs: Sequence[Job]) -> int:
    """The number of intervals that a calibration judges: S(B) only where no trial chose the points of others."""
    return sum(1 + (job.study.search.sampler in INDEXED_SAMPLERS) for job in jobs)


def compare(jobs: Sequence[Job]) -> list[Comparison]:
    """Compare the finished searches of these jobs, read from file, with the exact solution.

    Raises:
        StoreError: a file cannot be read.
        UsageError: no trial of a study reached the goal.
    """
    alpha = FALSE_ALARM / intervals(jobs)
    return [_compared(job, alpha) for job in jobs]


def _compared(job: Job, alpha: float) -> Comparison:
    load = on_file(job)
    *_, tuner = stages.stages(job.study, load)
    study = tuner.study
    if tuner.steps_to_result is None:
        where = f"{study.name} with {study.optimizer} at batch size {study.batch_size}"
        raise UsageError(f"{where} never reached {study.goal}; use more trials or a looser goal.")
    again = stages.rerun(tuner)
    ended = Tuner(again, load(again)).outcomes
    reruns = [ended[index] for index in range(study.search.reruns)]
    steps = sorted(np.inf if outcome.result is None else outcome.result for outcome in reruns)
    points = [dict(trial.hyperparameters) for trial in tuner.counted_trials]
    assert tuner.tuned is not None
    tuned = dict(tuner.tuned.hyperparameters)
    middle, grid = (len(steps) + 1) // 2, study.evaluation_steps
    one, all_points = recursion(study, [tuned]), recursion(study, points)
    exact = all_points.steps_to_goal(study.goal.threshold, grid)
    optimum, optimum_at = best_in_box(study, points[int(exact.argmin())], exact.min())
    return Comparison(
        study.name,
        study.optimizer,
        study.batch_size,
        tuned,
        steps,
        float(one.steps_to_goal(study.goal.threshold, grid)[0]),
        _interval(study, one, alpha, lambda chances: float(binom.sf(middle - 1, len(steps), chances[0]))),
        float(tuner.steps_to_result),
        float(exact.min()),
        _interval(study, all_points, alpha, lambda chances: float(1 - np.prod(1 - chances)))
        if study.search.sampler in INDEXED_SAMPLERS
        else Interval(0, np.inf),
        optimum,
        optimum_at,
    )


def recursion(study: Study, points: Sequence[Mapping[str, float]]) -> Recursion:
    """The exact moments of configurations [C] of a study of the noisy quadratic model."""
    return Recursion(
        study.batch_size,
        np.array([point["learning_rate"] for point in points]),
        np.array([point.get("momentum", 0.0) for point in points]),
        curvatures=spectrum(study.workload["dimensions"]),
        power=study.workload["preconditioner_power"],
    )


def crossed(study: Study, exact: Recursion) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(step, at least, at most) of each evaluation: bounds [C] on the chance that a trial has met the goal by then.

    The lower bound is the largest probability at any evaluation so far; the upper bound is the sum of all of them.
    """
    at_least = at_most = np.zeros(())
    for step, moments in zip(study.evaluation_steps, exact.at(study.evaluation_steps), strict=True):
        chance = exact.chance_below(study.goal.threshold, moments, study.workload["replicas"])
        at_least, at_most = np.maximum(at_least, chance), np.minimum(at_most + chance, 1)
        yield step, at_least, at_most


def _interval(study: Study, exact: Recursion, alpha: float, happened: Callable[[np.ndarray], float]) -> Interval:
    """The interval of steps in which an event happens with probability of at least 1 - alpha.

    Arguments:
        happened: probability that each trial has crossed the goal [C] -> probability of the event.
    """
    low = np.inf
    for step, at_least, at_most in crossed(study, exact):
        if low == np.inf and happened(at_most) > alpha / 2:
            low = step
        if happened(at_least) >= 1 - alpha / 2:
            return Interval(low, step)
    return Interval(low, np.inf)


def best_in_box(study: Study, start: Mapping[str, float], steps: float) -> tuple[float, dict[str, float]]:
    """(the fewest exact steps in the search space of a study, their hyperparameters), found by a pattern search.

    Arguments:
        start, steps: a good point, where the search begins, and its exact steps.
    """
    space, goal, grid = study.search.space, study.goal.threshold, study.evaluation_steps
    names = sorted(space)
    centre, width = np.array([space[name].unit(start[name]) for name in names]), 1 / 8
    while width >= FINEST and steps < np.inf:
        moves = np.array(list(itertools.product((0, -1, 1), repeat=len(names))))
        places = np.clip(centre + width * moves, 0, 1)
        points = [{name: space[name].value(unit) for name, unit in zip(names, p, strict=True)} for p in places[1:]]
        points = [dict(start), *points]  # keep the point itself: unit -> value would round it
        ahead = [step for step in grid if step >= WINDOW * steps]
        found = recursion(study, points).first_below(goal, ahead)
        assert found is not None  # the starting point is among them
        steps, losses = found
        best = int(np.nanargmin(losses))
        width = width / 2 if best == 0 else width
        centre, start = places[best], points[best]
    return float(steps), dict(start)
