"""Published studies: how each was measured, and the rules that a study of the gallery keeps."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.claims.evidence import TABLES
from analysis.load import folders
from analysis.measurements import LoadError, files
from analysis.report.take import citation

SWEEP = "python -m study sweep"
MOST_BYTES = 40_000_000
"""The most bytes of a published study: a repository is fetched whole."""
FIGURES = ("steps_to_result.svg", "best_learning_rate.svg")
NEEDED = {"workload", "optimizer", "batch_size", "goal", "budget", "stopping", "search", "seeds", "train_steps"}
"""Members of a recorded question."""
OF_RUNS = {"command", "started", "ended", "processor", "versions", "seconds_training", "seconds_evaluation"}
"""Members of the record of a run."""


@dataclass(frozen=True)
class Published:
    """How a published study was measured.

    Attributes:
        folder: its results folder; the name of the folder names the study.
        commands: that trained it, the first first.
        seconds: of training and evaluation, over all processes.
        processes: the most that trained at a time.
        machines, versions: as text, each once.
        first, last: dates of the first and the last run.
        searches: their number, with those of fresh seeds.
        digest: SHA-256 of the measurements.
    """

    folder: Path
    commands: Sequence[str]
    seconds: float
    processes: int
    machines: Sequence[str]
    versions: Sequence[str]
    first: str
    last: str
    searches: int
    digest: str

    @property
    def name(self) -> str:
        return self.folder.name


def read(folder: Path) -> Published:
    """How the study in a results folder was measured, from its files.

    >>> found = read(Path(published))
    >>> found.name, found.searches, found.processes
    ('mlp_digits', 44, 2)
    """
    records = [json.loads((path / "study.json").read_text()) for path in folders(folder)]
    runs = [run for record in records for run in record["provenance"]]
    dates = sorted(str(run[end])[:10] for run in runs for end in ("started", "ended") if run.get(end))
    return Published(
        folder,
        list(dict.fromkeys(run["command"] for run in runs if run.get("command"))),
        sum(float(run.get("seconds_training") or 0) + float(run.get("seconds_evaluation") or 0) for run in runs),
        max((int(run.get("workers") or 1) for run in runs), default=1),
        list(dict.fromkeys(map(_machine, runs))),
        list(dict.fromkeys(map(_versions, runs))),
        *(dates[0], dates[-1]) if dates else ("", ""),
        len(records),
        citation.hash_on_disk(folder),
    )


def _machine(run: dict[str, Any]) -> str:
    device = run.get("gpu") or run.get("processor") or run.get("device") or "unknown"
    return f"{device} ({run.get('devices', 1)} x {run['device']})" if run.get("gpu") else str(device)


def _versions(run: dict[str, Any]) -> str:
    made = {"Python": run.get("python"), **run.get("versions", {})}
    commit = f"; commit {str(run['git_commit'])[:12]}" if run.get("git_commit") else ""
    return ", ".join(f"{name} {version}" for name, version in made.items() if version) + commit


def faults(folder: Path) -> list[str]:
    """What keeps a results folder from being published; empty if it keeps the rules of the gallery.

    The rules: files of the current format, each search complete, with its command, machine, versions and seconds on
    record; tables that were made of these measurements (by their SHA-256) and the figures of the page; no page, no
    trials apart, and no more than MOST_BYTES.

    >>> faults(Path("results/none"))
    ['results/none: there is no folder results/none; give the folder that `study sweep` wrote to.']
    """
    try:
        return [f"{folder}: {fault}" for fault in _faults(folder)]
    except LoadError as error:
        return [f"{folder}: {error}"]


def _faults(folder: Path) -> Iterator[str]:
    searches = folders(folder)
    if not folder.name.isidentifier() or folder.name != folder.name.lower():
        yield "name the folder in lower case, of letters, digits and underscores."
    for search in searches:
        yield from _faults_of_search(search, search.relative_to(folder).as_posix())
    missing = [f"tables/{name}.csv" for name in TABLES if not (folder / "tables" / f"{name}.csv").exists()]
    missing += [f"figures/{name}" for name in FIGURES[:1] if not (folder / "figures" / name).exists()]
    rebuild = f"run: python -m study report {folder}"
    if missing:
        yield f"{', '.join(missing)} missing; {rebuild}"
        return
    if citation.recorded(folder) != citation.hash_on_disk(folder):
        yield f"the tables were made of other measurements; {rebuild}"
    steps = pd.read_csv(folder / "tables/steps_to_result.csv")
    if (steps["incomplete"] > 0).any():
        yield "some searches are incomplete; the command of the sweep continues them."
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > MOST_BYTES:
        yield f"{size / 1e6:.0f} MB are more than {MOST_BYTES / 1e6:.0f} MB; leave out what `study report` makes again."


def _faults_of_search(search: Path, name: str) -> Iterator[str]:
    record = json.loads((search / "study.json").read_text())
    if record.get("format") != 1:
        yield f"{name}/study.json has format {record.get('format')!r}; this version publishes format 1."
    if lacking := NEEDED - set(record.get("question", {})):
        yield f"{name}/study.json lacks {', '.join(sorted(lacking))} in its question."
    runs = record.get("provenance", [])
    known = {key for key, value in runs[-1].items() if value is not None} if runs else set()
    if lacking := OF_RUNS - known:  # a run that was killed has no end on record, the last one has
        absent = ", ".join(sorted(lacking)) if runs else "any run"
        yield f"{name}/study.json lacks {absent} in its provenance; sweep again with the current version."
    elif not all(str(run.get("command")).startswith((SWEEP, "study.sweep")) for run in runs):
        yield f"{name}/study.json has no command of a sweep on record."
    if [path.name for path in files(search)] != ["curves.parquet"] or not (search / "curves.parquet").exists():
        yield f"{name} holds trials that are not gathered; the command of the sweep gathers them when it ends."
