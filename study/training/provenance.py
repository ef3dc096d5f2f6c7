"""The record of a run: what trained a search, where and with what."""

import os
import platform
import socket
import sys
from importlib.metadata import packages_distributions
from typing import Any

import torch

from study import store
from study.devices.machine import git_commit, processor, versions
from study.devices.precision import uses_tf32
from study.engine.arithmetic import fused
from study.records import COMMAND
from study.store.claims import Shard
from study.training.search import SearchRun
from study.workers.pool import Workers

REPEATS = {
    True: "bit for bit on this kind of CPU",
    False: "to rounding: kernels of GPUs may add in another order each time",
}
"""Whether the device is a CPU -> how well a trial that is repeated or resumed agrees with itself."""


def provenance(search: SearchRun, workers: Workers, shard: Shard) -> dict[str, Any]:
    """The record of a run: command, machine, devices, workers, package versions, commit and what the workload is."""
    study = search.study
    package, by_import_path, _ = study.optimizer.partition(".")
    theirs = packages_distributions().get(package, []) if by_import_path else []
    packages = ("torch", "optuna", "numpy", "scipy", "pandas", "hydra-core", *theirs)
    placement, cost = workers.placement, workers.cost_of(study)
    return {
        "command": search.command,
        "started": store.now(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "platform": platform.platform(),
        "processor": processor(),
        "device": placement.device,
        "gpu": torch.cuda.get_device_name(placement.device_of(0)) if placement.device != "cpu" else None,
        "devices": placement.devices,
        "batch": cost.composition(study.batch_size),
        "workers": workers.count,
        "threads_per_worker": 1,
        "engine": "lanes" if fused(study) else COMMAND if study.arithmetic == COMMAND else "serial",
        "lanes": 1 if study.differs_by_trial else cost.lanes,
        "compiled": fused(study) and workers.compiles(study),
        "shard": str(shard),
        "tf32": uses_tf32(placement.device, study.precision),
        "cudnn_benchmark": placement.device != "cpu",
        "repeats": "as the command does" if study.arithmetic == COMMAND else REPEATS[placement.device == "cpu"],
        "python": sys.version.split()[0],
        "versions": versions(packages),
        "git_commit": git_commit(),
        "fingerprint": dict(search.fingerprint),
        **({"warnings": [*search.notes]} if search.notes else {}),
    }
