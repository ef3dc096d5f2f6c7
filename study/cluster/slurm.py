"""Reads the states of SLURM jobs from `squeue`, because not every SLURM keeps the accounts that `sacct` needs."""

import shutil
import subprocess
from pathlib import Path

from study.errors import UsageError

QUEUE = ["squeue", "--me", "--noheader", "--array", "--format=%F %K %T %r"]
"""Prints the job, index in its array, state and reason of every unfinished job of this user."""


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
