"""The runs of studies that a sweep has opened and not ended well, so that the sweep that resumes it can end them.

A resumed sweep trains only the missing trials. It would never open the run of a study that was complete when the
earlier sweep was interrupted: that run would count as failed for ever.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any


def unfinished(folder: Path, tracker: str) -> dict[str, dict[str, Any]]:
    """Identity of each such run -> the arguments of its `About` but the folder."""
    path = _path(folder, tracker)
    return json.loads(path.read_text()) if path.exists() else {}


def add(folder: Path, tracker: str, about: dict[str, Any]) -> None:
    """Note that a run was opened; `about` has its identity."""
    _write(folder, tracker, {**unfinished(folder, tracker), about["identity"]: about})


def remove(folder: Path, tracker: str, identities: Collection[str]) -> None:
    """Note that these runs ended well."""
    held = unfinished(folder, tracker)
    _write(folder, tracker, {identity: about for identity, about in held.items() if identity not in identities})


def _path(folder: Path, tracker: str) -> Path:
    return folder / f"unfinished-{tracker}.json"


def _write(folder: Path, tracker: str, held: dict[str, dict[str, Any]]) -> None:
    path = _path(folder, tracker)
    if not held:
        path.unlink(missing_ok=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}")
    aside.write_text(json.dumps(held, indent=1))
    os.replace(aside, path)
