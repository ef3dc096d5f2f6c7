"""The points of a tuned run at which its gradient noise was measured: `noise/000123.json` for step 123."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from study.store import atomic

FOLDER = "noise"
"""In the folder of a study; `analysis.noise_scale.table` reads it."""


def points(study_folder: Path, checksum: str) -> dict[int, dict[str, Any]]:
    """Step -> record of each point that answers the question with this checksum."""
    held = [json.loads(path.read_text()) for path in sorted((study_folder / FOLDER).glob("[0-9]*.json"))]
    return {point["step"]: point for point in held if point["checksum"] == checksum}


def save_point(study_folder: Path, point: Mapping[str, Any]) -> None:
    """Write one point, and remove those that answer another question. Raises StoreError if it cannot be written."""
    folder = study_folder / FOLDER
    with atomic.writing(folder):
        folder.mkdir(exist_ok=True)
        for path in folder.glob("[0-9]*.json"):
            if json.loads(path.read_text())["checksum"] != point["checksum"]:
                path.unlink()
    path = folder / f"{point['step']:06d}.json"
    atomic.replace(path, lambda aside: aside.write_text(json.dumps(point) + "\n"))
