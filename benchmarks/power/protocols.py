"""How a curve of steps-to-result is searched: today's protocols and refine, simulated on a surface.

Each returns what a real sweep would have on file at each batch size: the steps of its search, the fresh seeds of its
tuned configuration, and the steps trained.

Shapes: n trials, D tuned parameters, K fresh seeds.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import qmc

from analysis.counting import COMPLETE, Outcome, Rule, TrialCurve, counted_prefix, outcome, outcomes
from analysis.surrogate import curve, proposals, responses
from analysis.surrogate.curve import Fitted
from analysis.surrogate.process import Coordinates, Shape
from analysis.surrogate.responses import Result
from benchmarks.power.surfaces import Surface

SEARCH, SCREEN, FRESH = range(3)
"""What the seeds of a training are for; a part of its key."""


@dataclass(frozen=True)
class Found:
    """The result at one batch size.

    Attributes:
        fewest: fewest steps of the search; infinite if no trial met the goal.
        seeds: steps of the tuned configuration with fresh seeds [K]; infinite where the goal was missed.
        cost: steps trained.
    """

    fewest: float
    seeds: np.ndarray
    cost: int


@dataclass(frozen=True)
class Sobol:
    """Quasi-random search: the same points and seeds at every batch size, S(B) the fewest steps of N feasible trials.

    Attributes:
        trials: N.
        reruns: K.
        stage_race: bound trials by all N, not by those of lower index alone.
    """

    trials: int
    reruns: int = 0
    stage_race: bool = False

    @property
    def name(self) -> str:
        """As the tables show it."""
        reruns = f" + {self.reruns} reruns" if self.reruns else ""
        return f"Sobol, N = {self.trials}{reruns}{', stage race' if self.stage_race else ''}"

    def __call__(self, surface: Surface, seed: int) -> dict[int, Found]:
        """Search every batch size of a surface."""
        return {size: self._at(surface, size, seed) for size in surface.batch_sizes}

    def _at(self, surface: Surface, size: int, seed: int) -> Found:
        rule = Rule("race", surface.threshold, surface.grid(size))
        points, curves, ended = self._launched(surface, size, rule, seed)
        steps = [each.result or np.inf for each in ended]
        best, cost = int(np.argmin(steps)), sum(each.end for each in ended)
        if self.stage_race and steps[best] < np.inf:
            cost = sum(outcome(rule, each, int(steps[best])).end for each in curves)
        if not self.reruns or steps[best] == np.inf:
            return Found(steps[best], np.empty(0), cost)
        seeds, more = fresh(surface, size, points[best], self.reruns, seed)
        return Found(steps[best], seeds, cost + more)

    def _launched(
        self, surface: Surface, size: int, rule: Rule, seed: int
    ) -> tuple[np.ndarray, list[TrialCurve], list[Outcome]]:
        """The counted trials: launch until N are feasible, at most ten times N."""
        points = sobol(len(surface.space), 10 * self.trials, (seed,))
        curves: list[TrialCurve] = []
        while len(curves) < len(points):
            numbers = range(len(curves), min(len(curves) + self.trials, len(points)))
            curves += surface.train(size, points[numbers], [(seed, SEARCH, number) for number in numbers])
            ended = _all(rule, curves)
            statuses = [each.status for each in ended]
            if statuses.count(COMPLETE) >= self.trials:
                break
        counted = counted_prefix(statuses, self.trials)
        return points[:counted], curves[:counted], ended[:counted]


@dataclass(frozen=True)
class Refine:
    """Scouts, pooled stages, screening and confirming seeds.

    Attributes:
        scouts, stages: trials of stage 0 and of each later stage.
        screens: seeds of each candidate.
        confirm: K.
    """

    scouts: int = 6
    stages: tuple[int, ...] = (4, 4, 4, 4, 3)
    screens: int = 2
    confirm: int = 4

    @property
    def name(self) -> str:
        """As the tables show it."""
        trainings = self.scouts + sum(self.stages) + 2 * self.screens + self.confirm
        return f"refine, {trainings} trainings"

    def __call__(self, surface: Surface, seed: int) -> dict[int, Found]:
        """Search all batch sizes of a surface together."""
        search = _Search(surface, seed)
        for size in surface.batch_sizes:
            search.train(size, sobol(len(surface.space), self.scouts, (seed, size)))
        for stage, count in enumerate(self.stages, start=1):
            model = search.fitted()
            points = {
                size: curve.stage_points(model, search.results, size, (seed, size, stage), count)
                for size in surface.batch_sizes
            }
            for size, each in points.items():
                search.train(size, np.array(each))
        model = search.fitted()
        return {size: self._confirmed(search, model, size) for size in surface.batch_sizes}

    def _confirmed(self, search: _Search, model: Fitted, size: int) -> Found:
        surface, results = search.surface, search.results[size]
        points = [result.point for result in results]
        steps = [result.outcome.result for result in results]
        cost = sum(result.outcome.end for result in results)
        screened = curve.candidates(model, search.results, size)
        if not screened:
            return Found(np.inf, np.empty(0), cost)
        fewest = min(each for each in steps if each is not None)
        rule, screens = Rule("race", surface.threshold, surface.grid(size)), []
        for position in screened:
            point = np.tile(points[position], (self.screens, 1))
            keys = [(search.seed, SCREEN, position, number) for number in range(self.screens)]
            curves = surface.train(size, point, keys)
            screens += [Result(points[position], each, outcome(rule, each, fewest)) for each in curves]
        slope = responses.slope(search.results, surface.error_floor)
        found = responses.responses(screens, surface.threshold, slope, error_floor=surface.error_floor)
        best = screened[proposals.chosen(found.values.reshape(len(screened), self.screens).tolist())]
        seeds, more = fresh(surface, size, np.array(points[best]), self.confirm, search.seed)
        return Found(float(fewest), seeds, cost + sum(screen.outcome.end for screen in screens) + more)


@dataclass
class _Search:
    """The trials of refine so far; `shape` is that of the latest fit."""

    surface: Surface
    seed: int
    shape: Shape | None = None
    results: dict[int, list[Result]] = field(default_factory=dict)

    def train(self, size: int, points: np.ndarray) -> None:
        """Train the points [n, D] of one stage; the race is bounded by all trials so far."""
        surface, results = self.surface, self.results.setdefault(size, [])
        points = np.round(points, proposals.DIGITS)
        numbers = range(len(results), len(results) + len(points))
        curves = surface.train(size, points, [(self.seed, SEARCH, number) for number in numbers])
        rule = Rule("race", surface.threshold, surface.grid(size))
        met = [each.result for each in _all(rule._replace(stopping="goal"), curves)]
        met += [result.outcome.result for result in results]
        best = min((steps for steps in met if steps is not None), default=None)
        ended = [outcome(rule, each, best) for each in curves]
        results += [Result(tuple(p), c, o) for p, c, o in zip(points.tolist(), curves, ended, strict=True)]

    def fitted(self) -> Fitted:
        """The process fitted to all trials so far."""
        model = curve.fitted(
            Coordinates.of(self.surface.space),
            self.results,
            self.surface.threshold,
            error_floor=self.surface.error_floor,
            start=self.shape,
        )
        self.shape = model.process.shape
        return model


class Protocol(typing.Protocol):
    """A way to search. `name`: as the tables show it."""

    @property
    def name(self) -> str: ...

    def __call__(self, surface: Surface, seed: int) -> Mapping[int, Found]:
        """Search every batch size of a surface."""
        ...


def sobol(dimensions: int, count: int, key: Sequence[int]) -> np.ndarray:
    """The first points [count, D] of a scrambled Sobol sequence."""
    sequence = qmc.Sobol(dimensions, rng=np.random.default_rng(key))
    return np.asarray(sequence.random_base2(max(1, (count - 1).bit_length())))[:count]


def _all(rule: Rule, trials: Sequence[TrialCurve]) -> list[Outcome]:
    """How the trials [n] of a search end, by index."""
    return list(outcomes(rule, dict(enumerate(trials))).values())


def fresh(surface: Surface, size: int, point: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, int]:
    """(steps to the goal [count], steps trained) of one point with seeds that depend on their number alone."""
    rule = Rule("goal", surface.threshold, surface.grid(size))
    ended = _all(rule, surface.train(size, np.tile(point, (count, 1)), [(seed, FRESH, k) for k in range(count)]))
    return np.array([each.result or np.inf for each in ended]), sum(each.end for each in ended)
