"""How hard a batch size is to tune, by the process: the least response, and the share of the box close to it.

These numbers come from a model. They are drawn and named as such, and no S(B) is read from them.

Shapes: m points, D tuned parameters.
"""

import math
from typing import NamedTuple

import numpy as np

from analysis.surrogate.process import Process
from analysis.surrogate.proposals import DIGITS, Point, spread

FACTOR = 1.2
"""A configuration is close to the optimum if it needs at most this factor more steps."""
BOX, JOINT, CLOUD, CLOUD_SD, DRAWS = 2048, 512, 128, 0.02, 200
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


def minimum(process: Process, batch_size: int) -> tuple[Point, float]:
    """(point, response) where the posterior mean is least over the box.

    Add the `least` of `analysis.surrogate.responses.Responses` to get log steps.

    >>> from analysis.surrogate.process import Coordinates, Shape
    >>> coordinates = Coordinates.of({"learning_rate": {"low": 0.01, "high": 10.0, "scale": "log"}})
    >>> process = Process(coordinates, Shape(), [[0.2], [0.6], [0.8]], [64] * 3, [1.0, 0.0, 1.0], [0.0] * 3)
    >>> point, response = minimum(process, 64)
    >>> 0.55 < point[0] < 0.65, response < 0.1
    (True, True)
    """
    points = spread(len(process.coordinates.levels), BOX, _rng(batch_size, 0))
    best = points[np.argmin(process.mean(points, batch_size))]
    for sd in (CLOUD_SD, CLOUD_SD / 4):
        near = _cloud(best, sd, batch_size)
        best = near[np.argmin(process.mean(near, batch_size))]
    point = tuple(np.round(best, DIGITS).tolist())
    return point, float(process.mean([point], batch_size)[0])


def tunability(process: Process, batch_size: int) -> Tunability:
    """The share of the search box within FACTOR of the optimum, with an interval from joint draws of the process.

    Only points that can be close to the optimum take part in the draws, so that small shares are resolved.

    >>> from analysis.surrogate.process import Coordinates, Shape
    >>> coordinates = Coordinates.of({"learning_rate": {"low": 0.01, "high": 10.0, "scale": "log"}})
    >>> units = [[unit / 20] for unit in range(21)]  # 0.036 of this box are within 1.2 of the optimum
    >>> values = [10 * abs(unit - 0.5) for (unit,) in units]
    >>> process = Process(coordinates, Shape(noise=0.03), units, [64] * 21, values, [0.0] * 21)
    >>> [round(each, 2) for each in tunability(process, 64)]
    [0.05, 0.04, 0.06]
    """
    dimensions = len(process.coordinates.levels)
    centre, least = minimum(process, batch_size)
    box = spread(dimensions, BOX, _rng(batch_size, 0))
    mean, sd = process.mean(box, batch_size), process.sd(box, batch_size)
    possible = box[mean - 3 * sd <= least + math.log(FACTOR)]
    joint = possible[np.linspace(0, len(possible) - 1, min(JOINT, len(possible))).astype(int)]
    posterior = process.posterior(np.concatenate([joint, _cloud(np.array(centre), CLOUD_SD, batch_size)]), batch_size)
    rng = _rng(batch_size, 2)
    shares = []
    for _ in range(DRAWS):
        draw = posterior.mean + posterior.centred_draw(rng)
        close = draw[: len(joint)] <= draw.min() + math.log(FACTOR)
        shares.append(close.mean() * len(possible) / len(box) if len(joint) else 0.0)
    low, share, high = np.quantile(shares, (0.025, 0.5, 0.975))
    return Tunability(float(share), float(low), float(high))


def _cloud(centre: np.ndarray, sd: float, batch_size: int) -> np.ndarray:
    """Normal points around a centre [m, D], the first of them the centre."""
    moves = sd * _rng(batch_size, 1).standard_normal((CLOUD, len(centre)))
    moves[:1] = 0
    return np.clip(centre + moves, 0, 1)


def _rng(batch_size: int, stream: int) -> np.random.Generator:
    return np.random.default_rng((batch_size, stream))
