"""Branched critical batch sizes as tables, and what they say beside the measured limits of scaling."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.branched.estimate import Excess, critical, excess
from analysis.labels import listed, number
from analysis.load import ANSWER, CURVE, GOAL, STUDY, LoadError, StudyData, folders, load_study, rows_with
from analysis.noise_scale.table import measured_limits
from analysis.question.branches import BRANCHED_RESULTS
from analysis.question.searches import results_in

FOUND = ["critical_batch_size", "low", "high", "bound"]
HOW = ["rule", "factors", "window", "tolerance", "seeds", "metric"]
COLUMNS = [*ANSWER, "trial", "step", "examples_seen", *FOUND, *HOW, "loss_at_start", "loss"]
OF_BRANCHES = ["branch_batch_size", "learning_rate", "factor", "branch_loss", "excess", "excess_low", "excess_high"]
LOSSES = [*STUDY, "step", "examples_seen", *HOW, *OF_BRANCHES]
TRUNK = [*STUDY, "rule", "factors", "window"]
"""The columns that tell measurements of several trunks, or of one with several rules and windows, apart."""
RULES = {"square_root": "square root", "linear": "linear", "constant": "constant"}


def tables(results: Iterable[Path]) -> dict[str, pd.DataFrame]:
    """The branched measurements in some results folders; empty if there are none.

    Returns:
        `branched`: a row for each trunk and checkpoint, with the columns COLUMNS: the critical batch size with its
        interval and bound, and the loss of the small batch at the checkpoint and after the window.
        `branched_losses`: a row for each batch size of each of them, with the columns LOSSES: the best learning rate,
        its mean loss, and the loss beyond the tolerance as a share of the small batch's, with its interval.

    Raises:
        LoadError: a file is torn.

    >>> tables([Path(published)])  # no run of the published studies was branched
    {}
    """
    found = [each for path in results for each in _measurements(path)]
    if not found:
        return {}
    order = [*STUDY, "step"]
    one = pd.DataFrame([row for row, _ in found], columns=COLUMNS)
    many = pd.DataFrame([row for _, rows in found for row in rows], columns=LOSSES)
    return {
        "branched": one.sort_values(order, kind="stable", ignore_index=True),
        "branched_losses": many.sort_values([*order, "branch_batch_size"], kind="stable", ignore_index=True),
    }


def _measurements(results: Path) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """(the row of a checkpoint, the rows of its batch sizes) for each checkpoint whose branches are all trained."""
    for folder in results_in(results, BRANCHED_RESULTS):
        path, trunk = folder / "request.json", folder.parent / "trunk.json"
        if not path.exists() or not trunk.exists():
            continue  # it has not begun
        try:
            request, made = json.loads(path.read_text()), json.loads(trunk.read_text())["checkpoints"]
        except (ValueError, KeyError) as error:
            raise LoadError(f"{path} or {trunk} is torn ({error}); remove it and run `study branch` again.") from error
        studies = [load_study(each) for each in folders(folder)]
        for step in request["checkpoints"]:
            start = made.get(str(step))
            mine = [study for study in studies if study.branch.start and study.branch.start.step == step]
            of_size = {study.batch_size: found for study in mine if (found := _losses(study, request)) is not None}
            wanted = {size: of_size[size] for size in request["batch_sizes"] if size in of_size}
            if start is not None and len(wanted) == len(request["batch_sizes"]):
                yield _rows(request, start, wanted)


def _losses(study: StudyData, request: Mapping[str, Any]) -> dict[float, np.ndarray] | None:
    """Learning rate -> losses [S] at the end of the window, infinite where one diverged; None if one is missing."""
    rates = [float(rate) for rate in study.question["search"]["space"]["learning_rate"]["choices"]]
    measured = study.measurements
    last = measured[measured["step"] == study.train_steps].set_index("trial")[request["metric"]]
    indices = range(len(rates) * request["seeds"])
    if not set(indices) <= set(study.trials.index):
        return None
    each = np.array([last.get(index, math.inf) for index in indices], dtype=float)
    each = np.where(np.isnan(each), math.inf, each).reshape(request["seeds"], len(rates))
    return {rate: each[:, place] for place, rate in enumerate(rates)}


def _rows(
    request: Mapping[str, Any], start: Mapping[str, Any], of_size: Mapping[int, Mapping[float, np.ndarray]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row of a checkpoint, and those of its batch sizes. At each batch size the learning rate with the least mean
    loss counts."""
    best = {size: min(rates, key=lambda rate: float(np.mean(rates[rate]))) for size, rates in of_size.items()}
    small = of_size[request["batch_size"]][best[request["batch_size"]]]
    found: dict[int, Excess] = {
        size: excess(rates[best[size]], small, request["tolerance"]) for size, rates in of_size.items()
    }
    at = {name: request[name] for name in STUDY} | {name: start[name] for name in ("step", "examples_seen")}
    how = {name: request[name] for name in HOW if name != "factors"}
    how["factors"] = ", ".join(f"{factor:g}" for factor in request["factors"])
    goal = dict(zip(GOAL, (request["goal"]["metric"], request["goal"]["threshold"]), strict=True))
    end = critical(found)
    one = {
        **at,
        **goal,
        **how,
        "trial": request["trial"],
        **dict(zip(FOUND, end, strict=True)),
        "loss_at_start": start["loss"],
        "loss": found[request["batch_size"]].loss,
    }
    many = [
        {
            **at,
            **how,
            "branch_batch_size": size,
            "learning_rate": best[size],
            "factor": request["factors"][[*rates].index(best[size])],
            **dict(zip(OF_BRANCHES[3:], found[size], strict=True)),
        }
        for size, rates in of_size.items()
    ]
    return one, many


def in_words(row: Mapping[str, Any]) -> str:
    """A critical batch size and its interval.

    >>> in_words({"critical_batch_size": 32, "low": 16.0, "high": 64.0, "bound": "="})
    '32 (16 to 64)'
    >>> in_words({"critical_batch_size": 256, "low": 128.0, "high": float("inf"), "bound": ">"})
    'at least 256 (from 128)'
    >>> in_words({"critical_batch_size": 8, "low": 8.0, "high": 16.0, "bound": "<"})
    'below 16'
    """
    value, low, high = (number(row[name]) for name in ("critical_batch_size", "low", "high"))
    if row["bound"] == ">":
        return f"at least {value}" if row["low"] == row["critical_batch_size"] else f"at least {value} (from {low})"
    if row["bound"] == "<" and math.isfinite(row["high"]):
        return f"below {high}"
    return f"{value} ({low} to {high})" if math.isfinite(row["high"]) else f"{value} (from {low})"


def overview(rows: pd.DataFrame) -> pd.DataFrame:
    """The checkpoints of one trunk as text.

    >>> row = {"step": 9, "examples_seen": 72, "critical_batch_size": 32, "low": 16.0, "high": 64.0, "bound": "=",
    ...     "loss_at_start": 0.5, "loss": 0.4, "rule": "linear", "factors": "1"}
    >>> overview(pd.DataFrame([row])).iloc[0].tolist()
    ['9', '72', '32 (16 to 64)', '0.500 to 0.400', 'linear']
    """
    lines = [
        {
            "step": f"{row['step']:,}",
            "examples seen": f"{row['examples_seen']:,}",
            "critical batch size": in_words(row),
            "loss": f"{number(row['loss_at_start'])} to {number(row['loss'])}",
            "learning rate": rule_in_words(row),
        }
        for row in rows.to_dict("records")
    ]
    return pd.DataFrame(lines)


def rule_in_words(row: Mapping[str, Any]) -> str:
    """How the learning rate followed the batch size.

    >>> rule_in_words({"rule": "square_root", "factors": "0.5, 1, 2"})
    'square root, best of 0.5, 1, 2'
    """
    return RULES[row["rule"]] + ("" if row["factors"] == "1" else f", best of {row['factors']}")


def sentences(measured: pd.DataFrame, scaling: pd.DataFrame) -> list[str]:
    """A sentence for each trunk: its critical batch size from the first to the last checkpoint, beside the limits.

    Arguments:
        measured: `branched` from `tables`.
        scaling: the limits of scaling (`analysis.report.derived.tables`).

    >>> sentences(pd.DataFrame(columns=COLUMNS), pd.read_csv(f"{published}/tables/scaling.csv"))
    []
    """
    said = []
    for (*curve, size, rule, factors, window), rows in measured.groupby(
        [*CURVE, "batch_size", "rule", "factors", "window"], sort=False
    ):
        first, last = (rows[rows["step"] == step].iloc[0] for step in (rows["step"].min(), rows["step"].max()))
        began = f"{in_words(first)} after {first['examples_seen']:,} examples and " if len(rows) > 1 else ""
        said.append(
            f"{curve[0]} with {curve[1]}, branched from batch size {size:,}: the critical batch size is {began}"
            f"{in_words(last)} after {last['examples_seen']:,} examples, by windows of {window:,} examples, a "
            f"tolerance of {last['tolerance']:.1%} and the {rule_in_words({'rule': rule, 'factors': factors})} rule; "
            f"{measured_limits(curve, scaling)}."
        )
    return said


def warnings(measured: pd.DataFrame, losses: pd.DataFrame) -> list[str]:
    """What a reader should know of the measurements of each trunk.

    Arguments:
        measured, losses: `branched` and `branched_losses` from `tables`.

    >>> warnings(pd.DataFrame(columns=COLUMNS), pd.DataFrame(columns=LOSSES))
    []
    """
    said = []
    lower = losses[
        (losses["excess_high"] < -losses["tolerance"]) & (losses["branch_batch_size"] > losses["batch_size"])
    ]
    for key, rows in measured.groupby(TRUNK, sort=False):
        name = f"{key[0]} with {key[1]}, branched from batch size {key[2]:,}"
        still = rows[rows["loss_at_start"] <= (1 + rows["tolerance"]) * rows["loss"]]
        if len(floor := rows[rows["step"].isin(rows_with(lower, TRUNK, key)["step"])]):
            said.append(
                f"{name}: {_at(floor)} some larger batches end lower than the small one for certain: it is at the "
                "noise floor of its learning rate, and the answer says more about that than about the batch size."
            )
        if len(still):
            said.append(
                f"{name}: {_at(still)} the window lowers the loss by less than the tolerance, so that not training "
                "would pass, too: give a longer window or a smaller tolerance."
            )
        open_ = np.isinf(rows["high"])
        for some, text in (
            (rows["bound"] == ">", "every batch size is within the tolerance: give larger multiples"),
            (
                (rows["bound"] == "<") & ~open_,
                "no larger batch size is within the tolerance: branch from a smaller one",
            ),
            (
                (rows["bound"] != ">") & open_,
                "larger batch sizes lose more than the tolerance on average, but none for certain, so that the "
                "interval has no upper end: give more seeds",
            ),
        ):
            if some.any():
                said.append(f"{name}: {_at(rows[some])} {text}.")
    return said


def _at(rows: pd.DataFrame) -> str:
    return f"at step {listed(int(step) for step in rows['step'])}"
