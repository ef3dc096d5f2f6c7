"""A curve through steps-to-result that is convex in log-log with slopes from -1 to 0, and the limits read from it.

More examples a step never raise the steps of a well-tuned training, never cut them by more than their own factor, and
help less and less (Shallue et al. 2019, section 4). A curve with these properties alone assumes no formula.

Shapes: M batch sizes, P points of a curve. All logarithms are natural.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from analysis.tables.scaling import FEWEST, PERFECT, PERFECT_SCALING_TOLERANCE, USEFUL, USEFUL_GAIN, Limit

FALLING = -0.1
"""Steps fall where the slope lies below this: still at the largest batch size, or not even from the smallest on."""
LIKELY = 1.96
"""A limit is likely if curves that have it are no further from the data than the closest curve, by the root of the
difference of both sums of squares, in standard errors: 95 % of a normal distribution."""
LEAST = 1e-9
"""Errors below this count as this: points that lie on a curve have none.
Shares of a mean below it, which rounding leaves, count as none."""
BETWEEN = 8
"""Points that are tried as limits from one batch size to the next."""


class Data(NamedTuple):
    """What curves are fitted to, by rising batch size: logarithms of batch sizes and steps, standard errors of these
    [M]; NaN where they are unknown."""

    log_sizes: np.ndarray
    log_steps: np.ndarray
    log_errors: np.ndarray


def fit(log_sizes: np.ndarray, log_steps: np.ndarray) -> np.ndarray:
    """The least-squares curve at the measured batch sizes [M], exact.

    Between the batch sizes the curve is straight in log-log. It is a constant plus a weighted mean of M curves.
    Curve number j falls with slope -1 up to batch size j and is level from there.

    Arguments:
        log_sizes: [M], rising.
        log_steps: [M], finite.

    >>> sizes = np.log([1, 2, 4, 8])
    >>> np.exp(fit(sizes, np.log([800, 390, 200, 210]))).round().tolist()
    [790.0, 395.0, 205.0, 205.0]
    """
    residuals, _ = _residuals(_falling(log_sizes), log_steps, np.ones(len(log_sizes)))
    return np.asarray(log_steps + residuals)


def _falling(log_sizes: np.ndarray) -> np.ndarray:
    """The curves that all others are means of, but for a constant [M, number of the curve]."""
    return -np.minimum(log_sizes[:, None], log_sizes)


def _residuals(curves: np.ndarray, log_steps: np.ndarray, log_errors: np.ndarray) -> tuple[np.ndarray, int]:
    """(The weighted mean of `curves` [M, any number], plus a constant, that is closest to the data, minus the data [M];
    the number of curves in this mean.)

    It is a point of a polytope, and one non-negative least squares finds it (the least-distance problem,
    Lawson & Hanson 1974, chapter 23).
    """
    precisions = log_errors.mean() / log_errors
    distances = curves - log_steps[:, None]
    distances -= np.average(distances, axis=0, weights=precisions**2)
    rows = np.vstack([precisions[:, None] * distances, np.ones(curves.shape[1])])
    weights, _ = nnls(rows, np.append(np.zeros(len(log_steps)), 1.0))
    weights /= weights.sum()
    return distances @ weights, int(np.count_nonzero(weights > LEAST))


def perfect_scaling_limit(log_sizes: np.ndarray, curve: np.ndarray) -> float:
    """Where B S(B) first exceeds 1.2 times its value at the smallest batch size [log examples].

    Infinite if it never does, -infinite if steps hardly fall from the start: where they fell in proportion is unknown.

    Arguments:
        curve: log steps [M].

    >>> sizes = np.log([1, 2, 4, 8])
    >>> round(np.exp(perfect_scaling_limit(sizes, np.log([800, 400, 200, 200]))).item(), 1)
    4.8
    """
    if len(log_sizes) > 1 and curve[1] - curve[0] > FALLING * (log_sizes[1] - log_sizes[0]):
        return -np.inf
    return _crossing(log_sizes, (log_sizes + curve) - (log_sizes[0] + curve[0]) - np.log(PERFECT_SCALING_TOLERANCE))


def useful_batch_size(log_sizes: np.ndarray, curve: np.ndarray) -> float:
    """Where S(B) comes within 5 % of its last value [log examples].

    Infinite if the curve still falls at its end, -infinite if it is there from the start.

    >>> sizes = np.log([1, 2, 4, 8])
    >>> found = [useful_batch_size(sizes, np.log(steps)) for steps in ([800, 400, 200, 200], [80, 40, 20, 10])]
    >>> np.exp(found).round(1).tolist()
    [3.8, inf]
    """
    if curve[-1] - curve[-2] < FALLING * (log_sizes[-1] - log_sizes[-2]):
        return np.inf
    found = _crossing(log_sizes, curve[-1] + np.log(USEFUL_GAIN) - curve)
    return -np.inf if found <= log_sizes[0] else found


def _crossing(log_sizes: np.ndarray, rising: np.ndarray) -> float:
    """Where `rising` [M] first exceeds 0, between batch sizes by a straight line; else infinite."""
    above = np.flatnonzero(rising > 0)
    if not above.size:
        return np.inf
    pair = slice(max(0, above[0] - 1), above[0] + 1)
    return float(np.interp(0.0, rising[pair], log_sizes[pair]))


def limits(
    steps: Mapping[int, float], log_errors: Mapping[int, float] | None = None, base: float = 0.0
) -> dict[str, Limit]:
    """The perfect-scaling limit and the maximum useful batch size, with 95 % intervals.

    A value lies in the interval if some curve with that limit is nearly as close to the data as the closest of all
    (Rust & Burrus 1972; Batlle et al. 2023). The interval is widened to hold the limit of the fitted curve.

    Arguments:
        steps: batch size -> steps, infinite or NaN if the goal was missed; the fit omits these. If larger batch sizes
            missed the goal, the maximum useful batch size is only a lower bound.
        log_errors: batch size -> standard error of log steps; without it there are no intervals.
        base: the perfect-scaling limit compares with the smallest batch size from this one on.

    >>> found = limits({1: 800, 2: 400, 4: 200, 8: 200, 16: 200}, dict.fromkeys((1, 2, 4, 8, 16), 0.05))
    >>> perfect = found["perfect_scaling_limit"]
    >>> [round(number, 1) for number in (perfect.value, perfect.low, perfect.high)], perfect.bound
    ([4.8, 4.2, 5.0], '=')
    """
    reached = [size for size in sorted(steps) if np.isfinite(steps[size])]
    if len(reached) < FEWEST:
        return dict.fromkeys((PERFECT, USEFUL), Limit(np.nan, "="))
    log_sizes, log_steps = np.log(reached), np.log([steps[size] for size in reached])
    errors = np.array([(log_errors or {}).get(size, np.nan) for size in reached])
    data = Data(log_sizes, log_steps, np.maximum(errors, LEAST))
    curve, first = fit(log_sizes, log_steps), int(np.searchsorted(reached, base))
    return {
        PERFECT: _limit(*_perfect(data, curve, first), reached[first:]) if reached[first:] else Limit(np.nan, "="),
        USEFUL: _limit(*_useful(data, curve, max(steps) > reached[-1]), reached),
    }


def _perfect(data: Data, curve: np.ndarray, first: int) -> tuple[float, tuple[float, float]]:
    """The perfect-scaling limit from batch size number `first` on, and its interval [log examples]."""
    start, tolerance = data.log_sizes[first], np.log(PERFECT_SCALING_TOLERANCE)
    value = perfect_scaling_limit(data.log_sizes[first:], curve[first:])
    span = start + tolerance / (1 + FALLING), data.log_sizes[-1]
    return value, _interval(data, value, span, start, lambda points: tolerance - (points - start))


def _useful(data: Data, curve: np.ndarray, missed: bool) -> tuple[float, tuple[float, float]]:
    """The maximum useful batch size and its interval [log examples]; `missed`: larger batch sizes missed the goal."""
    last, gain = data.log_sizes[-1], np.log(USEFUL_GAIN)
    value = np.inf if missed else useful_batch_size(data.log_sizes, curve)
    return value, _interval(data, value, (data.log_sizes[0], last + gain / FALLING), last, lambda _: gain)


def _interval(
    data: Data, value: float, span: tuple[float, float], reference: float, falls: Callable[[np.ndarray], Any]
) -> tuple[float, float]:
    """The least and the greatest likely limit [log examples], open beyond `span`; NaN if errors are unknown.

    A curve has its limit where log steps are those at the reference plus `falls` of the limit.

    Arguments:
        value: the limit of the fitted curve.
    """
    if span[0] >= span[1] or np.isnan(data.log_errors).any():
        return np.nan, np.nan
    inner = data.log_sizes[(data.log_sizes > span[0]) & (data.log_sizes < span[1])]
    edges = [span[0], *inner, span[1]]
    points = np.interp(np.arange((len(edges) - 1) * BETWEEN + 1) / BETWEEN, np.arange(len(edges)), edges)
    points = np.sort(np.append(points, value)) if np.isfinite(value) else points
    rows = _reading(data.log_sizes, points) - _reading(data.log_sizes, [reference])
    away = _away(data, rows, falls(points))
    likely = np.flatnonzero(away <= 1)
    if not likely.size:
        return value, value
    return _end(points, away, likely[0], -1), _end(points, away, likely[-1], 1)


def _end(points: np.ndarray, away: np.ndarray, inside: int, direction: int) -> float:
    """The end of an interval between the last likely point and the next one; infinite if there is none."""
    outside = inside + direction
    if not 0 <= outside < len(points):
        return direction * np.inf
    share = (1 - away[inside]) / (away[outside] - away[inside])  # 0 if no curve has its limit outside
    return float(points[inside] + share * (points[outside] - points[inside]))


def _reading(log_sizes: np.ndarray, points: Sequence[float] | np.ndarray) -> np.ndarray:
    """The weights that read a curve at points between batch sizes [P, M]."""
    return np.stack([np.interp(points, log_sizes, unit) for unit in np.eye(len(log_sizes))], axis=-1)


def _away(data: Data, rows: np.ndarray, targets: ArrayLike) -> np.ndarray:
    """How much further from the data than the closest curve is the closest with `row @ curve == target` [P]: the root
    of the difference of their sums of squares, in standard errors over LIKELY; infinite where there is none.

    If the closest curve is further from the data than their errors explain, errors are larger by as much (Birge 1932).
    """
    curves = _falling(data.log_sizes)

    def squares(allowed: np.ndarray) -> tuple[float, int]:
        if not allowed.size:
            return np.inf, 0
        residuals, count = _residuals(allowed, data.log_steps, data.log_errors)
        return float(((residuals / data.log_errors) ** 2).sum()), count

    least, count = squares(curves)
    free = len(curves) - count
    unexplained = max(1.0, least / free) if free else 1.0
    over = rows @ curves - np.reshape(targets, (-1, 1))
    excess = np.array([squares(_that_meet(curves, each))[0] for each in over]) - least
    return np.sqrt(np.maximum(0.0, excess) / unexplained) / LIKELY


def _that_meet(curves: np.ndarray, over: np.ndarray) -> np.ndarray:
    """The curves that all others are means of, if these must meet a condition [M, any number].

    A mean that meets it is a mean of pairs: of one curve above the target and one below, which meet it together.

    Arguments:
        over: how far each curve lies above the target.
    """
    above, below = over > 0, over < 0
    share = over[above, None] / (over[above, None] - over[below])
    pairs = curves[:, above, None] * (1 - share) + curves[:, None, below] * share
    return np.hstack([curves[:, over == 0], pairs.reshape(len(curves), -1)])


def _limit(value: float, ends: tuple[float, float], measured: Sequence[int]) -> Limit:
    """A limit and its interval [log examples] in examples."""
    first, last = float(measured[0]), float(measured[-1])
    bound = "=" if np.isfinite(value) else ">" if value > 0 else "<"
    shown = {"=": float(np.exp(value)), ">": last, "<": first}[bound]
    if np.isnan(ends).any():
        return Limit(shown, bound)
    low, high = min(value, np.log(last), ends[0]), max(value, np.log(first), ends[1])
    return Limit(shown, bound, *(_exactly(float(np.exp(end)), (first, last)) for end in (low, high)))


def _exactly(size: float, measured: Iterable[float]) -> float:
    """A batch size without the rounding of logarithms where it is a measured one: a bound equals its interval's end.

    >>> _exactly(511.99999999999994, (8, 512)), _exactly(500.0, (8, 512)), _exactly(np.inf, (8, 512))
    (512.0, 500.0, inf)
    """
    return float(next((each for each in measured if np.isclose(size, each, rtol=1e-12, atol=0)), size))
