"""Trains one search: the tuner proposes trials, workers turn trials into curves, the store keeps the curves."""

import os
import platform
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import torch

from study import store
from study.engine import checkpoints
from study.engine.arithmetic import fused
from study.records import Curve, Study
from study.search.optuna_storage import Storage
from study.search.tuner import Tuner
from study.store.claims import WHOLE, Claim, Held, Shard
from study.store.curves import Reader
from study.workers.pool import Workers

Watch = Callable[[Study, Tuner], None]
"""Called at the start of a search and after every finished trial."""
POLL = 2.0
"""Seconds between two reads of the trials of other processes."""


@dataclass(frozen=True)
class SearchRun:
    """One search to train, and how to train it.

    Attributes:
        command: recorded with the results.
        storage: of Optuna's trials; None: in memory.
        shards: number of shards of the trials; different processes can train different shards.
        first_shard: the shard that this process tries to take first.
        fingerprint: identifies the workload's code and data; recorded with the results.
    """

    study: Study
    results: Path
    command: str = ""
    storage: Storage | None = None
    shards: int = 1
    first_shard: int = 0
    fingerprint: Mapping[str, float] = field(default_factory=dict)


def run(search: SearchRun, workers: Workers, watch: Watch) -> None:
    """Train the missing trials of one search; returns when the trials of all shards are on file.

    The process claims one free shard at a time. When there is none, it waits for the processes that train the others.

    Arguments:
        watch: called at the start and after every finished trial.

    Raises:
        StoreError: the results folder holds another question or cannot be written, or another process
            trains the search.
        WorkerError: a worker process failed.
        TrialTooLarge: no worker has enough memory for a trial.
    """
    study, shards = search.study, search.shards
    folder = store.study_folder(search.results, study)
    while True:
        view = Tuner(study, store.load(folder))
        watch(study, view)
        if view.complete:
            break
        for shard in (Shard((search.first_shard + index) % shards, shards) for index in range(shards)):
            if view.next_index(shard) is None:
                continue
            try:
                with store.claimed(folder, shard) as claim:
                    made = provenance(study, workers, search.command, shard) | {"fingerprint": dict(search.fingerprint)}
                    record = store.open_study(search.results, study, made)
                    spent = _train(search, workers, watch, claim)
                    store.end_run(record, {"ended": store.now(), **spent})
                break
            except Held:
                if shards == 1:
                    raise
        else:
            time.sleep(POLL)  # other processes train the missing trials
    store.gather(folder)


def _train(search: SearchRun, workers: Workers, watch: Watch, claim: Claim) -> dict[str, float]:
    """Train the missing trials of a claimed shard; returns the seconds spent and the number of duplicate trials."""
    study, shard = search.study, claim.shard
    folder = store.study_folder(search.results, study)
    kept = store.Checkpoints(folder, shard)
    reader = Reader(folder)
    finished = reader.new()
    tuner = Tuner(study, finished, checkpoints.trials(kept), search.storage, shard, _at_intervals(reader.new, shard))
    unfinished = {curve.trial.index for curve in finished} - tuner.outcomes.keys()
    spent: Counter[str] = Counter(doubled_trials=0)
    for curve in workers.train(study, tuner, kept):
        claim.check()
        spent["doubled_trials"] += not store.save(folder, curve, replaces=curve.trial.index in unfinished)
        spent.update({f"seconds_{what}": seconds for what, seconds in curve.seconds.items()})
        tuner.tell(curve)
        if not tuner.complete:  # when complete, the next loop iteration of `run` reports it
            watch(study, tuner)
    return {what: round(amount, 3) for what, amount in spent.items()}


def _at_intervals(read: Callable[[], list[Curve]], shard: Shard) -> Callable[[], list[Curve]]:
    """Limit `read`, which returns the curves of other processes, to one call per POLL seconds; never call it if the
    shard is the whole search, because then no other process trains it."""
    last = time.monotonic()

    def news() -> list[Curve]:
        nonlocal last
        if shard == WHOLE or time.monotonic() < last + POLL:
            return []
        last = time.monotonic()
        return read()

    return news


def provenance(study: Study, workers: Workers, command: str, shard: Shard) -> dict[str, Any]:
    """The record of a run: command, machine, devices, workers, package versions and commit."""
    package, by_import_path, _ = study.optimizer.partition(".")
    theirs = packages_distributions().get(package, []) if by_import_path else []
    packages = ("torch", "optuna", "numpy", "scipy", "pandas", "hydra-core", *theirs)
    placement, cost = workers.placement, workers.cost_of(study)
    return {
        "command": command,
        "started": store.now(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "platform": platform.platform(),
        "processor": _processor(),
        "device": placement.device,
        "gpu": torch.cuda.get_device_name(placement.device_of(0)) if placement.device != "cpu" else None,
        "devices": placement.devices,
        "batch": cost.composition(study.batch_size),
        "workers": workers.count,
        "threads_per_worker": 1,
        "engine": "lanes" if fused(study) else "serial",
        "lanes": cost.lanes,
        "shard": str(shard),
        "tf32": False,
        "python": sys.version.split()[0],
        "versions": {name: version(name) for name in packages},
        "git_commit": _git_commit(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, {os.cpu_count()} cores"


def _git_commit() -> str | None:
    """The commit of the checkout, marked if files differ from it; None for an installed package."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        # An installed package may lie inside the user's repository, whose commit says nothing about this code.
        tracked = ["ls-files", "--error-unmatch", str(Path(__file__))]
        subprocess.run([*git, *tracked], capture_output=True, check=True)
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+changes" if changed.stdout.strip() else "")
