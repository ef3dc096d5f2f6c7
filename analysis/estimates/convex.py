"""A curve through steps-to-result that is convex in log-log with slopes from -1 to 0, and the limits read from it.

More examples a step never raise the steps of a well-tuned training, never cut them by more than their own factor, and
help less and less (Shallue et al. 2019, section 4). A curve with these properties alone assumes no formula.

Shapes: M batch sizes, R curves. All logarithms are natural.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np
from scipy.optimize import nnls
from scipy.special import ndtri

from analysis.tables.scaling import PERFECT, PERFECT_SCALING_TOLERANCE, USEFUL, USEFUL_GAIN, Limit

FALLING = -0.1
"""Steps fall where the slope lies below this: still at the largest batch size, or not even from the smallest on."""
REFITS = 1024
FEWEST = 3
"""The fewest batch sizes that show where a curve bends."""


def fit(log_sizes: np.ndarray, log_steps: np.ndarray) -> np.ndarray:
    """The least-squares curve at the measured batch sizes [M], exact.

    Between the batch sizes the curve is straight in log-log. It is a constant plus a weighted mean of M curves.
    Curve number j falls with slope -1 up to batch size j and is level from there. The mean that is closest to the data
    is a point of a polytope, and one non-negative least squares finds it (the least-distance problem, Lawson & Hanson
    1974, chapter 23).

    Arguments:
        log_sizes: [M], rising.
        log_steps: [M], finite.

    >>> sizes = np.log([1, 2, 4, 8])
    >>> np.exp(fit(sizes, np.log([800, 390, 200, 210]))).round().tolist()
    [790.0, 395.0, 205.0, 205.0]
    """
    sinking = -np.minimum(log_sizes[:, None], log_sizes)  # [M, number of the curve]
    centred = sinking - sinking.mean(axis=0)
    distance = centred - (log_steps - log_steps.mean())[:, None]
    weights, _ = nnls(np.vstack([distance, np.ones(len(log_sizes))]), np.append(np.zeros(len(log_sizes)), 1.0))
    return np.asarray(log_steps.mean() + centred @ (weights / weights.sum()))


@lru_cache
def _noise(points: int) -> np.ndarray:
    """Standard normal numbers [REFITS, points] that fill space evenly (Owen 1998): the same for all data, so intervals
    move no further than the data do. New numbers for each data set would move the ends of an interval by 2 %."""
    from scipy.stats import qmc  # takes a second to import

    return np.asarray(ndtri(qmc.Sobol(points, rng=np.random.default_rng(0)).random(REFITS)))


def draws(log_sizes: np.ndarray, log_steps: np.ndarray, log_errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Normal draws around the fitted curve, and around the data, [REFITS, M] each.

    Arguments:
        log_errors: standard errors of `log_steps` [M].

    >>> around_curve, _ = draws(np.log([1, 2, 4, 8]), np.log([800, 390, 200, 210]), np.full(4, 0.1))
    >>> around_curve.shape
    (1024, 4)
    """
    noise = _noise(len(log_sizes)) * log_errors
    return fit(log_sizes, log_steps) + noise, log_steps + noise


def refits(log_sizes: np.ndarray, log_steps: np.ndarray, log_errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fits to normal draws around the fitted curve, and around the data, [REFITS, M] each.

    The fit smooths. Draws around the curve are therefore blunt where the data bend sharply, draws around the data are
    noisy twice; the interval of a limit is the union of both.

    Arguments:
        log_errors: standard errors of `log_steps` [M].

    >>> sizes, steps = np.log([1, 2, 4, 8]), np.log([800, 390, 200, 210])
    >>> around_curve, _ = refits(sizes, steps, np.full(4, 0.1))
    >>> around_curve.shape, bool((np.diff(around_curve) <= 1e-9).all())
    ((1024, 4), True)
    """
    around_curve, around_data = draws(log_sizes, log_steps, log_errors)
    return (
        np.array([fit(log_sizes, drawn) for drawn in around_curve]),
        np.array([fit(log_sizes, drawn) for drawn in around_data]),
    )


def perfect_scaling_limits(log_sizes: np.ndarray, curves: np.ndarray, base: float = 0.0) -> np.ndarray:
    """Where B S(B) first exceeds 1.2 times its value at the smallest batch size from the base on [R, log examples].

    Infinite if it never does, -infinite if steps hardly fall from the start: where they fell in proportion is unknown.

    Arguments:
        curves: log steps [R, M].

    >>> sizes = np.log([1, 2, 4, 8])
    >>> np.exp(perfect_scaling_limits(sizes, np.log([[800, 400, 200, 200]]))).round(1).tolist()
    [4.8]
    """
    kept = np.exp(log_sizes) >= base * (1 - 1e-9)
    log_sizes, curves = log_sizes[kept], curves[:, kept]
    if not len(log_sizes):
        return np.full(len(curves), np.nan)
    examples = log_sizes + curves
    allowed = examples[:, :1] + np.log(PERFECT_SCALING_TOLERANCE)
    found = _crossing(log_sizes, examples - allowed)
    if len(log_sizes) < 2:
        return found
    slope = (curves[:, 1] - curves[:, 0]) / (log_sizes[1] - log_sizes[0])
    return np.where(slope > FALLING, -np.inf, found)


def useful_batch_sizes(log_sizes: np.ndarray, curves: np.ndarray) -> np.ndarray:
    """Where S(B) comes within 5 % of its last value [R, log examples].

    Infinite if the curve still falls at its end, -infinite if it is there from the start.

    >>> sizes = np.log([1, 2, 4, 8])
    >>> np.exp(useful_batch_sizes(sizes, np.log([[800, 400, 200, 200], [80, 40, 20, 10]]))).round(1).tolist()
    [3.8, inf]
    """
    found = _crossing(log_sizes, curves[:, -1:] + np.log(USEFUL_GAIN) - curves)
    slope = (curves[:, -1] - curves[:, -2]) / (log_sizes[-1] - log_sizes[-2])
    found = np.where(found <= log_sizes[0], -np.inf, found)
    return np.where(slope < FALLING, np.inf, found)


def _crossing(log_sizes: np.ndarray, rising: np.ndarray) -> np.ndarray:
    """Where each row of `rising` [R, M] first exceeds 0 [R], between batch sizes by a straight line; else infinite."""
    above = rising > 0
    at = np.argmax(above, axis=1)
    rows, before = np.arange(len(rising)), np.maximum(at - 1, 0)
    low, high = rising[rows, before], rising[rows, at]
    share = np.divide(-low, high - low, out=np.zeros(len(rising)), where=high > low)
    found = log_sizes[before] + share * (log_sizes[at] - log_sizes[before])
    return np.where(above.any(axis=1), np.where(at == 0, log_sizes[0], found), np.inf)


def limits(
    steps: Mapping[int, float], log_errors: Mapping[int, float] | None = None, base: float = 0.0
) -> dict[str, Limit]:
    """The perfect-scaling limit and the maximum useful batch size, with 95 % intervals.

    The interval is the union of the middle 95 % of the limits of both kinds of refits, widened to hold the value.

    Arguments:
        steps: batch size -> steps, infinite or NaN if the goal was missed; the fit omits these. If larger batch sizes
            missed the goal, the maximum useful batch size is only a lower bound.
        log_errors: batch size -> standard error of log steps; without it there are no intervals.
        base: see `perfect_scaling_limits`.

    >>> found = limits({1: 800, 2: 400, 4: 200, 8: 200, 16: 200}, dict.fromkeys((1, 2, 4, 8, 16), 0.05))
    >>> perfect = found["perfect_scaling_limit"]
    >>> [round(number, 1) for number in (perfect.value, perfect.low, perfect.high)], perfect.bound
    ([4.8, 4.2, 4.9], '=')
    """
    reached = [size for size in sorted(steps) if np.isfinite(steps[size])]
    if len(reached) < FEWEST:
        return dict.fromkeys((PERFECT, USEFUL), Limit(np.nan, "="))
    log_sizes, log_steps = np.log(reached), np.log([steps[size] for size in reached])
    curves = fit(log_sizes, log_steps)[None]
    errors = np.array([(log_errors or {}).get(size, np.nan) for size in reached])
    drawn = refits(log_sizes, log_steps, errors) if np.isfinite(errors).all() else ()
    perfect = [perfect_scaling_limits(log_sizes, each, base) for each in (curves, *drawn)]
    useful = [useful_batch_sizes(log_sizes, each) for each in (curves, *drawn)]
    if max(steps) > reached[-1]:
        useful = [np.full(len(useful[0]), np.inf), *useful[1:]]
    first = next((size for size in reached if size >= base), np.nan)
    return {PERFECT: _limit(perfect, first, reached[-1]), USEFUL: _limit(useful, reached[0], reached[-1])}


def _limit(found: list[np.ndarray], first: float, last: float) -> Limit:
    """The limit of the first of these arrays, with the interval from the others."""
    value, bound = float(found[0][0]), "="
    if np.isinf(value):
        bound = ">" if value > 0 else "<"
    low, high = np.nan, np.nan
    if len(found) > 1 and not np.isnan(value):
        low = min(value, np.log(last), *(float(np.quantile(each, 0.025, method="lower")) for each in found[1:]))
        high = max(value, np.log(first), *(float(np.quantile(each, 0.975, method="higher")) for each in found[1:]))
    shown = {"=": np.exp(value), ">": last, "<": first}[bound]
    return Limit(float(shown), bound, *(_exactly(np.exp(end), (first, last)) for end in (low, high)))


def _exactly(size: float, measured: Iterable[float]) -> float:
    """A batch size without the rounding of logarithms where it is a measured one: a bound equals its interval's end.

    >>> _exactly(511.99999999999994, (8, 512)), _exactly(500.0, (8, 512)), _exactly(np.inf, (8, 512))
    (512.0, 500.0, inf)
    """
    return float(next((each for each in measured if np.isclose(size, each, rtol=1e-12, atol=0)), size))
