"""A command that runs as a process. Neither it nor what it starts outlives the worker."""

import os
import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from study.errors import Failed

GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL."""
GUARD = "trap '' INT TERM HUP; read _; kill -KILL 0"
"""A shell that leads the process group of the command. Its input is a pipe that only the worker holds: when the worker
dies, however it dies, the shell kills its group, itself included."""
LAST_LINES, LAST_CHARACTERS = 20, 2000
"""What is kept of the output of a command."""


class Process:
    """A running command. Leaving the block kills what is left of its process group.

    Arguments:
        output: the file that gets what the command prints.

    Raises:
        Failed: it cannot be started.
    """

    def __init__(self, words: Sequence[str], output: Path, environment: Mapping[str, str]) -> None:
        self.words, self.output = words, output
        self._guard = subprocess.Popen(["/bin/sh", "-c", GUARD], stdin=subprocess.PIPE, process_group=0)
        try:
            with output.open("ab") as file:
                # The path of a program is looked up in the PATH of this environment.
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                    process_group=self._guard.pid,
                )
        except OSError as error:
            self._end()
            raise Failed(f"workload.command cannot be started: {error}.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._process.wait()

    def _end(self) -> None:
        with suppress(ProcessLookupError, PermissionError):  # the guard is gone; so is its group, or it is another's
            os.killpg(self._guard.pid, signal.SIGKILL)
        self._guard.communicate()

    def poll(self) -> int | None:
        """The exit status; None while it runs. Below 0: the number of the signal that ended it."""
        return self._process.poll()

    def stop(self) -> int:
        """Ask the command to end with SIGTERM, after GRACE seconds with SIGKILL; returns its exit status."""
        os.killpg(self._guard.pid, signal.SIGTERM)  # the guard ignores it
        try:
            return self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def last_output(self) -> str:
        """The last lines of what the command printed."""
        with self.output.open(errors="replace") as file:
            return "".join(deque(file, LAST_LINES)).strip()[-LAST_CHARACTERS:]
