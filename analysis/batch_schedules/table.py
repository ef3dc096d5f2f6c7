"""Curves whose batch size grows as tables and sentences: an axis of their own, beside S(B)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.labels import listed, number
from analysis.load import ANSWER, StudyData, rows_with
from analysis.question.batch_schedules import COLUMN, Phases, tuned

COUNTED = ["steps_to_result", "examples_to_result", "tuned_steps", "tuned_examples"]
COLUMNS = [*ANSWER, "schedule", "last_batch_size", "train_steps", "reached", *COUNTED]
OF_CONSTANT = ["constant", "constant_steps", "constant_examples"]
PHASES = [*ANSWER, "phase", "step", "examples_seen", "size"]


def tables(studies: Sequence[StudyData], steps: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The tables of the studies whose batch size grows; none if there is none.

    Arguments:
        studies: the searches that give the steps to result (`analysis.tables.answers.answers`).
        steps: `analysis.estimates.tuned.table`.

    Returns:
        `batch_schedules`: a row for each of these (workload, optimizer, batch_size, goal): the schedule, the last batch
        size and the step budget of its tuned trial, steps and examples to the goal (fewest, and of the tuned
        configuration with fresh seeds; NaN if not reached), and what the same optimizer took with the first batch size
        throughout (`constant`: its name), if it is among the studies. `batch_phases`: a row for each phase of the tuned
        trial: its first update and the examples seen before, from 0, and the batch size `size`.

    >>> tables([study], pd.DataFrame({"optimizer": ["sgd"]}))
    {}
    """
    if COLUMN not in steps:
        return {}
    by_key = {study.key: study for study in studies}
    rows, phases = [], []
    for row in steps[steps[COLUMN].notna()].to_dict("records"):
        study = by_key[row["workload"], row["optimizer"], row["batch_size"]]
        made = _phases(study, row)
        rows.append(_row(row, study, made, steps))
        phases += [dict.fromkeys(PHASES) | {k: row[k] for k in ANSWER} | each for each in _starts(made)]
    return {
        "batch_schedules": pd.DataFrame(rows, columns=[*COLUMNS, *OF_CONSTANT]),
        "batch_phases": pd.DataFrame(phases, columns=PHASES),
    }


def _phases(study: StudyData, row: Mapping[str, Any]) -> Phases | None:
    """The batch size of each update of the tuned trial; None if trials differ in it and none is tuned."""
    if pd.notna(row["tuned_trial"]):
        return study.phases(int(row["tuned_trial"]))
    return None if tuned(study.question) else study.phases(int(study.trials.index[0]))


def _row(row: Mapping[str, Any], study: StudyData, phases: Phases | None, steps: pd.DataFrame) -> dict[str, Any]:
    mean = row.get("tuned_steps", np.nan)
    seen = phases.examples(round(mean)) if phases and np.isfinite(mean) else np.nan
    alike = {**row, "optimizer": str(study.question["optimizer"])}
    beside = next(iter(rows_with(steps, ANSWER, [alike[name] for name in ANSWER]).to_dict("records")), None)
    fewest = np.nan if beside is None else _best(beside)
    return {
        **{key: row[key] for key in (*ANSWER, "reached", "steps_to_result", "examples_to_result")},
        "schedule": row[COLUMN],
        "last_batch_size": phases.sizes[-1] if phases else np.nan,
        "train_steps": phases.steps if phases else np.nan,
        "tuned_steps": mean,
        "tuned_examples": seen,
        "constant": None if beside is None else alike["optimizer"],
        "constant_steps": fewest,
        "constant_examples": fewest * study.batch_size,
    }


def _starts(phases: Phases | None) -> Iterator[dict[str, Any]]:
    for phase, (step, size) in enumerate(zip(phases.starts, phases.sizes, strict=True) if phases else ()):
        yield {"phase": phase, "step": step, "examples_seen": phases.examples(step) if phases else 0, "size": size}


def _best(row: Mapping[str, Any]) -> float:
    """Steps to the goal: of the tuned configuration with fresh seeds if it has any, else the fewest; NaN if missed."""
    found = row.get("tuned_steps", np.nan)
    found = row["steps_to_result"] if pd.isna(found) else found
    return float(found) if pd.notna(found) and np.isfinite(found) else np.nan


def sentences(table: pd.DataFrame | None) -> list[str]:
    """What each curve of a growing batch size took, in steps and in examples.

    Arguments:
        table: `batch_schedules` of `tables`; None: there are none.

    >>> goal = {"goal_metric": "val/cross_entropy_error", "goal_threshold": 0.2, "reached": True, "constant": "sgd"}
    >>> curve = {"workload": "digits", "optimizer": "sgd+ramp", "batch_size": 8, "schedule": "ramp", **goal}
    >>> took = {"steps_to_result": 90, "examples_to_result": 900, "tuned_steps": float("nan"), "last_batch_size": 32}
    >>> constant = {"constant_steps": 100.0, "constant_examples": 800.0}
    >>> print(*sentences(pd.DataFrame([{**curve, **took, **constant, "tuned_examples": float("nan")}])))
    digits with sgd+ramp from batch size 8 to 32: 90 steps and 900 examples to the goal; constantly at 8: 100 and 800.
    """
    said = []
    for row in [] if table is None else table.to_dict("records"):
        largest = "" if pd.isna(row["last_batch_size"]) else f" to {number(row['last_batch_size'])}"
        subject = f"{row['workload']} with {row['optimizer']} from batch size {row['batch_size']:,}{largest}"
        steps = _best(row)
        examples = row["examples_to_result"] if pd.isna(row["tuned_examples"]) else row["tuned_examples"]
        if not row["reached"] or np.isnan(steps):
            said.append(f"{subject}: the goal was not reached.")
            continue
        beside = ""
        if pd.notna(row["constant_steps"]):
            numbers = listed([number(row["constant_steps"]), number(row["constant_examples"])])
            beside = f"; constantly at {row['batch_size']:,}: {numbers}"
        early = ", before the batch size grows" if examples == row["batch_size"] * round(steps) else ""
        said.append(f"{subject}: {number(steps)} steps and {number(examples)} examples to the goal{early}{beside}.")
    return said
