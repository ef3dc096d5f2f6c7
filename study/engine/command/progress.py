"""How far the command of a trial has come: a small file for `study status`, which also adds up interrupted runs."""

import json
import math
import os
import time
from contextlib import suppress
from pathlib import Path

from study.engine.command.log import MetricLog

BEAT = 5.0
"""Seconds between two writings; `analysis.tables.status.SILENCE` must be longer."""


class Progress:
    """The time that a trial has taken, and its latest metrics.

    Arguments:
        path: the file. If it is there, the trial goes on from its own checkpoint, and the seconds in it count.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._before = float(json.loads(path.read_text())["seconds"])
        except (OSError, ValueError, KeyError, TypeError):  # none, or the machine broke down while it was written
            self._before = 0.0
        self._start = self._moved = time.perf_counter()
        self._due = -math.inf

    @property
    def seconds(self) -> float:
        """Of all runs of the command."""
        return self._before + time.perf_counter() - self._start

    @property
    def silent(self) -> float:
        """Seconds since the last new line of metrics, or since the command began."""
        return time.perf_counter() - self._moved

    def moved(self) -> None:
        """There is a new line of metrics."""
        self._moved = time.perf_counter()

    def write(self, log: MetricLog, ended: bool = False) -> None:
        """Write the file if it is due, or the command `ended`. A disk that is full stops no trial here."""
        if time.perf_counter() < self._due and not ended:
            return
        last = next((row[log.metric] for row in reversed(log.rows.values()) if log.metric in row), None)
        content = {"seconds": self.seconds, "silent": self.silent, "step": log.last_step, "error": last}
        temporary = self.path.with_name(
            f".{self.path.name}"
        )  # readers see a complete file, and no other process writes it
        with suppress(OSError):
            temporary.write_text(json.dumps(content))
            os.replace(temporary, self.path)
        self._due = time.perf_counter() + BEAT
