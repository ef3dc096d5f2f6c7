"""Solves the noisy quadratic model exactly: expected loss with SGD, momentum, preconditioning and weight averaging.

L = 1/2 sum_i h_i theta_i^2, gradient noise of covariance diag(h) / B, theta(0) ~ N(0, I): Zhang et al. 2019, "Which
Algorithmic Choices Matter at Which Batch Sizes?". Coordinates are independent, and for each an update is linear in a
state z (theta, the velocity, the averaged theta) with new noise e: z <- A z + n e. The second moments S = E[z z^T]
therefore follow S <- A S A^T + n n^T, and several steps together are a map of the same form. This file does not use
torch, so that the reference shares no code with the trained workload.

Shapes: d coordinates, k numbers in the state of one, C configurations at once (or none), E evaluated steps.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammainc


def spectrum(dimensions: int) -> np.ndarray:
    """The curvatures h_i = 1 / i [d].

    >>> spectrum(4)
    array([1.        , 0.5       , 0.33333333, 0.25      ])
    """
    return 1 / np.arange(1, dimensions + 1)


def grouped(curvatures: np.ndarray, points: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Quantize as the authors do: round each curvature down to one of `points` geometrically spaced points.

    Returns:
        (the points in use, the number of curvatures at each).
    """
    spaced = np.geomspace(curvatures.max(), curvatures.min(), points)
    many = np.bincount(np.searchsorted(-spaced, -curvatures), minlength=points)
    return spaced[many > 0], many[many > 0]


class Recursion:
    """The second moments of training at a constant learning rate.

    Updates: g = h theta + noise; v <- momentum v + g; theta <- theta - learning_rate h^-power v, and with weight
    averaging average <- decay average + (1 - decay) theta, from average(0) = theta(0).

    Arguments:
        batch_size: B.
        learning_rate, momentum: numbers, or [C] for several configurations at once.
        curvatures: h [d].
        multiplicity: number of coordinates that each curvature represents [d].
        power: exponent of the preconditioner h^-power; 0: none.
        ema_decay: decay of weight averaging; the loss is then the loss of the averaged weights. None: no averaging.
    """

    def __init__(
        self,
        batch_size: float,
        learning_rate: ArrayLike,
        momentum: ArrayLike = 0.0,
        *,
        curvatures: np.ndarray,
        multiplicity: ArrayLike = 1,
        power: float = 0.0,
        ema_decay: float | None = None,
    ) -> None:
        rate, mu = np.broadcast_arrays(np.asarray(learning_rate, float), np.asarray(momentum, float))
        rate, mu = rate[..., None], mu[..., None]
        h = np.asarray(curvatures, float)
        self.multiplicity = np.asarray(multiplicity)
        self.weights = 0.5 * h * self.multiplicity
        step = rate * h**-power
        x, noise = step * h, -step * np.sqrt(h / batch_size)  # [..., d]
        one, none = np.ones_like(x), np.zeros_like(x)
        # Scale the velocity by its step size, so that every entry is dimensionless.
        matrix, into = [[1 - x]], [noise]
        if mu.any():
            matrix, into = [[1 - x, -mu * one], [x, mu * one]], [noise, -noise]
        if ema_decay is not None:
            kept = ema_decay
            matrix = [[*row, none] for row in matrix]
            matrix.append([(1 - kept) * entry for entry in matrix[0][:-1]] + [kept * one])
            into = [*into, (1 - kept) * noise]
        drift, size = np.array(matrix), np.array(into)
        start = np.zeros(len(into))
        start[[0, -1] if ema_decay is not None else [0]] = 1
        self.start = np.multiply.outer(np.outer(start, start), one)
        self.wanted = -1 if ema_decay is not None else 0
        self._powers = [(drift, size[:, None] * size)]
        """(A, Q) of 1, 2, 4, ... steps at once [k, k, ..., d]."""

    def after(self, moments: np.ndarray, steps: int) -> np.ndarray:
        """The second moments [k, k, ..., d] after `steps` further steps; infinite or NaN once they overflow."""
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            for bit in range(steps.bit_length()):
                if bit == len(self._powers):
                    drift, noise = self._powers[-1]
                    self._powers.append((_times(drift, drift), _carried(drift, noise) + noise))
                if steps >> bit & 1:
                    drift, noise = self._powers[bit]
                    moments = _carried(drift, moments) + noise
        return moments

    def loss(self, moments: np.ndarray) -> np.ndarray:
        """The expected loss [...]."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.square(moments) @ self.weights

    def chance_below(self, goal: float, moments: np.ndarray, replicas: int) -> np.ndarray:
        """The probability that the mean loss of `replicas` independent replicas is below the goal [...].

        A weighted sum of squared normal numbers, approximated by the gamma distribution of the same mean and variance
        (Satterthwaite 1946).
        """
        with np.errstate(over="ignore", invalid="ignore"):
            each = self.square(moments) * self.weights
            mean, variance = each.sum(-1), 2 * (each * each / self.multiplicity).sum(-1) / replicas
            shape = mean**2 / variance
            return np.nan_to_num(gammainc(shape, shape * goal / mean))

    def square(self, moments: np.ndarray) -> np.ndarray:
        """E[theta^2], with weight averaging of the averaged theta [..., d]."""
        return moments[self.wanted, self.wanted]

    def at(self, steps: Iterable[int]) -> Iterator[np.ndarray]:
        """The second moments after each of these increasing step counts."""
        moments, now = self.start, 0
        for step in steps:
            moments, now = self.after(moments, step - now), step
            yield moments

    def steps_to_goal(self, goal: float, steps: Sequence[int]) -> np.ndarray:
        """The first of these increasing steps at which the expected loss is below the goal [...]; infinite if none is.

        Every step is evaluated, because the expected loss may rise again and oscillates with momentum. For a single
        configuration of plain SGD there is a faster way, because each coordinate moves monotonically to its limit. If
        the loss is above the goal even with the smaller of start and end in each coordinate, there is no crossing. If
        no coordinate rises, bisection finds the crossing.
        """
        if self.start.shape[:-1] == (1, 1) and len(steps):
            if self.loss(np.fmin(self.start, self.after(self.start, steps[-1]))) >= goal:
                return np.array(np.inf)
            if (self.after(self.start, 1) <= self.start).all():
                first = bisect_left(steps, True, key=lambda step: bool(self.loss(self.after(self.start, step)) < goal))
                return np.array(float(steps[first]))
        found = np.full(self.start.shape[2:-1], np.inf)
        for step, moments in zip(steps, self.at(steps), strict=True):
            loss = self.loss(moments)
            found[(loss < goal) & (found == np.inf)] = step
            if not (np.isfinite(loss) & (found == np.inf)).any():
                break
        return found

    def first_below(self, goal: float, steps: Sequence[int]) -> tuple[int, np.ndarray] | None:
        """(the first of these steps where any configuration is below the goal, the losses there); None if none is."""
        losses = zip(steps, map(self.loss, self.at(steps)), strict=True)
        return next(((step, loss) for step, loss in losses if (loss < goal).any()), None)

    def losses(self, steps: Sequence[int]) -> np.ndarray:
        """The expected loss after each of these increasing step counts [E, ...]."""
        return np.array([self.loss(moments) for moments in self.at(steps)])


class Best(NamedTuple):
    """The fewest steps to a goal and their hyperparameters; infinite and NaN if the goal is never reached."""

    steps: float
    learning_rate: float
    momentum: float


def fewest_steps(
    batch_size: float,
    goal: float,
    learning_rates: Sequence[float],
    momenta: Sequence[float] = (0.0,),
    most: int = 10**7,
    **model: Any,
) -> Best:
    """The least number of steps, of at most `most`, to an expected loss below the goal, over a grid.

    Arguments:
        model: further keywords of `Recursion`, such as curvatures.

    >>> fewest_steps(256, goal=0.01, learning_rates=np.logspace(-5, 0.5, 100), curvatures=spectrum(10_000)).steps
    25778.0
    """
    best = Best(np.inf, np.nan, np.nan)
    plain = 0 in momenta and model.get("ema_decay") is None
    for rate in learning_rates if plain else ():  # one configuration at a time is faster: bisection
        steps = Recursion(batch_size, rate, **model).steps_to_goal(goal, range(1, int(min(best.steps, most + 1))))
        best = Best(float(steps), float(rate), 0.0) if steps < best.steps else best
    # Run the remaining configurations side by side: the first to reach the goal is the best.
    pairs = [(rate, momentum) for momentum in momenta if momentum or not plain for rate in learning_rates]
    if pairs:
        exact = Recursion(batch_size, *np.transpose(pairs), **model)
        if found := exact.first_below(goal, range(1, int(min(best.steps, most + 1)))):
            best = Best(float(found[0]), *map(float, pairs[int(np.nanargmin(found[1]))]))
    return best


def _times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.einsum("ij...,jk...->ik...", a, b)


def _carried(drift: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """A S A^T."""
    return np.einsum("ij...,kj...->ik...", _times(drift, moments), drift)
