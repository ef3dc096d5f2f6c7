"""Curves of different workloads on one scale: models, data sets and subsets compared by S(B) / S(B_norm)."""

import json
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any, NamedTuple

import pandas as pd

from analysis.intervals import left_censored
from analysis.load import GOAL, TASK, StudyData

SUBSETS = "_subsets"
"""The suffix of a folder of data subsets, such as `mnist_subsets/mnist_6875` in the published database."""
ABOUT_DATA = ("name", "dataset", "train_examples", "validation_examples", "split_seed")
ABOUT_LABELS = ("label_smoothing", "label_smoothing_convention")


def workloads(studies: Iterable[StudyData]) -> pd.DataFrame:
    """The data and the model of each workload.

    Returns:
        One row per workload: dataset (the name of the whole data set), part (the name of the subset, or the number of
        training examples), model (a description; equal if two workloads train the same network in the same way).

    >>> made = workloads([study])
    >>> made[["workload", "dataset", "part"]]
         workload dataset  part
    0  mlp_digits  digits  1197
    """
    rows = {study.workload: _parts(study.question["workload"]) for study in studies}
    return pd.DataFrame([{"workload": name, **parts} for name, parts in rows.items()])


def related(studies: Iterable[StudyData]) -> set[frozenset[str]]:
    """The pairs of workloads whose steps can be compared: they share the examples or the model.

    >>> from dataclasses import replace
    >>> wider = study.question["workload"] | {"name": "wide", "widths": [512]}
    >>> [sorted(pair) for pair in related([study, replace(study, question=study.question | {"workload": wider})])]
    [['mlp_digits', 'wide']]
    """
    made = workloads(studies).to_dict("records")
    return {
        frozenset((one["workload"], other["workload"]))
        for one, other in combinations(made, 2)
        if one["model"] == other["model"] or (one["dataset"], one["part"]) == (other["dataset"], other["part"])
    }


def _parts(workload: dict[str, Any]) -> dict[str, str]:
    name = str(workload.get("dataset", workload["name"]))
    folder, _, leaf = name.rpartition("/")
    of_subsets = folder.endswith(SUBSETS)
    rest = {key: value for key, value in workload.items() if key not in (*ABOUT_DATA, *ABOUT_LABELS)}
    return {
        "dataset": folder.removesuffix(SUBSETS) if of_subsets else name,
        "part": leaf if of_subsets else str(workload.get("train_examples")),
        "model": workload.get("model") or json.dumps(rest, sort_keys=True),
    }


class Kind(NamedTuple):
    """A kind of comparison.

    Attributes:
        shared: columns with the same value in all workloads compared.
        differing: the column in which they differ.
        of: names the shared part, given any of their rows.
    """

    name: str
    shared: list[str]
    differing: str
    of: Callable[[pd.Series], str]


def _examples(row: pd.Series) -> str:
    return f"{row['dataset']}, {int(row['part']):,} examples" if row["part"].isdecimal() else row["dataset"]


def _model(row: pd.Series) -> str:
    """The name of a published model; for other models, which have none, the class and its settings."""
    if not row["model"].startswith("{"):
        return row["model"]
    made = json.loads(row["model"])
    rest = [f"{key} {value}" for key, value in made.items() if key != "_target_"]
    return " ".join([str(made.get("_target_", "")).rpartition(".")[2], *rest])


KINDS = (
    # Models on the same data must share the goal; different data have different goals.
    Kind("models", ["dataset", "part", *GOAL], "model", _examples),
    Kind("data sets", ["model"], "dataset", _model),
    Kind("subsets", ["model", "dataset"], "part", lambda row: row["dataset"]),
)


def table(steps: pd.DataFrame, made_of: pd.DataFrame, norm: int | None = None) -> pd.DataFrame:
    """S(B) / S(B_norm) of workloads that differ in one thing only.

    Arguments:
        steps: from `analysis.tables.steps_to_result.table`.
        made_of: from `workloads`.
        norm: B_norm; by default the smallest batch size at which all workloads compared reached their goal.

    Returns:
        A row for each (compared: `models`, `data sets` or `subsets`, of: name of the shared part, optimizer, workload,
        goal, batch_size): relative_steps (NaN where the goal was not reached or may have been reached before the first
        evaluation) and norm. A workload without a result at B_norm is left out; so is a comparison with only one
        workload left.

    >>> steps = pd.DataFrame({"workload": ["narrow", "narrow", "wide", "wide"], "optimizer": "sgd",
    ...     "goal_metric": "val/classification_error", "goal_threshold": 0.05, "batch_size": [8, 16, 8, 16],
    ...     "reached": True, "steps_to_result": [100, 50, 60, 45]})
    >>> made_of = pd.DataFrame({"workload": ["narrow", "wide"], "dataset": "digits", "part": "1197",
    ...     "model": ["MLP 128", "MLP 512"]})
    >>> table(steps, made_of)[["of", "workload", "batch_size", "relative_steps"]]
                           of workload  batch_size  relative_steps
    0  digits, 1,197 examples   narrow           8            1.00
    1  digits, 1,197 examples   narrow          16            0.50
    2  digits, 1,197 examples     wide           8            1.00
    3  digits, 1,197 examples     wide          16            0.75
    """
    columns = ["compared", "of", "optimizer", *TASK, "batch_size"]
    joined = steps.merge(made_of, on="workload")
    parts = []
    for kind in KINDS:
        for _, group in joined.groupby([*kind.shared, "optimizer"], sort=False):
            if group[kind.differing].nunique() > 1 and group["workload"].nunique() > 1:
                parts.append(_normalised(group, norm).assign(compared=kind.name, of=kind.of(group.iloc[0])))
    parts = [part for part in parts if part["workload"].nunique() > 1]
    shown = [*columns, "relative_steps", "norm"]
    return pd.concat(parts, ignore_index=True)[shown] if parts else pd.DataFrame(columns=shown)


def _normalised(group: pd.DataFrame, norm: int | None) -> pd.DataFrame:
    known = group["reached"].astype(bool) & ~left_censored(group["steps_to_result"], group.get("first_evaluation"))
    reached = group[known]
    count = reached[TASK].drop_duplicates().shape[0]  # without the curves that never reached their goal
    common = reached.groupby("batch_size").size()
    common = common[common == count].index
    norm = norm or (min(common) if len(common) else None)
    at_norm = reached[reached["batch_size"] == norm].set_index(TASK)["steps_to_result"].rename("at_norm")
    joined = group.join(at_norm, on=TASK, how="inner")
    ratio = joined["steps_to_result"].astype("Float64") / joined["at_norm"].astype("Float64")
    return joined.assign(relative_steps=ratio.astype("float64").where(known[joined.index]), norm=norm)
