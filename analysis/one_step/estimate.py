"""The best learning rate of one step against the batch size, eps(B) = eps_max / (1 + B_n / B) (McCandlish et al. 2018).

With gradient G, Hessian H and covariance Sigma of the gradient of one example, the expected loss after a step of
learning rate eps against the gradient of B examples is L - eps |G|^2 + eps^2 / 2 (G'HG + tr(H Sigma) / B) to second
order. It is least at eps(B) with eps_max = |G|^2 / G'HG and B_n = tr(H Sigma) / G'HG (equations 2.6 to 2.8).

Shapes: K batches at each batch size, E learning rates, M batch sizes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from analysis.noise_scale.estimate import fieller
from analysis.sizes.columns import check_confidence, check_positive, columns

LOG, LINEAR = "log", "linear"
SPACES = (LOG, LINEAR)
"""Where the squared residuals of a fit are taken: of log eps, so that each batch size counts by its relative error, or
of eps itself, so that the largest batch sizes count most."""
LEAST, MOST = np.log(1e-8), np.log(1e8)
"""B_n lies between these factors of the smallest and the largest batch size; beyond, the curve is a straight line."""
EXACT = 1e-6
"""The least relative standard error of a best learning rate: below it, intervals would be lost to rounding."""
GRID, FINER = 481, 6
"""Points of the first grid of log B_n, and how many times it gets finer by a factor of 20."""
Pairs = Mapping[float, float] | Iterable[tuple[float, float]]
"""Batch size -> best learning rate, or rows of the two [M, 2]: a list of tuples, an array, a frame of pandas."""


class OneStep(NamedTuple):
    """A fit of eps(B) = eps_max / (1 + B_n / B).

    Attributes:
        space: `log` or `linear`, where the fit is least squares.
        eps_max: the best learning rate of a step on the whole gradient, with the ends of its interval.
        noise_scale: B_n [examples], at which the best learning rate is half of it, with the ends of its interval.
        residual: root mean square of the residuals in this space, per degree of freedom; NaN with two batch sizes.
        points: M.
    """

    space: str
    eps_max: float
    eps_low: float
    eps_high: float
    noise_scale: float
    low: float
    high: float
    residual: float
    points: int

    def learning_rate(self, batch_size: float) -> float:
        """eps(B).

        >>> fit({size: 0.5 / (1 + 40 / size) for size in (4, 16, 64, 256)}).learning_rate(40).__round__(3)
        0.25
        """
        return self.eps_max / (1 + self.noise_scale / batch_size)


def fit(learning_rates: Pairs, space: str = LOG, confidence: float = 0.95) -> OneStep:
    """Fit eps(B) = eps_max / (1 + B_n / B) to pairs, by unweighted least squares.

    1 / eps(B) = 1 / eps_max + (B_n / eps_max) / B is a line in 1 / B. The interval of eps_max is that of its level, by
    Student's t, and the interval of B_n that of the ratio of slope and level by Fieller, both from the residuals; NaN
    with only two pairs. If the level may be 0, the batch sizes show no bend, and B_n has no upper end.

    Arguments:
        learning_rates: batch sizes and the best learning rates of one step, in any unit; a batch size may come more
            than once, and be infinite: the whole gradient. Learning rates that are not finite are left out.
        space: `log` or `linear`, where the residuals are taken.
        confidence: of the intervals.

    Raises:
        ValueError: the space is unknown, a number is not above 0, or fewer than two batch sizes have a learning rate.

    >>> pairs = {size: 0.5 / (1 + 40 / size) for size in (4, 16, 64, 256)}
    >>> [(each.space, round(each.eps_max, 4), round(each.noise_scale, 2)) for each in (fit(pairs), fit(pairs, LINEAR))]
    [('log', 0.5, 40.0), ('linear', 0.5, 40.0)]
    >>> round(fit([(16, 0.11), (64, 0.27), (64, 0.29), (256, 0.42)]).noise_scale, 1)
    59.3
    """
    if space not in SPACES:
        raise ValueError(f"the space must be log or linear, but got {space!r}.")
    check_confidence(confidence)
    sizes, rates = _pairs(learning_rates)
    if len(np.unique(sizes)) < 2:
        raise ValueError(f"a fit needs two batch sizes with a best learning rate, but got {len(np.unique(sizes))}.")
    [x], [residual] = _solved(sizes, rates[None], space)
    spare = len(sizes) - 2
    covariance = _covariance(sizes, x, residual, space) if spare else np.full((2, 2), np.nan)
    quantile = float(stdtrit(spare, (1 + confidence) / 2)) if spare else np.nan
    return _made(space, sizes, x, covariance, quantile, residual)


def _pairs(given: Pairs) -> tuple[np.ndarray, np.ndarray]:
    """(batch sizes, increasing, and their finite learning rates) [M]. Raises ValueError."""
    mapping: Any = given if hasattr(given, "items") and getattr(given, "ndim", 1) == 1 else None
    rows = list(mapping.items() if mapping is not None else np.asarray(given) if hasattr(given, "ndim") else given)
    if not all(np.size(row) == 2 for row in rows):
        raise ValueError(f"each row must be a batch size and its best learning rate, but got {rows}.")
    sizes, rates = columns(batch_sizes=[size for size, _ in rows], learning_rates=[rate for _, rate in rows])
    check_positive(batch_sizes=sizes, learning_rates=rates)
    kept = np.isfinite(rates) & ~np.isnan(sizes)
    order = np.argsort(sizes[kept], kind="stable")
    return sizes[kept][order], rates[kept][order]


def fit_batches(
    learning_rates: Mapping[float, np.ndarray], space: str = LOG, confidence: float = 0.95
) -> OneStep | None:
    """`fit` with intervals by a jackknife over batches, as they are measured.

    Arguments:
        learning_rates: batch size -> the best learning rate of all K batches, and without each of them [1 + K]
            (`best_learning_rates`); batch sizes with one that is not finite are left out.

    Returns:
        None if fewer than three batch sizes remain.

    >>> noise = np.random.default_rng(0).normal(0, 0.01, size=(4, 32))
    >>> pairs = {b: 0.5 / (1 + 40 / b) * np.exp([0, *each]) for b, each in zip((4, 16, 64, 256), noise)}
    >>> found = fit_batches(pairs)
    >>> round(found.noise_scale, 2), found.low < 40 < found.high
    (40.0, True)
    """
    known = {float(size): rates for size, rates in sorted(learning_rates.items()) if np.isfinite(rates).all()}
    if len(known) < 3:
        return None
    sizes = np.array(list(known))
    x, residuals = _solved(sizes, np.stack(list(known.values()), axis=1), space)
    count, lines = len(x) - 1, _line(x)
    away = lines[1:] - lines[1:].mean(0)
    quantile = float(stdtrit(count - 1, (1 + confidence) / 2))
    return _made(space, sizes, x[0], (count - 1) / count * away.T @ away, quantile, residuals[0])


def _line(x: np.ndarray) -> np.ndarray:
    """Slope and level of 1 / eps against 1 / B [..., 2], from log eps_max and log B_n [..., 2]."""
    return np.stack([np.exp(x[..., 1] - x[..., 0]), np.exp(-x[..., 0])], axis=-1)


def _made(
    space: str, sizes: np.ndarray, x: np.ndarray, covariance: np.ndarray, quantile: float, residual: float
) -> OneStep:
    """A fit from log eps_max and log B_n, and the covariance of slope and level [2, 2]."""
    eps_max, noise_scale = np.exp(x).tolist()
    slope, level = _line(x).tolist()
    if np.isnan(covariance).any():
        return OneStep(space, eps_max, np.nan, np.nan, noise_scale, np.nan, np.nan, float(residual), len(sizes))
    covariance = covariance + _covariance(sizes, x, EXACT, LOG)
    half = quantile * float(np.sqrt(covariance[1, 1]))
    ends = fieller((slope, level), (covariance[0, 0], covariance[0, 1], covariance[1, 1]), quantile)
    eps_ends = 1 / (level + half), 1 / (level - half) if level > half else np.inf
    return OneStep(space, eps_max, *eps_ends, noise_scale, *ends, float(residual), len(sizes))


def _solved(sizes: np.ndarray, rates: np.ndarray, space: str) -> tuple[np.ndarray, np.ndarray]:
    """(log eps_max and log B_n [R, 2], residual [R]) of fits to R rows of best learning rates [R, M].

    Given B_n, the best eps_max is a mean. The least squares of the remaining one, log B_n, are found on finer and finer
    grids.
    """
    low, high = np.log(sizes[0]) + LEAST, np.log(sizes[np.isfinite(sizes)][-1]) + MOST
    step = (high - low) / (GRID - 1)
    grid = np.broadcast_to(np.linspace(low, high, GRID), (len(rates), GRID))
    for _ in range(FINER):
        place = grid[np.arange(len(rates)), _squares(sizes, rates, grid, space)[1].argmin(1)]
        grid = np.clip(place[:, None] + np.linspace(-step, step, 41), low, high)
        step /= 20
    levels, squares = _squares(sizes, rates, place[:, None], space)
    spare = len(sizes) - 2
    residuals = np.sqrt(squares[:, 0] / spare) if spare else np.full(len(rates), np.nan)
    return np.stack([levels[:, 0], place], axis=1), residuals


def _squares(sizes: np.ndarray, rates: np.ndarray, grid: np.ndarray, space: str) -> tuple[np.ndarray, np.ndarray]:
    """(the best log eps_max, the squared residuals that remain) at each log B_n of a grid [R, T]."""
    shape = -np.logaddexp(0, grid[..., None] - np.log(sizes))  # log of eps / eps_max [R, T, M]
    if space == LOG:
        left = np.log(rates)[:, None] - shape
        level = left.mean(-1)
        return level, ((left - level[..., None]) ** 2).sum(-1)
    shape, wanted = np.exp(shape), rates[:, None]
    level = (wanted * shape).sum(-1) / (shape**2).sum(-1)
    return np.log(level), ((wanted - level[..., None] * shape) ** 2).sum(-1)


def _covariance(sizes: np.ndarray, x: np.ndarray, residual: float, space: str) -> np.ndarray:
    """The covariance of slope and level [2, 2], from the residual and the derivatives of the curve.

    By slope and level the curve is never degenerate, as it is by eps_max and B_n where it is a straight line.
    """
    slope, level = _line(x)
    rates = 1 / (level + slope / sizes)
    derivatives = np.stack([1 / sizes, np.ones(len(sizes))], axis=1) * (rates if space == LOG else rates**2)[:, None]
    widths = np.linalg.norm(derivatives, axis=0)  # units may be tiny or huge
    derivatives = derivatives / widths
    return residual**2 * np.linalg.pinv(derivatives.T @ derivatives) / np.outer(widths, widths)


def best_learning_rate(learning_rates: Sequence[float], losses: Sequence[float]) -> float:
    """Where the parabola through the lowest loss and its neighbours is least; NaN if the lowest is at an end.

    The parabola is one in the learning rate: for a quadratic loss it is exact, whatever the spacing. One in log eps
    would be 6 % too low for neighbours at factors of the root of 2.

    Arguments:
        learning_rates: [E], increasing.
        losses: mean losses after the step [E]; not finite where it diverged.

    >>> rates = [0.1, 0.2, 0.4, 0.8]
    >>> best_learning_rate(rates, [3 - eps + eps**2 for eps in rates]).__round__(6)
    0.5
    >>> best_learning_rate(rates, [3 - eps for eps in rates])
    nan
    """
    return float(best_learning_rates(learning_rates, np.array([losses, losses], dtype=float))[0])


def best_learning_rates(learning_rates: Sequence[float], losses: np.ndarray) -> np.ndarray:
    """`best_learning_rate` of the mean over all batches, and without each of them [1 + K].

    All take the parabola through the same three learning rates. NaN where it is not least at one above 0.

    Arguments:
        losses: after one step on each batch [K, E].

    >>> rates = [0.1, 0.2, 0.4, 0.8]
    >>> losses = np.array([[-eps + bend * eps**2 for eps in rates] for bend in (0.9, 1.1)])
    >>> best_learning_rates(rates, losses).round(3)
    array([0.5  , 0.455, 0.556])
    """
    count, heights = len(losses), np.where(np.isfinite(losses), losses, np.inf)
    at = int(np.argmin(heights.mean(0)))
    if not 0 < at < heights.shape[1] - 1:
        return np.full(1 + count, np.nan)
    three = heights[:, at - 1 : at + 2]
    a, b, c = learning_rates[at - 1 : at + 2]
    with np.errstate(invalid="ignore", divide="ignore"):
        u, v, w = np.concatenate([three.mean(0)[None], (three.sum(0) - three) / (count - 1)]).T
        top = (b - a) ** 2 * (v - w) - (b - c) ** 2 * (v - u)
        bottom = (b - a) * (v - w) - (b - c) * (v - u)
        found = b - 0.5 * top / bottom
    lowest = np.isfinite(found) & (found > 0) & (bottom < 0)
    return np.where(lowest, found, np.nan)


def interval(rates: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """The interval of a best learning rate by a jackknife over batches, on its logarithm; NaN if one is unknown.

    Arguments:
        rates: from `best_learning_rates` [1 + K].

    >>> [round(end, 3) for end in interval(np.array([0.5, 0.49, 0.5, 0.51]))]
    [0.453, 0.552]
    """
    if not np.isfinite(rates).all():
        return np.nan, np.nan
    count, away = len(rates) - 1, np.log(rates[1:]) - np.log(rates[1:]).mean()
    half = float(stdtrit(count - 1, (1 + confidence) / 2) * np.sqrt((count - 1) / count * (away**2).sum()))
    return float(rates[0] * np.exp(-half)), float(rates[0] * np.exp(half))
