"""The command that continues a sweep with other settings, and the time that its trainings take."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.load import STUDY, StudyData
from analysis.report.answer.choices import chosen

SWEEP = ["python", "-m", "study", "sweep"]


def folder_beside(studies: Sequence[StudyData], suffix: str) -> str:
    """A folder for another question, beside that of these studies.

    >>> folder_beside([study], "longer")
    'results/published/mlp_digits-longer'
    """
    return f"{_results(studies)}-{suffix}"


def _recorded(studies: Sequence[StudyData]) -> str:
    """The results folder by the command that trained these studies."""
    words = dict(word.split("=", 1) for word in words_of(studies) if "=" in word)
    return words.get("results", f"results/{studies[0].workload}")


def _results(studies: Sequence[StudyData]) -> str:
    """The results folder, as the command has it unless the folder was moved or the command ran elsewhere."""
    recorded, folders = _recorded(studies), {study.results for study in studies}
    moved = len(folders) == 1 and Path(recorded).resolve() != studies[0].results.resolve()
    return str(studies[0].results) if moved else recorded


def words_of(studies: Sequence[StudyData]) -> list[str]:
    """The words of the command that trained most of these studies last; empty if it is not on record.

    >>> words_of([study])[:5]
    ['python', '-m', 'study', 'sweep', 'optimizer=sgd,momentum']
    """
    last = Counter(study.provenance[-1].get("command") or "" for study in studies if study.provenance)
    command = last.most_common(1)[0][0] if last else ""
    if not command.startswith(shlex.join(SWEEP)):  # such as a call from Python, which has other rules of quoting
        return []
    words = shlex.split(command)
    return words if words[: len(SWEEP)] == SWEEP else []


def command(studies: Sequence[StudyData], overrides: Mapping[str, Any]) -> str:
    """The command that trained these studies, with other values of some keys; empty if it is not on record. It trains
    on in the folder where the studies lie now.

    If several commands trained them, or some wait for their first run, the new one names all of their optimizers and
    batch sizes.

    >>> command([study], {"search.reruns": 8, "optimizer": "sgd"}).split()[4:]
    ['stopping=budget', 'results=results/published/mlp_digits', 'search.reruns=8', 'optimizer=sgd']
    """
    words = words_of(studies)
    if not words:
        return ""
    waiting = not all(study.provenance for study in studies)
    if waiting or len({run["command"] for study in studies for run in study.provenance[-1:] if "command" in run}) > 1:
        sizes, optimizers = sorted({s.batch_size for s in studies}), dict.fromkeys(s.optimizer for s in studies)
        named = {"optimizer": ",".join(optimizers)} if len(optimizers) > 1 else {}
        overrides = {**named, "batch_size": ",".join(map(str, sizes)), **overrides}
    if "optimizer" in overrides:
        overrides = {**overrides, "optimizer": ",".join(chosen(overrides["optimizer"].split(","), studies))}
    if (moved := _results(studies)) != _recorded(studies):
        overrides = {"results": moved, **overrides}
    overrides = {**_workload(words, studies), **overrides}
    replaced = {*overrides, *(["batch_sizes"] if "batch_size" in overrides else [])}  # one stands for the other
    kept = [word for word in words if word.partition("=")[0] not in replaced]
    return shlex.join([*kept, *(f"{key}={value}" for key, value in overrides.items())])


def _workload(words: Sequence[str], studies: Sequence[StudyData]) -> dict[str, str]:
    """The workload of these studies, where the command has several of them and names it."""
    [several] = [word.partition("=")[2].split(",") for word in words if word.startswith("workload=")][-1:] or [[]]
    mine = studies[0].workload
    return {"workload": mine} if len(several) > 1 and mine in several else {}


def workers_of(studies: Sequence[StudyData]) -> int:
    """The most workers of the latest runs of these studies.

    >>> workers_of([study])
    2
    """
    return max((run.get("workers") or 1 for study in studies for run in study.provenance[-1:]), default=1)


def seconds_of(studies: Sequence[StudyData], units: Mapping[tuple[str, str, int], float], cost: pd.DataFrame) -> float:
    """The time of these trainings, at the mean of those on file; NaN if none was timed.

    Arguments:
        units: the trainings of each study, in times of one training there.
        cost: from `analysis.tables.steps_to_result.cost_table`.

    >>> cost = pd.DataFrame({"workload": "mlp_digits", "optimizer": "sgd", "batch_size": [64], "trials": 20,
    ...     "seconds_training": 4.0, "seconds_evaluation": 1.0})
    >>> seconds_of([study], {study.key: 8.0}, cost)  # by two workers
    1.0
    """
    times = (cost["seconds_training"] + cost["seconds_evaluation"].fillna(0)) / cost["trials"].replace(0, np.nan)
    each = dict(zip(cost[STUDY].itertuples(index=False, name=None), times, strict=True))
    usual = float(times.mean())
    seconds = {key: usual if np.isnan(mine := each.get(key, usual)) else mine for key in units}
    return sum(count * seconds[key] for key, count in units.items()) / workers_of(studies)
