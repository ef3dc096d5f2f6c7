"""Frames -> the table at the centre of it all: the fewest steps to the goal, for each study."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from analysis import counting
from analysis.counting import COMPLETE, INCOMPLETE, INFEASIBLE, Goal, Measured, counted_prefix, fewest_steps
from analysis.load import StudyData


def outcomes(study: StudyData, goal: Goal | None = None, stopping: str | None = None) -> pd.DataFrame:
    """How every trial of a study ended under a goal and a stopping rule (default: the study's own).

    Returns:
        A row for each trial index from 0 to the highest on file: status, end (step), steps_to_goal (NA if the goal
        was not reached), and `counted`: whether it is among the first N feasible trials' prefix. An index with no
        file is INCOMPLETE.
    """
    goal = goal or study.goal
    by_trial = dict(iter(study.measurements.groupby("trial"))) if len(study.measurements) else {}
    nothing = study.measurements.iloc[:0]
    trials = []
    for index, bad in study.trials["first_bad_step"].items():
        curve = by_trial.get(index, nothing)
        errors = curve[goal.metric].to_numpy() if len(curve) else []
        trials.append(Measured(curve["step"].to_numpy(dtype=np.int64), errors, None if pd.isna(bad) else int(bad)))
    found = counting.outcomes(study.rule(goal, stopping), trials)
    frame = pd.DataFrame(found, columns=["status", "end", "steps_to_goal"], index=study.trials.index)
    frame = frame.reindex(range(max(study.trials.index, default=-1) + 1))
    frame = frame.fillna({"status": INCOMPLETE, "end": 0}).astype({"end": "int64", "steps_to_goal": "Int64"})
    frame.index.name = "trial"
    prefix = counted_prefix(list(frame["status"]), study.question["search"]["trials"])
    return frame.assign(counted=frame.index < prefix)


def feasible_steps(study: StudyData, goal: Goal | None = None) -> np.ndarray:
    """Steps to the goal of the counted feasible trials [N] in index order, infinite where it was not reached."""
    frame = outcomes(study, goal)
    counted = frame[frame["counted"] & (frame["status"] == COMPLETE)]
    return counted["steps_to_goal"].astype("float64").fillna(np.inf).to_numpy()


def row(study: StudyData, goal: Goal | None = None, stopping: str | None = None) -> dict[str, Any]:
    """One study's row of `table`."""
    goal = goal or study.goal
    counted = outcomes(study, goal, stopping).query("counted")
    complete = counted[counted["status"] == COMPLETE]
    steps = [None if pd.isna(s) else int(s) for s in complete["steps_to_goal"]]
    best = fewest_steps(steps)
    trial = None if best is None else int(complete.index[best[0]])
    tuned = {name: np.nan if trial is None else study.trials.at[trial, name] for name in study.hyperparameters}
    return {
        "workload": study.workload,
        "optimizer": study.optimizer,
        "batch_size": study.batch_size,
        "goal_metric": goal.metric,
        "goal_threshold": goal.threshold,
        "reached": best is not None,
        "steps_to_result": None if best is None else best[1],
        "examples_to_result": None if best is None else best[1] * study.batch_size,
        "trial": trial,
        **tuned,
        "complete": len(complete),
        "incomplete": int((counted["status"] == INCOMPLETE).sum()),
        "infeasible": int((counted["status"] == INFEASIBLE).sum()),
        "train_steps": study.train_steps,
        "stopping": stopping or study.question["stopping"],
        "steps_trained": int(counted["end"].sum()),
    }


def table(studies: Iterable[StudyData], stopping: str | None = None) -> pd.DataFrame:
    """Steps-to-result of many studies, under their own stopping rules or read under another.

    Returns:
        A row for each (workload, optimizer, batch_size, goal): reached, steps_to_result and examples_to_result (NA if
        not reached), the trial that gave them and its tuned parameters (NaN where an optimizer has none), the counts
        complete, incomplete and infeasible of the first N feasible trials' prefix, train_steps (the step budget), the
        stopping rule, and steps_trained: by all trials of that prefix, up to where each ends.
    """
    rows = [row(study, stopping=stopping) for study in studies]
    last = ("complete", "incomplete", "infeasible", "train_steps", "stopping", "steps_trained")
    columns = list(dict.fromkeys(key for r in rows for key in r if key not in last)) + list(last)
    integers = dict.fromkeys(("steps_to_result", "examples_to_result", "trial"), "Int64")
    return pd.DataFrame(rows, columns=columns).astype(integers)


def cost_table(studies: Iterable[StudyData]) -> pd.DataFrame:
    """What each study took: all timings live in this table, so that every other can be compared byte for byte.

    Returns:
        A row a study: workload, optimizer, batch_size, device, trials and steps (all that ran, counted or not),
        seconds_training, seconds_evaluation, seconds_per_step, evaluation_share (of the time).
    """
    rows = []
    for study in studies:
        last_steps = study.measurements.groupby("trial")["step"].max().reindex(study.trials.index)
        steps = int(study.trials["first_bad_step"].astype("float64").fillna(last_steps).fillna(0).sum())
        training = float(study.trials["seconds_training"].sum())
        evaluation = float(study.trials["seconds_evaluation"].sum())
        rows.append(
            {
                "workload": study.workload,
                "optimizer": study.optimizer,
                "batch_size": study.batch_size,
                "device": study.provenance[-1].get("device", "") if study.provenance else "",
                "trials": len(study.trials),
                "steps": steps,
                "seconds_training": training,
                "seconds_evaluation": evaluation,
                "seconds_per_step": training / steps if steps else np.nan,
                "evaluation_share": evaluation / (training + evaluation) if training else np.nan,
            }
        )
    return pd.DataFrame(rows)
