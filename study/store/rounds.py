"""The points of the stages of a search that proposes them in rounds: one file for each stage, written once."""

from pathlib import Path
from typing import Any

from study.store import atomic


def read_round(folder: Path, number: int) -> dict[str, Any] | None:
    """The points of stage `number` (from 1) and what they were derived from; None if they are not known yet.

    Raises:
        StoreError: the file cannot be read.
    """
    path = _path(folder, number)
    return atomic.read_json(path, "restore the file, or remove that study's folder") if path.exists() else None


def write_round(folder: Path, number: int, content: dict[str, Any]) -> None:
    """Write the points of a stage, unless another process did."""
    path = _path(folder, number)
    atomic.make_folder(path.parent)
    atomic.create(path, atomic.as_json(content))


def _path(folder: Path, number: int) -> Path:
    return folder / "rounds" / f"{number}.json"
