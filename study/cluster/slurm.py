"""Reads the states of SLURM jobs from `squeue`, because not every SLURM keeps the accounts that `sacct` needs."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.labels import counted
from study.errors import UsageError

QUEUE = ["squeue", "--me", "--noheader", "--array", "--format=%F %K %T %r"]
"""Prints the job, index in its array, state and reason of every unfinished job of this user."""
CORES = 2
"""Fewest cores of a job for each of its GPUs: the worker prepares and launches what the GPU computes, and beside it the
process that proposes trials and autograd's thread need a core now and then."""
GPU_KEYS = ("gpus_per_node", "gpus_per_task", "gres")
"""Settings of the launcher that ask for GPUs; a job is one task on one node."""
SBATCH_KEYS = ("gpus", "gpus-per-node", "gpus-per-task", "gres")
"""Options of sbatch that ask for GPUs, in `additional_parameters`."""


def check() -> None:
    """Raise UsageError if jobs cannot be submitted from this machine."""
    for name in ("sbatch", "srun", "squeue"):
        if shutil.which(name) is None:
            raise UsageError(
                f"cluster=slurm needs {name}, which is not on this PATH; run this on a machine that submits jobs."
            )
    asked = subprocess.run(QUEUE, capture_output=True, text=True)
    if asked.returncode:
        raise UsageError(f"cluster=slurm: SLURM does not answer: {asked.stderr.strip().splitlines()[-1]}")


def few_cores(launcher: Mapping[str, Any]) -> str | None:
    """A warning, with the cure, if each job has fewer cores than its GPUs need; None if not.

    Arguments:
        launcher: the settings of the launcher, under Hydra's names.
    """
    options = launcher.get("additional_parameters") or {}
    asked = [(key, launcher.get(key)) for key in GPU_KEYS] + [(key, options.get(key)) for key in SBATCH_KEYS]
    gpus = max((_count(key, str(value)) for key, value in asked if value), default=0)
    each = launcher.get("cpus_per_gpu") or options.get("cpus-per-gpu")
    cores = int(each) * gpus if each else int(launcher.get("cpus_per_task") or 1)
    if cores >= CORES * gpus:
        return None
    cure = f"cpus_per_gpu={CORES}" if each else f"cpus_per_task={CORES * gpus}"
    return (
        f"Each SLURM job has {counted(cores, 'CPU core')} for {counted(gpus, 'GPU')}, so that a GPU waits for the "
        f"processes that give it work. Ask for {CORES} cores for each GPU: hydra.launcher.{cure}."
    )


def _count(key: str, text: str) -> int:
    """The GPUs in a request such as `2` or `a100:2` or, with `gres`, `gpu`, `gpu:a100:2` or `gpu:2,shard:1`."""
    resources = [each.partition("(")[0].split(":") for each in text.split(",")]
    wanted = [parts for parts in resources if key != "gres" or parts[0] == "gpu"]
    return sum(int(parts[-1]) if parts[-1].isdecimal() else 1 for parts in wanted)


def submitted(folder: Path) -> set[str]:
    """Numbers of the jobs and arrays whose scripts submitit wrote to a folder."""
    return {path.name.partition("_")[0] for path in folder.glob("[0-9]*_submission.sh")}


def queued(folder: Path) -> dict[int, str]:
    """Array index -> state of each unfinished job of a folder; {-1: "unknown"} if SLURM does not answer."""
    asked = subprocess.run(QUEUE, capture_output=True, text=True)
    if asked.returncode:
        return {-1: "unknown"}  # a controller that restarts takes a while to answer
    found, ours = {}, submitted(folder)
    for line in asked.stdout.splitlines():
        number, index, state, reason = line.split(maxsplit=3)
        if number in ours:  # a single job has no index
            found[int(index) if index.isdecimal() else 0] = f"queued: {reason}" if state == "PENDING" else state.lower()
    return found
