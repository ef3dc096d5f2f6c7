"""Rewrites the report while a sweep runs, in a process of the lowest priority, and says that it is unfinished.

python -m study.observers.live_page RESULTS ...     write the unfinished reports of these folders now
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from analysis.question.searches import holding
from study.observers.background import end, process
from study.observers.base import Finished, Observer, Search, State, Sweep

SECONDS = 30
"""The shortest time between two starts; also how often a browser loads the page again."""
SHARE = 2.0
"""At least this many times the duration of the last writing lies between two starts."""


class LivePage(Observer):
    """Rewrites the report of each results folder that has a new trial, one writing at a time.

    As a context manager: ends a writing that is under way. After an error the pages say that the sweep stopped.
    """

    name = "the live report"

    def __init__(self, results: Sequence[Path]) -> None:
        self._results = list(dict.fromkeys(results))
        self._shown: dict[Path, float] = {}
        """Results folder -> the time of the newest trial on its page."""
        self._process: subprocess.Popen[bytes] | None = None
        self._started = time.monotonic()
        self._next = self._started + SECONDS

    def __enter__(self) -> LivePage:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._process is not None:
            end(self._process)  # files appear whole or not at all
            killed, self._process = self._process.pid, None
            for folder in self._results:  # the process was killed in the middle of a file
                for path in [*folder.glob(f".*.{killed}.*"), *folder.glob(f"*/.*.{killed}.*")]:
                    path.unlink(missing_ok=True)
        if kind is not None:
            from analysis.report import unfinished

            for folder in self._shown:
                unfinished.settle(folder / "report.html")

    def begin(self, sweep: Sweep) -> None:
        self.look()

    def tick(self, search: Search, steps: Mapping[int, int]) -> None:
        self.look()

    def trial(self, search: Search, state: State, finished: Finished | None) -> None:
        self.look()

    def look(self) -> None:
        """Start writing if it is time to, and a trial finished since the last writing."""
        now = time.monotonic()
        if self._process is not None and self._process.poll() is not None:
            self._process = None
            self._next = max(self._started + SECONDS, now + SHARE * (now - self._started))
        if self._process is not None or now < self._next:
            return
        self._next = now + SECONDS
        newest = {folder: newest_trial(folder) for folder in self._results}
        if due := [folder for folder, newest in newest.items() if newest > self._shown.get(folder, 0.0)]:
            self._started, self._shown = now, self._shown | newest
            self._process = process("study.observers.live_page", *map(str, due))


def newest_trial(results: Path) -> float:
    """When the latest trial came to a results folder, in seconds since the epoch; 0 if there is none."""
    folders = holding(results / "studies", "study.json")
    found = [folder / name for name in ("trials", "curves.parquet") for folder in folders]
    times = []
    for path in found:
        with suppress(FileNotFoundError):  # it has none, or is gathered meanwhile
            times.append(path.stat().st_mtime)
    return max(times, default=0.0)


def main(results: Sequence[str]) -> None:
    """Write the unfinished report of each folder; a folder whose files cannot be read yet is left out."""
    from analysis.errors import Refused
    from analysis.figures import USUAL
    from analysis.report.build import Asked, build

    for folder in results:
        try:
            build([folder], folder, Asked(files=USUAL, refresh=SECONDS))
        except Refused:
            continue


if __name__ == "__main__":
    main(sys.argv[1:])
