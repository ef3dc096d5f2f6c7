"""Sweeps in separate processes: start them, list those alive, wait."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

SWEEP = ["sweep", "batch_size=32", "search.trials=12", "budget.steps=3000", "budget.max_steps=3000", "stopping=budget"]


def children(pid: int, command: str = "spawn_main") -> set[int]:
    """Processes started by `pid` with this in their commands: by default, those of this project's workers."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            if f"PPid:\t{pid}\n" in status.read_text() and command in (status.parent / "cmdline").read_text():
                found.add(int(status.parent.name))
    return found


def alive(pids: set[int]) -> set[int]:
    """The processes that still run; zombies do not count."""
    running = set()
    for pid in pids:
        with suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                running.add(pid)
    return running


def wait_until(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def started(results: Path, sweep: Sequence[str] = SWEEP) -> subprocess.Popen[str]:
    """Start a sweep in a process and wait for its first finished trial or, at least, for its folder."""
    command = [sys.executable, "-m", "study", *sweep, f"results={results}"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    )
    wait_until(lambda: any(results.glob("studies/*/*/*/study.json")))
    return process


def heed_interrupts() -> None:
    """Reset Ctrl-C: shells start background jobs with it ignored, and children such as this sweep inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def tables(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (folder / "tables").glob("*.csv") if p.name != "cost.csv"}


def written(folder: Path) -> dict[Path, int]:
    """When each file of the studies was last written."""
    return {path: path.stat().st_mtime_ns for path in (folder / "studies").rglob("*") if path.is_file()}
