"""Fit curves to steps-to-result: critical batch sizes by each published definition.

All fits are unweighted least squares on log S over the batch sizes that reached the goal. Shapes: M batch sizes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import OptimizeResult, least_squares
from scipy.special import expit, stdtrit

from analysis.load import CURVE

STARTS = 5
POLISH, NEAR = 60, 1e-5
"""The most steps that polish a minimum; the first of them is shorter than this."""
PRECISE: Any = {"xtol": 1e-12, "ftol": 1e-14, "gtol": 1e-12}
AS_GOOD = 1e-6
"""Relative difference of sums of squares up to which the sharpest bend fits as well as the best."""
EXACT = 1e-6
"""The least residual of log S: below it, standard errors would be lost to rounding."""
BEYOND = (7.0, 12.0)
"""How far log B_c may lie below and above the measured batch sizes; farther off, the curve is a straight line there."""
PROFILE = 4001
"""Points of a profile over log B_c."""
ZHANG_OVERHEAD = 0.2
"""The extra data over linear scaling from the base batch size at which Zhang et al. call a batch size critical."""


@dataclass(frozen=True)
class Fit:
    """A curve fitted to (B, S).

    Attributes:
        steps_min: S_min [steps], where the curve levels off at large batch sizes.
        critical: B_c = E_min / S_min [examples], where both asymptotes meet.
        sharpness: p of the shoulder; 1 is the hyperbola.
        log_errors: standard errors of log S_min, log B_c and, if fitted, log p; NaN with as many parameters as points.
        residual: root mean square residual of log S, per degree of freedom; NaN with as many parameters as points.
        points: M, the number of batch sizes.
    """

    steps_min: float
    critical: float
    sharpness: float
    log_errors: tuple[float, ...]
    residual: float
    points: int

    @property
    def examples_min(self) -> float:
        """E_min = S_min * B_c [examples], the need of the smallest batch sizes."""
        return self.steps_min * self.critical

    def steps(self, batch_sizes: np.ndarray) -> np.ndarray:
        """The curve S(B) at these batch sizes [M].

        >>> fit = hyperbola({size: 100 * (1 + 64 / size) for size in (4, 16, 64, 256, 1024)})
        >>> fit.steps(np.array([8, 64, 128])).round(1).tolist()
        [900.0, 200.0, 150.0]
        """
        return np.exp(_log_steps(np.log(batch_sizes), np.log([self.steps_min, self.critical, self.sharpness])))

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """The confidence interval of B_c, by Student's t on its logarithm; NaN with as many parameters as points.

        >>> fit = hyperbola({4: 1650, 16: 510, 64: 205, 256: 124, 1024: 107})
        >>> [round(end) for end in fit.interval()], round(fit.critical)
        ([57, 70], 63)
        """
        spare = self.points - len(self.log_errors)
        if spare < 1:
            return np.nan, np.nan
        width = stdtrit(spare, (1 + confidence) / 2) * self.log_errors[1]
        with np.errstate(over="ignore"):
            return float(self.critical * np.exp(-width)), float(self.critical * np.exp(width))

    @property
    def reach(self) -> float:
        """The half-width of the 95 % interval of one residual; NaN with as many parameters as points.

        >>> round(hyperbola({4: 1650, 16: 510, 64: 205, 256: 124, 1024: 107}).reach, 3)
        0.079
        """
        spare = self.points - len(self.log_errors)
        return float(stdtrit(spare, 0.975) * self.residual) if spare else np.nan

    @property
    def information(self) -> float:
        """AICc, Akaike's criterion corrected for few points; lower is better. NaN with too few points."""
        parameters = len(self.log_errors) + 1  # plus the variance of the residuals
        spare = self.points - parameters - 1
        if spare < 1:
            return np.nan
        variance = self.residual**2 * (self.points - parameters + 1) / self.points
        least = np.log(max(variance, np.finfo(float).tiny))
        return float(self.points * least + 2 * parameters * self.points / spare)


def hyperbola(steps: Mapping[int, float]) -> Fit:
    """S = S_min + E_min / B (McCandlish et al. 2018, equation 2.11); B_c = E_min / S_min.

    At B_c a run takes twice the fewest steps and twice the fewest examples.

    Arguments:
        steps: batch size -> S(B); infinite or NaN if the goal was not reached; the fit omits these.

    Raises:
        ValueError: fewer than two batch sizes reached the goal.

    >>> fit = hyperbola({size: 100 * (1 + 64 / size) for size in (4, 16, 64, 256, 1024)})
    >>> round(fit.steps_min, 3), round(fit.critical, 3)
    (100.0, 64.0)
    """
    return _fit(steps, parameters=2)


def critical_within(steps: Mapping[int, float], reach: float) -> tuple[float, float]:
    """The ends of the range of B_c whose best hyperbola fits almost as well as the best of all.

    The sum of squared residuals of log S is there at most reach² above its least (a profile likelihood, Venzon and
    Moolgavkar 1988), so the range is an interval also where B_c lies outside of the measured batch sizes and the error
    at the minimum says nothing.

    Arguments:
        steps: batch size -> S(B); infinite or NaN if the goal was not reached.
        reach: Student's t times the standard error of log S.

    Returns:
        (low, high) [examples]; 0 and infinite where a straight line fits as well.

    >>> steps = {size: 100 * (1 + 1000 / size) for size in (4, 16, 64, 256)}
    >>> [round(end) if np.isfinite(end) else end for end in critical_within(steps, 0.1)]
    [598, 2427]
    >>> critical_within({size: 1000 / size for size in (4, 16, 64, 256)}, 0.2)[1]
    inf
    """
    known = [(size, value) for size, value in sorted(steps.items()) if np.isfinite(value)]
    sizes, log_steps = np.log(np.array(known, dtype=float)).T
    log_critical = np.linspace(sizes.min() - BEYOND[0], sizes.max() + BEYOND[1], PROFILE)
    rest = log_steps - np.logaddexp(0.0, log_critical[:, None] - sizes)
    squares = ((rest - rest.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    above = squares - squares.min() - reach**2
    inside = np.flatnonzero(above <= 0)

    def crossing(first: int, last: int) -> float:
        share = above[first] / (above[first] - above[last])
        return float(np.exp(log_critical[first] + share * (log_critical[last] - log_critical[first])))

    low, high = int(inside[0]), int(inside[-1])
    return (0.0 if low == 0 else crossing(low - 1, low)), (np.inf if high == PROFILE - 1 else crossing(high, high + 1))


def shoulder(steps: Mapping[int, float]) -> Fit:
    """S = S_min (1 + (B_c / B)^p)^(1/p): the hyperbola has p = 1; a sharp bend at B_c has a large p.

    Takes and raises the same as `hyperbola`, but three batch sizes must have reached the goal.

    >>> fit = shoulder({size: 100 * (1 + (64 / size) ** 3) ** (1 / 3) for size in (4, 16, 32, 64, 128, 256, 1024)})
    >>> round(fit.steps_min, 3), round(fit.critical, 3), round(fit.sharpness, 3)
    (100.0, 64.0, 3.0)
    """
    return _fit(steps, parameters=3)


def zhang_critical(fit: Fit, base: float) -> float:
    """The batch size that uses 20 % more data than linear scaling from a base (Zhang et al. 2024): 1.2 B0 + b / (5 a).

    This B solves B (a + b / B) = 1.2 B0 (a + b / B0) for the hyperbola S = a + b / B. It depends on the base; for small
    bases it is near b / (5 a), a fifth of McCandlish's b / a.

    Arguments:
        base: B0 [examples].

    >>> zhang_critical(hyperbola({size: 100 * (1 + 64 / size) for size in (4, 16, 64, 256)}), base=4).__round__(3)
    17.6
    """
    return (1 + ZHANG_OVERHEAD) * base + ZHANG_OVERHEAD * fit.critical


def _fit(steps: Mapping[int, float], parameters: int) -> Fit:
    reached = tuple((size, float(value)) for size, value in sorted(steps.items()) if np.isfinite(value))
    if len(reached) < parameters:
        raise ValueError(f"a fit needs {parameters} batch sizes that reached the goal, but got {len(reached)}.")
    return _fitted(reached, parameters)


@lru_cache(maxsize=256)  # limits and fits use the same curve
def _fitted(reached: tuple[tuple[int, float], ...], parameters: int) -> Fit:
    sizes, log_steps = np.log(np.array(reached, dtype=float)).T
    low = np.array([log_steps.min() - 12, sizes.min() - BEYOND[0], np.log(0.2)])[:parameters]
    high = np.array([log_steps.max() + 1, sizes.max() + BEYOND[1], np.log(50.0)])[:parameters]

    slopes = partial(_slopes, sizes)

    def residuals(x: np.ndarray) -> np.ndarray:
        return _log_steps(sizes, x) - log_steps

    def descend(start: np.ndarray, fixed: int = 0) -> OptimizeResult:
        count, last = parameters - fixed, start[parameters - fixed :]
        inside = np.clip(start, low + 1e-6, high - 1e-6)[:count]
        return least_squares(
            lambda x: residuals(np.append(x, last)),
            inside,
            lambda x: slopes(np.append(x, last))[:, :count],
            bounds=(low[:count], high[:count]),
            **PRECISE,
        )

    best = min(map(descend, _starts(sizes, log_steps, parameters)), key=lambda found: found.cost)
    x, free = _polished(best.x, residuals, slopes, (low, high)), parameters
    if parameters == 3:  # no batch size lies in the bend: any sharp one fits, and the descent ends anywhere
        corner = descend(np.array([*x[:2], high[2]]), fixed=1)
        if corner.cost <= best.cost * (1 + AS_GOOD):
            best, x, free = corner, np.array([*corner.x, high[2]]), 2
    jacobian = slopes(x)[:, :free]
    spare = len(reached) - parameters
    variance = max(2 * best.cost / spare, EXACT**2) if spare else np.nan
    try:
        spread = np.diag(np.linalg.inv(jacobian.T @ jacobian)) * variance
        errors = np.where(spread < 0, np.inf, np.sqrt(np.abs(spread)))  # practically singular
    except np.linalg.LinAlgError:  # a curve without a bend does not determine B_c
        errors = np.full(free, np.inf if spare else np.nan)
    errors = np.append(errors, [np.inf] * (parameters - free))
    steps_min, critical, sharpness = np.exp([*x, 0.0][:3]).tolist()
    return Fit(
        steps_min=steps_min,
        critical=critical,
        sharpness=sharpness,
        log_errors=tuple(map(float, errors)),
        residual=float(np.sqrt(variance)),
        points=len(reached),
    )


def _polished(x: np.ndarray, residuals: Any, slopes: Any, bounds: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Gauss-Newton steps from the end of a descent, as long as they shorten.

    A descent stops where the cost no longer falls, up to 1e-8 from the minimum and elsewhere on each kind of processor.
    """
    before = NEAR
    for _ in range(POLISH):
        step = np.linalg.lstsq(slopes(x), -residuals(x))[0]
        length = np.abs(step).max()
        moved = x + step
        if not length < before or (moved < bounds[0]).any() or (moved > bounds[1]).any():
            break
        x, before = moved, length
    return x


def _starts(sizes: np.ndarray, log_steps: np.ndarray, parameters: int) -> list[np.ndarray]:
    """Starting points at several measured batch sizes, with blunt and sharp bends: the fit is not convex."""
    sharpnesses = (0.0, 1.0, 2.5) if parameters == 3 else (0.0,)
    least = log_steps.min()
    return [
        np.array([least, size, sharpness])[:parameters]
        for size in sizes[:: -(-len(sizes) // STARTS)]
        for sharpness in sharpnesses
    ]


def _log_steps(log_sizes: np.ndarray, x: np.ndarray) -> np.ndarray:
    """log S at log B [M], for x = (log S_min, log B_c[, log p])."""
    sharpness = np.exp(x[2]) if len(x) > 2 else 1.0
    return x[0] + np.logaddexp(0, sharpness * (x[1] - log_sizes)) / sharpness


def _slopes(log_sizes: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Derivatives of `_log_steps` with respect to x [M, parameters]."""
    sharpness = np.exp(x[2]) if len(x) > 2 else 1.0
    distance = x[1] - log_sizes
    bent = expit(sharpness * distance)
    by_sharpness = bent * distance - np.logaddexp(0, sharpness * distance) / sharpness
    return np.stack([np.ones_like(bent), bent, by_sharpness][: len(x)], axis=1)


def table(steps: pd.DataFrame) -> pd.DataFrame:
    """The curves that critical batch sizes are read from, and how well each fits.

    Arguments:
        steps: from `analysis.tables.steps_to_result.table`; batch sizes that missed the goal are left out.

    Returns:
        A row for each (workload, optimizer, goal, fit: `hyperbola` or `shoulder`): points (batch sizes), steps_min,
        examples_min, critical_batch_size with the standard error of its logarithm, log_error, sharpness (1 for the
        hyperbola), residual (root mean square of log S) and information (AICc, lower is better; NaN with too few
        points).

    >>> steps = pd.read_csv(f"{published}/tables/steps_to_result.csv")
    >>> table(steps)[["optimizer", "fit", "steps_min", "critical_batch_size"]].round(1)
      optimizer        fit  steps_min  critical_batch_size
    0  momentum  hyperbola        9.6                 64.9
    1  momentum   shoulder       11.1                 60.6
    2       sgd  hyperbola       16.7                 33.1
    3       sgd   shoulder       16.4                 33.1
    """
    columns = [*CURVE, "fit", "points", "steps_min", "examples_min", "critical_batch_size", "log_error"]
    rows = []
    for key, curve in steps[steps["reached"]].groupby(CURVE, sort=False):
        reached = dict(zip(curve["batch_size"], curve["steps_to_result"].astype(float), strict=True))
        for fit, least in ((hyperbola, 3), (shoulder, 4)):
            if len(reached) >= least:
                found = fit(reached)
                numbers = (found.points, found.steps_min, found.examples_min, found.critical, found.log_errors[1])
                rows.append((*key, fit.__name__, *numbers, found.sharpness, found.residual, found.information))
    return pd.DataFrame(rows, columns=[*columns, "sharpness", "residual", "information"])
