"""Real trainings of the digits MLP as a surface: an emulator learned from the table of `benchmarks.power.digits_table`.

A training at any point is a real curve of a near point, drawn by its seed, with its steps stretched by the ratio of the
smoothed surface at the two points. So it keeps the real noise of seeds, the real shape of curves and the real
divergence, and the mean of its log steps over seeds is the smoothed surface. The tuned optimum is the minimum of that
surface.

    python -m benchmarks.power.digits

compares the emulator with trainings that it did not see.

Shapes: T trials of the table at one batch size, n trainings, D tuned parameters, E evaluations, K neighbours.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.interpolate import RBFInterpolator
from scipy.spatial import cKDTree

from analysis.counting import TrialCurve, first_crossing
from benchmarks.power.digits_table import EXAMPLES, FILE, GOALS, OPTIMIZERS, WORST, asked
from benchmarks.power.protocols import sobol
from benchmarks.power.surfaces import Key

NEIGHBOURS = 8
"""Real curves that one point draws from."""
STRETCH = np.array([3.0, 1.0])
"""Weights of distance of the learning rate and of the other parameter: steps change faster with the learning rate."""
SMOOTHING = 0.3
"""Of the surface, in units of a thin plate spline; it predicts trainings best that it did not see."""
SLOPE = 1.1
"""The error of a cut curve is taken to fall as steps^-SLOPE."""
LEAST_SHARE = 0.75
"""The optimum lies where at least this share of the neighbours met the goal."""


@dataclass(frozen=True)
class Digits:
    """The surface of one optimizer and one goal.

    Arguments:
        metric: a key of `digits_table.GOALS`.
    """

    optimizer: str
    metric: str = "val/classification_error"
    file: Path = FILE

    @property
    def name(self) -> str:
        """As the tables show it."""
        return f"digits, {self.optimizer}{'' if self.metric.endswith('classification_error') else ', cross entropy'}"

    @property
    def threshold(self) -> float:
        """Of the goal."""
        return GOALS[self.metric]

    @property
    def error_floor(self) -> float | None:
        """Half an example."""
        return 0.5 / EXAMPLES if self.metric.endswith("classification_error") else None

    @cached_property
    def batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes of the table."""
        frame = _table(self.file)
        return tuple(sorted(frame.loc[frame["optimizer"] == self.optimizer, "batch_size"].unique().tolist()))

    @cached_property
    def space(self) -> dict[str, dict[str, object]]:
        """The search space as plain data, of the tuned parameters alone."""
        space = sorted(asked(self.optimizer).study.search.space.items())
        return {name: dimension.to_dict() for name, dimension in space if not dimension.choices}

    def grid(self, batch_size: int) -> tuple[int, ...]:
        """The steps at which every training is evaluated."""
        return _grid(self.optimizer, batch_size)

    def train(self, batch_size: int, points: np.ndarray, keys: Sequence[Key]) -> list[TrialCurve]:
        """The curves [n] of trainings at points of the unit cube."""
        return self.emulator(batch_size).train(points, [(batch_size, *key) for key in keys])

    def optimum(self, batch_size: int) -> float:
        """exp of the least smoothed log steps."""
        return self.emulator(batch_size).optimum

    def emulator(self, batch_size: int) -> Emulator:
        """The emulator of one batch size."""
        return _emulator(self, batch_size)


@lru_cache(maxsize=4)
def _table(file: Path) -> pd.DataFrame:
    return pd.read_parquet(file)


@lru_cache(maxsize=64)
def _grid(optimizer: str, batch_size: int) -> tuple[int, ...]:
    return replace(asked(optimizer).study, batch_size=batch_size).evaluation_steps


@lru_cache(maxsize=256)
def _emulator(surface: Digits, batch_size: int) -> Emulator:
    frame = _table(surface.file)
    rows = frame[(frame["optimizer"] == surface.optimizer) & (frame["batch_size"] == batch_size)]
    # The table has the learning rate first, points have parameters in sorted order.
    names = list(surface.space)
    first = ["learning_rate", *(name for name in names if name != "learning_rate")]
    units = rows[[f"unit_{first.index(name)}" for name in names]].to_numpy(dtype=float)
    stretch = np.array([STRETCH[0] if name == "learning_rate" else STRETCH[1] for name in names])
    return Emulator(
        units, _errors(rows, surface.metric), rows["first_bad_step"].to_numpy(), surface, batch_size, stretch
    )


def _errors(rows: pd.DataFrame, metric: str) -> list[np.ndarray]:
    """The errors [E] of each trial up to where the table keeps them."""
    if metric == "val/classification_error":
        return [np.asarray(row, dtype=float) / EXAMPLES for row in rows["wrong"]]
    return [np.exp(np.asarray(row, dtype=float) / 1000) for row in rows["log_entropy"]]


@dataclass(frozen=True, eq=False)
class Emulator:
    """One batch size of a surface.

    Arguments:
        units: points of the table in the unit cube [T, D].
        errors: of each trial, at the first points of the grid.
        first_bad: steps at which trials diverged, 0 if they did not [T].
        stretch: weights of distance [D].
    """

    units: np.ndarray
    errors: list[np.ndarray]
    first_bad: np.ndarray
    surface: Digits
    batch_size: int
    stretch: np.ndarray

    @cached_property
    def grid(self) -> np.ndarray:
        """The evaluation grid [E]."""
        return np.array(self.surface.grid(self.batch_size))

    @cached_property
    def log_steps(self) -> np.ndarray:
        """Log steps to the goal [T]: measured, or extrapolated from the last errors; NaN where a trial diverged."""
        found = []
        for errors, bad in zip(self.errors, self.first_bad, strict=True):
            crossed = first_crossing(self.grid[: len(errors)], errors, self.surface.threshold)
            if crossed is None and not bad and len(errors):
                tail = np.log(np.maximum(errors[-3:], 1e-9)).mean() - np.log(self.surface.threshold)
                crossed = self.grid[len(errors) - 1] * np.exp(max(tail / SLOPE, 0.05))
            found.append(np.nan if crossed is None or bad else np.log(crossed))
        return np.array(found)

    @cached_property
    def met(self) -> np.ndarray:
        """Whether each trial met the goal before it diverged [T]."""
        crossed = [first_crossing(self.grid[: len(e)], e, self.surface.threshold) for e in self.errors]
        return np.array([step is not None for step in crossed]) & (self.first_bad == 0)

    @cached_property
    def _smooth(self) -> RBFInterpolator:
        known = np.isfinite(self.log_steps)
        values = np.minimum(self.log_steps[known], np.nanmin(self.log_steps) + WORST)
        return RBFInterpolator(self.units[known] * self.stretch, values, smoothing=SMOOTHING)

    @cached_property
    def _means(self) -> np.ndarray:
        return self.mean(self.units)

    @cached_property
    def _residuals(self) -> np.ndarray:
        """Log steps above the smoothed surface [T]; 0 where the goal was missed."""
        return np.where(self.met, self.log_steps - self._means, 0.0)

    @cached_property
    def _tree(self) -> cKDTree:
        return cKDTree(self.units * self.stretch)

    def mean(self, points: np.ndarray) -> np.ndarray:
        """The smoothed log steps [n]: the mean over seeds of trainings that meet the goal."""
        return np.asarray(self._smooth(points * self.stretch))

    def neighbours(self, points: np.ndarray) -> np.ndarray:
        """The trials that each point draws from [n, K]."""
        return np.asarray(self._tree.query(points * self.stretch, k=NEIGHBOURS)[1])

    def drawn(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(neighbours, log of the factor that stretches the steps of each) [n, K]."""
        near = self.neighbours(points)
        met, residual = self.met[near], self._residuals[near]
        counts = met.sum(axis=1, keepdims=True)
        # Centred, so that trainings that meet the goal have the mean of the smoothed surface, and as wide as before.
        centred = residual - residual.sum(axis=1, keepdims=True) / np.maximum(counts, 1)
        wanted = np.where(met, centred * np.sqrt(counts / np.maximum(counts - 1, 1)), residual)
        stretched = self.mean(points)[:, None] - self._means[near] + wanted - residual
        return near, np.clip(stretched, -WORST, WORST)

    def train(self, points: np.ndarray, keys: Sequence[Key]) -> list[TrialCurve]:
        """The curves [n] up to the step budget."""
        near, stretched = self.drawn(np.asarray(points, dtype=float))
        curves = []
        for trials, factors, key in zip(near, stretched, keys, strict=True):
            pick = zlib.crc32(np.array(key).tobytes()) % len(trials)
            curves.append(self._curve(int(trials[pick]), float(factors[pick])))
        return curves

    def _curve(self, trial: int, log_factor: float) -> TrialCurve:
        """The curve of a trial of the table with its steps times a factor, read at the nearest points of the grid."""
        grid, errors, bad = self.grid, self.errors[trial], int(self.first_bad[trial])
        bad = max(1, round(bad * np.exp(log_factor))) if bad else 0
        last = int(np.searchsorted(grid, bad)) if bad else len(grid)
        middles = np.log((grid[1:] + grid[:-1]) / 2)
        at = np.searchsorted(middles, np.log(grid[:last]) - log_factor)
        # The table cut trials that were too slow for a race. Without one their errors fall on.
        end = len(errors) - 1
        held = errors[np.minimum(at, end)] if len(errors) else np.full(last, np.inf)
        fallen = np.where(at > end, (grid[np.minimum(at, len(grid) - 1)] / grid[max(end, 0)]) ** -SLOPE, 1.0)
        return TrialCurve(grid[:last], held * fallen, bad or None)

    @cached_property
    def optimum(self) -> float:
        """exp of the least smoothed log steps, over points where most trainings meet the goal."""
        points = np.concatenate([sobol(self.units.shape[1], 4096, (0,)), self.units])
        usual = self.met[self.neighbours(points)].mean(axis=1) >= LEAST_SHARE
        return float(np.exp(self.mean(points[usual]).min()))


FOLDS = 5
NEAR = np.log(3.0)
"""Held-out trainings up to three times the optimum are compared: a race cuts the others."""


@dataclass(frozen=True)
class Held:
    """Trainings near the optimum beside an emulator that did not see them; whole points are held out.

    Attributes:
        error: root mean square of predicted mean less measured log steps.
        seeds_sd: standard deviation of log steps over seeds at one point. An emulator without fault has this error.
        bias: mean of predicted less measured log steps.
        inside: share of the measured log steps between the quartiles of the emulated ones; of eight draws these hold
            39 % if the emulated noise is right.
        met, met_emulated: shares of trainings that met the goal.
    """

    error: float
    seeds_sd: float
    bias: float
    inside: float
    met: float
    met_emulated: float


def held_out(emulator: Emulator) -> Held:
    """Compare an emulator with trainings that it did not see, fold by fold."""
    units, stretch = emulator.units, emulator.stretch
    _, place = np.unique(units, axis=0, return_inverse=True)
    fold = np.random.default_rng(0).permutation(place.max() + 1)[place.ravel()] % FOLDS
    near = emulator.mean(units) < np.log(emulator.optimum) + NEAR
    errors, inside, met = [], [], []
    for number in range(FOLDS):
        kept = fold != number
        errors_kept = [each for each, keep in zip(emulator.errors, kept, strict=True) if keep]
        others = Emulator(
            units[kept], errors_kept, emulator.first_bad[kept], emulator.surface, emulator.batch_size, stretch
        )
        test = np.flatnonzero(~kept & near)
        drawn, factors = others.drawn(units[test])
        emulated = np.where(others.met[drawn], others.log_steps[drawn] + factors, np.nan)
        counts = emulator.met[test] & others.met[drawn].any(axis=1)
        low, high = np.full((2, len(test)), np.nan)
        low[counts], high[counts] = np.nanquantile(emulated[counts], [0.25, 0.75], axis=1)
        errors += (others.mean(units[test]) - emulator.log_steps[test])[counts].tolist()
        inside += ((low <= emulator.log_steps[test]) & (emulator.log_steps[test] <= high))[counts].tolist()
        met += others.met[drawn].mean(axis=1).tolist()
    repeated = np.bincount(place.ravel())[place.ravel()] > 1
    spread = pd.Series(emulator.log_steps[repeated & emulator.met]).groupby(place.ravel()[repeated & emulator.met])
    return Held(
        float(np.sqrt(np.mean(np.square(errors)))),
        float(np.sqrt(spread.var().mean())),
        float(np.mean(errors)),
        float(np.mean(inside)),
        float(emulator.met[near].mean()),
        float(np.mean(met)),
    )


def main() -> None:
    """Print a line for each surface and batch size."""
    print("surface                              B   error  seeds' sd   bias  between the quartiles   met  emulated")
    for optimizer in OPTIMIZERS:
        for metric in GOALS:
            surface = Digits(optimizer, metric)
            for size in surface.batch_sizes:
                found = held_out(surface.emulator(size))
                print(
                    f"{surface.name:32} {size:5} {found.error:7.2f} {found.seeds_sd:10.2f} {found.bias:+6.2f} "
                    f"{100 * found.inside:21.0f} % {100 * found.met:3.0f} % {100 * found.met_emulated:7.0f} %"
                )


if __name__ == "__main__":
    main()
