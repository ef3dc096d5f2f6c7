"""Reads the studies in the released tree of Shallue et al.'s measurements (`batch_science`) as plain records.

    [leading folders/]dataset/model/optimizer/batch_size/study.json
    ...                                                 /trial_id/metadata.json
    ...                                                 /trial_id/measurements.csv

A warning names each entry that breaks a rule of the layout, and says how it is read or that it is left out.
`study.exchange.released_trials` reads the trials; `analysis.export` writes the same layout.
"""

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.counting import AS_ERRORS, Goal
from study.optimizers import OPTIMIZERS
from study.records import LEGAL_IN_WORKLOADS
from study.schedules import SCHEDULES, Schedule
from study.space import Dimension, Legal, finite

LEGAL = {**LEGAL_IN_WORKLOADS, **Schedule.optional_hyperparameters}
for _legal in (*(one.hyperparameters for one in OPTIMIZERS.values()), *(s.hyperparameters for s in SCHEDULES.values())):
    LEGAL |= _legal


@dataclass(frozen=True)
class Released:
    """One study of a released tree.

    Attributes:
        workload: a name that combines data set and model.
        dataset: the name with its leading folders, such as `mnist_subsets/mnist_6875`.
        train_steps: the step budget; 0: a time budget; None: unknown.
        parameter_configs: the search space as released; see `space`.
        goal, trials, stopping, race_factor: from an export by this project, else None; trials is N.
        warnings: the rules of the layout that the study breaks.
    """

    folder: Path
    workload: str
    dataset: str
    model: str
    optimizer: str
    batch_size: int
    train_steps: int | None
    early_stopping: bool
    parameter_configs: Any
    goal: Goal | None
    trials: int | None
    stopping: str | None
    race_factor: float | None
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.dataset}/{self.model}/{self.optimizer}/{self.batch_size}"


def find(folder: Path) -> tuple[list[Released], list[str]]:
    """(the studies of a tree by workload, optimizer and batch size; a warning for each study that is left out)."""
    paths, lacking, results = [], set(), dict[Path, None]()
    for place, folders, files in os.walk(folder, followlinks=True):
        if "study.json" in files and is_result(Path(place, "study.json")):
            results[results_folder(folder, Path(place))] = None
        elif "study.json" in files:
            paths.append(Path(place))
        if "metadata.json" in files:
            lacking.add(Path(place).parent)
        if {"study.json", "metadata.json"} & set(files):
            folders.clear()
    warnings = [f"{path.relative_to(folder)}: results of this project, no released data: left out" for path in results]
    warnings += [f"{path.relative_to(folder)}: no study.json: left out" for path in sorted(lacking)]
    studies: dict[tuple[str, str, int], Released] = {}
    for path in sorted(paths):
        try:
            study = _study(path, path.relative_to(folder).parts)
        except (OSError, TypeError, ValueError) as error:
            warnings.append(f"{path.relative_to(folder)}: malformed study.json: left out ({error})")
            continue
        same = studies.setdefault((study.workload, study.optimizer, study.batch_size), study)
        if same is not study:
            other = same.folder.relative_to(folder)
            warnings.append(f"{path.relative_to(folder)}: the same study as {other}: left out")
    return [studies[key] for key in sorted(studies)], warnings


def is_result(path: Path) -> bool:
    """True if a study.json belongs to a results folder of this project: it holds a question."""
    try:
        return "question" in json.loads(path.read_text())
    except (OSError, TypeError, ValueError):
        return False


def results_folder(folder: Path, study: Path) -> Path:
    """The results folder, below or at `folder`, of the study in RESULTS/studies/...; without such a path, the study's.

    >>> results_folder(Path("a"), Path("a/out/studies/digits/sgd/8")).as_posix()
    'a/out'
    """
    parts = study.relative_to(folder).parts
    return folder.joinpath(*parts[: parts.index("studies")]) if "studies" in parts else study


def measured(study: Released) -> bool:
    """True if a trial of a study has a row of measurements."""
    for _, folder in trial_folders(study):
        try:
            with open(f"{folder}/measurements.csv", "rb") as file:
                if file.readline() and file.readline().strip():
                    return True
        except OSError:
            continue
    return False


def _study(folder: Path, parts: tuple[str, ...]) -> Released:
    """Read a study. Its names come from its path below the tree, or from study.json if the user gave a subtree."""
    fields = json.loads((folder / "study.json").read_text())
    if not isinstance(fields, dict):
        raise ValueError(f"it holds {fields!r:.40}")
    if len(parts) >= 4:
        dataset, model, optimizer = "/".join(parts[:-3]), parts[-3], parts[-2]
    elif all(fields.get(key) for key in ("dataset", "model", "optimizer")):
        dataset, model, optimizer = (str(fields[key]) for key in ("dataset", "model", "optimizer"))
    else:
        raise ValueError("it lacks dataset, model or optimizer, and so does the path")
    size = folder.name if folder.name.isdecimal() else str(fields.get("batch_size"))
    if not size.isdecimal() or int(size) < 1:
        raise ValueError(f"batch_size is {size}")
    odd = []
    if fields.get("batch_size", int(size)) != int(size):
        odd.append(f"study.json says batch_size {fields['batch_size']}: taken as {size} by its folder")
    steps = fields.get("train_steps")
    if not finite(steps) or steps < 0:
        odd.append(f"odd train_steps {steps!r}: taken as those of the longest trial")
        steps = None
    return Released(
        folder=folder,
        workload=component(fields.get("workload") or f"{model}_{dataset}"),
        dataset=dataset,
        model=model,
        optimizer=component(optimizer),
        batch_size=int(size),
        train_steps=None if steps is None else int(steps),
        early_stopping=bool(fields.get("early_stopping")),
        parameter_configs=fields.get("parameter_configs"),
        goal=Goal(**fields["goal"]) if "goal" in fields else None,
        trials=fields.get("trials"),
        stopping=fields.get("stopping"),
        race_factor=fields.get("race_factor"),
        warnings=tuple(odd),
    )


def component(name: str) -> str:
    """The name as one folder."""
    return re.sub(r"[^\w.,+=-]+", "_", name).strip("_.,+=-") or "unnamed"


def space(study: Released, given: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """(the search space in the form of `study.space`, warnings).

    Only parameters that are `given` in trials enter. Sides at the limit of the legal values are hard.
    """
    if not isinstance(study.parameter_configs, dict):
        return {}, [f"odd parameter_configs {study.parameter_configs!r:.40}: taken as empty"]
    legal = LEGAL | {"learning_rate_decay_steps": Legal(f"(0, {study.train_steps or 'inf'}]")}
    found, odd = {}, []
    for name, config in sorted(study.parameter_configs.items()):
        try:
            dimension = _dimension(config)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            odd.append(f"odd parameter_configs of {name}: left out of the space ({error})")
            continue
        if name in given:
            found[name] = dimension.hardened(legal.get(name, Legal("(-inf, inf)"))).to_dict()
        elif given:
            odd.append(f"no trial has a value of {name}: left out of the space")
    return found, odd


def _dimension(config: Mapping[str, Any]) -> Dimension:
    if config["type"] in ("DISCRETE", "CATEGORICAL"):
        return Dimension(choices=tuple(config["feasible_points"]))
    if config["type"] not in ("DOUBLE", "INTEGER"):
        raise ValueError(f"type {config['type']!r}")
    low, high = config["min_value"], config["max_value"]
    if low == high:
        return Dimension(choices=(low,))
    scale = (config.get("scale") or "LINEAR_SCALE").removesuffix("_SCALE").lower()
    whole = config["type"] == "INTEGER" and scale != "reverse_log"
    return Dimension(low=low, high=high, scale=scale, integer=whole)


def named(study: Released) -> set[str]:
    """The parameters whose values are names."""
    configs = study.parameter_configs if isinstance(study.parameter_configs, dict) else {}
    return {name for name, each in configs.items() if isinstance(each, dict) and each.get("type") == "CATEGORICAL"}


def trial_folders(study: Released) -> list[tuple[int, str]]:
    """(trial id, its folder), sorted by number: as text, 10 would come before 2."""
    with os.scandir(study.folder) as entries:
        return sorted((int(entry.name), entry.path) for entry in entries if entry.name.isdecimal() and entry.is_dir())


def metrics(study: Released) -> list[str]:
    """The metrics of the first readable trial of a study, as errors; empty if no trial is readable."""
    for _, folder in trial_folders(study):
        try:
            with open(f"{folder}/measurements.csv") as file:
                return [as_error(name) for name in columns_of(file.readline()) if name != "step"]
        except (OSError, ValueError):
            continue
    return []


def columns_of(header: str) -> list[str]:
    """The names in the first line of a measurements.csv."""
    return [name.strip().strip('"') for name in header.split(",")]


def as_error(metric: str) -> str:
    """The error that stands for a metric in results folders.

    >>> as_error("val/average_precision"), as_error("val/classification_error")
    ('val/average_precision_error', 'val/classification_error')
    """
    split, _, name = metric.rpartition("/")
    return f"{split}/{AS_ERRORS[name]}" if name in AS_ERRORS else metric
