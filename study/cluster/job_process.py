"""Runs one job on the machine where a launcher put it: the training process, its log and its exit status.

The launcher's own process only waits for the training process. So it stays small, and it survives errors that kill the
training, such as memory running out, and starts the next job. All launchers leave the same files:

    results/.cluster/<workload>-<optimizer>-<batch size>-<shard>.log     output of the training
    results/.cluster/<workload>-<optimizer>-<batch size>-<shard>.exit    its exit status, once it has ended

The name has no batch size if the batch sizes share a model, because one job then trains them all.
"""

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
from study.user_code.compilers import uncompiled

FOLDER = ".cluster"
"""Folder in a results folder for the files of jobs."""
_TRAINING = """
import os, sys
sys.path += [{ours!r}, os.getcwd()]
from study.cluster.job_process import main
main()
"""
TRAINING = [sys.executable, "-P", "-u", "-c", _TRAINING.format(ours=str(Path(__file__).resolve().parents[2]))]
"""The command of the process that trains; like `study.shadowing`, it looks for modules in the current folder last."""


@dataclass(frozen=True)
class Task:
    """A job on its way to another process.

    Attributes:
        content: a pickled (list of Job, config_dir, command); only the training process unpickles it.
        parent: id of a process on the same machine; the task ends when it dies. None: the launcher ends the task.
        gpus: lock file -> CUDA_VISIBLE_DEVICES of the task that holds the lock, one for each concurrent task; empty:
            every task sees all GPUs.
    """

    log: Path
    content: bytes
    parent: int | None = None
    gpus: Mapping[Path, str] = field(default_factory=dict)


def run(tasks: Sequence[Task], config: Any) -> int:
    """Train the task numbered `config.job`; returns its exit status. Called by a launcher."""
    task = tasks[config.job]
    if task.parent not in (None, os.getpid()):  # joblib runs a single task in the parent itself
        die_with(task.parent)
    status_file(task.log).unlink(missing_ok=True)  # an earlier run may have left it, if the task was queued again
    task.log.parent.mkdir(parents=True, exist_ok=True)
    with task.log.open("ab") as log, _free(task.gpus, config.job) as gpus:  # append to the log of that run
        process = subprocess.Popen(
            TRAINING,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ if gpus is None else os.environ | {"CUDA_VISIBLE_DEVICES": gpus},
            start_new_session=True,  # so that Ctrl-C reaches the parent only
        )
        try:
            process.communicate(task.content)
        finally:
            process.kill()
            process.wait()
    status_file(task.log).write_text(f"{process.returncode}\n")
    return process.returncode


@contextmanager
def _free(gpus: Mapping[Path, str], number: int) -> Iterator[str | None]:
    """GPUs that no other task holds; None: the task sees all GPUs.

    Locks, not turns, assign GPUs, because some tasks take much longer than others. If tasks of another command hold all
    GPUs, or files cannot be locked, task `number` takes entry `number`, modulo their count.
    """
    turn = number % max(1, len(gpus))
    files = [*[*gpus][turn:], *[*gpus][:turn]]
    with ExitStack() as held:
        free = (path for path in files if _lock(held.enter_context(path.open("w"))))
        yield gpus[next(free, files[0])] if gpus else None


def _lock(file: TextIO) -> bool:
    """Lock a file; False if another process holds it. On file systems without locks every process succeeds."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


def status_file(log: Path) -> Path:
    """The file with the exit status, beside the log."""
    return log.with_suffix(".exit")


def status(log: Path) -> int | None:
    """The exit status of the job with this log; None if it has not ended, or was killed together with its launcher."""
    try:
        return int(status_file(log).read_text())
    except (OSError, ValueError):
        return None


@uncompiled()
def main() -> None:
    """Read the studies of a job from stdin and train their missing trials."""
    # SLURM signals all processes of a job that runs out of time; only the launcher's process handles it.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    die_with(os.getppid())
    jobs, config_dir, command = pickle.load(sys.stdin.buffer)

    from rich.console import Console

    from study import whole_sweep
    from study.errors import Failed, Refused
    from workloads.user_code.importing import importable

    try:
        importable(config_dir)
        if missing := whole_sweep.missing(whole_sweep.settled(jobs)):
            console, waits = Console(width=120, highlight=False), not missing[0].in_waves
            whole_sweep.train(missing, config_dir, command, console, waits=waits)
    except (Refused, Failed) as error:
        sys.exit(f"study: {error}")
