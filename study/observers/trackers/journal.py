"""What a tracker was told of a results folder: the runs of studies that it opened and ended, and their trials.

A resumed sweep trains only the missing trials. With this file it also ends the runs that an earlier sweep left open,
and tells of each trial on file that the tracker missed, for example because the earlier sweep was killed before.

Each event is a line that is appended at once, so that several processes may write, and a kill loses at most one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Journal:
    """The file of one tracker in a results folder.

    Arguments:
        path: of the file, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, 0
        self._opened: dict[str, dict[str, Any]] = {}
        self._ended: set[str] = set()
        self._steps: dict[tuple[str, str], dict[int, int]] = {}
        """(identity of a run, name of a search) -> index of a trial -> its step."""
        self._read()

    def opened(self, about: Mapping[str, Any]) -> None:
        """Note that a run was opened; `about`: the arguments of its `About` but the folder."""
        self._append({"opened": about})

    def ended(self, identity: str) -> None:
        """Note that a run ended well."""
        self._append({"ended": identity})

    def unfinished(self, identity: str) -> dict[str, Any] | None:
        """The `about` of a run that was opened and has not ended well; else None."""
        return None if self.is_ended(identity) else self._opened.get(identity)

    def is_ended(self, identity: str) -> bool:
        """Whether a run ended well, and was not opened again."""
        return identity in self._ended

    def has(self, identity: str, search: str, trial: int) -> bool:
        """Whether the tracker was told of a trial."""
        self._read()  # another process may have told of it meanwhile
        return trial in self._steps.get((identity, search), {})

    def claim(self, identity: str, search: str, trial: int, position: int) -> int | None:
        """Note that the tracker is told of a trial now. Returns its step: its position in the order in which trials
        finished, or a later one if that was taken; None if the tracker was told of it before."""
        if self.has(identity, search, trial):
            return None
        step = max(position, 1 + max(self._steps.get((identity, search), {}).values(), default=0))
        self._append({"trial": trial, "of": [identity, search], "step": step})
        return step

    def _append(self, event: Mapping[str, Any]) -> None:
        line = f"\n{json.dumps(event)}".encode()  # a line that was cut short spoils no later one
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab", buffering=0) as file:
            file.write(line)
        self._read()

    def _read(self) -> None:
        """Read what was appended since the last time."""
        if not self._path.exists() or self._path.stat().st_size == self._size:
            return
        with self._path.open("rb") as file:
            file.seek(self._size)
            text = file.read()
        self._size += len(text)
        for line in text.splitlines():
            try:
                self._note(json.loads(line))
            except ValueError:  # empty, or cut short by a kill or a full disk
                continue

    def _note(self, event: Mapping[str, Any]) -> None:
        if "opened" in event:
            self._opened[event["opened"]["identity"]] = event["opened"]
            self._ended.discard(event["opened"]["identity"])
        elif "ended" in event:
            self._ended.add(event["ended"])
        else:
            identity, search = event["of"]
            self._steps.setdefault((identity, search), {})[event["trial"]] = event["step"]
