"""Study folders: the recorded question, records of runs, checkpoints, compaction."""

import datetime
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from analysis.counting import RECORDED, all_runs
from analysis.question import older, searches
from study.records import Curve, Study
from study.store import atomic
from study.store.atomic import StoreError
from study.store.checkpoints import Checkpoints
from study.store.claims import STALE, Held, busy, claimed
from study.store.curves import COMPACTED, begun, load, write_curves, write_table
from study.store.questions import SETTLED, cure_of, differences, extended, told, unlike

FORMAT = 1


def _curve_folder(results: Path, study: Study) -> Path:
    return results / "studies" / study.name / study.series


def study_folder(results: Path, study: Study) -> Path:
    """The folder of one search of a study inside a results folder."""
    return _curve_folder(results, study) / str(study.batch_size) / study.branch.path


def check(results: Path, studies: Sequence[Study]) -> None:
    """Check that a results folder can take these studies; writes nothing.

    Raises:
        StoreError: the folder cannot be written, or holds another question; the message lists the differences.
    """
    _check_writable(results)
    for study in studies:
        folder = study_folder(results, study)
        if not (folder / "study.json").exists() and any((folder / name).exists() for name in (COMPACTED, "trials")):
            raise StoreError(
                f"{folder} holds trials, but study.json, which records their configuration, is missing: restore it, "
                "or remove the folder to train the trials again."
            )
        # Results are compared across batch sizes: the batch sizes of one workload and optimizer share all other keys.
        paths = [folder / "study.json"] if study.branch.path else folder.parent.glob("*/study.json")
        for path in sorted(filter(Path.exists, paths)):
            on_file = read(path)["question"]
            wanted = study.question()
            differing = unlike(on_file, wanted, same_size=path.parent == folder)
            if "arithmetic" in differing and not runs(path.parent):
                del differing["arithmetic"]  # the first run decides it
            if differing:
                _refuse(results, told(differing, on_file, wanted), cure_of(results, differing, on_file, wanted))


def _check_writable(results: Path) -> None:
    # Not `Path.exists`, which raises if permissions forbid entering the folder.
    nearest = next(p for p in (results, *results.absolute().parents) if os.path.exists(p))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise StoreError(f"cannot write to {results}: {nearest} is not a writable folder; choose another results=DIR.")


def _refuse(results: Path, changed: str, cure: str) -> NoReturn:
    raise StoreError(f"{results} holds another question ({changed}); {cure}.")


def _imported_folder(results: Path, question: Mapping[str, Any]) -> Path:
    return results / "studies" / question["workload"]["name"] / question["optimizer"] / str(question["batch_size"])


def check_imported(results: Path, questions: Iterable[Mapping[str, Any]]) -> None:
    """`check` for imported studies, whose search space and trials may differ between batch sizes.

    Arguments:
        questions: one mapping per study, with at least `batch_size` and the keys in `compared` below.

    Raises:
        StoreError: the folder cannot be written, or holds another question.
    """
    _check_writable(results)
    compared = ("workload", "optimizer", "goal", "stopping")
    for question in questions:
        asked = {key: question[key] for key in compared}
        for path in sorted(_imported_folder(results, question).parent.glob("*/study.json")):
            on_file = {key: value for key, value in read(path)["question"].items() if key in compared}
            if differing := differences(on_file, asked):
                cure = "import into another folder, or read goals with report --goal"
                _refuse(results, told(differing, on_file, asked), cure)


def save_imported(
    results: Path,
    question: Mapping[str, Any],
    provenance: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
    columns: Mapping[str, np.ndarray],
) -> Path:
    """Write one study that was measured elsewhere; it replaces an earlier import of the same study.

    Arguments:
        trials: one record per trial, in index order, with the keys that `write_curves` records and `status`.
        columns: `trial`, `step` and each metric -> one value per measurement, sorted by trial and step.

    Raises:
        StoreError: the folder holds another question, is being worked on, or cannot be written.
    """
    folder = _imported_folder(results, question)
    with claimed(folder):
        check_imported(results, [question])
        # Readers find a study by its study.json: write it last.
        atomic.replace(folder / COMPACTED, partial(write_table, columns, trials))
        record = {"format": FORMAT, "question": question, "provenance": [provenance]}
        atomic.replace(folder / "study.json", atomic.as_json(record))
    return folder


def continued(results: Path, study: Study) -> Study:
    """The study with the rules of the trials on file for its workload and optimizer, which an older version may have
    begun: the trials that race against each other, whether batch sizes share points and seeds, and how often training
    and test errors are measured, unless the study says it."""
    for path in sorted(_curve_folder(results, study).glob("*/study.json")):
        question = read(path)["question"]
        if question["stopping"] != RECORDED:
            seeds = replace(study.seeds, shared=study.seeds.shared or question["seeds"]["shared"])
            every = study.evaluation.every or question["evaluation"]["every"]
            evaluation = replace(study.evaluation, every=every)
            return replace(study, race_over=question["race_over"], seeds=seeds, evaluation=evaluation)
    return study


def of_curve(results: Path, study: Study) -> list[Study]:
    """The searches on file for all batch sizes of a curve, of the same branch and with the same settings."""
    folders = [path.parent for path in sorted(_curve_folder(results, study).glob("*/study.json"))]
    paths = [folder / study.branch.path / "study.json" for folder in folders]
    questions = [read(path)["question"] for path in paths if path.exists()]
    return [
        Study.from_question(question)
        for question in questions
        if question["stopping"] != RECORDED and not unlike(study.question(), question, same_size=False)
    ]


class Recorded(NamedTuple):
    """A search on file: its question, and the record of every run."""

    question: dict[str, Any]
    runs: list[dict[str, Any]]

    @property
    def settled(self) -> dict[str, Any]:
        """What the machine of the first run decided; empty if the search was only announced."""
        return {name: self.question[name] for name in (*SETTLED, "arithmetic")} if self.runs else {}


def recorded(results: Path, study: Study) -> Recorded | None:
    """The search on file; None if it has not started or was imported."""
    path = study_folder(results, study) / "study.json"
    if not os.path.exists(path):
        return None
    question = read(path)["question"]
    return None if question["stopping"] == RECORDED else Recorded(question, runs(path.parent))


def identity(results: Path) -> str:
    """The random identifier of a results folder, the same on every machine. The first call creates it."""
    path = results / ".identity"
    atomic.make_folder(results)
    if not path.exists():
        atomic.create(path, lambda aside: aside.write_text(secrets.token_hex(8)))
    return path.read_text()


def announce(results: Path, study: Study) -> None:
    """Record the question of a search before it trains, so that reports count it as missing.

    A question on file is extended, unless another process holds a claim on the search. The first run replaces what
    depends on its machine.

    Raises:
        StoreError: the folder holds another question or cannot be written.
    """
    folder = _made(results, study)
    if on_file := recorded(results, study):
        study = replace(study, **on_file.settled)
    if _extended_record(folder, study):
        check(results, [study])
        with suppress(Held), claimed(folder):
            _extend(folder, study)


def _made(results: Path, study: Study) -> Path:
    """The folder of a search. The first call creates it and records the question."""
    folder = study_folder(results, study)
    path = folder / "study.json"
    if not path.exists():
        check(results, [study])
        atomic.make_folder(folder)
        atomic.create(path, atomic.as_json({"format": FORMAT, "question": study.question(), "provenance": []}))
    return folder


def open_study(results: Path, study: Study, provenance: Mapping[str, Any]) -> Path:
    """Create or reopen the folder of a search and record this run; the caller holds a claim on a shard of it.

    Returns:
        The file of the run's record, for `end_run`.

    Raises:
        StoreError: the folder holds another question or cannot be written.
    """
    folder = _made(results, study)
    check(results, [study])
    _extend(folder, study)
    for name in ("trials", "runs"):
        atomic.make_folder(folder / name, parents=False)
    alone = len([*folder.glob(".claim.*")]) == 1
    for path in searches.matching(folder, "runs/[!.]*.json") if alone and not begun(folder) else ():
        if (earlier := read(path).get("fingerprint")) and earlier != provenance.get("fingerprint"):
            path.unlink()  # it left no trial, so those to come are not mixed with trials of its code
    path = folder / "runs" / f"{secrets.token_hex(4)}.json"
    atomic.replace(path, atomic.as_json({"run": path.stem, **provenance}))
    return path


def _extended_record(folder: Path, study: Study) -> dict[str, Any] | None:
    """The content of study.json with the question extended to what `study` wants; None if it wants no more."""
    record = read(folder / "study.json")
    search = extended(study.search, record["question"]["search"])
    question = replace(study, search=search).question()
    return record | {"question": question} if differences(record["question"], question) else None


def _extend(folder: Path, study: Study) -> None:
    """Extend the recorded question of a search if `study` wants more."""
    if record := _extended_record(folder, study):
        atomic.replace(folder / "study.json", atomic.as_json(record))


def end_run(path: Path, ended: Mapping[str, Any]) -> None:
    """Add the keys of `ended` to the record of a run."""
    atomic.replace(path, atomic.as_json({**read(path), **ended}))


def runs(folder: Path) -> list[dict[str, Any]]:
    """The records of all runs of a search, in the order in which they started."""
    apart = []
    for path in searches.matching(folder, "runs/[!.]*.json"):
        with suppress(FileNotFoundError):  # gathered meanwhile into study.json, which is read next
            apart.append(json.loads(path.read_text()))
    return all_runs(read(folder / "study.json")["provenance"], apart)


def fingerprints(results: Path, workload: str) -> list[tuple[str, dict[str, float]]]:
    """(optimizer, fingerprint of the workload) of each run in this folder that recorded one, without repetitions. Runs
    of searches without a trial, which no process trains now, do not count: their code left nothing to mix with."""
    distinct: list[tuple[str, dict[str, float]]] = []
    top = results / "studies" / workload
    for folder in searches.holding(top, "study.json"):
        for run in runs(folder) if begun(folder) or busy(folder) else ():
            pair = folder.relative_to(top).parts[0], older.run(run).get("fingerprint") or {}
            if pair[1] and pair not in distinct:
                distinct.append(pair)
    return distinct


def gather(folder: Path) -> None:
    """Gather the files of a complete search: trials into curves.parquet, records of runs into study.json.

    Does nothing if another process holds a claim on the search.

    Raises:
        StoreError: a file cannot be written; finished trials are safe.
    """
    with suppress(Held), claimed(folder):
        compact(folder)
        gathered = {**read(folder / "study.json"), "provenance": runs(folder)}
        atomic.replace(folder / "study.json", atomic.as_json(gathered))
        atomic.flush_names(folder)
        for name in ("runs", "checkpoints"):  # checkpoints left over: the complete search does not need their trials
            shutil.rmtree(folder / name, ignore_errors=True)
        hidden = [path for part in (folder, folder / "trials") for path in part.glob(".*") if path.is_file()]
        for path in hidden:  # temporary files of killed processes
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > STALE:
                    path.unlink()


def save(folder: Path, curve: Curve, replaces: bool = False) -> bool:
    """Write a finished trial to its file and delete its checkpoint.

    Arguments:
        replaces: the file of this trial exists, with an incomplete curve: overwrite it.

    Returns:
        False if the trial was on file already, written by a process that lost its shard; `curve` is then discarded.

    Raises:
        StoreError: the file cannot be written.
    """
    path = folder / "trials" / f"{curve.trial.index:06d}.parquet"
    put = atomic.replace if replaces else atomic.create
    kept = put(path, partial(write_curves, [curve])) is not False
    checkpoints = Checkpoints(folder)
    if curve.trial.index in checkpoints:
        atomic.flush_names(path.parent)
        del checkpoints[curve.trial.index]
    return kept


def compact(folder: Path) -> None:
    """Gather all trials of a search in curves.parquet, then delete their files.

    An interruption loses no trial. A trial that then is in two files counts once.
    """
    curves = load(folder)
    if not curves or not any((folder / "trials").glob("*.parquet")):
        return
    atomic.replace(folder / COMPACTED, partial(write_curves, curves))
    atomic.flush_names(folder)
    for curve in curves:
        path = folder / "trials" / f"{curve.trial.index:06d}.parquet"
        with atomic.writing(path):
            path.unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any]:
    """Read a study.json or the record of a run. A question of an older version gets the names of this version.

    Raises:
        StoreError: the file cannot be read.
    """
    found = atomic.read_json(path, "restore or remove that study's folder")
    return found | {"question": older.question(found["question"])} if "question" in found else found


def now() -> str:
    """The current time in UTC, in ISO 8601, for records of runs."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
