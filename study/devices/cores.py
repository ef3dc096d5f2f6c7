"""The cores of this machine that a process may use."""

import os

GRANTED = ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE")
"""Environment variables with the cores granted to a job; not every SLURM enforces them."""


def cores() -> int:
    """Cores this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = [os.environ[name] for name in GRANTED if os.environ.get(name, "").isdecimal()]
    return max(1, min(allowed, *map(int, granted))) if granted else allowed
