"""Find edges of the search space beyond which better trials may lie. Reports warn about them; stages widen them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

OUTER = 0.1
"""The share of a scaled range, measured from a side, in which an optimum is suspicious."""
FEWEST = 3
"""The fewest trials for an edge audit: a single trial lies near an edge by chance too often."""


def scaled(value: float, scale: str) -> float:
    """A parameter's value on its search scale. The result rises with the value and is infinite where the scale ends.

    Arguments:
        scale: `linear`, `log` or `reverse_log` (log of 1 - x, for momenta near 1).

    >>> [round(scaled(0.99, scale), 2) for scale in ("linear", "log", "reverse_log")]
    [0.99, -0.01, 4.61]
    """
    if scale == "log":
        return math.log(value) if value > 0 else -math.inf
    if scale == "reverse_log":
        return -math.log(1 - value) if value < 1 else math.inf
    return value


def unit(dimension: Mapping[str, Any], value: float) -> float:
    """The position of a value in its search range, in [0, 1] on the search scale; for a choice, the middle of its cell.

    An integer range reaches half a unit beyond both ends.

    Arguments:
        dimension: `low`, `high`, `scale` and `integer`, or `choices`.

    >>> unit({"low": 0.01, "high": 1.0, "scale": "log"}, 0.1), unit({"choices": [0.0, 0.5]}, 0.5)
    (0.5, 0.75)
    """
    if "choices" in dimension:
        return float((dimension["choices"].index(value) + 0.5) / len(dimension["choices"]))
    half = 0.5 if dimension.get("integer") else 0.0
    low, high = (scaled(dimension[side] + out, dimension["scale"]) for side, out in (("low", -half), ("high", half)))
    return (scaled(value, dimension["scale"]) - low) / (high - low)


class Edge(NamedTuple):
    """A side of the search space beyond which better trials may lie.

    Attributes:
        parameter: the name of the parameter.
        side: `low` or `high`.
        value: the value in the best trial that has the parameter.
        limit: the end of the searched range.
    """

    parameter: str
    side: str
    value: float
    limit: float


def open_edges(space: Mapping[str, Mapping[str, Any]], best: Sequence[Mapping[str, Any]]) -> list[Edge]:
    """Open sides where the best trial and the median of the best few lie in the outer tenth of the scaled range.

    The best trial alone would raise a false alarm in 36 % of studies with two parameters that do not matter. With fewer
    than FEWEST trials no side is reported. Trials whose schedule does not take a parameter have none and do not count.

    Arguments:
        space: parameter name -> `low`, `high`, `scale` and `hard` (the sides where the parameter itself ends), or
            `choices`, which have no edges.
        best: hyperparameters of the best trials, the best first (see `analysis.counting.best_trials`).

    >>> space = {"learning_rate": {"low": 0.001, "high": 1.0, "scale": "log", "hard": []}}
    >>> open_edges(space, [{"learning_rate": rate} for rate in (0.9, 0.8, 0.05)])
    [Edge(parameter='learning_rate', side='high', value=0.9, limit=1.0)]
    """
    found = []
    for name, dimension in sorted(space.items()):
        values = [point[name] for point in best if name in point]
        if "choices" in dimension or len(values) < FEWEST:
            continue
        low, high = (scaled(dimension[side], dimension["scale"]) for side in ("low", "high"))
        inwards = np.array([scaled(value, dimension["scale"]) - low for value in values]) / (high - low)
        for side, distances in (("low", inwards), ("high", 1 - inwards)):
            if side not in dimension["hard"] and max(distances[0], np.median(distances)) < OUTER:
                found.append(Edge(name, side, float(values[0]), float(dimension[side])))
    return found


def widening(found: Sequence[Edge]) -> str:
    """The name of the stage that widens the search space at these edges, such as `learning_rate.high`.

    >>> widening([Edge("learning_rate", "high", 0.9, 1.0), Edge("momentum", "high", 0.99, 0.99)])
    'learning_rate.high+momentum.high'
    """
    return "+".join(f"{edge.parameter}.{edge.side}" for edge in found)
