"""Folders of prepared data in the cache: written beside their place, then renamed, and verified by their manifest.

Other processes see all of such a folder or nothing. Its `manifest.json` holds the checksum of each file.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

REHASHED_BYTES = 2**28
"""A larger file is verified only if its size or its time of change differs from that when it was written."""

Fill = Callable[[Path], Mapping[str, Any]]
"""Writes the files into an empty folder; what it returns is recorded in the manifest."""


def prepare(place: Path, fill: Fill) -> None:
    """Write a folder, unless it is there as it was written. A damaged one is replaced."""
    if is_intact(place):
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".") as scratch:
        aside = Path(scratch) / place.name
        aside.mkdir()
        facts = fill(aside)
        files = {path.name: _facts(path) | {"sha256": _sha256(path)} for path in sorted(aside.iterdir())}
        (aside / "manifest.json").write_text(json.dumps({**facts, "files": files}, indent=2) + "\n")
        _replace(place, aside)


def is_intact(place: Path) -> bool:
    """Whether a folder is there with the content that its manifest records."""
    try:
        manifest = json.loads((place / "manifest.json").read_text())
        return all(_is_as_written(place / name, expected) for name, expected in manifest["files"].items())
    except (OSError, ValueError, KeyError):
        return False


def _replace(place: Path, aside: Path) -> None:
    """Move a finished folder to its place, unless another process was first; a damaged one makes way."""
    if place.exists() and not is_intact(place):
        os.rename(place, aside.with_name("damaged"))
    try:
        os.rename(aside, place)
    except OSError:
        if not is_intact(place):
            raise


def _is_as_written(path: Path, expected: dict[str, Any]) -> bool:
    facts = _facts(path)
    if facts["size"] != expected["size"]:
        return False
    unchanged = facts["changed"] == expected["changed"] and facts["size"] > REHASHED_BYTES
    return unchanged or _sha256(path) == expected["sha256"]


def _facts(path: Path) -> dict[str, int]:
    stat = path.stat()
    return {"size": stat.st_size, "changed": stat.st_mtime_ns}


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
