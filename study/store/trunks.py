"""The trunks of branched measurements: runs whose checkpoints other batch sizes start from.

results/branched/<workload>/<optimizer>/<batch_size>-<checksum>/
    trunk.json                 the question of the run, and what is known of each checkpoint, its SHA-256 among it
    checkpoints/000123.pt      weights and optimizer state after step 123; may be deleted: it can be trained again
    linear-4096/               a results folder with the searches that start there (rule-window)
        request.json           what to report on: batch sizes, checkpoints, seeds, tolerance
        studies/<workload>/<optimizer>/<batch_size>/from-step-123/
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.question.branches import BRANCHED_FOLDER
from study.records import Study
from study.store import atomic


def trunk_folder(results: Path, study: Study, checksum: str) -> Path:
    """The folder of a trunk. `checksum`: of its question."""
    return results / BRANCHED_FOLDER / study.name / study.optimizer / f"{study.batch_size}-{checksum[:8]}"


def checkpoints(folder: Path) -> dict[int, dict[str, Any]]:
    """Step -> the record of each checkpoint of a trunk. Raises StoreError if the file cannot be read."""
    path = folder / "trunk.json"
    trunk = atomic.read_json(path, "remove it, and the trunk is trained again") if path.exists() else {}
    return {int(step): record for step, record in trunk.get("checkpoints", {}).items()}


def save_checkpoint(folder: Path, question: Mapping[str, Any], record: Mapping[str, Any], content: bytes) -> None:
    """Write a checkpoint of a trunk, and then its record, which has a `step`.

    Raises:
        StoreError: it cannot be written.
    """
    path = checkpoint_file(folder, record["step"])
    atomic.make_folder(path.parent)
    atomic.replace(path, lambda aside: aside.write_bytes(content))
    known = checkpoints(folder) | {record["step"]: record}
    trunk = {"question": question, "checkpoints": dict(sorted(known.items()))}
    atomic.replace(folder / "trunk.json", atomic.as_json(trunk))


def checkpoint_file(folder: Path, step: int) -> Path:
    """The file of a checkpoint of a trunk."""
    return folder / "checkpoints" / f"{step:06d}.pt"


def start_file(results: Path, study: Study) -> Path | None:
    """The file of the checkpoint that the trials of a search in the folder of a branch start from; None for others."""
    return checkpoint_file(results.parent, study.start.step) if study.start else None


def save_request(folder: Path, request: Mapping[str, Any]) -> None:
    """Write what to report on. Raises StoreError if it cannot be written."""
    atomic.make_folder(folder)
    atomic.replace(folder / "request.json", atomic.as_json(request))
