"""Starts worker processes, some of them ahead of time: they import torch while the parent reads its configuration.

Imports neither torch nor anything else that is slow to import.
"""

from __future__ import annotations

import multiprocessing as mp
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from study import shadowing
from study.devices import signals
from study.devices.cores import cores

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Large tensors come from the heap and stay there: page faults on fresh mappings cost up to half the time.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
}
_HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""Requests huge pages, where the system offers them: a ResNet-8 step takes 5 to 30 % less time (docs/speed.md)."""


class Started(NamedTuple):
    """A worker process that waits for its setting, and the parent's end of the pipe to it."""

    process: mp.process.BaseProcess
    pipe: Connection


_ahead: list[Started] = []
"""Processes started ahead of time that no pool has taken yet."""


def ahead(overrides: Sequence[str]) -> None:
    """Start as many processes as a sweep with these overrides most likely needs."""
    _ahead.extend(_new() for _ in range(_likely(overrides) - len(_ahead)))


def _likely(overrides: Sequence[str]) -> int:
    """The number of workers of a sweep, guessed before its configuration is composed."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return 1  # torchrun started the others
    given = dict(override.partition("=")[::2] for override in overrides)
    if given.get("cluster", "none") != "none":
        return 0
    if (asked := given.get("engine.workers", "")).isdecimal():
        return int(asked)
    gpus = [] if given.get("engine.device") == "cpu" else list(Path("/dev").glob("nvidia[0-9]*"))
    return len(gpus) or cores()


def worker() -> Started:
    """A process that waits for its setting: one started ahead, or a new one."""
    return _ahead.pop(0) if _ahead else _new()


def end_unused() -> None:
    """End the processes started ahead that no pool has taken."""
    while _ahead:
        unused = _ahead.pop()
        unused.process.kill()
        unused.process.join()
        unused.pipe.close()


def _new() -> Started:
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    # Not a daemon: a daemon may not start the processes that read streamed data. `die_with` ends orphans instead.
    process = context.Process(target=_begin, args=(theirs, os.getpid()))
    with one_thread_environment(), signals.ignored():
        process.start()
    theirs.close()
    return Started(process, ours)


def _begin(pipe: Connection, parent: int) -> None:
    """Run a worker process from start to end."""
    signals.die_with(parent)
    from study.workers.process import work  # imports torch

    work(pipe)


@contextmanager
def one_thread_environment() -> Iterator[None]:
    """Give processes started in this block one thread each, and memory settings that glibc reads at their start."""
    tunables = [*filter(None, [os.environ.get("GLIBC_TUNABLES")]), _HUGE_PAGES]
    with environment(_ENVIRONMENT | {"GLIBC_TUNABLES": ":".join(tunables)} | shadowing.environment()):
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
