"""What a search can train on: the steps to a goal, and the whole curve, of one training at any point and batch size.

Shapes: n trainings, D tuned parameters (in sorted order, as in every point), E evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from analysis.counting import TrialCurve

Key = tuple[int, ...]
"""Identifies the seeds of one training: equal keys at one batch size give the same curve."""


class Surface(Protocol):
    """Trainings of one workload with one optimizer.

    Attributes:
        name: as the tables show it.
        space: parameter name -> `low`, `high` and `scale` (see `study.space.Dimension.to_dict`).
        batch_sizes: rising.
        threshold: of the goal.
        error_floor: see `analysis.surrogate.responses.responses`.
    """

    @property
    def name(self) -> str: ...

    @property
    def space(self) -> Mapping[str, Mapping[str, Any]]: ...

    @property
    def batch_sizes(self) -> tuple[int, ...]: ...

    @property
    def threshold(self) -> float: ...

    @property
    def error_floor(self) -> float | None: ...

    def grid(self, batch_size: int) -> Sequence[int]:
        """The steps at which every training is evaluated, up to the step budget."""
        ...

    def train(self, batch_size: int, points: np.ndarray, keys: Sequence[Key]) -> list[TrialCurve]:
        """The curves [n] up to the step budget of trainings at points of the unit cube [n, D]."""
        ...

    def optimum(self, batch_size: int) -> float:
        """The typical steps to the goal at the best point: exp of the mean log steps over seeds."""
        ...


@dataclass(frozen=True)
class At:
    """A surface at some of its batch sizes."""

    surface: Surface
    batch_sizes: tuple[int, ...]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.surface, name)


@dataclass(frozen=True)
class Planted:
    """A surface whose optimum is moved to planted steps: at each batch size all steps grow by the same factor.

    Arguments:
        surface: gives the shape of the surface around its optimum, the noise of seeds and the divergence.
        steps: batch size -> optimum. Large numbers, so that whole steps do not matter.
    """

    name: str
    surface: Surface
    steps: Mapping[int, float]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.surface, name)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The planted batch sizes."""
        return tuple(self.steps)

    def grid(self, batch_size: int) -> list[int]:
        """The grid of the surface, stretched."""
        return [round(step * self._factor(batch_size)) for step in self.surface.grid(batch_size)]

    def train(self, batch_size: int, points: np.ndarray, keys: Sequence[Key]) -> list[TrialCurve]:
        """The curves of the surface, stretched."""
        factor = self._factor(batch_size)
        return [
            curve._replace(
                steps=np.round(np.asarray(curve.steps) * factor).astype(int),
                first_bad_step=None if curve.first_bad_step is None else round(curve.first_bad_step * factor),
            )
            for curve in self.surface.train(batch_size, points, keys)
        ]

    def optimum(self, batch_size: int) -> float:
        """The planted steps."""
        return self.steps[batch_size]

    def _factor(self, batch_size: int) -> float:
        return self.steps[batch_size] / self.surface.optimum(batch_size)


CRITICAL, LEVEL = 32, 2000.0
"""The critical batch size of the planted curves, and their steps at infinite batch size."""
PLANTED = {
    "hyperbola": lambda size: LEVEL * (1 + CRITICAL / size),
    "shoulder, p = 2": lambda size: LEVEL * (1 + (CRITICAL / size) ** 2) ** (1 / 2),
    "shoulder, p = 4": lambda size: LEVEL * (1 + (CRITICAL / size) ** 4) ** (1 / 4),
    "perfect": lambda size: 1024 * LEVEL / size,
    "plateau": lambda size: LEVEL,
}
"""Name -> the planted steps as a function of the batch size."""


def planted(surface: Surface) -> list[Planted]:
    """One surface for each planted curve."""
    return [
        Planted(name, surface, {size: steps(size) for size in surface.batch_sizes}) for name, steps in PLANTED.items()
    ]
