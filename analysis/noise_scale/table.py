"""The gradient noise along tuned runs as a table, and what it says beside the measured limits of scaling."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.counting import Branch
from analysis.labels import bounded, listed, number, with_interval, within
from analysis.load import ANSWER, CURVE, STUDY, StudyData, rows_with
from analysis.measurements import measured_points
from analysis.noise_scale.estimate import Blocks, noise_scale
from analysis.tables.scaling import CRITICAL, USEFUL

POINT = [*ANSWER, "trial", "step", "examples_seen"]
MEASURED = ["estimator", "form", "examples", "unit", "squared_gradient", "trace", "noise_scale", "low", "high"]
COLUMNS = [*POINT, *MEASURED, "error", "recorded_error", "looped"]
SHOWN = {
    ("two_batch_sizes", "plain"): "two batch sizes",
    ("per_example", "plain"): "per example",
    ("per_example", "preconditioned"): "preconditioned",
    ("per_example", "half_preconditioned"): "half preconditioned",
}
"""(estimator, form) -> its name for people, the plainest first."""
LIMITS = {CRITICAL: "critical batch size", USEFUL: "maximum useful batch size"}
"""Definition of a limit of scaling -> its name in the sentence that compares."""
APART = 1e-3
"""Relative difference from which an error of the retrained run is no rounding."""


def table(studies: Iterable[StudyData]) -> pd.DataFrame:
    """Every measurement of gradient noise in these studies' folders.

    Returns:
        A row for each (workload, optimizer, batch_size, step, estimator, form), with the columns COLUMNS: `examples`
        measured in gradients of `unit` examples each, the unbiased |G|^2 (`squared_gradient`) and tr(Sigma) (`trace`),
        the noise scale in examples and its 95 % interval, the goal's metric when retrained and as recorded.

    Raises:
        LoadError: a file is torn.

    >>> table([study]).columns[8:17].tolist()  # the noise of the published studies was not measured
    ['estimator', 'form', 'examples', 'unit', 'squared_gradient', 'trace', 'noise_scale', 'low', 'high']
    """
    rows = [row for study in studies if study.branch == Branch() for row in _rows(study)]
    return pd.DataFrame(rows, columns=COLUMNS).sort_values([*STUDY, "step"], kind="stable", ignore_index=True)


def _rows(study: StudyData) -> Iterator[dict[str, Any]]:
    for point in measured_points(study.folder / "noise", "study noise"):
        of_point = {
            **study.names,
            **study.goal.names,
            "trial": point["question"]["trial"]["index"],
            **{key: point[key] for key in ("step", "examples_seen", "error", "recorded_error", "looped")},
        }
        for sums in point["sums"]:
            arrays = (np.array(sums[key]) for key in ("own", "total", "units"))
            found = noise_scale(Blocks(sums["unit"], sums["per_block"], *arrays))._asdict()
            found["noise_scale"] = found.pop("scale")
            examples = len(sums["own"]) * sums["unit"] * sums["per_block"]
            about = {"estimator": sums["estimator"], "form": sums["form"], "examples": examples, "unit": sums["unit"]}
            yield of_point | about | found


def in_words(row: Any) -> str:
    """A noise scale and its interval.

    >>> in_words({"noise_scale": 81.97, "low": 60.75, "high": 127.9})
    '82.0 (60.8 to 128)'
    >>> in_words({"noise_scale": 900.0, "low": 410.0, "high": float("inf")})
    'at least 410'
    """
    if math.isinf(row["high"]):
        return f"at least {number(row['low'])}" if row["low"] > 0 else "unknown"
    if row["low"] == 0:
        return f"at most {number(row['high'])}"
    return with_interval(row["noise_scale"], row["low"], row["high"])


def overview(rows: pd.DataFrame) -> pd.DataFrame:
    """The points of one run as text: step, examples seen, and a column for each estimator and form that was measured.

    Arguments:
        rows: those of one run.

    >>> point = {"step": 9, "examples_seen": 72, "estimator": "per_example", "form": "plain"}
    >>> overview(pd.DataFrame([{**point, "noise_scale": 82.0, "low": 61.0, "high": 128.0}])).to_dict("records")
    [{'step': '9', 'examples seen': '72', 'per example': '82 (61 to 128)'}]
    """
    lines = []
    for (step, seen), part in rows.groupby(["step", "examples_seen"], sort=False):
        by_kind = {(row["estimator"], row["form"]): in_words(row) for row in part.to_dict("records")}
        kinds = {name: by_kind.get(kind, "") for kind, name in SHOWN.items()}
        lines.append({"step": f"{step:,}", "examples seen": f"{seen:,}", **kinds})
    shown = pd.DataFrame(lines)
    return shown.loc[:, (shown != "").any()]


def sentences(measured: pd.DataFrame, scaling: pd.DataFrame) -> list[str]:
    """A sentence for each run: its noise scale up to the goal beside the limits that S(B) shows.

    Arguments:
        measured: from `table`.
        scaling: the limits of scaling (`analysis.report.derived.tables`).

    >>> sentences(table([study]), pd.read_csv(f"{published}/tables/scaling.csv"))
    []
    """
    said = []
    for (*curve, size), rows in measured.groupby([*CURVE, "batch_size"], sort=False):
        first, last = (_plainest(rows[rows["step"] == step]) for step in (rows["step"].min(), rows["step"].max()))
        began = f"{in_words(first)} at step {first['step']:,} and " if first["step"] < last["step"] else ""
        said.append(
            f"{curve[0]} with {curve[1]} at batch size {size:,}: the gradient noise scale is {began}{in_words(last)} "
            f"at step {last['step']:,}, {place(last)}; {measured_limits(curve, scaling)}."
        )
    return said


def place(row: Mapping[str, Any]) -> str:
    """Whether the last measured point of a run is where it reached its goal, as text.

    It is not while later points are missing, or if the tuned run missed the goal that another trial reached.

    >>> point = {"goal_threshold": 0.2, "error": 0.215, "recorded_error": 0.215}
    >>> place(point), place(point | {"error": 0.19, "recorded_error": float("nan")})
    ('short of its goal', 'where it reached its goal')
    """
    recorded = row["error"] if pd.isna(row["recorded_error"]) else row["recorded_error"]
    return "where it reached its goal" if recorded < row["goal_threshold"] else "short of its goal"


def _plainest(rows: pd.DataFrame) -> dict[str, Any]:
    """The row of a point that a reader should see first: the plain form, of single examples if they were measured."""
    plain = rows[rows["form"] == "plain"]
    return plain.sort_values("unit").iloc[0].to_dict()


def measured_limits(curve: Sequence[Any], scaling: pd.DataFrame) -> str:
    """The measured limits of a curve as the end of a sentence.

    >>> scaling = pd.read_csv(f"{published}/tables/scaling.csv")
    >>> measured_limits(["mlp_digits", "none", "val/cross_entropy_error", 0.2], scaling)
    'its steps show no limit to compare it with'
    """
    mine = rows_with(scaling, CURVE, curve).dropna(subset="estimate").set_index("definition")
    known = [
        f"{name} {_limit(mine.loc[definition])}" for definition, name in LIMITS.items() if definition in mine.index
    ]
    return f"measured by steps: {listed(known)}" if known else "its steps show no limit to compare it with"


def _limit(row: pd.Series) -> str:
    """A batch size and its interval."""
    low, high = row["estimate_low"], row["estimate_high"]
    ends = "" if pd.isna(low) else f" ({within(low, high)})"
    return bounded(row["estimate"], row["estimate_bound"]) + ends


def warnings(measured: pd.DataFrame) -> list[str]:
    """What a reader should know of the measurements of each run.

    >>> warnings(table([study]))
    []
    """
    said = []
    for key, rows in measured.groupby(STUDY, sort=False):
        name = f"{key[0]} with {key[1]} at batch size {key[2]:,}"
        if "per_example" not in set(rows["estimator"]):
            said.append(
                f"{name}: its model couples the examples of a batch, such as by batch norm, so only batches of "
                f"{rows['unit'].iloc[0]} examples were measured."
            )
        if rows["looped"].any():
            said.append(f"{name}: torch.vmap cannot differentiate its model, so single examples were taken one by one.")
    return said + changed(measured)


def changed(measured: pd.DataFrame) -> list[str]:
    """A line for each run whose errors, when it was trained again, are not those that the sweep recorded.

    Arguments:
        measured: with the columns STUDY, goal_metric, step, error and recorded_error.

    >>> changed(table([study]))
    []
    """
    said = []
    for key, rows in measured.groupby(STUDY, sort=False):
        off = (rows["error"] / rows["recorded_error"] - 1).abs()
        if (off > APART).any():
            worst = rows.loc[off.idxmax()]
            said.append(
                f"{key[0]} with {key[1]} at batch size {key[2]:,}: trained again, {worst['goal_metric']} is "
                f"{worst['error']:.6g} at step {worst['step']:,}, but the sweep recorded "
                f"{worst['recorded_error']:.6g}: it computed in another arithmetic or on another device, so this is a "
                "run like the tuned one."
            )
    return said
