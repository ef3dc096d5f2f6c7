"""Starts worker processes. On Linux a server imports torch once, ahead of time, and every worker is a fork of it.

Imports neither torch nor anything else that is slow to import.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
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
    "PYTHONFAULTHANDLER": "1",  # a crash in compiled code shows the line that called it
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
        with one_thread_environment(), signals.ignored(), _kept_method():
            forkserver.ensure_running()


def worker() -> Started:
    """Start a process that waits for its setting."""
    ahead()
    context = mp.get_context("forkserver") if _FORKS else mp.get_context("spawn")
    ours, theirs = context.Pipe()
    with one_thread_environment(), signals.ignored(), _kept_method():
        # Not a daemon: a daemon may not start the processes that read streamed data. `die_with_pool` ends orphans.
        process = context.Process(target=_begin, args=(theirs, dict(os.environ)))
        process.start()
    theirs.close()
    return Started(process, ours)


@contextmanager
def _kept_method() -> Iterator[None]:
    """Keep the start method of processes, which Python sets when it starts any: later a user's code could not set
    it."""
    method = mp.get_start_method(allow_none=True)
    try:
        yield
    finally:
        mp.set_start_method(method, force=True)


def _begin(pipe: Connection, variables: Mapping[str, str]) -> None:
    """Run a worker process from start to end.

    Arguments:
        variables: the parent's environment now; the server has that of its start.
    """
    mp.set_start_method(None, force=True)  # a user's code may set it at its import, as it did in the parent
    signals.die_with_pool()
    os.environ.clear()
    os.environ.update(variables)
    from study.user_code import faults
    from study.workers.process import work  # imports torch

    faults.guard_process()
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


def death(code: int | None) -> str:
    """What the exit code of a worker that sent no error says about its end, with the cure where there is one."""
    if code == -signal.SIGKILL:
        return f"a worker process died (exit code {code}), most likely because memory ran out; try engine.workers=1"
    if code == SERVER_DIED:
        return "the process that starts workers died, most likely because memory ran out; try engine.workers=1"
    if code is None or code < 0:
        name = f" by {signal.Signals(-code).name}" if code else ""
        return f"a worker process died (exit code {code}){name}, in compiled code; its last output is above"
    hidden = shadowing.hidden_modules()
    cure = f"; {hidden[0]} has the name of a module of Python: rename it" if hidden else ""
    return (
        f"a worker process ended (exit code {code}) without saying why: it could not start, or its code called "
        f"os._exit(); its last output is above{cure}"
    )
