"""The error of S(B) split into two parts: the noise of seeds, and what tuning falls short by.

Noise goes both ways. A shortfall goes one way: no configuration needs fewer steps than the tuned optimum. Definitions:
docs/methods.md.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri

from analysis.estimates import convex
from analysis.estimates.tuned import ENOUGH, MEDIAN, SPENT, points, reads_seeds, with_points
from analysis.load import CURVE

FEW = (1.0, 1.0, 1.160, 1.092, 1.198, 1.135, 1.214, 1.160, 1.223, 1.176)
"""The standard error of the median of 1, 2, ... 10 normal numbers over that of their mean (David & Nagaraja 2003);
beyond, it is close to that of many, MEDIAN."""
ONE_SIDED = 0.05
DRAWS = 1024
TINY = 1e-9
"""Residuals below this are errors of rounding."""
COLUMNS = ["batch_sizes", "seeds", "seed_sd", "seed_error", "residual_sd", "shortfall", "shortfall_high"]
COLUMNS += ["luck", "luck_least", "luck_greatest"]


class Shares(NamedTuple):
    """The parts of a typical estimate's error, on log steps.

    Attributes:
        seed_error: the standard error of the median of the fresh seeds, that of the evaluation grid included.
        shortfall: the scatter that tuning adds to it about the convex curve; 0 if seeds explain the residuals.
        shortfall_high: the upper end of its one-sided 95 % interval; infinite if the residuals do not bound it.
    """

    seed_error: float
    shortfall: float
    shortfall_high: float


def shares(curve: pd.DataFrame) -> Shares:
    """Split the residuals of one curve, from its rows in `analysis.estimates.tuned.table`.

    Returns:
        NaN without fresh seeds at all batch sizes; the shortfall is NaN with fewer than six batch sizes.

    >>> steps = pd.read_csv(f"{published}/tables/steps_to_result.csv")
    >>> [round(share, 2) for share in shares(steps[steps["optimizer"] == "sgd"])]
    [0.09, 0.0, 0.16]
    """
    known = with_points(curve)
    if not reads_seeds(curve) or known.empty:
        return Shares(np.nan, np.nan, np.nan)
    count = (known["seeds"] - known["missed"]).mean()
    factor = FEW[round(count) - 1] if count <= len(FEW) else MEDIAN
    by_seed = float(factor * known["seed_sd"].iloc[0] / np.sqrt(count))
    by_seed = float(np.hypot(by_seed, np.sqrt((known["grid_error"] ** 2).mean())))
    if len(known) < ENOUGH or np.isnan(by_seed):  # one seed shows no noise
        return Shares(by_seed, np.nan, np.nan)
    found = float(known["residual_sd"].iloc[0])
    seen = tuple(sorted(points(known).items()))
    least, typical = _residuals(seen, max(found, by_seed))
    # A curve that bends at every point passes through all of them: it says nothing of their errors.
    errors = (found / typical if typical > TINY else found, found / least if least > TINY else np.inf)
    return Shares(by_seed, *(float(np.sqrt(max(0.0, error**2 - by_seed**2))) for error in errors))


@lru_cache
def _noise(points: int) -> np.ndarray:
    """Standard normal numbers [DRAWS, points] that fill space evenly (Owen 1998), the same for all data."""
    from scipy.stats import qmc  # takes a second to import

    return np.asarray(ndtri(qmc.Sobol(points, rng=np.random.default_rng(0)).random(DRAWS)))


@lru_cache(maxsize=64)  # sentences and tables use the same curve
def _residuals(seen: tuple[tuple[int, float], ...], error: float) -> tuple[float, float]:
    """(5 % quantile, median) of residual_sd over the errors of points, on curves with such errors around this one.

    The convex curve bends to its points, and more where it bends anyway: residuals are smaller than errors.

    Arguments:
        seen: (batch size, steps) of each point, by batch size.
        error: the standard deviation of normal errors on log steps.
    """
    log_sizes, log_steps = np.log(np.array(seen, dtype=float)).T
    drawn = convex.fit(log_sizes, log_steps) + error * _noise(len(seen))
    rest = [each - convex.fit(log_sizes, each) for each in drawn]
    found = np.sqrt(np.square(rest).sum(axis=1) / (len(seen) - SPENT)) / error
    least, typical = np.quantile(found, (ONE_SIDED, 0.5)).tolist()
    return least, typical


def table(steps: pd.DataFrame) -> pd.DataFrame:
    """The split of every curve with fresh seeds.

    Arguments:
        steps: from `analysis.estimates.tuned.table`.

    Returns:
        A row for each (workload, optimizer, goal): batch_sizes (with finite estimates), seeds (the fewest of one batch
        size), seed_sd (standard deviation of the log steps of one seed, pooled), the fields of `Shares`, residual_sd
        (scatter about the convex curve), and luck (tuned_steps / steps_to_result: geometric mean, least, greatest).

    >>> found = table(pd.read_csv(f"{published}/tables/steps_to_result.csv"))
    >>> found[["optimizer", "seeds", "seed_sd", "seed_error", "shortfall", "luck"]].round(2)
      optimizer  seeds  seed_sd  seed_error  shortfall  luck
    0  momentum      5     0.22        0.12       0.08  1.14
    1       sgd      5     0.17        0.09       0.00  1.19
    """
    rows = []
    for key, curve in steps.groupby(CURVE, sort=False):
        found = shares(curve)
        known = with_points(curve)
        if np.isnan(found.seed_error):
            continue
        luck = np.log(known["luck"].astype(float))
        rows.append(
            {
                **dict(zip(CURVE, key, strict=True)),
                **{"batch_sizes": len(known), "seeds": int(known["seeds"].min())},
                **{name: float(curve[name].iloc[0]) for name in ("seed_sd", "residual_sd")},
                **found._asdict(),
                **{"luck": np.exp(luck.mean()), "luck_least": np.exp(luck.min()), "luck_greatest": np.exp(luck.max())},
            }
        )
    return pd.DataFrame(rows, columns=[*CURVE, *COLUMNS])
