"""How hard a batch size is to tune, by the process: the least response, and the share of the box close to it.

These numbers come from a model. They are drawn and named as such, and no S(B) is read from them.

Shapes: m points, D tuned parameters.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from analysis.surrogate.process import Process
from analysis.surrogate.proposals import DIGITS, Point

FACTOR = 1.2
"""A configuration is close to the optimum if it needs at most this factor more steps."""
BOX, JOINT, CLOUD, CLOUD_SD, DRAWS = 1024, 192, 48, 0.02, 200
"""Points over the box; the most points of a joint draw; points around the minimum and their spread; draws."""


class Tunability(NamedTuple):
    """The share of the search box within FACTOR of the optimum.

    Attributes:
        share: the median over draws of the process.
        low, high: the middle 95 % of draws.
    """

    share: float
    low: float
    high: float


class Landscape(NamedTuple):
    """What the process knows of one batch size: the best point, its response, and the tunability."""

    point: Point
    response: float
    tunability: Tunability


def landscape(process: Process, batch_size: int, ends: Sequence[tuple[float, float]] | None = None) -> Landscape:
    """The point where the posterior mean is least over the box, and the share of the box within FACTOR of the optimum.

    Arguments:
        ends: the ends of each range [D], in units of the range that the process knows; None: 0 and 1.

    Add the `least` of `analysis.surrogate.responses.Responses` to the response to get log steps. The interval comes
    from joint draws of the process. Only points that can be close to the optimum take part in them, so that small
    shares are resolved.

    >>> from analysis.surrogate.process import Coordinates, Shape
    >>> coordinates = Coordinates.of({"learning_rate": {"low": 0.01, "high": 10.0, "scale": "log"}})
    >>> units = [[unit / 20] for unit in range(21)]  # 0.036 of this box are within 1.2 of the optimum
    >>> values = [10 * abs(unit - 0.5) for (unit,) in units]
    >>> process = Process(coordinates, Shape(noise=0.03), units, [64] * 21, values, [0.0] * 21)
    >>> found = landscape(process, 64)
    >>> round(found.point[0], 1), round(found.response, 1), [round(each, 2) for each in found.tunability]
    (0.5, 0.0, [0.05, 0.04, 0.06])
    """
    low, high = np.asarray(ends or [(0.0, 1.0)] * len(process.coordinates.levels)).reshape(-1, 2).T
    box = low + _box(len(low)) * (high - low)
    mean, sd = process.mean_and_sd(box, batch_size)
    best = box[np.argmin(mean)]
    for spread in (CLOUD_SD, CLOUD_SD / 4):
        near = np.clip(_cloud(best, spread, batch_size), low, high)
        best = near[np.argmin(process.mean(near, batch_size))]
    point = tuple(np.round(best, DIGITS).tolist())
    response = float(process.mean([point], batch_size)[0])
    possible = box[mean - 3 * sd <= response + math.log(FACTOR)]
    around = np.clip(_cloud(best, CLOUD_SD, batch_size), low, high)
    return Landscape(point, response, _tunability(process, batch_size, around, possible))


def _tunability(process: Process, batch_size: int, around: np.ndarray, possible: np.ndarray) -> Tunability:
    """Draw the responses of points that can be close to the optimum [m, D], and of points around the best one."""
    joint = possible[np.linspace(0, len(possible) - 1, min(JOINT, len(possible))).astype(int)]
    posterior = process.posterior(np.concatenate([joint, around]), batch_size)
    noise = _rng(batch_size, 2).standard_normal((len(posterior.mean), DRAWS))
    draws = posterior.mean[:, None] + posterior.factor @ noise
    close = draws[: len(joint)] <= draws.min(axis=0) + math.log(FACTOR)
    boxes = len(possible) / max(len(joint), 1) / len(_box(len(process.coordinates.levels)))
    low, share, high = np.quantile(close.sum(axis=0) * boxes, (0.025, 0.5, 0.975))
    return Tunability(float(share), float(low), float(high))


@cache
def _box(dimensions: int) -> np.ndarray:
    """Points that fill the unit cube evenly [BOX, D] (Roberts 2018); a single one if there are no dimensions.

    They are multiples, modulo 1, of powers of 1 / x, where x^(D + 1) = x + 1.
    """
    if dimensions == 0:
        return np.zeros((1, 0))
    x = 2.0
    for _ in range(50):
        x = (1 + x) ** (1 / (dimensions + 1))
    powers = x ** -np.arange(1.0, dimensions + 1)
    return (0.5 + np.arange(1, BOX + 1)[:, None] * powers) % 1


def _cloud(centre: np.ndarray, sd: float, batch_size: int) -> np.ndarray:
    """Normal points around a centre [m, D], the first of them the centre."""
    moves = sd * _rng(batch_size, 1).standard_normal((CLOUD, len(centre)))
    moves[:1] = 0
    return centre + moves


def _rng(batch_size: int, stream: int) -> np.random.Generator:
    return np.random.default_rng((batch_size, stream))
