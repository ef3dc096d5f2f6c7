"""Sweeps in separate processes: start them, list those alive, wait. And teams of processes that make the same calls."""

import multiprocessing as mp
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from study.devices import distributed
from study.devices.distributed import Rank
from study.devices.signals import die_with, ignored
from study.workers.start import one_thread_environment

SWEEP = [
    "sweep",
    "batch_size=32",
    "search.trials=12",
    "search.reruns=0",
    "budget.steps=3000",
    "budget.max_steps=3000",
    "stopping=budget",
]


def children(pid: int, command: str = "") -> set[int]:
    """Processes started by `pid` with this in their commands."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            if f"PPid:\t{pid}\n" in status.read_text() and command in (status.parent / "cmdline").read_text():
                found.add(int(status.parent.name))
    return found


def workers(pid: int) -> set[int]:
    """The worker processes of a sweep: forks of a server that it started."""
    return {worker for server in children(pid, "forkserver") for worker in children(server)}


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
    """Reset Ctrl-C and SIGHUP: shells and `nohup` start jobs with them ignored, which this sweep would inherit."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def tables(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (folder / "tables").glob("*.csv") if p.name != "cost.csv"}


def written(folder: Path) -> dict[Path, int]:
    """When each file of the studies was last written."""
    return {path: path.stat().st_mtime_ns for path in (folder / "studies").rglob("*") if path.is_file()}


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file can grow beyond this many bytes, as if the disk were full."""
    before, action = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, action)


def _obey(pipe: Any, parent: int, rank: Rank) -> None:
    die_with(parent)
    torch.set_num_threads(1)
    joined = rank.join()
    teams = {}
    while True:
        size, call, arguments = pipe.recv()
        try:
            if size not in teams:
                teams[size] = joined.first(size)
            pipe.send(None if teams[size] is None else call(teams[size], *arguments))
        except Exception:
            pipe.send(traceback.format_exc())


class Crew(ExitStack):
    """`size` processes of one team, killed at the end of the block."""

    def __init__(self, size: int) -> None:
        super().__init__()
        context = mp.get_context("spawn")
        self.store, [ranks] = distributed.ranks(1, size)
        self.pipes = []
        with one_thread_environment(), ignored():
            for rank in ranks:
                ours, theirs = context.Pipe()
                process = context.Process(target=_obey, args=(theirs, os.getpid(), rank))
                process.start()
                self.pipes.append(ours)
                self.callback(process.join)
                self.callback(process.kill)

    def run(self, size: int, call: Callable[..., Any], *arguments: Any) -> list[Any]:
        """The results of `call(team, *arguments)` on the first `size` processes, which form the team."""
        for pipe in self.pipes:
            pipe.send((size, call, arguments))
        answers = [pipe.recv() for pipe in self.pipes]
        for answer in answers:
            assert not (isinstance(answer, str) and "Traceback" in answer), answer
        return answers[:size]
