"""What SLURM says of jobs whose scripts lie in a folder. By `squeue`: not every SLURM keeps accounts for `sacct`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from study.errors import UsageError

QUEUE = ["squeue", "--me", "--noheader", "--array", "--format=%F %K %T %r"]
"""Job, index in its array, state and reason of everything of this user that has not ended."""


def check() -> None:
    """Jobs can be submitted from here.

    Raises:
        UsageError: they cannot.
    """
    for name in ("sbatch", "srun", "squeue"):
        if shutil.which(name) is None:
            raise UsageError(
                f"cluster=slurm needs {name}, which is not on this PATH; start it where jobs are submitted."
            )
    asked = subprocess.run(QUEUE, capture_output=True, text=True)
    if asked.returncode:
        raise UsageError(f"cluster=slurm: SLURM does not answer: {asked.stderr.strip().splitlines()[-1]}")


def submitted(folder: Path) -> set[str]:
    """Numbers of the jobs and arrays whose scripts submitit left in a folder."""
    return {path.name.partition("_")[0] for path in folder.glob("[0-9]*_submission.sh")}


def queued(folder: Path) -> dict[int, str]:
    """Index in its array -> state of each job of a folder that has not ended; -1 if SLURM does not answer."""
    asked = subprocess.run(QUEUE, capture_output=True, text=True)
    if asked.returncode:
        return {-1: "unknown"}  # a controller that is started anew takes a while
    found, ours = {}, submitted(folder)
    for line in asked.stdout.splitlines():
        number, index, state, reason = line.split(maxsplit=3)
        if number in ours:  # a job alone is no array
            found[int(index) if index.isdecimal() else 0] = f"queued: {reason}" if state == "PENDING" else state.lower()
    return found
