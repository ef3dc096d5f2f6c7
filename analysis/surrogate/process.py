"""A Gaussian process of the responses at all batch sizes of one curve (Rasmussen & Williams 2006, chapters 2 and 5).

At each batch size it gives the response, with its uncertainty, at every point of the search space. Batch sizes inform
each other: their best points lie along lines on which learning_rate / (1 - momentum) changes as B^kb.

Shapes: n trials, m points, D tuned parameters.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_solve, cholesky, solve_triangular

from analysis.edges import scaled
from analysis.surrogate.responses import WORST

MEAN = 0.9 * WORST
"""The response expected where nothing was measured: most of a search space is bad."""
SD, COMMON_SD = 0.8, 0.15
"""Standard deviations of the two parts: one depends on point and batch size, the other on the batch size alone."""
JITTER = 1e-6
"""Added to the variances of a draw, so that they stay positive when rounded."""


@dataclass(frozen=True)
class Shape:
    """The hyperparameters of the process; the defaults start the first fit.

    Attributes:
        momentum_slant: km. 1: the best learning rate is proportional to 1 - momentum; 0: independent of it.
        batch_slant: kb. The best learning rate is proportional to B^kb.
        learning_rate_length, other_length: correlation lengths in units of the search box, of the learning rate and of
            all other parameters.
        batch_length: correlation length in log2 B.
        noise: standard deviation of a response between seeds.
    """

    momentum_slant: float = 1.0
    batch_slant: float = 0.5
    learning_rate_length: float = 0.1
    other_length: float = 0.3
    batch_length: float = 3.0
    noise: float = 0.2


GRIDS: dict[str, tuple[float, ...]] = {
    "momentum_slant": (0.0, 1.0),
    "batch_slant": (0.0, 0.5, 1.0),
    "learning_rate_length": (0.03, 0.06, 0.1, 0.16, 0.25),
    "other_length": (0.15, 0.3, 0.6),
    "batch_length": (1.5, 3.0, 6.0),
    "noise": (0.03, 0.06, 0.1, 0.2, 0.35),
}
"""Field of `Shape` -> the values that a fit compares, in the order of the fit."""


@dataclass(frozen=True)
class Coordinates:
    """How points of the unit cube and batch sizes become the coordinates of the process.

    Attributes:
        levels: per parameter [D] the coordinate of each choice, or None for a range.
        learning_rate: the position of the learning rate among the parameters; None if it is fixed.
        momentum: the position of `momentum`, else `beta1`; None if there is none, or it is fixed.
        octave: a factor of two of the learning rate in units of its box; 0 if its scale is not logarithmic.
        slant: the log range of 1 - momentum in units of that of the learning rate; 0 if there is none.
    """

    levels: tuple[tuple[float, ...] | None, ...]
    learning_rate: int | None = None
    momentum: int | None = None
    octave: float = 0.0
    slant: float = 0.0

    @classmethod
    def of(cls, space: Mapping[str, Mapping[str, Any]]) -> "Coordinates":
        """The coordinates of a search space, whose parameters are in sorted order, as in every point.

        Arguments:
            space: parameter name -> `low`, `high` and `scale`, or `choices` (see `study.space.Dimension.to_dict`).

        >>> rate = {"low": 0.01, "high": 10.0, "scale": "log"}
        >>> momentum = {"low": 0.0, "high": 0.999, "scale": "reverse_log"}
        >>> found = Coordinates.of({"momentum": momentum, "learning_rate": rate})
        >>> found.learning_rate, found.momentum, round(found.octave, 3), round(found.slant, 3)
        (0, 1, 0.1, 1.0)
        """
        names = sorted(space)
        choices = [tuple(space[name].get("choices") or ()) for name in names]
        levels = tuple(_levels(each) if each else None for each in choices)
        tuned = {name: position for position, name in enumerate(names) if len(choices[position]) != 1}
        rate, momentum = tuned.get("learning_rate"), tuned.get("momentum", tuned.get("beta1"))
        if rate is None or levels[rate] is not None or space["learning_rate"]["scale"] != "log":
            return cls(levels, rate, momentum)
        log_range, slant = _range(space["learning_rate"], "log"), 0.0
        if momentum is not None and levels[momentum] is None:
            slant = _range(space[names[momentum]], "reverse_log") / log_range
        return cls(levels, rate, momentum, math.log(2) / log_range, slant if math.isfinite(slant) else 0.0)

    @property
    def fitted(self) -> tuple[str, ...]:
        """The fields of `Shape` that this search space depends on, in the order of the fit."""
        others = [levels for position, levels in enumerate(self.levels) if position != self.learning_rate]
        needless = {
            "momentum_slant": self.slant == 0,
            "batch_slant": self.octave == 0,
            "learning_rate_length": self.learning_rate is None,
            "other_length": all(levels is not None and len(levels) == 1 for levels in others),
        }
        return tuple(name for name in GRIDS if not needless.get(name, False))

    def positions(self, points: ArrayLike, batch_sizes: ArrayLike, shape: Shape) -> np.ndarray:
        """Coordinates in correlation lengths [m, D + 1], the last of them log2 B.

        Arguments:
            points: in the unit cube [m, D].
            batch_sizes: one, or one per point [m].

        >>> plain = Coordinates(levels=(None,), learning_rate=0, octave=0.1)
        >>> plain.positions([[0.5], [0.7]], [4, 16], Shape(batch_slant=1.0)).round(2).tolist()
        [[3.0, 0.67], [3.0, 1.33]]
        """
        unit = np.asarray(points, dtype=float)
        log2_batch = np.broadcast_to(np.log2(np.asarray(batch_sizes, dtype=float)), len(unit))
        at = unit.copy()
        for column, levels in enumerate(self.levels):
            if levels is not None:
                choice = np.minimum(unit[:, column] * len(levels), len(levels) - 1).astype(int)
                at[:, column] = np.asarray(levels)[choice]
        rate = self.learning_rate
        if rate is not None:
            at[:, rate] -= shape.batch_slant * self.octave * log2_batch
            if self.momentum is not None:
                at[:, rate] += shape.momentum_slant * self.slant * at[:, self.momentum]
        lengths = np.full(len(self.levels), shape.other_length)
        lengths[[] if rate is None else [rate]] = shape.learning_rate_length
        return np.column_stack([at / lengths, log2_batch / shape.batch_length])


class Posterior(NamedTuple):
    """The process at m points of one batch size: `mean` [m], and `factor` [m, m], a root of the covariance."""

    mean: np.ndarray
    factor: np.ndarray

    def centred_draw(self, rng: np.random.Generator) -> np.ndarray:
        """A draw of response minus mean [m], without the noise of seeds.

        >>> posterior = Posterior(np.zeros(2), np.array([[1.0, 0.0], [1.0, 0.0]]))
        >>> first, second = posterior.centred_draw(np.random.default_rng(0))
        >>> bool(first == second)
        True
        """
        return self.factor @ rng.standard_normal(len(self.mean))


class Process:
    """The process given the responses of n trials.

    Arguments:
        coordinates, shape: see there.
        points: in the unit cube [n, D].
        batch_sizes: of each trial [n].
        values, noise_variance: responses, and their variances beyond the noise of seeds [n].

    >>> coordinates = Coordinates.of({"learning_rate": {"low": 0.01, "high": 10.0, "scale": "log"}})
    >>> process = Process(coordinates, Shape(noise=0.03), [[0.2], [0.6]], [64, 64], [1.0, 0.0], [0.0, 0.0])
    >>> process.mean([[0.2], [0.6]], 64).round(2).tolist()
    [1.0, 0.0]
    >>> process.sd([[0.2], [0.9]], 64).round(2).tolist(), process.mean_and_sd([[0.2]], 64)[1].round(2).tolist()
    ([0.03, 0.81], [0.03])
    >>> posterior = process.posterior([[0.6], [0.9]], 64)
    >>> posterior.factor.shape, bool(posterior.factor[0, 0] < posterior.factor[1].max())
    ((2, 2), True)
    """

    def __init__(
        self,
        coordinates: Coordinates,
        shape: Shape,
        points: ArrayLike,
        batch_sizes: ArrayLike,
        values: ArrayLike,
        noise_variance: ArrayLike,
    ) -> None:
        self.coordinates, self.shape = coordinates, shape
        self._at = coordinates.positions(points, batch_sizes, shape)
        residuals = np.asarray(values, dtype=float) - MEAN
        covariance = _covariance(self._at, self._at, shape)
        covariance[np.diag_indices_from(covariance)] += shape.noise**2 + np.asarray(noise_variance, dtype=float)
        self._root = cholesky(covariance, lower=True, overwrite_a=True, check_finite=False)
        self._weights = cho_solve((self._root, True), residuals, check_finite=False)
        size = -0.5 * len(residuals) * math.log(2 * math.pi)
        self.log_likelihood = float(size - 0.5 * residuals @ self._weights - np.log(np.diag(self._root)).sum())
        """The marginal log likelihood of the responses."""

    def mean(self, points: ArrayLike, batch_size: float) -> np.ndarray:
        """The posterior mean of the response [m] at points [m, D]."""
        return np.asarray(MEAN + self._across(self._positions(points, batch_size)) @ self._weights)

    def sd(self, points: ArrayLike, batch_size: float) -> np.ndarray:
        """The posterior standard deviation of the response [m] at points [m, D], without the noise of seeds."""
        return self.mean_and_sd(points, batch_size)[1]

    def mean_and_sd(self, points: ArrayLike, batch_size: float) -> tuple[np.ndarray, np.ndarray]:
        """`mean` and `sd` of the same points, faster."""
        across = self._across(self._positions(points, batch_size))
        rest = SD**2 + COMMON_SD**2 - np.square(self._explained(across)).sum(0)
        return np.asarray(MEAN + across @ self._weights), np.sqrt(np.maximum(rest, 0))

    def posterior(self, points: ArrayLike, batch_size: float) -> Posterior:
        """The joint posterior at points [m, D], without the noise of seeds."""
        at = self._positions(points, batch_size)
        across = self._across(at)
        explained = self._explained(across)
        covariance = _covariance(at, at, self.shape) - explained.T @ explained
        covariance[np.diag_indices_from(covariance)] += JITTER
        return Posterior(MEAN + across @ self._weights, cholesky(covariance, lower=True, check_finite=False))

    def _positions(self, points: ArrayLike, batch_size: float) -> np.ndarray:
        return self.coordinates.positions(points, batch_size, self.shape)

    def _across(self, at: np.ndarray) -> np.ndarray:
        """The prior covariance with the trials [m, n]."""
        return _covariance(at, self._at, self.shape)

    def _explained(self, across: np.ndarray) -> np.ndarray:
        """The part of the deviations that the trials explain [n, m]; its squares sum to the variance explained."""
        return np.asarray(solve_triangular(self._root, across.T, lower=True, check_finite=False))


def fit(
    coordinates: Coordinates,
    points: ArrayLike,
    batch_sizes: ArrayLike,
    values: ArrayLike,
    noise_variance: ArrayLike,
    start: Shape | None = None,
) -> Process:
    """The process whose shape one pass of coordinate descent over GRIDS finds to be the likeliest.

    Arguments:
        start: the shape of the previous stage; None before the first fit. Ties keep it.
        points, batch_sizes, values, noise_variance: see `Process`.

    >>> coordinates = Coordinates.of({"learning_rate": {"low": 0.01, "high": 10.0, "scale": "log"}})
    >>> values = [1.2, 0.0, 1.2, 1.2, 0.0, 1.2]  # the best learning rate is proportional to B
    >>> process = fit(coordinates, [[0.1], [0.3], [0.5], [0.4], [0.6], [0.8]], [8] * 3 + [64] * 3, values, [0.0] * 6)
    >>> process.shape.batch_slant
    1.0
    """

    def process(shape: Shape) -> Process:
        return Process(coordinates, shape, points, batch_sizes, values, noise_variance)

    best = process(start or Shape())
    for name in coordinates.fitted:
        now = getattr(best.shape, name)
        others = [process(replace(best.shape, **{name: value})) for value in GRIDS[name] if value != now]
        best = max([best, *others], key=lambda each: each.log_likelihood)
    return best


def _covariance(one: np.ndarray, other: np.ndarray, shape: Shape) -> np.ndarray:
    """The prior covariance [m, n] at two sets of positions: Matern 5/2, and a part that depends on B alone."""
    r = np.zeros((len(one), len(other)))
    for a, b in zip(one.T, other.T, strict=True):
        apart = a[:, None] - b
        r += np.square(apart, out=apart)
    r *= 5
    np.sqrt(r, out=r)
    found = r * r  # in place from here on: large temporary arrays would take most of the time
    found /= 3
    found += 1 + r
    found *= SD**2
    found *= np.exp(np.negative(r, out=r), out=r)
    sizes, rows = np.unique(one[:, -1], return_inverse=True)
    common = COMMON_SD**2 * np.exp(-np.square((sizes[:, None] - other[:, -1]) * shape.batch_length) / 32)
    found += common if len(sizes) == 1 else common[rows]
    return found


def _range(dimension: Mapping[str, Any], scale: str) -> float:
    return scaled(dimension["high"], scale) - scaled(dimension["low"], scale)


def _levels(choices: Sequence[float]) -> tuple[float, ...]:
    """The coordinate of each choice: its rank from 0 to 1; 0 if there is only one."""
    ranked = sorted(choices)
    return tuple(ranked.index(choice) / max(len(choices) - 1, 1) for choice in choices)
