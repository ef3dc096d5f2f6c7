"""What a sweep can show before it trains: the factor between two optimizers, and the width of its estimates.

Everything follows from the scatter of log S(B) about its curve: noise of the fresh seeds, and what tuning misses.
Definitions: docs/methods.md.

Shapes: M batch sizes, K fresh seeds at each.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis import intervals
from analysis.estimates import limits, split, tuned
from analysis.estimates.pairs import FEWEST
from analysis.labels import counted
from analysis.question.stages import INDEXED_SAMPLERS, REFINE
from analysis.tables.scaling import CRITICAL

SEEDS = 0.2
"""The standard deviation of the log steps of one seed: 0.16 for the digits to a cross entropy of 0.2, about 0.3 to a
classification error of 0.05, whose median varies less than that of normal numbers (`python -m benchmarks.power`)."""
TUNING = {REFINE: 0.07, "sobol": 0.18, "random": 0.18}
"""Sampler -> the standard deviation of what tuning misses from one batch size to the next, on the same surfaces; Sobol
with 20 to 100 trials. Unknown for adaptive samplers."""
NEAR = (0.02, 0.10)
"""The shares of a search space of two parameters that came within twice the steps of the optimum, least and most."""
POWER = 0.8
"""The probability with which a factor is shown."""


class Noise(NamedTuple):
    """Why log S(B) scatters about its curve.

    Attributes:
        seeds: standard deviation of the log steps of one fresh seed.
        tuning: standard deviation of what tuning misses.
        own: True if the noise was measured on trials of this sweep, False if it is that of earlier sweeps.
    """

    seeds: float
    tuning: float
    own: bool = False

    def scatter(self, seeds: int) -> float:
        """Standard deviation of log S(B) with this number of fresh seeds.

        >>> round(Noise(0.2, 0.07).scatter(4), 3)
        0.143
        """
        return float(np.hypot(tuned.MEDIAN * self.seeds / np.sqrt(seeds), self.tuning))


def noise(sampler: str, curve: pd.DataFrame | None = None) -> Noise:
    """The noise of a curve: measured on its own fresh seeds if there are six batch sizes of them, else that of earlier
    sweeps with this sampler.

    Arguments:
        curve: the rows of the curve, from `analysis.estimates.tuned.table`.

    >>> noise("refine")
    Noise(seeds=0.2, tuning=0.07, own=False)
    >>> steps, runs = (pd.read_csv(f"{published}/tables/{name}.csv") for name in ("steps_to_result", "rerun_steps"))
    >>> found = tuned.table(steps, runs)
    >>> own = noise("sobol", found[found["optimizer"] == "momentum"])
    >>> round(own.seeds, 2), round(own.tuning, 2), own.own
    (0.22, 0.08, True)
    """
    if curve is not None and len(curve):
        shortfall = split.shares(curve).shortfall
        if not np.isnan(shortfall):
            return Noise(float(curve["seed_sd"].iloc[0]), shortfall, True)
    return Noise(SEEDS, TUNING.get(sampler, TUNING["sobol"]))


def factor(one: Noise, other: Noise, seeds: int, batch_sizes: int, pairs: int = 1) -> float:
    """The factor between the steps of two optimizers that is shown over all batch sizes with probability POWER.

    Infinite with fewer than three batch sizes.

    Arguments:
        seeds, batch_sizes: K and M.
        pairs: compared pairs of optimizers; the level is 1 - 0.05 / pairs.

    >>> round(factor(Noise(0.2, 0.07), Noise(0.2, 0.07), seeds=4, batch_sizes=5), 2)
    1.4
    """
    if batch_sizes < FEWEST:
        return float("inf")
    error, free = np.hypot(one.scatter(seeds), other.scatter(seeds)) / np.sqrt(batch_sizes), batch_sizes - 1
    level, chance = (tuned.half_width(error, free, 2 * quantile - 1) for quantile in (1 - 0.025 / pairs, POWER))
    return float(np.exp(level + chance))


def width(own: Noise, seeds: int, batch_sizes: int) -> float:
    """The factor to either side of S(B) that its 95 % interval will span.

    With fewer than six batch sizes the interval holds the noise of seeds alone.

    >>> round(width(Noise(0.2, 0.07), seeds=4, batch_sizes=11), 2)
    1.4
    """
    if batch_sizes < tuned.ENOUGH:
        half = tuned.half_width(Noise(own.seeds, 0.0).scatter(seeds), batch_sizes * (seeds - 1))
    else:
        half = tuned.half_width(own.scatter(seeds), batch_sizes - tuned.SPENT)
    return float(np.exp(half))


def critical_width(own: Noise, seeds: int, batch_sizes: Sequence[int]) -> float:
    """The factor to either side of a critical batch size in the middle of the range that its interval will span; NaN
    with fewer than six batch sizes, or if the interval is open.

    >>> round(critical_width(Noise(0.2, 0.07), 4, [2**k for k in range(11)]), 2)
    1.34
    """
    if len(batch_sizes) < tuned.ENOUGH:
        return float("nan")
    sizes = np.array(sorted(batch_sizes), dtype=float)
    middle = float(np.sqrt(sizes[0] * sizes[-1]))
    error = float(np.log(width(own, seeds, len(sizes)))) / float(tuned.half_width(1.0, tuned.NORMAL))
    steps = dict(zip(sorted(batch_sizes), (100 * (1 + middle / sizes)).tolist(), strict=True))
    found = limits.critical(steps, dict.fromkeys(steps, error))[CRITICAL]
    return float(np.sqrt(found.high / found.low)) if found.low > 0 and np.isfinite(found.high) else float("nan")


def closes(trials: int) -> int:
    """How many of N trials must reach the goal, within what their race allows, for the interval of S_n to have an upper
    end.

    >>> closes(20), closes(100)
    (7, 7)
    """
    n = intervals.draws(trials)
    return next(k for k in range(1, trials + 2) if _closed(trials, n, k))


def _closed(trials: int, draws: int, reached: int) -> bool:
    steps = np.where(np.arange(trials) < reached, np.arange(trials, dtype=float), np.inf)
    return bool(np.isfinite(intervals.interval(steps, draws)[1])) or reached > trials


def sentences(
    search: Mapping[str, Any], batch_sizes: Sequence[int], noises: Mapping[str, Noise], subject: str = ""
) -> list[str]:
    """What a sweep of one workload can show.

    Arguments:
        search: the `search` of a question.
        batch_sizes: those of each curve.
        noises: optimizer -> the noise of its curve.
        subject: begins the first sentence.

    >>> both = {"sgd": Noise(0.2, 0.07), "adam": Noise(0.2, 0.07)}
    >>> first, source = sentences({"sampler": "refine", "reruns": 4}, [2**k for k in range(11)], both)
    >>> for part in first.split("; "):
    ...     print(part)
    This sweep can show: factors from 1.21 between two optimizers over all batch sizes (in 80% of cases)
    S(B) to within a factor of 1.4
    the critical batch size to within a factor of 1.34.
    """
    seeds, count = search["reruns"], len(batch_sizes)
    if not seeds:
        return _without_seeds(search, subject)
    if seeds == 1 and count < tuned.ENOUGH:
        return [f"{subject}One fresh seed shows no noise, so S(B) has no interval. {_cure(search)} gives one."]
    several = list(noises.values())
    widest = max(several, key=lambda each: each.scatter(seeds))
    shown = []
    if len(several) > 1 and count >= FEWEST:
        found = factor(widest, widest, seeds, count, len(several) * (len(several) - 1) // 2)
        shown.append(f"factors from {found:.3g} between two optimizers over all batch sizes (in {POWER:.0%} of cases)")
    alone = "" if count >= tuned.ENOUGH else " (noise of seeds alone: fewer than six batch sizes)"
    shown.append(f"S(B) to within a factor of {width(widest, seeds, count):.3g}{alone}")
    critical = critical_width(widest, seeds, batch_sizes)
    if not np.isnan(critical):
        shown.append(f"the critical batch size to within a factor of {critical:.3g}")
    source = "noise of its own finished trials" if widest.own else "noise of earlier sweeps"
    rest = "" if widest.own else ", until six batch sizes here have fresh seeds"
    return [f"{subject}This sweep can show: {'; '.join(shown)}.", f"This uses the {source}{rest}."]


def _cure(search: Mapping[str, Any]) -> str:
    return f"search.{'confirm' if search['sampler'] == REFINE else 'reruns'}=4"


def _without_seeds(search: Mapping[str, Any], subject: str) -> list[str]:
    """Without fresh seeds, only S_n has an interval, and only of trials that are drawn independently."""
    if search["sampler"] not in INDEXED_SAMPLERS:
        return [f"{subject}Without fresh seeds, this sweep has no intervals. {_cure(search)} gives them."]
    trials, (least, most) = search["trials"], NEAR
    needed = closes(trials)
    if needed > trials:
        return [
            f"{subject}Without fresh seeds, this sweep has no interval of S(B). The interval of S_n never has an upper "
            f"end with {counted(trials, 'trial')}. search.reruns=4 or search=refine gives intervals."
        ]
    expected = f"{least * trials:.2g} to {most * trials:.2g}"
    return [
        f"{subject}Without fresh seeds, this sweep has no interval of S(B), and compares optimizers by S_n alone.",
        f"The interval of S_n has an upper end only if {needed} of {counted(trials, 'trial')} reach the goal within "
        f"twice the fewest steps; expect {expected} in a space of two parameters. search.reruns=4 or search=refine "
        "gives intervals.",
    ]
