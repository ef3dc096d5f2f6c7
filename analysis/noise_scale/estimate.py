"""The gradient noise scale tr(Sigma) / |G|^2 with a confidence interval (McCandlish et al. 2018, appendix A.1).

G is the gradient of the mean training loss, Sigma the covariance of the gradient of one example. Gradients u of b
examples each have mean G and covariance Sigma / b. They come in K disjoint blocks of n.

Shapes: K blocks.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit


class Blocks(NamedTuple):
    """What a point of a run stores of its gradients u. With n = 1 a block is one gradient of a batch.

    Attributes:
        unit: b, examples in each gradient u.
        per_block: n, gradients u in each block.
        own: squared norm of the mean gradient of each block [K].
        total: dot product of the mean gradient of each block and the mean gradient of all blocks [K].
        units: mean squared norm of the gradients u of each block [K].
    """

    unit: int
    per_block: int
    own: np.ndarray
    total: np.ndarray
    units: np.ndarray


class NoiseScale(NamedTuple):
    """Estimates of |G|^2, tr(Sigma) and their ratio in examples, with the ends of its interval."""

    squared_gradient: float
    trace: float
    scale: float
    low: float
    high: float


def noise_scale(blocks: Blocks, confidence: float = 0.95) -> NoiseScale:
    """The noise scale as a ratio of two unbiased averages, with the interval of Fieller (1954).

    The pair ratios of McCandlish et al. scatter without bound where |G|^2 is small, so averages come first. With n = 1
    these averages are exactly theirs of the batch sizes b and 2 b over all pairs of disjoint batches: there, |G|^2 is
    the dot product of the two gradients. The covariance of the two averages is that of a jackknife over blocks.

    The scale and `high` are infinite if the gradient cannot be told from 0.

    >>> noise = np.random.default_rng(0).normal(size=(32, 64, 100))  # 32 blocks of 64 gradients of one example each
    >>> u = 0.1 + noise  # |G|^2 = 1, tr(Sigma) = 100
    >>> means = u.mean(1)
    >>> found = noise_scale(Blocks(1, 64, (means**2).sum(1), means @ means.mean(0), (u**2).sum(2).mean(1)))
    >>> [round(value, 2) for value in found]
    [1.0, 100.28, 100.05, 93.05, 108.19]
    """
    count, n = len(blocks.own), blocks.per_block
    mean, units = blocks.total.mean(), blocks.units.mean()  # the first is the squared norm of the mean gradient
    squared, trace = map(float, averages(mean, units, n * count, blocks.unit))
    mean_without = (count**2 * mean - 2 * count * blocks.total + blocks.own) / (count - 1) ** 2
    units_without = (blocks.units.sum() - blocks.units) / (count - 1)
    left = np.stack(averages(mean_without, units_without, n * (count - 1), blocks.unit))  # [2, K]: without each block
    spread = left - left.mean(1, keepdims=True)
    (v_squared, v_both), (_, v_trace) = (count - 1) / count * spread @ spread.T
    quantile = float(stdtrit(count - 1, (1 + confidence) / 2))
    ends = fieller((trace, squared), (v_trace, v_both, v_squared), quantile)
    return NoiseScale(squared, trace, max(0.0, trace) / squared if squared > 0 else np.inf, *ends)


def averages(mean: Any, units: Any, gradients: int, unit: int) -> tuple[Any, Any]:
    """Unbiased (|G|^2, tr(Sigma)).

    Arguments:
        mean: the squared norm of the mean of `gradients` gradients u, each of `unit` examples.
        units: the mean of their squared norms.

    >>> averages(mean=1.5, units=51.0, gradients=100, unit=2)  # |G|^2 + tr(Sigma) / 200, |G|^2 + tr(Sigma) / 2
    (1.0, 100.0)
    """
    squared = (gradients * mean - units) / (gradients - 1)
    return squared, unit * (units - squared)


def fieller(means: tuple[float, float], covariance: tuple[float, float, float], quantile: float) -> tuple[float, float]:
    """The interval of a ratio of two positive means: all ratios r for which numerator - r denominator may be 0.

    The upper end is infinite if the denominator may be 0.

    Arguments:
        means: of numerator and denominator.
        covariance: the variance of the numerator's mean, the covariance, the variance of the denominator's mean.
        quantile: of Student's t.

    >>> [round(end, 2) for end in fieller((10, 2), (0.01, 0, 0.01), 2)], fieller((10, 2), (0.01, 0, 4), 2)[1]
    ([4.54, 5.57], inf)
    """
    top, bottom = means
    v_top, v_both, v_bottom = (quantile**2 * each for each in covariance)
    a, b, c = bottom**2 - v_bottom, top * bottom - v_both, top**2 - v_top  # a r^2 - 2 b r + c <= 0
    if bottom <= 0 or b * b < a * c:
        return 0.0, np.inf
    root = float(np.sqrt(b * b - a * c))
    return max(0.0, float(c / (b + root))), float((b + root) / a) if a > 0 else np.inf
