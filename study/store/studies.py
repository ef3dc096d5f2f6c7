"""Study folders: the recorded question and how it may be extended, records of runs, checkpoints, compaction."""

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
from typing import Any

import numpy as np

from analysis.counting import RECORDED, all_runs, launch_limit
from analysis.question import older, searches
from analysis.units import TOKENS
from study.records import ARITHMETICS, COMMAND, Curve, Study
from study.settings import ROUNDS, Search
from study.store import atomic
from study.store.atomic import StoreError
from study.store.checkpoints import Checkpoints
from study.store.claims import STALE, Held, busy, claimed
from study.store.curves import COMPACTED, begun, load, write_curves, write_table

FORMAT = 1
OF_ONE_SIZE = ("batch_size", "train_steps", "budget_examples", "arithmetic")
"""Keys of a question that may differ between batch sizes of one workload and optimizer."""
COUNTS = ("extend", "extend_limit", "repeats", "reruns", "added")
EXTENDABLE = tuple(f"search.{name}" for name in ("trials", "max_launches", "budgets", *COUNTS))
"""Keys that a later run may change. The recorded question never shrinks (see `most`)."""
SETTLED = ("micro_batch", "evaluation_chunk")
"""Keys that the memory of the first machine decided. Later runs use the recorded value, so they may request another."""


def study_folder(results: Path, study: Study) -> Path:
    """The folder of one search of a study inside a results folder."""
    return results / "studies" / study.name / study.series / str(study.batch_size) / study.branch.path


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
        held_beside = [folder / "study.json"] if study.branch.path else folder.parent.glob("*/study.json")
        for path in sorted(path for path in held_beside if path.exists()):
            held = read(path)["question"]
            asked = study.question()
            differing = _unlike(held, asked)
            if path.parent != folder:
                differing = {k: v for k, v in differing.items() if k not in OF_ONE_SIZE}
            differing = {key: pair for key, pair in differing.items() if key not in EXTENDABLE + SETTLED}
            cure = "choose another results=DIR"
            # Some recorded arithmetics were removed, and imported studies have none.
            if "arithmetic" in differing and held.get("arithmetic") in ARITHMETICS:
                cure = f"repeat the engine= and engine.device= of the first run, which decide the arithmetic, or {cure}"
            of_sampler = {f"search.{name}" for name in ("sampler", *ROUNDS)}
            if "search.sampler" in differing and differing.keys() <= of_sampler:
                cure = f"search={held['search']['sampler']} continues it; or {cure}"
            _refuse(results, differing, cure)


def _check_writable(results: Path) -> None:
    # Not `Path.exists`, which raises if permissions forbid entering the folder.
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
            held = {key: value for key, value in read(path)["question"].items() if key in compared}
            _refuse(results, differences(held, asked), "import into another folder, or read goals with report --goal")


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
        held = {"format": FORMAT, "question": question, "provenance": [provenance]}
        atomic.replace(folder / "study.json", atomic.as_json(held))
    return folder


def continued(results: Path, study: Study) -> Study:
    """The study with the rules of the trials on file for its workload and optimizer, which an older version may have
    begun: the trials that race against each other, whether batch sizes share points and seeds, and how often training
    and test errors are measured, unless the study says it."""
    curve = results / "studies" / study.name / study.series
    for path in sorted(curve.glob("*/study.json")):
        question = read(path)["question"]
        if question["stopping"] != RECORDED:
            seeds = replace(study.seeds, shared=study.seeds.shared or question["seeds"]["shared"])
            every = study.evaluation.every or question["evaluation"]["every"]
            evaluation = replace(study.evaluation, every=every)
            return replace(study, race_over=question["race_over"], seeds=seeds, evaluation=evaluation)
    return study


def beside(results: Path, study: Study) -> list[Study]:
    """The searches on file for the other batch sizes of a curve, of the same branch and with the same settings."""
    found = []
    for path in sorted((results / "studies" / study.name / study.series).glob("*/study.json")):
        own = path.parent / study.branch.path / "study.json"
        if own.exists():
            question = read(own)["question"]
            differing = _unlike(study.question(), question).keys() - {*OF_ONE_SIZE, *EXTENDABLE, *SETTLED}
            if question["stopping"] != RECORDED and not differing:
                found.append(Study.from_question(question))
    return found


def held(results: Path, study: Study) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """(the question, the record of every run) of a search on file; None if it has not started or was imported."""
    path = study_folder(results, study) / "study.json"
    if not os.path.exists(path):
        return None
    found = read(path)
    return None if found["question"]["stopping"] == RECORDED else (found["question"], runs(path.parent))


def identity(results: Path) -> str:
    """The random identifier of a results folder, the same on every machine. The first call creates it."""
    path = results / ".identity"
    atomic.make_folder(results)
    if not path.exists():
        atomic.create(path, lambda aside: aside.write_text(secrets.token_hex(8)))
    return path.read_text()


def announce(results: Path, study: Study) -> None:
    """Record the question of a search before it trains, so that reports count it as missing.

    A question on file is extended, unless another process holds a claim on the search.

    Raises:
        StoreError: the folder holds another question or cannot be written.
    """
    folder = _made(results, study)
    if _asks_for_more(folder, study):
        check(results, [study])
        with suppress(Held), claimed(folder):
            _ask(folder, study)


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
    _ask(folder, study)
    for name in ("trials", "runs"):
        atomic.make_folder(folder / name, parents=False)
    alone = len([*folder.glob(".claim.*")]) == 1
    for path in searches.matching(folder, "runs/[!.]*.json") if alone and not begun(folder) else ():
        if (held := read(path).get("fingerprint")) and held != provenance.get("fingerprint"):
            path.unlink()  # it left no trial, so those to come are not mixed with trials of its code
    path = folder / "runs" / f"{secrets.token_hex(4)}.json"
    atomic.replace(path, atomic.as_json({"run": path.stem, **provenance}))
    return path


def _as_asked(held: Mapping[str, Any], study: Study) -> dict[str, Any]:
    """The question of `study`, extended to what the recorded question already wants (see `most`)."""
    return replace(study, search=most(study.search, held["search"])).question()


def _asks_for_more(folder: Path, study: Study) -> bool:
    held = read(folder / "study.json")["question"]
    return bool(differences(held, _as_asked(held, study)))


def _ask(folder: Path, study: Study) -> None:
    """Extend the recorded question of a search if `study` wants more."""
    if _asks_for_more(folder, study):
        held = read(folder / "study.json")
        asked = held | {"question": _as_asked(held["question"], study)}
        atomic.replace(folder / "study.json", atomic.as_json(asked))


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
    found: list[tuple[str, dict[str, float]]] = []
    top = results / "studies" / workload
    for folder in searches.holding(top, "study.json"):
        for run in runs(folder) if begun(folder) or busy(folder) else ():
            held = folder.relative_to(top).parts[0], older.run(run).get("fingerprint") or {}
            if held[1] and held not in found:
                found.append(held)
    return found


def most(search: Search, held: Mapping[str, Any]) -> Search:
    """The search with the larger of the two values of each key in EXTENDABLE, and all budgets of both."""
    trials = max(search.trials, held["trials"])
    launches = None
    if search.max_launches is not None or held["max_launches"] is not None:
        launches = max(search.launch_limit, launch_limit(held["trials"], held["max_launches"]), trials)
    counts = {name: max(getattr(search, name), held.get(name, 0)) for name in COUNTS}
    budgets = tuple(sorted({*search.budgets, *held["budgets"]}))
    return replace(search, trials=trials, max_launches=launches, budgets=budgets, **counts)


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
        left = [path for part in (folder, folder / "trials") for path in part.glob(".*") if path.is_file()]
        for path in left:  # temporary files of killed processes
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


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (old, new) wherever two questions differ; a missing key counts as None."""
    # Through JSON, because a stored question has lists where a new one has tuples.
    flat_old, flat_new = _flatten(json.loads(json.dumps(old))), _flatten(json.loads(json.dumps(new)))
    pairs = {key: (flat_old.get(key), flat_new.get(key)) for key in sorted({*flat_old, *flat_new})}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _unlike(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """`differences`, but a workload class that gets or loses `tokens_per_example` trains the same trials. So does a
    command whose failures end the sweep or not: a failure that did is no trial."""
    found = differences(old, new)
    if None in found.get(TOKENS, ()):
        del found[TOKENS]
    if new.get("arithmetic") == COMMAND:
        found.pop("workload.failed", None)
    return found


def _flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    return {
        key: value
        for name, branch in tree.items()
        for key, value in _flatten(branch, f"{prefix}.{name}" if prefix else name).items()
    }


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
