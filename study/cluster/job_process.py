"""One job where a launcher put it: a process that trains it, its log and its exit status beside the results.

The launcher's own process only waits for that one. So it is small; what kills a training, such as the want of memory,
leaves the launcher to start the next; and every launcher's jobs leave the same files:

    results/.cluster/<workload>-<optimizer>-<batch size>-<shard>.log     what the training says
    results/.cluster/<workload>-<optimizer>-<batch size>-<shard>.exit    its exit status, once it has ended
"""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from study.devices.signals import die_with

FOLDER = ".cluster"
"""Of what launchers write, below a results folder."""
_TRAINING = """
import os, sys
sys.path += [{ours!r}, os.getcwd()]
from study.cluster.job_process import main
main()
"""
TRAINING = [sys.executable, "-P", "-u", "-c", _TRAINING.format(ours=str(Path(__file__).resolve().parents[2]))]
"""The process that trains. It looks for modules in the current folder last, as `study.shadowing` has it."""


@dataclass(frozen=True)
class Task:
    """A job as it travels: `what` is a pickled (Job, config_dir, command), read only by the process that trains it.

    Attributes:
        parent: the process on this machine that must live for it to go on; None: the launcher sees to that.
        gpus: file -> what CUDA_VISIBLE_DEVICES is for the task that has locked it; a file for each of as many as run
            together, or none: all see what there is.
    """

    log: Path
    what: bytes
    parent: int | None = None
    gpus: Mapping[Path, str] = field(default_factory=dict)


def run(tasks: Sequence[Task], config: Any) -> int:
    """Train the task numbered `config.job`; returns its exit status. Called by a launcher."""
    task = tasks[config.job]
    if task.parent not in (None, os.getpid()):  # joblib starts no process for a single one
        die_with(task.parent)
    status_file(task.log).unlink(missing_ok=True)  # of an earlier run, if this one was queued again
    task.log.parent.mkdir(parents=True, exist_ok=True)
    with task.log.open("ab") as log, _free(task.gpus, config.job) as gpus:  # after what it said if it was queued again
        process = subprocess.Popen(
            TRAINING,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ if gpus is None else os.environ | {"CUDA_VISIBLE_DEVICES": gpus},
            start_new_session=True,  # for a Ctrl-C is its parent's to handle
        )
        try:
            process.communicate(task.what)
        finally:
            process.kill()
            process.wait()
    status_file(task.log).write_text(f"{process.returncode}\n")
    return process.returncode


@contextmanager
def _free(gpus: Mapping[Path, str], number: int) -> Iterator[str | None]:
    """Those that no other task has, since some take much longer than others; None: there is no choice.

    Where tasks of another command hold them all, or files cannot be locked, they are taken in turn.

    Arguments:
        number: of the task.
    """
    turn = number % max(1, len(gpus))
    files = [*[*gpus][turn:], *[*gpus][:turn]]
    with ExitStack() as held:
        free = (path for path in files if _lock(held.enter_context(path.open("w"))))
        yield gpus[next(free, files[0])] if gpus else None


def _lock(file: TextIO) -> bool:
    """Whether nobody else holds this file from now on, as far as can be told."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


def status_file(log: Path) -> Path:
    """Where the exit status stands beside a log."""
    return log.with_suffix(".exit")


def status(log: Path) -> int | None:
    """The exit status of the job with this log; None until it has ended, and if it was killed with its launcher's."""
    try:
        return int(status_file(log).read_text())
    except (OSError, ValueError):
        return None


def main() -> None:
    """Train the job on stdin as far as it is not done."""
    # SLURM warns all processes of a job that is out of time; the launcher's own knows what to do.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    die_with(os.getppid())
    job, config_dir, command = pickle.load(sys.stdin.buffer)

    from rich.console import Console

    from study import whole_sweep
    from study.errors import Failed, Refused
    from workloads.base import importable

    try:
        importable(config_dir)
        if missing := whole_sweep.missing(whole_sweep.ready([job])):
            whole_sweep.train(missing, config_dir, command, Console(width=120))
    except (Refused, Failed) as error:
        sys.exit(f"study: {error}")
