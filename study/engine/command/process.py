"""A command that runs as a process. Neither it nor what it starts outlives the worker."""

import os
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from study.errors import Failed

GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL."""
MARK = "BATCH_SIZE_STUDY_TRIAL"
"""How the name of a variable begins that the environment of a command has, and that of all that it starts."""
FIND = """grep -lzs "^$0=" /proc/[0-9]*/environ | grep -o '[0-9]*'"""
GUARD = f"""trap '' INT TERM HUP; read _
for round in 1 2 3; do for each in $({FIND}); do kill -KILL $each; done; done
kill -KILL 0"""
"""A shell that leads the process group of the command. Its input is a pipe that only the worker holds: when the worker
ends the trial or dies, however it dies, the shell kills all processes with the variable $0, also those that left the
group, and then its group, itself included. They may start others meanwhile, so it looks again. Systems without /proc
have the group alone."""
LAST_LINES, LAST_CHARACTERS, LAST_BYTES = 20, 2000, 2**16
"""What is kept of the output of a command, and where it is looked for: behind the progress bars of hours."""


class Process:
    """A running command. Leaving the block kills what is left of it and of what it started.

    Arguments:
        output: the file that gets what the command prints.
        held: file descriptor of a pipe that stays open until the guard has ended, also if this process is killed: the
            process at its other end then knows that the command writes no more.

    Raises:
        Failed: it cannot be started.
    """

    def __init__(
        self, words: Sequence[str], output: Path, environment: Mapping[str, str], held: int | None = None
    ) -> None:
        self.words, self.output = words, output
        mark = f"{MARK}_{secrets.token_hex(8)}"
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, mark],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,
            pass_fds=() if held is None else (held,),
        )
        try:
            with output.open("ab") as file:
                self._start = file.tell()
                # The path of a program is looked up in the PATH of this environment.
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env={**environment, mark: "1"},
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
        try:
            self._guard.communicate(timeout=GRACE)  # closes its input
        except subprocess.TimeoutExpired:  # the command stopped its group
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
        with self.output.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._start, size - LAST_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-LAST_LINES:]).strip()[-LAST_CHARACTERS:]
