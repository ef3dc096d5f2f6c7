"""The points of the stages of a search that proposes them in rounds: one file for each stage, written once."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from study.store import atomic
from study.store.atomic import StoreError


def read_round(folder: Path, number: int) -> dict[str, Any] | None:
    """The points of stage `number` (from 1) and what they were derived from; None if they are not known yet.

    Raises:
        StoreError: the file cannot be read.
    """
    path = _path(folder, number)
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read {path}: {error}; restore the file, or remove that study's folder.") from error


def write_round(folder: Path, number: int, content: dict[str, Any]) -> None:
    """Write the points of a stage, unless another process did."""
    path = _path(folder, number)
    with atomic.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    atomic.create(path, partial(_write, content))


def _write(content: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def _path(folder: Path, number: int) -> Path:
    return folder / "rounds" / f"{number}.json"
