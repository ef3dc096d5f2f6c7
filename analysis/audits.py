"""What could have gone wrong in a search without anybody noticing: optima at the edge of the box that was searched."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from analysis.counting import scaled
from analysis.load import StudyData
from analysis.steps_to_result import outcomes

OUTER = 0.1
"""The part of a scaled range, from a side inwards, in which an optimum is suspicious."""
BEST = 5
FEWEST = 3
"""Trials that must have reached the goal before anything is said: one alone is at some edge by chance too often."""


class Edge(NamedTuple):
    """A side of the box beyond which better trials may lie.

    Attributes:
        parameter, side: which, and `low` or `high`.
        value: of the best trial.
        limit: where the search ended.
    """

    parameter: str
    side: str
    value: float
    limit: float


def edges(study: StudyData) -> list[Edge]:
    """Open sides where the best trial and the median of the best five lie in the outer tenth of the scaled range.

    The best trial alone would alarm by chance: in 36 % of studies with two parameters that do not matter.
    """
    frame = outcomes(study).query("counted and status == 'COMPLETE'").dropna(subset="steps_to_goal")
    best = frame.sort_values("steps_to_goal", kind="stable").index[:BEST]
    if len(best) < FEWEST:
        return []
    found = []
    for name, dimension in study.question["search"]["space"].items():
        if "choices" in dimension:
            continue
        low, high = (scaled(dimension[side], dimension["scale"]) for side in ("low", "high"))
        values = study.trials.loc[best, name].to_numpy(dtype=float)
        inwards = np.array([scaled(value, dimension["scale"]) - low for value in values]) / (high - low)
        for side, distances in (("low", inwards), ("high", 1 - inwards)):
            if side not in dimension["hard"] and max(distances[0], np.median(distances)) < OUTER:
                found.append(Edge(name, side, float(values[0]), float(dimension[side])))
    return found
