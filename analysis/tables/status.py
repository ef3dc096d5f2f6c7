"""The progress of a sweep, from its files alone: trials by status, the best so far and the time left."""

import json
import os
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from analysis.counting import COMPLETE, INCOMPLETE, INFEASIBLE
from analysis.load import StudyData
from analysis.question.searches import matching
from analysis.tables.steps_to_result import is_complete, outcomes

SILENCE = 120.0
"""Seconds after which a process on another machine counts as dead; a live one touches its claim every 10 s."""


def table(studies: Iterable[StudyData]) -> pd.DataFrame:
    """The progress of every search.

    Returns:
        A row for each search on file (workload, optimizer, batch_size, search: empty for the first search of a study):
        reruns_of (the search whose tuned configuration it trains with fresh seeds; NA for others), state (`done`,
        `running`, `stopped` or `waiting`), processes (the number that work on it), the numbers of trials wanted,
        complete, infeasible and incomplete (unfinished, or missing below the highest index on file), doubled (trained
        twice, because their process was taken for dead; one copy was discarded), best (fewest steps to the goal so far,
        NA if none), seconds_left (0 when done, NaN if unknown) and running (`commands_at_work`).

    >>> found = table([study])
    >>> found[["batch_size", "state", "wanted", "complete", "best", "seconds_left"]]
       batch_size state  wanted  complete  best  seconds_left
    0          64  done      20        20    21           0.0
    """
    return pd.DataFrame([_row(study) for study in studies]).astype({"best": "Int64"})


def _row(study: StudyData) -> dict[str, Any]:
    frame = outcomes(study)
    wanted = int(study.question["search"]["trials"])
    counts = {s.lower(): int((frame["status"] == s).sum()) for s in (COMPLETE, INFEASIBLE, INCOMPLETE)}
    branch = study.branch
    fresh_seeds = branch.rerun is not None and branch.rule is None and branch.certify is None
    done, processes = is_complete(study), at_work(study.folder)
    state = "running" if processes else "stopped" if study.provenance else "waiting"
    best = frame["steps_to_goal"][frame["counted"] & (frame["status"] == COMPLETE)].min()
    return {
        **study.names,
        "search": str(branch),
        "reruns_of": str(branch._replace(rerun=None)) if fresh_seeds else None,
        "state": "done" if done else state,
        "processes": processes,
        "wanted": wanted,
        **counts,
        "doubled": sum(run.get("doubled_trials", 0) for run in study.provenance),
        "best": best,
        "seconds_left": 0.0 if done else _seconds_left(study, counts["complete"], wanted, processes),
        "running": commands_at_work(study) if processes else [],
    }


def commands_at_work(study: StudyData) -> list[dict[str, Any]]:
    """The trials under way that are commands, by the files that these keep.

    Returns:
        For each trial: trial (its index), step, steps (its budget), error (of the goal's metric, the
        latest; None if there is none), seconds (since it began) and silent (seconds since its last line of metrics).

    >>> commands_at_work(study)
    []
    """
    found = []
    for path in matching(study.folder, "commands/*/progress.json"):
        index = int(path.parent.name)
        with suppress(OSError, ValueError):  # the trial begins again meanwhile
            age = max(0.0, time.time() - path.stat().st_mtime)
            if index not in study.trials.index and age < SILENCE:
                last = json.loads(path.read_text())
                times = {name: last[name] + age for name in ("seconds", "silent")}
                steps = study.train_steps
                found.append({"trial": index, "step": last["step"], "steps": steps, "error": last["error"], **times})
    return found


def at_work(folder: Path) -> int:
    """The number of processes that work on a search: those whose claim is locked or was touched recently.

    >>> at_work(Path(f"{published}/studies/mlp_digits/sgd/64"))
    0
    """
    return sum(_lives(path) for path in folder.glob(".claim.*"))


def _lives(claim: Path) -> bool:
    """True if the process of a claim is alive.

    A live process holds the lock of its claim. Locks of another machine may not be visible here: its claim must have
    been touched recently. Host names and process ids prove nothing, because they recur, above all in containers.
    """
    try:
        with claim.open("rb") as file:
            if _is_locked(file):
                return True
            here = json.loads(file.read())["boot"] == _machine()
            return not here and time.time() - os.fstat(file.fileno()).st_mtime < SILENCE
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _machine() -> str:
    """The name of this machine in claims (`study.store.claims`): its boot id, because host names recur."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def _is_locked(file: BinaryIO) -> bool:
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):  # the system or the network file system has no locks
        return False
    return False


def _seconds_left(study: StudyData, complete: int, wanted: int, processes: int) -> float:
    """At the pace so far, counting the time of infeasible trials; NaN if no trial is complete or no run is known."""
    if not complete or not study.provenance:
        return np.nan
    seconds = float((study.trials["seconds_training"] + study.trials["seconds_evaluation"]).sum())
    workers = study.provenance[-1]["workers"] * max(1, processes)
    return seconds / complete * max(0, wanted - complete) / workers
