"""The straight line: a study proposes trials, workers turn trials into curves, the store keeps them."""

from __future__ import annotations

import datetime
import os
import platform
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

from study import checkpoints, store
from study.records import Study
from study.tuner import Storage, Tuner
from study.workers import Workers

Watch = Callable[[Study, Tuner], None]
"""Told after every finished trial, and once at the start of a study."""


def run(
    study: Study, workers: Workers, results: Path, watch: Watch, command: str = "", storage: Storage | None = None
) -> None:
    """Train what is missing of one search of a study.

    Raises:
        StoreError: the results folder holds another question, is being worked on, or cannot be written.
        WorkerError: a worker process failed.
    """
    folder = store.study_folder(results, study)
    with store.claimed(folder):
        kept = store.Checkpoints(folder)
        tuner = Tuner(study, store.load(folder), checkpoints.trials(kept), storage)
        watch(study, tuner)
        store.open_study(results, study, provenance(study, workers, command))
        seconds: Counter[str] = Counter()
        for curve in workers.train(study, tuner, kept):
            store.save(folder, curve)
            seconds.update(curve.seconds)
            tuner.tell(curve)
            watch(study, tuner)
        spent = {f"seconds_{what}": round(amount, 3) for what, amount in seconds.items()}
        store.close_study(folder, {"ended": _now(), **spent})


def provenance(study: Study, workers: Workers, command: str) -> dict[str, Any]:
    """Where and how this run was made; nothing here alters a number."""
    theirs = packages_distributions().get(study.optimizer.partition(".")[0], [])  # of an optimizer by its import path
    packages = ("torch", "optuna", "numpy", "scipy", "pandas", "hydra-core", *theirs)
    return {
        "command": command,
        "started": _now(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "platform": platform.platform(),
        "processor": _processor(),
        "device": workers.device,
        "devices": workers.devices,
        "batch": workers.cost_of(study).composition(study.batch_size),
        "workers": workers.count,
        "threads_per_worker": 1,
        "engine": "serial" if study.arithmetic == "plain" else "lanes",
        "lanes": workers.cost_of(study).lanes,
        "tf32": False,
        "python": sys.version.split()[0],
        "versions": {name: version(name) for name in packages},
        "git_commit": _git_commit(),
    }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, {os.cpu_count()} cores"


def _git_commit() -> str | None:
    """The checkout's commit, marked if files differ from it; None for an installed package."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        # An installed package may lie inside somebody else's repository.
        tracked = ["ls-files", "--error-unmatch", str(Path(__file__))]
        subprocess.run([*git, *tracked], capture_output=True, check=True)
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+changes" if changed.stdout.strip() else "")
