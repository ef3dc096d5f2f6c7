"""One curve under refine: the results at all its batch sizes -> the process, the points of a stage, the candidates.

These functions join the parts for one (workload, optimizer, goal). Without pooling, call them with the results of one
batch size.

>>> from analysis.counting import TrialCurve, Outcome
>>> def met(unit, steps):
...     return Result((unit,), TrialCurve([steps], [0.04], None), Outcome("COMPLETE", steps, steps))
>>> coordinates = Coordinates.of({"learning_rate": {"low": 0.01, "high": 10.0, "scale": "log"}})
>>> results = {8: [met(0.2, 300), met(0.5, 100), met(0.8, 300)], 16: [met(0.3, 150), met(0.6, 200)]}
>>> found = fitted(coordinates, results, threshold=0.05)
>>> found.responses[16].values.round(2).tolist()  # more than the 100 steps at batch size 8
[0.41, 0.69]
>>> stage_points(found, results, 16, key=(0, 16, 1), count=3)[-1]
(0.5,)
>>> least(found, results, 16)
[(0.3,), (0.6,)]
>>> candidates(found, results, 8)
[1, 0]
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from analysis.counting import INFEASIBLE
from analysis.surrogate import proposals
from analysis.surrogate.divergence import fit_bounded
from analysis.surrogate.process import Coordinates, Process, Shape
from analysis.surrogate.proposals import Box, Point
from analysis.surrogate.responses import Responses, Result, best_points, pooled, responses, slope

BEHIND = 1.1
"""A batch size is behind a smaller one if its fewest steps are more than this factor times as many."""

Results = Mapping[int, Sequence[Result]]
"""Batch size -> the results of its finished stages, in the order of their indices."""


class Fitted(NamedTuple):
    """The process of a curve, and the responses that it was fitted to, by batch size."""

    process: Process
    responses: dict[int, Responses]


def fitted(
    coordinates: Coordinates,
    results: Results,
    threshold: float,
    never_negative: bool = True,
    error_floor: float | None = None,
    start: Shape | None = None,
) -> Fitted:
    """Fit the process to all results of a curve.

    Arguments:
        threshold, never_negative, error_floor: see `analysis.surrogate.responses.responses`.
        start: the shape of the previous stage; None before the first fit.
    """
    curve_slope = slope(results, error_floor)
    own = {b: responses(found, threshold, curve_slope, never_negative, error_floor) for b, found in results.items()}
    each = pooled(own)
    points = [result.point for found in results.values() for result in found]
    batch_sizes = np.repeat([*results], [len(found) for found in results.values()])
    values = np.concatenate([found.values for found in each.values()])
    noise_variance = np.concatenate([found.noise_variance for found in each.values()])
    diverged = [result.outcome.status == INFEASIBLE for found in results.values() for result in found]
    return Fitted(fit_bounded(coordinates, points, batch_sizes, values, noise_variance, diverged, start), each)


def stage_points(
    model: Fitted, results: Results, batch_size: int, key: Sequence[int], count: int, box: Box | None = None
) -> list[Point]:
    """The points of a stage [count], each a function of its number, the key and the results of earlier stages.

    If the batch size is behind a smaller one, the last point is the best configuration there: a larger batch size
    needs no more steps with the same hyperparameters, up to noise. The process alone would expect larger learning
    rates, which diverge once the best one no longer grows with B.

    Arguments:
        key, box: see `analysis.surrogate.proposals`.
    """
    best = best_points([result.point for result in results[batch_size]], model.responses[batch_size].values)
    points = proposals.propose(model.process, batch_size, best, key, range(count), box)
    transferred = smaller_best(results, batch_size)
    return points if transferred is None else [*points[:-1], transferred]


def least(model: Fitted, results: Results, batch_size: int) -> list[Point]:
    """The three evaluated points of a batch size with the least posterior mean, the least first.

    They show better than the best responses whether the optimum lies at an edge: these owe more to their seeds.
    """
    points = [result.point for result in results[batch_size]]
    return best_points(points, model.process.mean(points, batch_size))


def smaller_best(results: Results, batch_size: int) -> Point | None:
    """The best configuration of the smaller batch sizes, if this one is behind and has not trained it; else None.

    >>> from analysis.counting import TrialCurve, Outcome
    >>> def met(unit, steps):
    ...     return Result((unit,), TrialCurve([steps], [0.04], None), Outcome("COMPLETE", steps, steps))
    >>> smaller_best({8: [met(0.2, 100)], 16: [met(0.3, 112)]}, 16)
    (0.2,)
    >>> smaller_best({8: [met(0.2, 100)], 16: [met(0.3, 108)]}, 16)  # not behind
    """
    met = [
        (steps, size, index)
        for size, found in results.items()
        for index, result in enumerate(found)
        if size <= batch_size and (steps := result.outcome.result) is not None
    ]
    if not met:
        return None
    fewest, size, index = min(met)
    own = min((steps for steps, of, _ in met if of == batch_size), default=math.inf)
    point = results[size][index].point
    trained = any(result.point == point for result in results[batch_size])
    return point if own > BEHIND * fewest and not trained else None


def candidates(model: Fitted, results: Results, batch_size: int, count: int = 2) -> list[int]:
    """Positions of the `count` evaluated points to screen (see `analysis.surrogate.proposals.candidates`)."""
    points = [result.point for result in results[batch_size]]
    steps = [result.outcome.result for result in results[batch_size]]
    return proposals.candidates(model.process, batch_size, points, steps, count)
