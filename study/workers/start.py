"""Starts worker processes. On Linux a server imports torch once, ahead of time, and every worker is a fork of it.

Imports neither torch nor anything else that is slow to import.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import NamedTuple

from study import shadowing
from study.devices import signals

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Large tensors come from the heap and stay there: page faults on fresh mappings cost up to half the time.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
}
_HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""Requests huge pages, where the system offers them: a ResNet-8 step takes 5 to 30 % less time (docs/speed.md)."""
_FREED = "ignore:resource_tracker"
"""Lets Python's tracker free without a word the semaphores of libraries in workers that are killed, such as tqdm's."""
_FORKS = sys.platform == "linux"
"""Elsewhere each worker imports for itself: Apple's libraries do not survive a fork."""
SERVER_DIED = 255
"""The exit code that Python gives to the workers of a server that died before it could tell theirs."""


class Started(NamedTuple):
    """A worker process that waits for its setting, and the parent's end of the pipe to it."""

    process: mp.process.BaseProcess
    pipe: Connection


def ahead() -> None:
    """Start the server that workers are forks of, which takes as long as torch's import; returns at once.

    It ends with this process. It touches no GPU, which a fork could not use.
    """
    if _FORKS:
        mp.set_forkserver_preload(["study.workers.preload"])
        with one_thread_environment(), signals.ignored():
            forkserver.ensure_running()


def worker() -> Started:
    """Start a process that waits for its setting."""
    ahead()
    context = mp.get_context("forkserver") if _FORKS else mp.get_context("spawn")
    ours, theirs = context.Pipe()
    with one_thread_environment(), signals.ignored():
        # Not a daemon: a daemon may not start the processes that read streamed data. `die_with_pool` ends orphans.
        process = context.Process(target=_begin, args=(theirs, dict(os.environ)))
        process.start()
    theirs.close()
    return Started(process, ours)


def _begin(pipe: Connection, variables: Mapping[str, str]) -> None:
    """Run a worker process from start to end.

    Arguments:
        variables: the parent's environment now; the server has that of its start.
    """
    signals.die_with_pool()
    os.environ.clear()
    os.environ.update(variables)
    from study.workers.process import work  # imports torch

    work(pipe)


@contextmanager
def one_thread_environment() -> Iterator[None]:
    """Give processes started in this block one thread each, and settings that glibc and Python read at their start."""
    tunables = [*filter(None, [os.environ.get("GLIBC_TUNABLES")]), _HUGE_PAGES]
    ignored = [*filter(None, [os.environ.get("PYTHONWARNINGS")]), _FREED]
    joined = {"GLIBC_TUNABLES": ":".join(tunables), "PYTHONWARNINGS": ",".join(ignored)}
    with environment(_ENVIRONMENT | joined | shadowing.environment()):
        yield


@contextmanager
def environment(ours: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables for processes started in this block."""
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
