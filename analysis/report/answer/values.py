"""Batch sizes and steps with their intervals, as text that claims no more than the interval holds."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.estimates import tuned
from analysis.labels import BOUNDS, interval_text, number, optimizer_text, size_text
from analysis.load import CURVE


class Value(NamedTuple):
    """A value as text, its interval (empty if there is none), and a note such as where it was read."""

    text: str
    interval: str = ""
    note: str = ""

    def __str__(self) -> str:
        """All three, for a sentence."""
        return f"{self.text}{f' ({self.interval})' if self.interval else ''}{f' {self.note}' if self.note else ''}"


UNKNOWN = Value("–")


class ShownLimit(NamedTuple):
    """A limit of scaling of one optimizer; `size` is NaN if it is unknown."""

    optimizer: str
    size: float
    low: float
    high: float
    bound: str

    @property
    def value(self) -> Value:
        """The limit as text.

        >>> ends = (46.0, 84.0), (27.0, np.inf), (0.0, np.inf), (np.nan, np.nan)
        >>> [str(ShownLimit("adam", 59.0, low, high, "=").value) for low, high in ends]
        ['59 (46 to 84)', '59 (above 27)', '59 (interval open on both sides)', '59']
        """
        if pd.isna(self.size):
            return UNKNOWN
        known = self.low if self.bound == ">" else self.high if self.bound == "<" else np.nan
        interval = "" if known == self.size else interval_text(self.low, self.high)  # the bound says it already
        if self.bound == "=" and not interval and not pd.isna(self.low):
            interval = "interval open on both sides"
        return Value(BOUNDS[self.bound] + size_text(self.size), interval)

    @property
    def certain(self) -> bool:
        """True if the data show the limit, with an interval that is closed on both sides."""
        return self.bound == "=" and self.low > 0 and bool(np.isfinite(self.high))

    @property
    def name(self) -> str:
        return optimizer_text(self.optimizer)


def limit(limits: pd.DataFrame, optimizer: str, definition: str) -> ShownLimit:
    """One limit of one curve.

    Arguments:
        limits: the rows of one workload and goal, from `analysis.estimates.limits.table`.

    >>> from analysis.tables.scaling import CRITICAL
    >>> found = limit(pd.read_csv(f"{published}/tables/scaling.csv"), "momentum", CRITICAL)
    >>> str(found.value), found.certain
    ('62 (46 to 84)', True)
    """
    rows = limits[(limits["optimizer"] == optimizer) & (limits["definition"] == definition)]
    if rows.empty:
        return ShownLimit(optimizer, np.nan, np.nan, np.nan, "=")
    row = rows.iloc[0]
    return ShownLimit(optimizer, row["estimate"], row["estimate_low"], row["estimate_high"], row["estimate_bound"])


def curves(steps: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """(optimizer, its rows by batch size) of each curve of one workload and goal; `reached` rows alone have points.

    Arguments:
        steps: the rows of one workload and goal, from `analysis.estimates.tuned.table`.

    >>> for optimizer, curve in curves(pd.read_csv(f"{published}/tables/steps_to_result.csv")):
    ...     print(optimizer, curve["point"].tolist()[:3], steps_value(best(curve)))
    momentum [628.0, 390.0, 233.0] 11 (8.61 to 14.1) at batch size 1,024
    sgd [628.0, 390.0, 212.0] 18 (14.9 to 21.8) at batch size 512
    """
    return [
        (str(key[1]), curve.assign(point=curve["batch_size"].map(tuned.points(tuned.with_points(curve)))))
        for key, curve in steps.sort_values("batch_size").groupby(CURVE, sort=True)
    ]


def best(curve: pd.DataFrame) -> pd.Series | None:
    """The batch size with the fewest steps, the smaller of two that are equal; None if none reached the goal.

    >>> best(pd.DataFrame({"batch_size": [8, 16, 32], "point": [20.0, 9.0, 9.0]}))["batch_size"].item()
    16.0
    """
    known = curve.dropna(subset="point")
    return known.loc[known["point"].idxmin()] if len(known) else None


def steps_value(row: pd.Series) -> Value:
    """The steps of one batch size, with the interval of the tuned optimum if there are fresh seeds.

    With fewer than six batch sizes, it is that of the tuned configuration.

    >>> print(steps_value(pd.Series({"point": 9.0, "batch_size": 16, "tuned_low": 7.0, "read_from": "search"})))
    9 at batch size 16
    """
    low, high = map(float, tuned.interval(row))
    interval = interval_text(low, high, number) if row.get("read_from") == tuned.SEEDS else ""
    return Value(number(round(row["point"], 9)), interval, f"at batch size {row['batch_size']:,}")
