"""The points of a tuned run at which its gradients were measured: `noise/000123.json` for step 123.

The folder `noise` holds the gradient noise, `one_step` the loss after one step, each in the folder of a study.
`analysis.noise_scale.table` and `analysis.one_step.table` read them.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from study.store import atomic


def points(folder: Path, checksum: str) -> dict[int, dict[str, Any]]:
    """Step -> record of each point that answers the question with this checksum."""
    held = [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]*.json"))]
    return {point["step"]: point for point in held if point["checksum"] == checksum}


def save_point(folder: Path, point: Mapping[str, Any]) -> None:
    """Write one point, and remove those that answer another question. Raises StoreError if it cannot be written."""
    atomic.make_folder(folder, parents=False)
    with atomic.writing(folder):
        for path in folder.glob("[0-9]*.json"):
            if json.loads(path.read_text())["checksum"] != point["checksum"]:
                path.unlink()
    path = folder / f"{point['step']:06d}.json"
    atomic.replace(path, lambda aside: aside.write_text(json.dumps(point) + "\n"))
