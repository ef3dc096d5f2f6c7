"""How far a sweep is: its trials by status, the best so far and the time left, from the files alone."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from analysis.counting import COMPLETE, INCOMPLETE, INFEASIBLE
from analysis.load import StudyData
from analysis.steps_to_result import is_complete, outcomes


def table(studies: Iterable[StudyData]) -> pd.DataFrame:
    """Where every study stands.

    Returns:
        A row for each search on file (workload, optimizer, batch_size, search: empty for a study's first): state
        (`done`, `running`, `running elsewhere or stopped`, `stopped` or `waiting`), the trials wanted, complete,
        infeasible and incomplete (gaps before finished ones), best (fewest steps to the goal so far, NA if none) and
        seconds_left (0 when done, NaN while nothing is known).

    >>> from analysis.load import load_study
    >>> found = table([load_study("results/published/mlp_digits/studies/mlp_digits/sgd/64")])
    >>> found[["batch_size", "state", "wanted", "complete", "best", "seconds_left"]]
       batch_size state  wanted  complete  best  seconds_left
    0          64  done      20        20    24           0.0
    """
    return pd.DataFrame([_row(study) for study in studies]).astype({"best": "Int64"})


def _row(study: StudyData) -> dict[str, Any]:
    frame = outcomes(study)
    wanted = int(study.question["search"]["trials"])
    counts = {s: int((frame["status"] == s).sum()) for s in (COMPLETE, INFEASIBLE, INCOMPLETE)}
    done = is_complete(study)
    best = frame["steps_to_goal"][frame["status"] == COMPLETE].min()
    return {
        "workload": study.workload,
        "optimizer": study.optimizer,
        "batch_size": study.batch_size,
        "search": str(study.branch),
        "state": "done" if done else _state(study),
        "wanted": wanted,
        "complete": counts[COMPLETE],
        "infeasible": counts[INFEASIBLE],
        "incomplete": counts[INCOMPLETE],
        "best": best,
        "seconds_left": 0.0 if done else _seconds_left(study, counts[COMPLETE], wanted),
    }


def _state(study: StudyData) -> str:
    """Of a study that is not done: does the process of its latest run live?"""
    if not study.provenance:
        return "waiting"
    last = study.provenance[-1]
    if "ended" in last:
        return "stopped"
    if last.get("host") != socket.gethostname():
        return "running elsewhere or stopped"
    try:
        os.kill(last["pid"], 0)
    except (KeyError, OSError):
        return "stopped"
    return "running"


def _seconds_left(study: StudyData, complete: int, wanted: int) -> float:
    """At the pace of the trials so far, infeasible ones included."""
    if not complete or not study.provenance:
        return np.nan
    seconds = float((study.trials["seconds_training"] + study.trials["seconds_evaluation"]).sum())
    return seconds / complete * max(0, wanted - complete) / study.provenance[-1]["workers"]
