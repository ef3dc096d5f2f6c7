"""The released layout of Shallue et al.'s measurements (`batch_science`) -> a results folder, study by study.

    [leading folders/]dataset/model/optimizer/batch_size/study.json
    ...                                                 /trial_id/metadata.json
    ...                                                 /trial_id/measurements.csv

Nothing is judged anew: a trial keeps the status that it was released with, and counts by it. What breaks a rule of the
layout is named in a warning and left out, or taken as said there. `analysis/export.py` writes the same layout.
"""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import csv

from analysis.counting import AS_ERRORS, COMPLETE, INCOMPLETE, INFEASIBLE, RECORDED, STOPPING_RULES, Goal
from study import store
from study.optimizers import OPTIMIZERS
from study.records import LEGAL_IN_WORKLOADS
from study.schedules import SCHEDULES
from study.space import Dimension, Legal

PUBLISHED = {
    ("mnist", "simple_cnn_base"): ("val/classification_error < 0.01", 100),
    ("fashion_mnist", "simple_cnn_base"): ("val/classification_error < 0.10", 100),
    ("cifar_10", "resnet_8"): ("val/classification_error < 0.30", 100),
    ("imagenet", "resnet_50"): ("val/classification_error < 0.25", 100),
    ("imagenet", "vgg_11"): ("val/classification_error < 0.35", 100),
    ("open_images_v4", "resnet_50"): ("val/average_precision_error < 0.69", 100),
    ("lm1b", "transformer_base"): ("val/cross_entropy_error < 3.9", 100),
    ("lm1b", "lstm"): ("val/cross_entropy_error < 3.9", 50),
    ("common_crawl", "transformer_base"): ("val/cross_entropy_error < 3.9", 50),
    # Assumed, since it is all of MNIST; the goals for smaller subsets are not known.
    ("mnist_55000", "simple_cnn_base"): ("val/classification_error < 0.01", 100),
}
"""(data set without leading folders, model) -> the goal of the paper's figure 1 and its N.

Assumed in addition: the same for every optimizer, and for the runs with very large budgets in `solution_quality/`.
"""
TRAIN_EXAMPLES = {"mnist": 55000, "fashion_mnist": 55000, "cifar_10": 45000}
TRAIN_EXAMPLES |= {f"mnist_{examples}": examples for examples in (6875, 13750, 27500, 55000)}

LEGAL = {
    name: legal
    for kind in (OPTIMIZERS, SCHEDULES)
    for one in kind.values()
    for name, legal in one.hyperparameters.items()
}
LEGAL |= LEGAL_IN_WORKLOADS
_MAXIMISED_GOAL = re.compile(rf"(?P<split>\w+)/(?P<metric>{'|'.join(AS_ERRORS)})\s*>\s*(?P<threshold>[\d.]+)")

Watch = Callable[["Released", int], None]
"""Told of every study that was read, with its number of measurements."""


class ImportRefused(Exception):
    """The tree cannot be imported as asked; the message says why and what to do."""


@dataclass(frozen=True)
class Released:
    """One study of a released tree.

    Attributes:
        dataset: with the leading folders, such as `mnist_subsets/mnist_6875`.
        train_steps: the step budget; 0: a time budget; None: not known.
        fields: what else its study.json says.
        warnings: what is odd about it.
    """

    folder: Path
    dataset: str
    model: str
    optimizer: str
    batch_size: int
    train_steps: int | None
    fields: Mapping[str, Any]
    warnings: tuple[str, ...] = ()

    @property
    def workload(self) -> str:
        """One name for data set and model; an export of ours says its own."""
        return _component(str(self.fields.get("workload") or f"{self.model}_{self.dataset}"))

    def __str__(self) -> str:
        return f"{self.dataset}/{self.model}/{self.optimizer}/{self.batch_size}"


def import_released(
    folder: Path,
    results: Path,
    goals: Sequence[str] = (),
    trials: int | None = None,
    command: str = "",
    watch: Watch = lambda study, rows: None,
    begin: Callable[[int], None] = lambda studies: None,
) -> list[str]:
    """Read a released tree into a results folder, one study in memory at a time.

    Arguments:
        goals: `[WORKLOAD:]METRIC<X` each; WORKLOAD may have `*`, and the last that fits a workload counts. By default
            the goal that an export of ours holds, else the published one.
        trials: N, the COMPLETE trials that count, 0 for all; by default as exported or published, else all.
        begin: told how many studies there are.

    Returns:
        Warnings, each naming the study and the rule that it breaks.

    Raises:
        ImportRefused: there is nothing to import, or a goal is missing, malformed or not measured.
        StoreError: the results folder holds another question or cannot be written.
    """
    found, warnings = find(folder)
    chosen = _goals(found, goals)
    if trials is not None and trials < 0:
        raise ImportRefused(f"--trials must be at least 1, or all, but got {trials}.")
    store.check_imported(results, [_question(study, chosen[study.workload], {}) for study in found])
    begin(len(found))
    for study in found:
        started = _now()
        goal = chosen[study.workload]
        records, columns, odd = read(study, goal.metric)
        space, odd_space = _space(study, records)
        said = [f"{study}: {text}" for text in (*study.warnings, *odd_space, *odd)]
        complete = sum(record["status"] == COMPLETE for record in records)
        steps = study.train_steps or int(columns["step"].max(initial=1))
        wanted = _trials(study) if trials is None else trials
        asked = {"trials": wanted or max(1, complete), "space": space, "train_steps": steps}
        provenance = {
            "command": command,
            "started": started,
            "ended": _now(),
            "source": str(study),
            "measurements": len(columns["step"]),
            "warnings": said,
        }
        store.save_imported(results, _question(study, goal, asked), provenance, records, columns)
        warnings += said
        watch(study, len(columns["step"]))
    return warnings


def find(folder: Path) -> tuple[list[Released], list[str]]:
    """(the studies of a tree, warnings on those that are left out), by path, batch sizes in order.

    Raises:
        ImportRefused: there are none.
    """
    paths, lacking = [], set()
    for place, folders, files in os.walk(folder, followlinks=True):
        if "study.json" in files:
            paths.append(Path(place))
        if "metadata.json" in files:
            lacking.add(Path(place).parent)
        if {"study.json", "metadata.json"} & set(files):
            folders.clear()
    warnings = [f"{path.relative_to(folder)}: no study.json: left out" for path in sorted(lacking)]
    studies: dict[tuple[str, str, int], Released] = {}
    for path in paths:
        try:
            study = _released(folder, path)
        except ValueError as error:
            warnings.append(f"{path.relative_to(folder)}: malformed study.json: left out ({error})")
            continue
        same = studies.setdefault((study.workload, study.optimizer, study.batch_size), study)
        if same is not study:
            warnings.append(
                f"{path.relative_to(folder)}: the same study as {same.folder.relative_to(folder)}: left out"
            )
    if not studies:
        raise ImportRefused(
            "; ".join([f"no studies to import in {folder}: there is no readable study.json", *warnings])
        )
    return [studies[key] for key in sorted(studies)], warnings


def _released(top: Path, folder: Path) -> Released:
    """A study by its path; where only a part of the tree was given, by what study.json says."""
    fields = json.loads((folder / "study.json").read_text())
    if not isinstance(fields, dict):
        raise ValueError(f"it holds {fields!r:.40}")
    parts = folder.relative_to(top).parts
    if len(parts) >= 4:
        names = {"dataset": "/".join(parts[:-3]), "model": parts[-3], "optimizer": parts[-2]}
    else:
        names = {key: str(fields[key]) for key in ("dataset", "model", "optimizer") if fields.get(key)}
        if len(names) < 3:
            raise ValueError("it lacks dataset, model or optimizer, and so does the path")
    size = folder.name if folder.name.isdecimal() else fields.get("batch_size")
    if not str(size).isdecimal() or int(str(size)) < 1:
        raise ValueError(f"batch_size is {size!r}")
    batch_size = int(str(size))
    odd = []
    if fields.get("batch_size", batch_size) != batch_size:
        odd.append(f"study.json says batch_size {fields['batch_size']}: taken as {batch_size} by its folder")
    steps = fields.get("train_steps")
    steps = int(steps) if _is_number(steps) and steps >= 0 else None
    if steps is None:
        odd.append(f"odd train_steps {fields.get('train_steps')!r}: taken as those of the longest trial")
    names["optimizer"] = _component(names["optimizer"])
    return Released(folder, **names, batch_size=batch_size, train_steps=steps, fields=fields, warnings=tuple(odd))


def _component(name: str) -> str:
    """A name that is one folder."""
    return re.sub(r"[^\w+=-]+", "_", name).strip("_+=-") or "unnamed"


def _goals(studies: Iterable[Released], asked: Sequence[str]) -> dict[str, Goal]:
    """Workload -> goal."""
    parsed = []
    for text in asked:
        pattern, _, goal = text.rpartition(":")
        try:
            parsed.append((pattern or "*", parse_goal(goal)))
        except ValueError as error:
            raise ImportRefused(f"--goal {text!r}: {error}") from error
    first = {study.workload: study for study in reversed(list(studies))}
    names = {workload: (workload, f"{study.dataset}/{study.model}") for workload, study in first.items()}
    for pattern, _ in parsed:
        if not any(fnmatchcase(name, pattern) for both in names.values() for name in both):
            raise ImportRefused(f"--goal for {pattern!r} fits no workload; there are {', '.join(sorted(names))}.")
    found: dict[str, Goal] = {}
    missing = []
    for workload, study in sorted(first.items()):
        fitting = [goal for pattern, goal in parsed if any(fnmatchcase(name, pattern) for name in names[workload])]
        chosen = fitting[-1] if fitting else _default_goal(study)
        metrics = _metrics(study)
        if chosen is None:
            some = "METRIC" if not metrics else next((m for m in metrics if m.startswith("val/")), metrics[0])
            missing.append(f"--goal '{workload}:{some}<X'")
        elif metrics and chosen.metric not in metrics:
            raise ImportRefused(
                f"{workload} does not measure {chosen.metric}, but {', '.join(metrics)}; choose one with "
                f"--goal '{workload}:METRIC<X'."
            )
        elif study.fields.get("stopping") in ("goal", "race") and _is_beyond(chosen, _default_goal(study)):
            raise ImportRefused(
                f"{workload}: {chosen} needs stopping=budget, since trials stopped at {_default_goal(study)}; give a "
                "looser goal of that metric."
            )
        else:
            found[workload] = chosen
    if missing:
        raise ImportRefused(
            "a goal must be known for every workload, but none is published for some; any goal can be read off later "
            f"with report --goal. Add {' '.join(missing)}, or one --goal 'METRIC<X' for all."
        )
    return found


def _is_beyond(goal: Goal, stopped_at: Goal | None) -> bool:
    """Whether trials that stopped at one goal know nothing of another."""
    return stopped_at is not None and (goal.metric != stopped_at.metric or goal.threshold < stopped_at.threshold)


def parse_goal(text: str) -> Goal:
    """Read `val/cross_entropy_error < 3.9`, or `val/average_precision > 0.31` as an error below 0.69.

    Raises:
        ValueError: it is neither.
    """
    match = _MAXIMISED_GOAL.fullmatch(text.strip())
    if match is None:
        return Goal.parse(text)
    return Goal(f"{match['split']}/{AS_ERRORS[match['metric']]}", 1 - float(match["threshold"]))


def _default_goal(study: Released) -> Goal | None:
    held = study.fields.get("goal")
    if isinstance(held, dict):
        try:
            return Goal(str(held["metric"]), float(held["threshold"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ImportRefused(f"{study}: study.json has the goal {held}: {error}; give it with --goal.") from error
    text, _ = PUBLISHED.get((study.dataset.rpartition("/")[2], study.model), (None, 0))
    return None if text is None else Goal.parse(text)


def _trials(study: Released) -> int | None:
    """N as an export of ours holds it, or as published."""
    held = study.fields.get("trials")
    if isinstance(held, int) and held > 0:
        return held
    return PUBLISHED.get((study.dataset.rpartition("/")[2], study.model), (None, None))[1]


def _metrics(study: Released) -> list[str]:
    """What its first readable trial measures; none if there is none."""
    for _, folder in _trial_folders(study):
        try:
            with (folder / "measurements.csv").open() as file:
                return [_as_error(name)[0] for name in _names(file.readline()) if name != "step"]
        except (OSError, ValueError):
            continue
    return []


def _names(header: str) -> list[str]:
    return [name.strip().strip('"') for name in header.strip().split(",")]


def _as_error(name: str) -> tuple[str, bool]:
    """(the metric's name among errors, whether it is turned around)."""
    split, _, metric = name.rpartition("/")
    return (f"{split}/{AS_ERRORS[metric]}", True) if metric in AS_ERRORS else (name, False)


def _trial_folders(study: Released) -> list[tuple[int, Path]]:
    """By number: as text, 10 would come before 2."""
    with os.scandir(study.folder) as entries:
        return sorted((int(e.name), Path(e.path)) for e in entries if e.name.isdecimal() and e.is_dir())


class _Odd:
    """Which trials break which rule."""

    def __init__(self) -> None:
        self.found: dict[str, list[int]] = {}

    def __call__(self, rule: str, trial_id: int) -> None:
        self.found.setdefault(rule, []).append(trial_id)

    def texts(self) -> list[str]:
        return [
            f"{rule} ({len(ids):,} trial{'s' if len(ids) > 1 else ''}: {', '.join(map(str, ids[:5]))}"
            f"{', ...' if len(ids) > 5 else ''})"
            for rule, ids in self.found.items()
        ]


def read(study: Released, metric: str) -> tuple[list[dict[str, Any]], dict[str, np.ndarray], list[str]]:
    """All trials of a study, by trial id.

    Arguments:
        metric: the goal's; a row without it is worth a warning, and of the others only NaN is.

    Returns:
        A record for each trial, the columns trial (index), step and one for each metric [all measurements], warnings.
    """
    odd = _Odd()
    records: list[dict[str, Any]] = []
    curves: list[dict[str, np.ndarray]] = []
    for trial_id, folder in _trial_folders(study):
        metadata = _metadata(folder, trial_id, odd)
        if metadata is None:
            continue
        record = _record(len(records), trial_id, metadata, odd)
        curve, has_nan = _curve(folder, trial_id, odd)
        if study.train_steps == 0 and metadata.get("status") == INCOMPLETE:
            odd("INCOMPLETE under a time budget (train_steps 0): counted as COMPLETE", trial_id)
            record["status"] = COMPLETE
        if record["status"] == COMPLETE and not len(curve["step"]):
            odd("COMPLETE without measurements: counted as INCOMPLETE", trial_id)
            record["status"] = INCOMPLETE
        has_gap = len(curve["step"]) and (metric not in curve or np.isnan(curve[metric]).any())
        if record["status"] != INFEASIBLE and (has_nan or has_gap):
            odd("NaN cells: taken as not measured", trial_id)
        records.append(record)
        curves.append(curve)
    return records, _joined(curves), odd.texts()


def _metadata(folder: Path, trial_id: int, odd: _Odd) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / "metadata.json").read_text())
    except FileNotFoundError:
        odd("no metadata.json: left out", trial_id)
        return None
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        odd("malformed metadata.json: left out", trial_id)
        return None
    return found


def _record(index: int, trial_id: int, metadata: Mapping[str, Any], odd: _Odd) -> dict[str, Any]:
    status, steps = metadata.get("status"), metadata.get("steps")
    if status not in (COMPLETE, INCOMPLETE, INFEASIBLE):
        odd(f"odd status {status!r:.40}: counted as INCOMPLETE", trial_id)
        status = INCOMPLETE
    if metadata.get("trial_id", trial_id) != trial_id:
        odd("metadata.json has another trial_id: taken by its folder", trial_id)
    parameters = metadata.get("parameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    numbers = {name: value for name, value in parameters.items() if _is_number(value)}
    if len(numbers) < len(parameters) or not parameters:
        odd("odd parameters: those that are no numbers are left out", trial_id)
    return {
        "index": index,
        "trial_id": trial_id,
        "status": status,
        "seed": None,
        "order_seed": None,
        "hyperparameters": numbers,
        "first_bad_step": int(steps) if status == INFEASIBLE and _is_number(steps) and steps >= 1 else None,
        "seconds": {"training": None, "evaluation": None},
        "micro_batch": None,
    }


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def _curve(folder: Path, trial_id: int, odd: _Odd) -> tuple[dict[str, np.ndarray], bool]:
    """(`step` and the errors of one trial [E], by increasing step; whether any error is NaN, and not merely empty)."""
    nothing = {"step": np.empty(0, dtype=np.int64)}
    try:
        with (folder / "measurements.csv").open("rb") as file:
            content = file.read()
        names = _names(content.partition(b"\n")[0].decode())
        if "step" not in names:
            raise pa.ArrowInvalid("no step")
        types = {name: pa.float64() for name in names} | {"step": pa.int64()}
        table = csv.read_csv(
            pa.BufferReader(content),
            read_options=csv.ReadOptions(use_threads=False, column_names=names, skip_rows=1),
            # Empty is not measured; NaN is a number that was measured.
            convert_options=csv.ConvertOptions(column_types=types, null_values=[""]),
        )
        if table["step"].null_count:
            raise pa.ArrowInvalid("a row without its step")
    except FileNotFoundError:
        odd("no measurements.csv: taken as empty", trial_id)
        return nothing, False
    except (OSError, ValueError):  # Arrow's own are among them
        odd("malformed measurements.csv: taken as empty", trial_id)
        return nothing, False
    curve, has_nan = {"step": table["step"].to_numpy()}, False
    for name in names:
        if name != "step":
            error, turned = _as_error(name)
            values = table[name].to_numpy()
            curve[error] = 1 - values if turned else values
            has_nan = has_nan or bool(np.isnan(values).sum() > table[name].null_count)
    return _in_order(curve, trial_id, odd), has_nan


def _in_order(curve: dict[str, np.ndarray], trial_id: int, odd: _Odd) -> dict[str, np.ndarray]:
    """Of rows with the same step the lesser errors, which is what a search through all rows finds."""
    apart = np.diff(curve["step"])
    if (apart > 0).all():
        return curve
    if (apart < 0).any():
        odd("unsorted steps: sorted", trial_id)
    if len(np.unique(curve["step"])) < len(curve["step"]):
        odd("duplicate steps: the lesser errors count", trial_id)
    frame = pd.DataFrame(curve).groupby("step", as_index=False).min()
    return {name: frame[name].to_numpy() for name in curve}


def _joined(curves: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    metrics = dict.fromkeys(name for curve in curves for name in curve if name != "step")
    lengths = [len(curve["step"]) for curve in curves]
    columns = {
        "trial": np.repeat(np.arange(len(curves), dtype=np.int32), lengths),
        "step": np.concatenate([np.empty(0, dtype=np.int64), *(curve["step"] for curve in curves)]),
    }
    for metric in metrics:
        parts = [curve.get(metric, np.full(length, np.nan)) for curve, length in zip(curves, lengths, strict=True)]
        columns[metric] = np.concatenate(parts)
    return columns


def _space(study: Released, records: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """(the space in our terms, warnings). Sides at the end of what is legal are hard."""
    configs = study.fields.get("parameter_configs")
    if not isinstance(configs, dict):
        return {}, [f"odd parameter_configs {configs!r:.40}: taken as empty"]
    legal = LEGAL | {"learning_rate_decay_steps": Legal(f"(0, {study.train_steps or 'inf'}]")}
    given = {name for record in records for name in record["hyperparameters"]}
    space, odd = {}, []
    for name in sorted(configs):
        try:
            dimension = _dimension(configs[name])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            odd.append(f"odd parameter_configs of {name}: left out of the space ({error})")
            continue
        if name in given:
            space[name] = dimension.hardened(legal.get(name, Legal("(-inf, inf)"))).to_dict()
        elif records:
            odd.append(f"no trial has a value of {name}: left out of the space")
    return space, odd


def _dimension(config: Mapping[str, Any]) -> Dimension:
    if config["type"] == "DISCRETE":
        return Dimension(choices=tuple(config["feasible_points"]))
    if config["type"] not in ("DOUBLE", "INTEGER"):
        raise ValueError(f"type {config['type']!r}")
    low, high = config["min_value"], config["max_value"]
    if low == high:
        return Dimension(choices=(low,))
    scale = (config.get("scale") or "LINEAR_SCALE").removesuffix("_SCALE").lower()
    whole = config["type"] == "INTEGER" and scale != "reverse_log"
    return Dimension(low=low, high=high, scale=scale, integer=whole)


def _question(study: Released, goal: Goal, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked when it was measured, in the terms of `study.json` under results.

    Arguments:
        asked: trials, space and train_steps, which are known once the study is read.
    """
    leaf, stopping = study.dataset.rpartition("/")[2], study.fields.get("stopping")
    names = {"name": study.workload, "dataset": study.dataset, "model": study.model}
    return {
        "workload": names | {"train_examples": TRAIN_EXAMPLES.get(leaf)},
        "optimizer": study.optimizer,
        "batch_size": study.batch_size,
        "goal": {"metric": goal.metric, "threshold": goal.threshold},
        "stopping": RECORDED,
        "recorded_stopping": stopping if stopping in STOPPING_RULES else None,
        "early_stopping": bool(study.fields.get("early_stopping")),
        "time_budget": study.train_steps == 0,
        "train_steps": asked.get("train_steps"),
        "search": {
            "sampler": RECORDED,
            "trials": asked.get("trials"),
            "max_launches": None,
            "space": asked.get("space"),
            "extend": False,
            "extend_limit": 0,
            "budgets": [1.0],
            "repeats": 0,
            "reruns": 0,
        },
        "seeds": None,
        "branch": {"repeat": 0, "budget": 1.0, "widened": [], "rerun": None},
    }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
