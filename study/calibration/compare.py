"""`study calibrate`: the instrument held against the noisy quadratic model, whose answers are known exactly.

A real sweep is made by the code path of `study sweep`; this reads its results back from their files and says what they
should have been. Each trial crosses the goal at a random grid step, whose distribution the exact moments bound, so what
is expected of a median over reruns, and of the fewest steps among the very points that a search tried, is an interval.

Shapes: E steps of the evaluation grid, C configurations.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from study.config.jobs import Job
from study.errors import UsageError
from study.records import Study
from study.search import stages
from study.search.tuner import Tuner
from study.whole_sweep import on_file
from workloads.noisy_quadratic_exact import Recursion, spectrum

OVERRIDES = ("workload=nqm,nqm_preconditioned", "optimizer=sgd,momentum", "search.reruns=7")
SOLVED = ("sgd", "momentum")
FALSE_ALARM = 0.01
"""The chance that any of all intervals together excludes what was measured though nothing is wrong."""
WINDOW = 0.6
"""How much faster than the best point so far a neighbour of it is looked for."""
FINEST = 1 / 256
"""Of each range, to which the exact optimum is searched."""


@dataclass(frozen=True)
class Interval:
    """Steps between which something measured is expected; `high` is infinite where it may never happen."""

    low: float
    high: float

    def __contains__(self, steps: float) -> bool:
        return self.low <= steps <= self.high


@dataclass(frozen=True)
class Comparison:
    """One batch size of one curve: what was measured and what should have been, in steps.

    Attributes:
        tuned: hyperparameters of the trial with the fewest steps.
        reruns: steps of every rerun of it, increasing; infinite where the goal was missed.
        tuned_exact: at which its expected loss is first below the goal, on the same evaluation grid.
        tuned_expected: of the (lower) median of the reruns.
        fewest: S(B) as measured.
        fewest_exact: the least exact steps among the points that the search tried.
        fewest_expected: of S(B), from all of those points.
        optimum, optimum_at: the least exact steps anywhere in the box, and where.
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
        """Whether both measurements are as expected."""
        return self.median in self.tuned_expected and self.fewest in self.fewest_expected


def check(jobs: Sequence[Job]) -> None:
    """Refuse, before anything is trained, what has no exact solution here.

    Raises:
        UsageError: another workload, optimizer or schedule, or no reruns.
    """
    for study in (job.study for job in jobs):
        asked = (study.workload["_target_"], study.schedule)
        if asked != ("workloads.noisy_quadratic.NoisyQuadraticModel", "constant") or study.optimizer not in SOLVED:
            raise UsageError(
                "only the noisy quadratic model, under sgd or momentum at a constant learning rate, is solved exactly, "
                f"but got {study.name} under {study.optimizer} with schedule {study.schedule}."
            )
        tuned = {*study.search.space} - {"learning_rate", "momentum"}
        if tuned or study.goal.metric != "val/loss" or study.search.budgets != (1.0,):
            got = f"{', '.join(sorted(study.search.space))}, {study.goal} and {list(study.search.budgets)}"
            raise UsageError(
                "the exact solution is of learning_rate and momentum alone, a goal of val/loss, and "
                f"search.budgets=[1], but got {got}."
            )
        if not study.search.reruns:
            raise UsageError("search.reruns must be at least 1: tuned configurations are trained again.")


def compare(jobs: Sequence[Job]) -> list[Comparison]:
    """Hold the finished searches of these jobs, as they are on file, against the exact solution.

    Raises:
        StoreError: a file cannot be read.
        UsageError: a goal was never reached.
    """
    alpha = FALSE_ALARM / (2 * len(jobs))
    return [_compared(job, alpha) for job in jobs]


def _compared(job: Job, alpha: float) -> Comparison:
    load = on_file(job)
    *_, tuner = stages.stages(job.study, load)
    study = tuner.study
    if tuner.steps_to_result is None:
        where = f"{study.name} with {study.optimizer} at batch size {study.batch_size}"
        raise UsageError(f"{where} never reached {study.goal}; give it more trials or another goal.")
    again = stages.rerun(tuner)
    ended = Tuner(again, load(again)).outcomes
    reruns = [ended[index] for index in range(study.search.reruns)]
    steps = sorted(np.inf if outcome.result is None else outcome.result for outcome in reruns)
    points = [dict(trial.hyperparameters) for trial in tuner.counted_trials]
    tuned = dict(tuner.best_trials[0].hyperparameters)
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
        _interval(study, all_points, alpha, lambda chances: float(1 - np.prod(1 - chances))),
        optimum,
        optimum_at,
    )


def recursion(study: Study, points: Sequence[Mapping[str, float]]) -> Recursion:
    """The exact moments of these configurations [C] of a study of the noisy quadratic model."""
    return Recursion(
        study.batch_size,
        np.array([point["learning_rate"] for point in points]),
        np.array([point.get("momentum", 0.0) for point in points]),
        curvatures=spectrum(study.workload["dimensions"]),
        power=study.workload["preconditioner_power"],
    )


def crossed(study: Study, exact: Recursion) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """At each evaluation: the step, and bounds [C] on the probability that a trial was measured below the goal by it.

    It was at least as probably as it is below at any one evaluation, and at most as probably as the sum over all.
    """
    at_least = at_most = np.zeros(())
    for step, moments in zip(study.evaluation_steps, exact.at(study.evaluation_steps), strict=True):
        chance = exact.chance_below(study.goal.threshold, moments, study.workload["replicas"])
        at_least, at_most = np.maximum(at_least, chance), np.minimum(at_most + chance, 1)
        yield step, at_least, at_most


def _interval(study: Study, exact: Recursion, alpha: float, happened: Callable[[np.ndarray], float]) -> Interval:
    """Where something happens with probability 1 - alpha, given its probability from those of each trial's crossing."""
    low = np.inf
    for step, at_least, at_most in crossed(study, exact):
        if low == np.inf and happened(at_most) > alpha / 2:
            low = step
        if happened(at_least) >= 1 - alpha / 2:
            return Interval(low, step)
    return Interval(low, np.inf)


def best_in_box(study: Study, start: Mapping[str, float], steps: float) -> tuple[float, dict[str, float]]:
    """(the least exact steps in the box of a study, where), found by moving to better neighbours, ever nearer ones.

    Arguments:
        start: a good point, and how many steps it takes.
    """
    space, goal, grid = study.search.space, study.goal.threshold, study.evaluation_steps
    names = sorted(space)
    centre, width = np.array([space[name].unit(start[name]) for name in names]), 1 / 8
    while width >= FINEST and steps < np.inf:
        moves = np.array(list(itertools.product((0, -1, 1), repeat=len(names))))
        places = np.clip(centre + width * moves, 0, 1)
        points = [{name: space[name].value(unit) for name, unit in zip(names, p, strict=True)} for p in places[1:]]
        points = [dict(start), *points]  # itself, not what rounding makes of it
        ahead = [step for step in grid if step >= WINDOW * steps]
        found = recursion(study, points).first_below(goal, ahead)
        assert found is not None  # since the starting point is among them
        steps, losses = found
        best = int(np.nanargmin(losses))
        width = width / 2 if best == 0 else width
        centre, start = places[best], points[best]
    return float(steps), dict(start)
