"""Study folders: the question on file, what may extend it, the records of runs, checkpoints, compaction."""

import datetime
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from analysis import older
from analysis.counting import RECORDED, all_runs, launch_limit
from study.records import ARITHMETICS, Curve, Search, Study
from study.store import atomic
from study.store.atomic import StoreError
from study.store.claims import STALE, WHOLE, Held, Shard, claimed
from study.store.curves import COMPACTED, load, write_curves, write_table

FORMAT = 1
OF_ONE_SIZE = ("batch_size", "train_steps", "arithmetic")
"""What may differ between the batch sizes of one curve."""
EXTENDABLE = tuple(
    f"search.{name}" for name in ("trials", "max_launches", "extend", "extend_limit", "budgets", "repeats", "reruns")
)
"""Asking for more of these is the same question, taken further."""
SETTLED = ("micro_batch",)
"""Fixed when a study starts, by the memory there was; a later run keeps to it."""


def study_folder(results: Path, study: Study) -> Path:
    """Where one search of a study lives inside a results folder."""
    return results / "studies" / study.name / study.optimizer / str(study.batch_size) / study.branch.path


def check(results: Path, studies: Sequence[Study]) -> None:
    """Raise StoreError, before anything is written, if a folder cannot be written or holds another question (with the
    differences, old -> new)."""
    _check_writable(results)
    for study in studies:
        folder = study_folder(results, study)
        if not (folder / "study.json").exists() and any((folder / name).exists() for name in (COMPACTED, "trials")):
            raise StoreError(
                f"{folder} holds trials, but no study.json that says what they are of: restore it, or remove the "
                "folder to train them again."
            )
        # Studies of one workload and optimizer are one curve: they must ask the same at every batch size.
        held_beside = [folder / "study.json"] if study.branch.path else folder.parent.glob("*/study.json")
        for path in sorted(path for path in held_beside if path.exists()):
            held = read(path)["question"]
            asked = study.question()
            differing = differences(held, asked)
            if path.parent != folder:
                differing = {k: v for k, v in differing.items() if k not in OF_ONE_SIZE}
            differing = {key: pair for key, pair in differing.items() if key not in EXTENDABLE + SETTLED}
            cure = "choose another results=DIR"
            if "arithmetic" in differing and held.get("arithmetic") in ARITHMETICS:  # not removed, not imported
                cure = f"its engine= and engine.device= chose the arithmetic: give them again, or {cure}"
            _refuse(results, differing, cure)


def _check_writable(results: Path) -> None:
    # Not `Path.exists`, which raises in a folder that may not be entered.
    nearest = next(p for p in (results, *results.absolute().parents) if os.path.exists(p))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise StoreError(f"cannot write to {results}: {nearest} is not a writable folder; choose another results=DIR.")


def _refuse(results: Path, differing: Mapping[str, tuple[Any, Any]], cure: str) -> None:
    if differing:
        changed = ", ".join(f"{key}: {old} -> {new}" for key, (old, new) in differing.items())
        raise StoreError(f"{results} holds another question ({changed}); {cure}.")


def _imported_folder(results: Path, question: Mapping[str, Any]) -> Path:
    return results / "studies" / question["workload"]["name"] / question["optimizer"] / str(question["batch_size"])


def check_imported(results: Path, questions: Iterable[Mapping[str, Any]]) -> None:
    """`check` for imported studies, which differ in space and trials from batch size to batch size. `questions`: with
    at least those keys that are compared, and the batch size. Raises StoreError as `check` does."""
    _check_writable(results)
    compared = ("workload", "optimizer", "goal", "stopping")
    for question in questions:
        asked = {key: question[key] for key in compared}
        for path in sorted(_imported_folder(results, question).parent.glob("*/study.json")):
            held = {key: value for key, value in read(path)["question"].items() if key in compared}
            _refuse(results, differences(held, asked), "import into another folder, or read goals with report --goal")


def save_imported(
    results: Path,
    question: Mapping[str, Any],
    provenance: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
    columns: Mapping[str, np.ndarray],
) -> Path:
    """Write one study that was measured elsewhere, in place of what an earlier import of it wrote.

    Arguments:
        trials: a record for each, by index, with the keys of `save` and `status`.
        columns: `trial`, `step` and the metrics [all measurements], by trial and step.

    Raises:
        StoreError: the folder holds another question, is being worked on, or cannot be written.
    """
    folder = _imported_folder(results, question)
    with claimed(folder):
        check_imported(results, [question])
        # Readers look for the question: it comes last.
        atomic.replace(folder / COMPACTED, partial(write_table, columns, trials))
        held = {"format": FORMAT, "question": question, "provenance": [provenance]}
        atomic.replace(folder / "study.json", partial(_write_json, held))
    return folder


def held(results: Path, study: Study) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """(the question, the provenance of every run) of a search as it stands on file; None if it was never begun here."""
    path = study_folder(results, study) / "study.json"
    if not os.path.exists(path):
        return None
    found = read(path)
    return None if found["question"]["stopping"] == RECORDED else (found["question"], runs(path.parent))


def identity(results: Path) -> str:
    """What tells a results folder from others wherever it is seen from; made at the first call."""
    path = results / ".identity"
    with atomic.writing(path):
        results.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        atomic.create(path, lambda aside: aside.write_text(secrets.token_hex(8)))
    return path.read_text()


def announce(results: Path, study: Study) -> None:
    """Record the question of a search that is to come, so that a sweep's files say how far it is. If it is on file
    already, its question is extended, unless another process has claimed it and does so itself. Raises StoreError if
    the folder holds another question or cannot be written."""
    folder = _made(results, study)
    if _asks_for_more(folder, study):
        check(results, [study])
        with suppress(Held), claimed(folder):
            _ask(folder, study)


def _made(results: Path, study: Study) -> Path:
    """The folder of a search, with its question in it from the first call on."""
    folder = study_folder(results, study)
    path = folder / "study.json"
    if not path.exists():
        check(results, [study])
        with atomic.writing(path):
            folder.mkdir(parents=True, exist_ok=True)
        atomic.create(path, partial(_write_json, {"format": FORMAT, "question": study.question(), "provenance": []}))
    return folder


def open_study(results: Path, study: Study, provenance: Mapping[str, Any]) -> Path:
    """Make or reopen the study's folder and record this run in it; the caller has claimed a part of the study. Returns
    the run's own file, for `end_run`. Raises StoreError if the folder holds another question, or cannot be written."""
    folder = _made(results, study)
    check(results, [study])
    _ask(folder, study)
    for name in ("trials", "runs"):
        with atomic.writing(folder / name):
            (folder / name).mkdir(exist_ok=True)
    path = folder / "runs" / f"{secrets.token_hex(4)}.json"
    atomic.replace(path, partial(_write_json, {"run": path.stem, **provenance}))
    return path


def _as_asked(held: Mapping[str, Any], study: Study) -> dict[str, Any]:
    """The question of a search with the largest extent ever asked for."""
    return replace(study, search=most(study.search, held["search"])).question()


def _asks_for_more(folder: Path, study: Study) -> bool:
    held = read(folder / "study.json")["question"]
    return bool(differences(held, _as_asked(held, study)))


def _ask(folder: Path, study: Study) -> None:
    """Let the file of a search say how far it is asked for."""
    if _asks_for_more(folder, study):
        held = read(folder / "study.json")
        asked = held | {"question": _as_asked(held["question"], study)}
        atomic.replace(folder / "study.json", partial(_write_json, asked))


def end_run(path: Path, ended: Mapping[str, Any]) -> None:
    """Complete the record of a run."""
    atomic.replace(path, partial(_write_json, {**read(path), **ended}))


def runs(folder: Path) -> list[dict[str, Any]]:
    """The record of every run that worked on a search, by when it started."""
    apart = []
    for path in (folder / "runs").glob("[!.]*.json"):
        with suppress(FileNotFoundError):  # gathered meanwhile: what is read next holds it
            apart.append(json.loads(path.read_text()))
    return all_runs(read(folder / "study.json")["provenance"], apart)


def fingerprint(results: Path, workload: str) -> dict[str, float]:
    """The fingerprint of a workload when its first trials in this folder started; empty if none was recorded."""
    recorded = (run for path in (results / "studies" / workload).glob("*/*") for run in _runs_of(path))
    return next(filter(None, (older.run(run).get("fingerprint") for run in recorded)), {})


def _runs_of(folder: Path) -> list[dict[str, Any]]:
    return runs(folder) if (folder / "study.json").exists() else []


def most(search: Search, held: Mapping[str, Any]) -> Search:
    """A search with the largest extent ever asked for: asking for less takes nothing back."""
    trials = max(search.trials, held["trials"])
    launches = None
    if search.max_launches is not None or held["max_launches"] is not None:
        launches = max(search.launch_limit, launch_limit(held["trials"], held["max_launches"]), trials)
    counts = {name: max(getattr(search, name), held[name]) for name in ("extend", "extend_limit", "repeats", "reruns")}
    budgets = tuple(sorted({*search.budgets, *held["budgets"]}))
    return replace(search, trials=trials, max_launches=launches, budgets=budgets, **counts)


def gather(folder: Path) -> None:
    """Gather the files of a complete search, unless another process still works on it. Raises StoreError if something
    cannot be written; finished trials are safe."""
    with suppress(Held), claimed(folder):
        compact(folder)
        gathered = {**read(folder / "study.json"), "provenance": runs(folder)}
        atomic.replace(folder / "study.json", partial(_write_json, gathered))
        for name in ("runs", "checkpoints"):  # of trials that are not wanted any more
            shutil.rmtree(folder / name, ignore_errors=True)
        left = [path for part in (folder, folder / "trials") for path in part.glob(".*") if path.is_file()]
        for path in left:  # by processes that were killed
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > STALE:
                    path.unlink()


def save(folder: Path, curve: Curve, replaces: bool = False) -> bool:
    """Keep a finished trial, which needs its checkpoint no more; `replaces`: a file of this trial is there that does
    not count. Returns False if a process whose part was taken over had kept it meanwhile: this one is discarded. Raises
    StoreError if it cannot be written."""
    path = folder / "trials" / f"{curve.trial.index:06d}.parquet"
    put = atomic.replace if replaces else atomic.create
    kept = put(path, partial(write_curves, [curve])) is not False
    del Checkpoints(folder)[curve.trial.index]
    return kept


class Checkpoints(MutableMapping[int, bytes]):
    """Index of a trial of one shard -> its latest checkpoint, a file each that is read when it is asked for."""

    def __init__(self, folder: Path, shard: Shard = WHOLE) -> None:
        self.folder, self.shard = folder / "checkpoints", shard

    def _path(self, index: int) -> Path:
        return self.folder / f"{index:06d}.pt"

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and self._path(index).exists()

    def __getitem__(self, index: int) -> bytes:
        try:
            return self._path(index).read_bytes()
        except OSError as error:  # as good as none: the trial starts from step 0
            raise KeyError(index) from error

    def __setitem__(self, index: int, content: bytes) -> None:
        path = self._path(index)
        with atomic.writing(path):
            self.folder.mkdir(exist_ok=True)
        atomic.replace(path, lambda aside: aside.write_bytes(content))

    def __delitem__(self, index: int) -> None:
        with suppress(OSError):  # none of a finished trial is ever asked for
            self._path(index).unlink()

    def __iter__(self) -> Iterator[int]:
        indices = (int(path.stem) for path in sorted(self.folder.glob("*.pt")) if path.stem.isdecimal())
        return (index for index in indices if index in self.shard)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def compact(folder: Path) -> None:
    """Gather the trials in one file. Interrupted anywhere, each trial stays readable; one held twice is one trial."""
    curves = load(folder)
    if not curves or not any((folder / "trials").glob("*.parquet")):
        return
    atomic.replace(folder / COMPACTED, partial(write_curves, curves))
    for curve in curves:
        path = folder / "trials" / f"{curve.trial.index:06d}.parquet"
        with atomic.writing(path):
            path.unlink(missing_ok=True)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (old, new) wherever two questions differ; a key that one lacks counts as None there."""
    # Through JSON, so that tuples and lists or 1 and 1.0 do not differ for having been stored.
    flat_old, flat_new = _flatten(json.loads(json.dumps(old))), _flatten(json.loads(json.dumps(new)))
    pairs = {key: (flat_old.get(key), flat_new.get(key)) for key in sorted({*flat_old, *flat_new})}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    return {
        key: value
        for name, branch in tree.items()
        for key, value in _flatten(branch, f"{prefix}.{name}" if prefix else name).items()
    }


def read(path: Path) -> dict[str, Any]:
    """A study.json, its question in the names of this version, or the record of a run as it stands on file."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read {path}: {error}; restore or remove that study's folder.") from error
    return found | {"question": older.question(found["question"])} if "question" in found else found


def now() -> str:
    """The time, as records of runs hold it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _write_json(tree: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(tree, indent=1) + "\n")
