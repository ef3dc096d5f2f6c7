"""Which cheap proxy to trust: each beside the critical batch size that steps to the goal show.

The measured one is that of McCandlish et al. 2018, where the hyperbola through S(B) needs twice its least steps. Limits
that the same steps show, fits of another shape, and measurements along one run (gradient noise, branches, single steps)
are compared with it. What was measured along a run counts at its last point, where the run is nearest to its goal.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.intervals import quotient
from analysis.load import CURVE
from analysis.tables.scaling import CRITICAL, PERFECT, SHOULDER, USEFUL, ZHANG

COLUMNS = [*CURVE, "proxy", "batch_size", "step", "value", "low", "high", "bound"]
COMPARED = ["measured", "measured_low", "measured_high", "measured_bound", "ratio", "ratio_low", "ratio_high"]
LIMITS = {
    SHOULDER: "fit of a sharp shoulder",
    ZHANG: "20 % more data (Zhang et al.)",
    USEFUL: "maximum useful batch size",
    PERFECT: "perfect-scaling limit",
}
"""Definition in `scaling` -> its name as a proxy."""
NOISE = {
    ("per_example", "plain"): "gradient noise scale",
    ("two_batch_sizes", "plain"): "gradient noise scale, two batch sizes",
    ("per_example", "preconditioned"): "gradient noise scale, preconditioned",
}
"""(estimator, form) in `noise_scale` -> its name as a proxy."""
Tables = Mapping[str, pd.DataFrame]


class Found(NamedTuple):
    """One proxy of one curve; `batch_size` and `step` are those of the run, None if it needs a whole sweep."""

    curve: tuple[Any, ...]
    proxy: str
    batch_size: int | None
    step: int | None
    value: float
    low: float
    high: float
    bound: str


def table(tables: Tables) -> pd.DataFrame:
    """Each proxy, and its ratio to the measured critical batch size of the same workload, optimizer and goal.

    Arguments:
        tables: by name (`analysis.report.derived.tables`): scaling, and noise_scale, branched and one_step if they were
            measured.

    Returns:
        A row for each (workload, optimizer, goal, proxy), with the columns COLUMNS and COMPARED; empty if nothing was
        measured along a run. Ratios are missing if the measured one is only a bound, and have no interval if one of
        the two has none. They take the two as independent.

    >>> scaling = pd.read_csv(f"{published}/tables/scaling.csv")
    >>> point = {"estimator": "per_example", "form": "plain", "noise_scale": 30.0, "low": 20.0, "high": 45.0}
    >>> run = dict(zip(CURVE, scaling[scaling["optimizer"] == "sgd"][CURVE].iloc[0])) | {"batch_size": 8, "step": 90}
    >>> found = table({"scaling": scaling, "noise_scale": pd.DataFrame([run | point])})
    >>> found[found["step"].notna()][["proxy", "value", "measured", "ratio", "ratio_low", "ratio_high"]].round(2)
                      proxy  value  measured  ratio  ratio_low  ratio_high
    4  gradient noise scale   30.0      36.7   0.82       0.53        1.27
    """
    along_runs = [each for name, read in ALONG_RUNS.items() if name in tables for each in read(tables[name])]
    curves = {each.curve for each in along_runs}
    limits = [each for each in _limits(tables["scaling"]) if each.curve in curves]
    measured = tables["scaling"][tables["scaling"]["definition"] == CRITICAL].set_index(CURVE)
    rows = [
        [*each.curve, *each[1:], *_compared(each, measured)]
        for each in sorted([*limits, *along_runs], key=lambda each: each.curve)
        if each.curve in measured.index
    ]
    return pd.DataFrame(rows, columns=[*COLUMNS, *COMPARED])


def _compared(found: Found, measured: pd.DataFrame) -> list[Any]:
    row = measured.loc[[found.curve]].iloc[0]
    known = tuple(row[f"estimate{end}"] for end in ("", "_low", "_high"))
    if row["estimate_bound"] != "=":
        return [*known, row["estimate_bound"], np.nan, np.nan, np.nan]
    return [*known, "=", *quotient((found.value, found.low, found.high), known)]


def _limits(scaling: pd.DataFrame) -> Iterator[Found]:
    for row in scaling[scaling["definition"].isin(LIMITS)].dropna(subset="estimate").to_dict("records"):
        curve, ends = tuple(row[name] for name in CURVE), (row["estimate_low"], row["estimate_high"])
        yield Found(curve, LIMITS[row["definition"]], None, None, row["estimate"], *ends, row["estimate_bound"])


def _noise(rows: pd.DataFrame) -> Iterator[Found]:
    for row in _last(rows, ["estimator", "form"]):
        name = NOISE.get((row["estimator"], row["form"]))
        if name is not None:
            yield from _open_ended(row, name)


def _open_ended(row: Mapping[str, Any], proxy: str) -> Iterator[Found]:
    """A noise scale: a bound at the end of its interval where the other end is open; nothing where both are."""
    if row["low"] > 0 or np.isfinite(row["high"]):
        bound = ">" if np.isinf(row["high"]) else "<" if row["low"] == 0 else "="
        value = row["low"] if bound == ">" else row["high"] if bound == "<" else row["noise_scale"]
        yield _of_run(row, proxy, value, bound)


def _branches(rows: pd.DataFrame) -> Iterator[Found]:
    for row in _last(rows, ["rule", "factors", "window"]):
        rule = str(row["rule"]).replace("_", " ")
        tuned = "" if row["factors"] == "1" else ", tuned"
        below = row["bound"] == "<" and np.isfinite(row["high"])  # than the smallest batch size that surely loses more
        value = row["high"] if below else row["critical_batch_size"]
        yield _of_run(row, f"branches, {rule} rule{tuned}", value, row["bound"])


def _steps(rows: pd.DataFrame) -> Iterator[Found]:
    for row in _last(rows[rows["space"] == "log"], ["form"]):
        form = "" if row["form"] == "plain" else f", {row['form']}"
        yield from _open_ended(row, f"one step{form}")


ALONG_RUNS: dict[str, Callable[[pd.DataFrame], Iterator[Found]]] = {
    "noise_scale": _noise,
    "branched": _branches,
    "one_step": _steps,
}
"""Table of measurements along runs -> its proxies."""


def _last(rows: pd.DataFrame, kinds: list[str]) -> list[dict[str, Any]]:
    """The last point of each curve and kind, of the run with the smallest batch size."""
    least = rows.groupby(CURVE)["batch_size"].transform("min")
    rows = rows[rows["batch_size"] == least].sort_values("step", kind="stable")
    return rows.groupby([*CURVE, *kinds], sort=False).tail(1).to_dict("records")


def _of_run(row: Mapping[str, Any], proxy: str, value: float, bound: str) -> Found:
    curve = tuple(row[name] for name in CURVE)
    return Found(curve, proxy, row["batch_size"], row["step"], value, row["low"], row["high"], bound)
