"""The noisy quadratic model as a surface: the curve of one training, from the exact moments of its loss.

The mean loss of 64 replicas is nearly a gamma number, whose mean and variance at every step follow from
`workloads.noisy_quadratic_exact`. One training keeps its quantile all along: replicas that start far from the optimum,
or meet bad noise in slow coordinates, stay behind. `python -m benchmarks.power.quadratic` compares the steps to the
goal with those of 200 real trainings of the optimum, coordinate by coordinate (a minute).

Shapes: n trainings, d curvatures, E evaluations.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import gammaincinv, ndtr

from analysis.counting import TrialCurve, evaluation_grid, first_crossing
from benchmarks.power.surfaces import Key
from study.space import Dimension
from workloads.noisy_quadratic_exact import Recursion, grouped, spectrum

DIMENSIONS, REPLICAS, EXAMPLES, GOAL = 1000, 64, 65536, 0.02
"""As in conf/workload/nqm.yaml."""
EPOCHS, LEAST_STEPS, FIRST, RATIO = 20, 2000, 0.002, 1.1
"""The step budget is six times the optimum at small batch sizes; the grid begins below the fewest steps."""
OVERFLOW = 1e30
"""A loss above this counts as diverged."""
RATE = Dimension(low=1e-4, high=10.0, scale="log")
SPACES = {
    "momentum": {"learning_rate": RATE, "momentum": Dimension(low=0.0, high=0.999, scale="reverse_log")},
    "sgd": {"learning_rate": Dimension(low=1e-3, high=10.0, scale="log")},
}
"""The default search spaces of the optimizers."""


@dataclass(frozen=True)
class Quadratic:
    """The surface of one optimizer."""

    optimizer: str
    batch_sizes: tuple[int, ...] = tuple(4**power for power in range(1, 9))
    threshold: float = GOAL
    error_floor: float | None = None

    @property
    def name(self) -> str:
        """As the tables show it."""
        return f"quadratic model, {self.optimizer}"

    @cached_property
    def space(self) -> dict[str, dict[str, object]]:
        """The search space as plain data."""
        return {name: dimension.to_dict() for name, dimension in SPACES[self.optimizer].items()}

    def grid(self, batch_size: int) -> list[int]:
        """The steps at which every training is evaluated."""
        return _grid(batch_size)

    def train(self, batch_size: int, points: np.ndarray, keys: Sequence[Key]) -> list[TrialCurve]:
        """The curves [n] of trainings at points of the unit cube."""
        grid = _grid(batch_size)
        mean, shape = self._moments(batch_size, points)
        quantiles = np.array([_quantile(batch_size, key) for key in keys])[:, None]
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            losses = mean * gammaincinv(shape, quantiles) / shape
        curves = []
        for row in np.where(np.isfinite(losses), losses, np.inf):
            bad = np.flatnonzero(row > OVERFLOW)
            last = bad[0] if bad.size else len(grid)
            curves.append(TrialCurve(grid[:last], row[:last], grid[last] if bad.size else None))
        return curves

    def optimum(self, batch_size: int) -> float:
        """The fewest steps to an expected loss below the goal, on a grid of points that narrows twice."""
        return best(self.optimizer, batch_size)[0]

    def _moments(self, batch_size: int, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(mean, shape of the gamma distribution) of the loss [n, E]."""
        exact, grid = self.recursion(batch_size, points), _grid(batch_size)
        means, shapes = [], []
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for moments in exact.at(grid):
                each = exact.square(moments) * exact.weights
                mean = each.sum(-1)
                means.append(mean)
                shapes.append(mean**2 * REPLICAS / (2 * (each * each / exact.multiplicity).sum(-1)))
        return np.array(means).T, np.array(shapes).T

    def recursion(self, batch_size: int, points: np.ndarray) -> Recursion:
        """The exact moments of configurations [n]."""
        dimensions = SPACES[self.optimizer]
        found = {name: [d.value(u) for u in points[:, i]] for i, (name, d) in enumerate(sorted(dimensions.items()))}
        curvatures, multiplicity = grouped(spectrum(DIMENSIONS))
        momentum = np.array(found.get("momentum", 0.0))
        return Recursion(
            batch_size, np.array(found["learning_rate"]), momentum, curvatures=curvatures, multiplicity=multiplicity
        )


@lru_cache(maxsize=32)
def _grid(batch_size: int) -> list[int]:
    return evaluation_grid(max(EPOCHS * EXAMPLES // batch_size, LEAST_STEPS), FIRST, RATIO)


def _quantile(batch_size: int, key: Key) -> float:
    """The quantile of one training in (0, 1)."""
    content = np.array([batch_size, *key]).tobytes()
    return float(ndtr(np.random.default_rng(zlib.crc32(content)).standard_normal()))


@lru_cache(maxsize=64)
def best(optimizer: str, batch_size: int) -> tuple[float, np.ndarray]:
    """(the fewest steps, their point)."""
    surface = Quadratic(optimizer)
    grid = np.array(_grid(batch_size), dtype=float)
    dimensions = len(SPACES[optimizer])
    low, high = np.zeros(dimensions), np.ones(dimensions)
    for _ in range(3):
        axes = [np.linspace(a, b, 21) for a, b in zip(low, high, strict=True)]
        points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, dimensions)
        mean, _ = surface._moments(batch_size, points)
        steps = np.array([_interpolated(grid, row) for row in mean])
        centre, reach = points[int(steps.argmin())], (high - low) / 6
        low, high = np.clip(centre - reach, 0, 1), np.clip(centre + reach, 0, 1)
    # Measured steps are the next point of the grid: half a ratio more on average.
    return float(steps.min() * RATIO**0.5), centre


def _interpolated(grid: np.ndarray, losses: np.ndarray) -> float:
    """Where the loss crosses the goal, between evaluations by a straight line in log-log."""
    crossed = first_crossing(grid, losses, GOAL)
    if crossed is None:
        return np.inf
    at = int(np.searchsorted(grid, crossed))
    if at == 0:
        return crossed
    above, below = np.log(losses[at - 1]), np.log(losses[at])
    share = (above - np.log(GOAL)) / (above - below)
    return float(grid[at - 1] * (grid[at] / grid[at - 1]) ** share)


def main() -> None:
    """Print the mean and the spread of log steps of simulated and of real trainings at the best point."""
    trainings = 200
    for batch_size in (1024, 16384):
        surface = Quadratic("momentum", (batch_size,))
        point = best("momentum", batch_size)[1]
        keys = [(0, number) for number in range(trainings)]
        curves = surface.train(batch_size, np.tile(point, (trainings, 1)), keys)
        both: list[list[float | None]] = [[first_crossing(curve.steps, curve.errors, GOAL) for curve in curves]]
        rng = np.random.default_rng(batch_size)
        both.append([_real_steps(surface, batch_size, point, rng) for _ in range(trainings)])
        for name, steps in zip(("simulated", "real"), np.log(np.array(both, dtype=float)), strict=True):
            print(f"B = {batch_size:6} {name:10} mean log steps {steps.mean():.4f}, sd {steps.std(ddof=1):.4f}")


def _real_steps(surface: Quadratic, batch_size: int, point: np.ndarray, rng: np.random.Generator) -> float:
    """The first evaluation below the goal of one training that draws every gradient."""
    h = spectrum(DIMENSIONS).astype(np.float32)
    names = sorted(SPACES[surface.optimizer].items())
    found = {name: dimension.value(unit) for (name, dimension), unit in zip(names, point, strict=True)}
    theta = rng.standard_normal((REPLICAS, DIMENSIONS), dtype=np.float32)
    velocity, noise, grid = np.zeros_like(theta), np.sqrt(h / batch_size), _grid(batch_size)
    for step in range(1, grid[-1] + 1):
        gradient = h * theta + noise * rng.standard_normal(theta.shape, dtype=np.float32)
        velocity = found.get("momentum", 0.0) * velocity + gradient
        theta -= found["learning_rate"] * velocity
        if step in grid and 0.5 * float((theta * theta @ h).mean()) < GOAL:
            return step
    return np.inf


if __name__ == "__main__":
    main()
