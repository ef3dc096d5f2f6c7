"""What a run trained with: the processor, versions of packages and the commit of this checkout."""

import os
import platform
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path


@lru_cache
def versions(packages: Sequence[str]) -> dict[str, str]:
    """The installed version of each of these packages."""
    return {name: version(name) for name in packages}


@lru_cache
def processor() -> str:
    """The model of the processor and its number of cores.

    >>> processor().endswith(" cores")
    True
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, {os.cpu_count()} cores"


@lru_cache
def git_commit() -> str | None:
    """The commit of the checkout when first asked, marked if files differ from it; None for an installed package."""
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
