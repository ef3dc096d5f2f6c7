"""`study import`: converts a tree of released measurements (`released_tree`) into a results folder, study by study.

A released study holds neither its goal nor N, the number of trials that count. The user gives them, or the published
values apply.
"""

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from analysis.counting import AS_ERRORS, COMPLETE, NUMBER, RECORDED, Branch, Goal, can_answer
from analysis.labels import counted
from study import store
from study.errors import Refused
from study.exchange import released_tree, released_trials
from study.exchange.released_tree import Released, as_error

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
    # Assumed, because this subset is all of MNIST. The goals for smaller subsets are not known.
    ("mnist_55000", "simple_cnn_base"): ("val/classification_error < 0.01", 100),
}
"""(data set without leading folders, model) -> the goal of the paper's figure 1 and its N.

Assumed to hold for every optimizer, and for the runs with very large budgets in `solution_quality/`.
"""
TRAIN_EXAMPLES = {"mnist": 55000, "fashion_mnist": 55000, "cifar_10": 45000}
TRAIN_EXAMPLES |= {f"mnist_{examples}": examples for examples in (6875, 13750, 27500, 55000)}

_MAXIMISED_GOAL = re.compile(rf"(?P<metric>\w+/(?:{'|'.join(AS_ERRORS)}))\s*>\s*(?P<threshold>{NUMBER})")

Watch = Callable[[Released, int], None]
"""Called after every study, with the study and its number of measurements."""


class ImportRefused(Refused):
    """The tree cannot be imported like this."""


def import_released(
    folder: Path,
    results: Path,
    goals: Sequence[str] = (),
    trials: int | None = None,
    command: str = "",
    watch: Watch = lambda study, rows: None,
    begin: Callable[[int], None] = lambda studies: None,
) -> list[str]:
    """Read a released tree into a results folder, with one study in memory at a time.

    Arguments:
        goals: each `[WORKLOAD:]METRIC<X`; WORKLOAD may contain `*`, and the last goal that fits a workload counts. A
            workload without one takes the goal of an export by this project, else the published goal.
        trials: N, the number of COMPLETE trials that count, 0 for all. None: as exported or published, else all.
        begin: called with the number of studies before the first is read.

    Returns:
        Warnings; each names the study and the rule of the layout that it breaks.

    Raises:
        ImportRefused: there is nothing to import, or a goal is missing, malformed or not measured.
        StoreError: the results folder holds another question or cannot be written.
    """
    found, warnings = released_tree.find(folder)
    if not found:
        here = f"{folder} is no folder" if folder.exists() else f"there is no folder {folder}"
        why = f"no studies to import in {folder}: there is no readable study.json" if folder.is_dir() else here
        raise ImportRefused("; ".join([why, *warnings]))
    if not any(map(released_tree.measured, found)):
        raise ImportRefused(
            f"{folder} has {counted(len(found), 'study.json', 'files study.json')}, but no trial beside one has "
            "measurements in TRIAL/measurements.csv. If the folder holds logs of another form, give these files, or "
            "move the study.json out."
        )
    warnings += [f"{path.name}: no part of the released layout: left out" for path in sorted(folder.glob("*.csv"))]
    chosen = _goals(found, goals)
    questions = [_question(study, chosen[study.workload]) for study in found]
    store.check_imported(results, questions)
    begin(len(found))
    for study, question in zip(found, questions, strict=True):
        said, measurements = _import_study(study, question, results, trials, command)
        warnings += said
        watch(study, measurements)
    return warnings


def _import_study(
    study: Released, question: dict[str, Any], results: Path, trials: int | None, command: str
) -> tuple[list[str], int]:
    """Write one study; returns (its warnings, its number of measurements)."""
    started = store.now()
    records, columns, odd = released_trials.read(study, question["goal"]["metric"])
    names = {name for record in records for name in record["hyperparameters"]}
    space, odd_space = released_tree.space(study, names)
    warnings = [f"{study}: {text}" for text in (*study.warnings, *odd_space, *odd)]
    complete = sum(record["status"] == COMPLETE for record in records)
    wanted = (study.trials or _published(study)[1]) if trials is None else trials
    search = {"trials": wanted or max(1, complete), "space": space, "extend": False, "extend_limit": 0}
    question |= {"search": search, "train_steps": study.train_steps or int(columns["step"].max(initial=1))}
    provenance = {
        "command": command,
        "started": started,
        "ended": store.now(),
        "source": str(study),
        "measurements": len(columns["step"]),
        "warnings": warnings,
    }
    store.save_imported(results, question, provenance, records, columns)
    return warnings, len(columns["step"])


def _goals(studies: Sequence[Released], asked: Sequence[str]) -> dict[str, Goal]:
    """Workload -> goal."""
    given = [_given(text) for text in asked]
    first = {study.workload: study for study in reversed(studies)}
    for pattern, _ in given:
        if not any(_fits(pattern, study) for study in first.values()):
            raise ImportRefused(f"--goal for {pattern!r} fits no workload; choose among {', '.join(sorted(first))}.")
    chosen: dict[str, Goal] = {}
    missing = []
    for workload, study in sorted(first.items()):
        metrics = released_tree.metrics(study)
        goal = next((goal for pattern, goal in reversed(given) if _fits(pattern, study)), _default_goal(study))
        if goal is None:
            some = next((m for m in metrics if m.startswith("val/")), "METRIC")
            missing.append(f"--goal '{workload}:{some}<X'")
        else:
            _check(goal, study, metrics)
            chosen[workload] = goal
    if missing:
        raise ImportRefused(
            f"every workload needs a goal, but some have no published one. Add {' '.join(missing)}, or one --goal "
            "'METRIC<X' for all; `report --goal` can evaluate other goals later."
        )
    return chosen


def _given(text: str) -> tuple[str, Goal]:
    pattern, _, goal = text.rpartition(":")
    try:
        return pattern or "*", parse_goal(goal)
    except ValueError as error:
        raise ImportRefused(f"--goal {text!r}: {error}") from error


def parse_goal(text: str) -> Goal:
    """Read `val/cross_entropy_error < 3.9`, or `val/average_precision > 0.31` as an error below 0.69.

    Raises:
        ValueError: the text is no goal.
    """
    match = _MAXIMISED_GOAL.fullmatch(text.strip())
    return Goal(as_error(match["metric"]), 1 - float(match["threshold"])) if match else Goal.parse(text)


def _fits(pattern: str, study: Released) -> bool:
    return any(fnmatchcase(name, pattern) for name in (study.workload, f"{study.dataset}/{study.model}"))


def _published(study: Released) -> tuple[str | None, int | None]:
    return PUBLISHED.get((_data(study), study.model), (None, None))


def _data(study: Released) -> str:
    """The name of the data set without leading folders."""
    return study.dataset.rpartition("/")[2]


def _default_goal(study: Released) -> Goal | None:
    published, _ = _published(study)
    return study.goal or (Goal.parse(published) if published else None)


def _check(goal: Goal, study: Released, metrics: Sequence[str]) -> None:
    """Refuse a goal that the trials cannot answer."""
    if metrics and goal.metric not in metrics:
        raise ImportRefused(
            f"{study.workload} does not measure {goal.metric}, only {', '.join(metrics)}; choose one of these with "
            f"--goal '{study.workload}:METRIC<X'."
        )
    held = study.goal
    if held is not None and not can_answer(goal, held, study.stopping):
        raise ImportRefused(
            f"{study.workload}: {goal} needs stopping=budget, since trials stopped at {held}; give a looser goal of "
            "that metric."
        )


def _question(study: Released, goal: Goal) -> dict[str, Any]:
    """The question that the study answered, with the keys of `study.json` in a results folder.

    `search` and `train_steps` are missing, because they follow from the trials.
    """
    names = {"name": study.workload, "dataset": study.dataset, "model": study.model}
    return {
        "workload": names | {"train_examples": TRAIN_EXAMPLES.get(_data(study))},
        "optimizer": study.optimizer,
        "batch_size": study.batch_size,
        "goal": {"metric": goal.metric, "threshold": goal.threshold},
        "stopping": RECORDED,
        "recorded_stopping": study.stopping,
        **({} if study.race_factor is None else {"race_factor": study.race_factor}),
        "early_stopping": study.early_stopping,
        "time_budget": study.train_steps == 0,
        "seeds": None,
        "branch": Branch()._asdict(),
    }
