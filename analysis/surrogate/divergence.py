"""A process that knows where training diverges: its second output, beside the response.

The best configurations often lie at the edge of divergence, where steps jump from the fewest to none. One smooth
process of both takes the points beside the edge to be bad, because those beyond it are. So the trials that diverged do
not inform the response; all trials inform a process of their own, which says where to expect divergence.

Shapes: n trials, m points, D tuned parameters.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from analysis.surrogate.process import MEAN, Coordinates, Posterior, Process, Shape, fit
from analysis.surrogate.responses import WORST

FEWEST = 3
"""The fewest trials that did not diverge from which a response is known without the others."""
SIDE, NOISE, LEAST_LENGTH = 0.5, 0.1, 0.1
"""Of the process of divergence: a trial is SIDE above MEAN if it diverged, else SIDE below; the noise; and the shortest
correlation length in the learning rate, because the edge is smoother than the response."""


class Bounded(Process):
    """The process of the trials that did not diverge; WORST, without doubt, where the others make divergence likelier.

    Arguments:
        diverged: for each trial, whether it diverged [n].
        coordinates, shape, points, batch_sizes, values, noise_variance: see `Process`.

    >>> coordinates = Coordinates.of({"learning_rate": {"low": 0.01, "high": 10.0, "scale": "log"}})
    >>> units, steps = [[0.2], [0.4], [0.6], [0.8]], [1.0, 0.5, 0.0, WORST]
    >>> process = Bounded(coordinates, Shape(), units, [64] * 4, steps, [0.0] * 4, [False, False, False, True])
    >>> process.mean([[0.62], [0.78]], 64).round(1).tolist(), process.sd([[0.78]], 64).tolist()
    ([0.2, 1.8], [0.0])
    >>> process.mean_and_sd([[0.78]], 64)[1].tolist(), process.posterior([[0.78]], 64).factor.tolist()
    ([0.0], [[0.0]])
    """

    def __init__(
        self,
        coordinates: Coordinates,
        shape: Shape,
        points: ArrayLike,
        batch_sizes: ArrayLike,
        values: ArrayLike,
        noise_variance: ArrayLike,
        diverged: ArrayLike,
    ) -> None:
        bad = np.asarray(diverged, dtype=bool)
        super().__init__(coordinates, shape, *_without(bad, points, batch_sizes, values, noise_variance))
        edge = replace(shape, noise=NOISE, learning_rate_length=max(shape.learning_rate_length, LEAST_LENGTH))
        sides = MEAN + np.where(bad, SIDE, -SIDE)
        self._divergence = Process(coordinates, edge, points, batch_sizes, sides, np.zeros(len(bad)))

    def mean(self, points: ArrayLike, batch_size: float) -> np.ndarray:
        return np.where(self._diverges(points, batch_size), WORST, super().mean(points, batch_size))

    def mean_and_sd(self, points: ArrayLike, batch_size: float) -> tuple[np.ndarray, np.ndarray]:
        mean, sd = super().mean_and_sd(points, batch_size)
        bad = self._diverges(points, batch_size)
        return np.where(bad, WORST, mean), np.where(bad, 0.0, sd)

    def posterior(self, points: ArrayLike, batch_size: float) -> Posterior:
        mean, factor = super().posterior(points, batch_size)
        bad = self._diverges(points, batch_size)
        return Posterior(np.where(bad, WORST, mean), np.where(bad[:, None], 0.0, factor))

    def _diverges(self, points: ArrayLike, batch_size: float) -> np.ndarray:
        """Where divergence is likelier than not [m]; far from all trials, nothing is known of it."""
        return self._divergence.mean(points, batch_size) > MEAN


def fit_bounded(
    coordinates: Coordinates,
    points: ArrayLike,
    batch_sizes: ArrayLike,
    values: ArrayLike,
    noise_variance: ArrayLike,
    diverged: ArrayLike,
    start: Shape | None = None,
) -> Process:
    """As `process.fit`, by the trials that did not diverge; by all of them if none diverged, or nearly all did.

    >>> coordinates = Coordinates.of({"learning_rate": {"low": 0.01, "high": 10.0, "scale": "log"}})
    >>> units, steps = [[0.2], [0.4], [0.6], [0.8]], [1.0, 0.5, 0.0, WORST]
    >>> type(fit_bounded(coordinates, units, [64] * 4, steps, [0.0] * 4, [False] * 4)).__name__
    'Process'
    """
    bad = np.asarray(diverged, dtype=bool)
    if not bad.any() or (~bad).sum() < FEWEST:
        return fit(coordinates, points, batch_sizes, values, noise_variance, start)
    found = fit(coordinates, *_without(bad, points, batch_sizes, values, noise_variance), start)
    return Bounded(coordinates, found.shape, points, batch_sizes, values, noise_variance, bad)


def _without(
    bad: np.ndarray, points: ArrayLike, batch_sizes: ArrayLike, values: ArrayLike, noise_variance: ArrayLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The same of the trials that are not `bad` [n]."""
    return (
        np.asarray(points)[~bad],
        np.asarray(batch_sizes)[~bad],
        np.asarray(values)[~bad],
        np.asarray(noise_variance)[~bad],
    )
