"""The straight line: a study proposes trials, workers turn trials into curves, the store keeps them."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import MappingProxyType
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
"""Told after every finished trial, and once at the start of a study."""
POLL = 2.0
"""Seconds from one look at what other processes do to the next."""


def run(
    study: Study,
    workers: Workers,
    results: Path,
    watch: Watch,
    command: str = "",
    storage: Storage | None = None,
    shards: int = 1,
    first: int = 0,
    fingerprint: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Train what is missing of one search of a study, or what other processes leave of it.

    Of several shards this process takes one that nobody works on, from number `first` on, then the next, and returns
    once all of it is there.

    Arguments:
        fingerprint: of the workload, to notice later that its code changed.

    Raises:
        StoreError: the results folder holds another question, is being worked on, or cannot be written.
        WorkerError: a worker process failed.
    """
    folder = store.study_folder(results, study)
    while True:
        view = Tuner(study, store.load(folder))
        watch(study, view)
        if view.complete:
            break
        for shard in (Shard((first + index) % shards, shards) for index in range(shards)):
            if view.next_index(shard) is None:
                continue
            try:
                with store.claimed(folder, shard) as claim:
                    made = provenance(study, workers, command, shard) | {"fingerprint": dict(fingerprint)}
                    record = store.open_study(results, study, made)
                    spent = _train(study, workers, folder, watch, storage, claim)
                    store.end_run(record, {"ended": store.now(), **spent})
                break
            except Held:
                if shards == 1:
                    raise
        else:
            time.sleep(POLL)  # others train what is missing
    store.gather(folder)


def _train(
    study: Study, workers: Workers, folder: Path, watch: Watch, storage: Storage | None, claim: Claim
) -> dict[str, float]:
    """Train what is missing of a claimed shard; returns the seconds spent, and how many trials were made twice."""
    shard = claim.shard
    kept = store.Checkpoints(folder, shard)
    reader = Reader(folder)
    finished = reader.new()
    tuner = Tuner(study, finished, checkpoints.trials(kept), storage, shard, _now_and_then(reader.new, shard))
    unfinished = {curve.trial.index for curve in finished} - tuner.outcomes.keys()
    spent: Counter[str] = Counter(doubled_trials=0)
    for curve in workers.train(study, tuner, kept):
        claim.check()
        spent["doubled_trials"] += not store.save(folder, curve, replaces=curve.trial.index in unfinished)
        spent.update({f"seconds_{what}": seconds for what, seconds in curve.seconds.items()})
        tuner.tell(curve)
        if not tuner.complete:  # else whoever looks next says so
            watch(study, tuner)
    return {what: round(amount, 3) for what, amount in spent.items()}


def _now_and_then(read: Callable[[], list[Curve]], shard: Shard) -> Callable[[], list[Curve]]:
    """What others finished, looked up every POLL seconds at most; there are no others where the shard is the whole."""
    last = time.monotonic()

    def news() -> list[Curve]:
        nonlocal last
        if shard == WHOLE or time.monotonic() < last + POLL:
            return []
        last = time.monotonic()
        return read()

    return news


def provenance(study: Study, workers: Workers, command: str, shard: Shard) -> dict[str, Any]:
    """Where and how this run was made; nothing here alters a number."""
    package, by_import_path, _ = study.optimizer.partition(".")
    theirs = packages_distributions().get(package, []) if by_import_path else []
    packages = ("torch", "optuna", "numpy", "scipy", "pandas", "hydra-core", *theirs)
    return {
        "command": command,
        "started": store.now(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "platform": platform.platform(),
        "processor": _processor(),
        "device": workers.engine.device,
        "gpu": torch.cuda.get_device_name(workers.engine.device_of(0)) if workers.engine.device != "cpu" else None,
        "devices": workers.engine.devices,
        "batch": workers.cost_of(study).composition(study.batch_size),
        "workers": workers.count,
        "threads_per_worker": 1,
        "engine": "lanes" if fused(study) else "serial",
        "lanes": workers.cost_of(study).lanes,
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
