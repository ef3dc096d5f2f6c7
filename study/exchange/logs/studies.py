"""A log -> studies: the question, the records of trials and the measurements of each batch size.

Shapes: M measurements of all runs of a study, E measurements of one run.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pandas as pd

from analysis.counting import COMPLETE, INCOMPLETE, INFEASIBLE, RECORDED, Branch, Goal, first_crossing, judged
from analysis.labels import batch_sizes
from study.exchange.importing import ImportRefused
from study.exchange.logs import folders, spaces
from study.exchange.logs.long_frame import Log
from study.exchange.logs.names import last, listed, plain
from study.exchange.logs.run_settings import DIVERGED
from study.exchange.released_tree import component

UNKNOWN = "unknown"
"""The optimizer of a log that names none."""
ENDED = ("complete", "completed", "finished", "success", "succeeded", "done", "ok", "terminated", "ended")
STOPPED: tuple[str, ...] = (
    "incomplete",
    "running",
    "failed",
    "crashed",
    "killed",
    "preempted",
    "preempting",
    "cancelled",
    "canceled",
)
STOPPED += ("stopped", "pending", "scheduled", "error", "aborted", "timeout", "unfinished", "pruned")
"""Statuses in lower case: a run ended by itself; something stopped it."""
WHOLE = 0.95
"""A run without a status ended by itself if it has this share of its budget, or of the longest run's steps."""
UNEVEN = 1.5
"""Spacings of evaluations that differ by more between the runs of a batch size are worth a note."""

Key = tuple[str, str, int]
"""Workload, optimizer and batch size."""


@dataclass
class Imported:
    """One study of a log, ready to be written.

    Attributes:
        question: as in study.json.
        records: one for each trial, with the name of its run.
        columns: trial, step and each metric [M].
        notes: what its runs need to be said about them; equal notes of several batch sizes become one line.
    """

    question: dict[str, Any]
    records: list[dict[str, Any]]
    columns: dict[str, np.ndarray]
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.question['workload']['name']}/{self.question['optimizer']}/{self.question['batch_size']}"


def _workload(settings: Mapping[str, Any], default: str, size: str | None) -> tuple[str, str]:
    """(the workload of a run for messages, its name): as the log says, else its model and data set, else that of the
    source; with the value of its size if there is one."""
    parts = [str(settings[key]) for key in ("model", "dataset") if settings.get(key) is not None]
    given = settings.get("workload")
    parts = [str(given)] if given is not None else parts or [default]
    quoted, name = " with ".join(map(repr, parts)), "_".join(parts)
    if size is None:
        return quoted, name
    return f"{quoted} of {size} {settings[size]!r}", f"{name}_{size}-{settings[size]:.12g}"


def size_of(log: Log, asked: str | None) -> str | None:
    """The setting that `--size` names; None without it.

    Raises:
        ImportRefused: the runs have no such setting, or it is no number above 0 in one of them.
    """
    if asked is None:
        return None
    known = dict.fromkeys(name for settings in log.runs.values() for name in settings)
    found = next((name for name in known if asked == name or plain(last(asked)) == plain(name)), None)
    if found is None:
        raise ImportRefused(f"--size {asked}: the runs have no such setting; there are {listed(known, 40)}.")
    for run, settings in log.runs.items():
        value = settings.get(found)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise ImportRefused(f"--size {asked}: a size is a number above 0, but run {run!r} has {value!r}.")
    return found


def by_workload(log: Log, default: str, size: str | None) -> tuple[dict[str, list[str]], list[str]]:
    """(the folder of a workload -> its runs, notes on names that changed).

    Arguments:
        default: the name of a workload that the log does not name.
        size: the setting that tells sizes apart (`size_of`).

    Raises:
        ImportRefused: two workloads share a folder.
    """
    called = {run: _workload(settings, default, size) for run, settings in log.runs.items()}
    columns = [column for role in ("workload", "model", "dataset") for column in log.read_as.get(role, ())]
    notes = folders.checked("workload", dict(called.values()), columns)
    found: dict[str, list[str]] = {}
    for run, (_, name) in called.items():
        found.setdefault(component(name), []).append(run)
    return found, notes


def optimizers(log: Log) -> tuple[dict[str, str], list[str]]:
    """(run -> the folder of its optimizer, notes on names that changed).

    Raises:
        ImportRefused: two optimizers share a folder.
    """
    named = {run: str(settings.get("optimizer", UNKNOWN)) for run, settings in log.runs.items()}
    called = {repr(name): name for name in named.values()}
    notes = folders.checked("optimizer", called, log.read_as.get("optimizer", ()))
    return {run: component(name) for run, name in named.items()}, notes


def make(
    log: Log,
    goals: Mapping[str, Goal],
    workloads: Mapping[str, Sequence[str]],
    of_optimizer: Mapping[str, str],
    trials: int | None,
    size: str | None,
) -> list[Imported]:
    """The studies of a log, by workload, optimizer and batch size.

    Arguments:
        of_optimizer: run -> the folder of its optimizer (`optimizers`).
        trials: N, the number of COMPLETE trials that count; None or 0: all.
        size: the setting that tells sizes apart; each question records its value, and no model.
    """
    numbered = {run: number for number, run in enumerate(log.runs, start=1)}
    of_run = dict.fromkeys(log.runs, log.rows[:0])  # runs that diverged before their first measurement
    of_run |= {str(run): rows for run, rows in log.rows.groupby("run", sort=False)}
    found = []
    for name, runs in sorted(workloads.items()):
        curves: dict[str, list[str]] = {}
        for run in runs:
            curves.setdefault(of_optimizer[run], []).append(run)
        for optimizer, some in sorted(curves.items()):
            points, notes = spaces.hyperparameters(log, some)
            for batch in sorted({log.runs[run]["batch_size"] for run in some}):
                own = [run for run in some if log.runs[run]["batch_size"] == batch]
                made = _study(log, (name, optimizer, batch), goals[name], own, points, of_run, numbered)
                if size is not None:
                    # The size tells models apart.
                    made.question["workload"] |= {"model": None, size: log.runs[own[0]][size]}
                complete = sum(record["status"] == COMPLETE for record in made.records)
                made.question["search"] |= {"trials": trials or max(1, complete), "all_count": not trials}
                made.notes += notes
                found.append(made)
    return found


def _study(
    log: Log,
    key: Key,
    goal: Goal,
    runs: Sequence[str],
    points: Mapping[str, dict[str, Any]],
    of_run: Mapping[str, pd.DataFrame],
    numbered: Mapping[str, int],
) -> Imported:
    name, optimizer, size = key
    longest = int(max(of_run[run]["step"].max() if len(of_run[run]) else 1 for run in runs))
    notes: Counter[str] = Counter()
    ended = []
    for run in runs:
        rows, bad = _without_gaps(of_run[run], log.metrics, goal.metric, notes)
        record = _record(log.runs[run], rows, goal, bad, longest, notes)
        ended.append((record | {"trial_id": numbered[run], "run": run, "hyperparameters": points[run]}, rows))
    _count_all(ended)
    records = [{"index": index} | record for index, (record, _) in enumerate(ended)]
    frames = [rows.drop(columns="run").assign(trial=np.int32(index)) for index, (_, rows) in enumerate(ended)]
    rows = pd.concat(frames, ignore_index=True)
    budgets = {log.runs[run].get("train_steps") for run in runs}
    budget = max((one for one in budgets if isinstance(one, int)), default=longest)
    question = {
        "workload": {"name": name, **_about(log, runs)},
        "optimizer": optimizer,
        "batch_size": size,
        "goal": {"metric": goal.metric, "threshold": goal.threshold},
        "stopping": RECORDED,
        "recorded_stopping": None,
        "early_stopping": False,
        "time_budget": False,
        "seeds": None,
        "branch": Branch()._asdict(),
        "search": {"space": spaces.space([points[run] for run in runs]), "extend": False, "extend_limit": 0},
        "train_steps": max(1, budget, longest),
    }
    columns = {column: rows[column].to_numpy() for column in ("trial", "step", *log.metrics)}
    said = [f"{text}: {count:,}" for text, count in notes.items()]
    return Imported(question, records, columns, [*said, *_about_runs(of_run, runs, goal)])


def _count_all(ended: list[tuple[dict[str, Any], pd.DataFrame]]) -> None:
    """Move the last COMPLETE run to the end: trials count up to it, and the order of runs in a log means nothing."""
    complete = [position for position, (record, _) in enumerate(ended) if record["status"] == COMPLETE]
    if complete:
        ended.append(ended.pop(complete[-1]))


def _about(log: Log, runs: Sequence[str]) -> dict[str, Any]:
    """The data set, the model and the number of training examples, if all runs share them."""
    found: dict[str, Any] = {}
    for key in ("dataset", "model", "train_examples"):
        values = {log.runs[run].get(key) for run in runs}
        found[key] = values.pop() if len(values) == 1 else None
    examples = found["train_examples"]
    return found | {"train_examples": examples if isinstance(examples, int) and examples >= 1 else None}


def _without_gaps(
    rows: pd.DataFrame, metrics: Sequence[str], of_goal: str, notes: Counter[str]
) -> tuple[pd.DataFrame, int | None]:
    """(the rows with NaN for what was not finite, the step at which the run diverged or None).

    A run diverged if a metric is not finite from some step to its end. A metric that is finite again later was not
    measured in between: some tools write NaN for this.
    """
    rows = rows.copy()
    first: list[int] = []
    for metric in metrics:
        values = rows[metric].to_numpy(dtype=float)
        odd = np.isinf(values)
        if odd.any():
            finite = np.flatnonzero(np.isfinite(values))
            begin = int(np.flatnonzero(odd)[0])
            if not finite.size or begin > finite[-1]:
                first += [int(rows["step"].iloc[begin])] if finite.size or metric == of_goal else []
            elif metric == of_goal:
                notes[f"runs with NaN between numbers of {metric}, taken as not measured"] += 1
            rows[metric] = np.where(odd, np.nan, values)
    return rows, max(1, min(first)) if first else None


def _record(
    settings: Mapping[str, Any],
    rows: pd.DataFrame,
    goal: Goal,
    bad: int | None,
    longest: int,
    notes: Counter[str],
) -> dict[str, Any]:
    """The record of a trial: how its run ended (`ended`), and its status, which a goal that was met makes COMPLETE. A
    run that was stopped before the goal did not miss it."""
    word = str(settings.get("status", "")).lower()
    steps, errors = rows["step"].to_numpy(), rows[goal.metric].to_numpy(dtype=float)
    crossing, last = first_crossing(steps, errors, goal.threshold), int(steps.max(initial=0))
    if word and word not in (*ENDED, *STOPPED, *DIVERGED):
        notes[f"runs with the status {word!r}, which is not known, judged by their length"] += 1
    given = settings.get("first_bad_step")
    if word in DIVERGED or bad is not None:
        ended, bad = INFEASIBLE, given if isinstance(given, int) else bad or last or 1
    else:
        whole = settings.get("train_steps")
        enough = last >= WHOLE * (whole if isinstance(whole, int) and whole > 0 else longest)  # -1: not given
        ended = COMPLETE if word in ENDED or (word not in STOPPED and enough) else INCOMPLETE
    status = judged(ended, bad, errors, crossing)
    if status == INCOMPLETE and not np.isfinite(errors).any():
        notes[f"runs that never measured {goal.metric}, which do not count"] += 1
    elif status == INCOMPLETE:
        notes["runs that stopped early without the goal, which do not count, since they might have met it later"] += 1
    elif status == COMPLETE and ended == INFEASIBLE:
        notes["runs that diverged after they met the goal, which count"] += 1
    seed = settings.get("seed")
    return {
        "status": status,
        "ended": ended,
        "seed": seed if isinstance(seed, int) else None,
        "order_seed": None,
        "first_bad_step": bad,
        "seconds": {"training": None, "evaluation": None},
        "micro_batch": None,
    }


def _about_runs(of_run: Mapping[str, pd.DataFrame], runs: Sequence[str], goal: Goal) -> list[str]:
    """Notes on all runs of a batch size: a single one, or uneven evaluations."""
    if len(runs) == 1:
        return ["there is one run, so S(B) is its steps, without an interval, tuned or not"]
    measured = ((of_run[run]["step"], of_run[run][goal.metric].to_numpy(dtype=float)) for run in runs)
    least, most = spacings([steps.to_numpy()[np.isfinite(errors)] for steps, errors in measured])
    if most > UNEVEN * least:
        return [f"runs were evaluated every {least:.3g} to {most:.3g} steps: those with rare evaluations seem slower"]
    return []


def spacings(grids: Sequence[np.ndarray]) -> tuple[float, float]:
    """The mean steps between evaluations of two runs where both trained, (fewest, most) of the pair that differs most.

    Where evaluations become rarer, the spacing of a whole run would depend on its length. (1, 1) without a pair that
    can be compared: the denser of the two has three evaluations there.

    >>> spacings([np.array([1, 2, 4, 8, 16]), np.array([1, 2, 4])]), spacings([np.arange(0, 50, 2), np.array([0, 10])])
    ((1.0, 1.0), (2.0, 10.0))
    """
    known = sorted({tuple(grid.tolist()) for grid in grids if len(grid) > 1})
    # A run that stopped early on the grid of another one says nothing that the longer one does not.
    known = [one for one, after in pairwise([*known, ()]) if after[: len(one)] != one]
    worst = (1.0, 1.0)
    for one, other in combinations(map(np.array, known), 2):
        first, end = max(one[0], other[0]), min(one[-1], other[-1])
        if first >= end:
            continue
        parts = [
            grid[np.searchsorted(grid, first, "right") - 1 : np.searchsorted(grid, end) + 1] for grid in (one, other)
        ]
        (least, points), (most, _) = sorted((float(part[-1] - part[0]) / (len(part) - 1), len(part)) for part in parts)
        if points > 2 and most / least > worst[1] / worst[0]:
            worst = least, most
    return worst


def lines(studies: Sequence[Imported]) -> dict[tuple[str, str], list[str]]:
    """(workload, optimizer) -> a line for each note, with the batch sizes that share it."""
    found: dict[tuple[str, str], dict[str, list[int]]] = {}
    for study in studies:
        question = study.question
        curve = found.setdefault((question["workload"]["name"], question["optimizer"]), {})
        for note in study.notes:
            curve.setdefault(note, []).append(question["batch_size"])
    return {
        (name, optimizer): [
            f"{name}, {optimizer}, {batch_sizes(sizes)}: {note}" if sizes else note for note, sizes in notes.items()
        ]
        for (name, optimizer), notes in found.items()
    }
