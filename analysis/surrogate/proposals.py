"""Where to train next, and which configuration to confirm: pure functions of a process and of integer keys.

A key identifies one stage of one batch size: (search seed, B, stage), with the repeat after the seed if there is one.

Shapes: m candidates, D tuned parameters.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from analysis.surrogate.process import Process

SPREAD, NEAR, NEAR_SD = 192, 64, 0.05
"""Candidates spread over the box, candidates near the best points, and the standard deviation of the latter."""
OPTIMISM = 0.6
"""The factor of a posterior draw. 1 is Thompson sampling; less looks closer to where the mean is least."""
DIGITS = 6
_SPREAD, _NEAR, _DRAW = range(3)

Point = tuple[float, ...]
Box = Sequence[tuple[float, float]]
"""The least and the greatest coordinate of each parameter [D]: 0 and 1, or beyond where rounds extended a range."""


def spread(dimensions: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """The first `count` points of a scrambled Sobol sequence [count, D]; a single one if there are no dimensions.

    >>> spread(2, 5, np.random.default_rng(0)).shape
    (5, 2)
    """
    if dimensions == 0:
        return np.zeros((1, 0))
    from scipy.stats import qmc  # takes a second to import, and only searches need it

    return np.asarray(qmc.Sobol(dimensions, scramble=True, rng=rng).random_base2((count - 1).bit_length())[:count])


def point_candidates(
    dimensions: int, best: Sequence[Point], key: Sequence[int], number: int, box: Box | None = None
) -> np.ndarray:
    """The candidates for point `number` of a stage [m, D]: scrambled Sobol points, then normal ones near the best.

    Each point of a stage has its own: with common ones, several points of a stage are often the same.

    Arguments:
        dimensions: D.
        best: the best points at this batch size, at most three; each normal point is near one of them at random.
        box: None: the unit cube.

    >>> points = point_candidates(2, [(0.5, 0.5)], key=(0, 64, 1), number=0)
    >>> points.shape, float(abs(points[192:] - 0.5).max()) < 0.25
    ((256, 2), True)
    >>> points = point_candidates(1, [(0.99,)], (0, 64, 1), 0, box=[(0.0, 1.5)])
    >>> 1.4 < float(points[:192].max()) < 1.5, float(points[192:].max()) > 1
    (True, True)
    """
    spread_out = spread(dimensions, SPREAD, _rng(key, _SPREAD, number))
    if dimensions == 0:
        return spread_out
    low, high = np.array(box or [(0.0, 1.0)] * dimensions).T
    rng = _rng(key, _NEAR, number)
    centres = np.array(best, dtype=float)[rng.integers(len(best), size=NEAR)]
    near = np.clip(centres + NEAR_SD * rng.standard_normal((NEAR, dimensions)), low, high)
    return np.round(np.concatenate([low + spread_out * (high - low), near]), DIGITS)


def propose(
    process: Process,
    batch_size: int,
    best: Sequence[Point],
    key: Sequence[int],
    numbers: Iterable[int],
    box: Box | None = None,
) -> list[Point]:
    """Points `numbers` of a stage. Point i minimizes mean + OPTIMISM x (centred posterior draw i) over its candidates.

    A point does not depend on which other points are computed, so that they can train in any order, or together.

    Arguments:
        process: fitted to the results of all earlier stages.
        best, box: see `point_candidates`.

    >>> from analysis.surrogate.process import Coordinates, Shape
    >>> coordinates = Coordinates.of({"learning_rate": {"low": 0.01, "high": 10.0, "scale": "log"}})
    >>> process = Process(coordinates, Shape(), [[0.2], [0.6]], [64, 64], [1.0, 0.0], [0.0, 0.0])
    >>> both = propose(process, 64, [(0.6,), (0.2,)], key=(0, 64, 1), numbers=[0, 1])
    >>> both == [propose(process, 64, [(0.6,), (0.2,)], (0, 64, 1), [number])[0] for number in (0, 1)]
    True
    """
    found = []
    for number in numbers:
        points = point_candidates(len(process.coordinates.levels), best, key, number, box)
        posterior = process.posterior(points, batch_size)
        draw = posterior.centred_draw(_rng(key, _DRAW, number))
        found.append(tuple(points[int(np.argmin(posterior.mean + OPTIMISM * draw))].tolist()))
    return found


def candidates(
    process: Process, batch_size: int, points: Sequence[Point], steps: Sequence[int | None], count: int = 2
) -> list[int]:
    """Positions of the `count` evaluated points to screen; none if no trial met the goal.

    They are the point with the least posterior mean, the one with the fewest observed steps, because the process is
    smooth and the best point can lie at a cliff, and if these are fewer, the next by posterior mean. Ties go to the
    lower position.

    Arguments:
        points: evaluated at this batch size [n, D].
        steps: steps to the goal [n]; None where it was not met.

    >>> from analysis.surrogate.process import Coordinates, Shape
    >>> coordinates = Coordinates.of({"learning_rate": {"low": 0.01, "high": 10.0, "scale": "log"}})
    >>> points, values = [(0.2,), (0.6,), (0.62,)], [0.0, 0.1, 0.1]
    >>> process = Process(coordinates, Shape(noise=0.35), points, [64] * 3, values, [0.0] * 3)
    >>> candidates(process, 64, points, [100, 111, 111])
    [1, 0]
    """
    met = [(each, position) for position, each in enumerate(steps) if each is not None]
    if not met:
        return []
    by_mean = np.argsort(process.mean(points, batch_size), kind="stable").tolist()
    return list(dict.fromkeys([by_mean[0], min(met)[1], *by_mean]))[:count]


def chosen(screens: Sequence[Sequence[float]]) -> int:
    """The candidate with the lowest mean response over its screening seeds; ties go to the lower position.

    Arguments:
        screens: per candidate, the responses of its screening seeds; all on one scale (see `responses`).

    >>> chosen([[0.2, 0.1], [0.0, 0.05]])
    1
    """
    return int(np.argmin([np.mean(each) for each in screens]))


def _rng(key: Sequence[int], stream: int, number: int) -> np.random.Generator:
    # Always the same length: NumPy pads short keys with zeros, so that (1, 2) and (1, 2, 0) would be one stream.
    return np.random.default_rng((*key, stream, number))
