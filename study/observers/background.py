"""Runs an observer in a process of the lowest priority, so that it takes no time of workers and cannot hold them up.

python -m study.observers.background     reads a pickled observer, then events, from stdin; writes warnings
to stdout, and an empty line after each event
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from study import shadowing
from study.observers.base import Ended, Finished, Guarded, Observer, Search, State, Sweep, name_of

PATIENCE, LONGEST = 120.0, 600.0
"""Seconds that the end of a sweep waits for an observer: after the last event that it finished, and in all."""
LOWEST = 19


def process(module: str, *arguments: str, pipe: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start a module of this package with the lowest priority, one thread and no further processes of joblib.

    It is in a process group of its own, so that Ctrl-C does not reach it and `end` ends whatever it started.

    Arguments:
        pipe: its stdin and stdout; `subprocess.PIPE` for one that is written to and read.
    """
    alone = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "LOKY_MAX_CPU_COUNT")
    program = (
        f"import os, runpy, signal, sys; os.nice({LOWEST}); signal.signal(signal.SIGINT, signal.SIG_IGN); "
        f"sys.path.append({str(Path(__file__).resolve().parents[2])!r}); sys.argv[0] = {module!r}; "
        f"runpy.run_module({module!r}, run_name='__main__')"
    )
    return subprocess.Popen(
        [sys.executable, "-P", "-c", program, *arguments],
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.DEVNULL,
        env=os.environ | dict.fromkeys(alone, "1") | shadowing.environment(),
        process_group=0,  # not a session: Linux shares the cores out by session first, whatever the priority
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process of `process` and those that it started, unless it has ended."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Background(Observer):
    """Passes all events but ticks on to an observer in another process, of its own, so that one that hangs holds up no
    other. Starts it at the first event, and never waits for it before the end of the sweep.

    Arguments:
        observer: must be picklable.
        warn: shows a warning.
    """

    def __init__(self, observer: Observer, warn: Callable[[str], None]) -> None:
        self.name = f"the process of {name_of(observer)}"
        self._observer, self._warn = observer, warn
        self._events: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._threads: list[threading.Thread] = []
        self._moved = 0.0

    @property
    def has_left(self) -> bool:
        return self._observer.has_left

    def begin(self, sweep: Sweep) -> None:
        if self._process is None:
            self._process = process("study.observers.background", pipe=subprocess.PIPE)
            for work, pipe in ((self._send, self._process.stdin), (self._listen, self._process.stdout)):
                self._threads.append(threading.Thread(target=work, args=(pipe,), daemon=True))
                self._threads[-1].start()
            self._put(self._observer)
        self._put(("begin", sweep))

    def trial(self, search: Search, state: State, finished: Finished | None) -> None:
        self._put(("trial", search, state, finished))

    def report(self, ended: Ended) -> None:
        """Wait until the observer has everything. Raises TimeoutError if it takes too long."""
        if self._process is None:
            return
        self._put(("report", ended))
        self._events.put(None)
        with suppress(OSError):  # the workers are done; only a privileged user may raise a priority
            os.setpriority(os.PRIO_PROCESS, self._process.pid, os.nice(0))
        try:
            status = self._status()
        finally:
            end(self._process)
            for thread in self._threads:
                thread.join()
            self._process = None
        if status:
            raise RuntimeError(f"it ended with exit code {status}")

    def _status(self) -> int:
        """The exit status of the process. Waits for it as long as it finishes events."""
        assert self._process is not None
        ended = self._moved = time.monotonic()
        while (status := self._process.poll()) is None:
            if time.monotonic() > min(self._moved + PATIENCE, ended + LONGEST):
                raise TimeoutError(f"it had not finished {time.monotonic() - ended:.0f} s after the sweep")
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)
        return status

    def _put(self, event: object) -> None:
        self._events.put(pickle.dumps(event))

    def _send(self, pipe: IO[bytes]) -> None:
        """A thread of its own, because a pipe that is full blocks."""
        with suppress(OSError), pipe:  # an error: the process ended, and `report` says so
            while (event := self._events.get()) is not None:
                pipe.write(event)
                pipe.flush()

    def _listen(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                self._moved = time.monotonic()
                if text := line.decode(errors="replace").rstrip():
                    self._warn(text)


def main() -> None:
    """Run the observer until stdin ends; if the sweep ended without a word, because it was killed, it is interrupted.

    Packages that print do not reach the pipe of the warnings.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def warn(text: str) -> None:
        with suppress(OSError):
            answers.write(f"{text}\n")

    events: Mapping[str, Callable[..., None]] | None = None
    ended = False
    try:
        while True:
            event = pickle.load(sys.stdin.buffer)
            if events is None:
                guarded = Guarded([event], warn)
                events = {name: getattr(guarded, name) for name in ("begin", "trial", "report")}
            else:
                events[event[0]](*event[1:])
                ended = event[0] == "report"
            with suppress(OSError):  # the sweep was killed, and events are left
                answers.write("\n")  # a sign of life
    except EOFError:
        pass
    finally:
        if events is not None and not ended:
            events["report"](Ended((), interrupted=True))


if __name__ == "__main__":
    main()
