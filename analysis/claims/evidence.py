"""The tables of results folders as the claims read them: curve by curve, with what each was made of."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd

from analysis.labels import goal_text
from analysis.load import CURVE, StudyData
from analysis.tables import relative

TABLES = ("steps_to_result", "scaling", "critical_by_goal", "rerun_steps", "trials", "best_errors", "cost", "compare")
"""The tables of `analysis.report.derived.tables` that claims are judged by."""
ABOUT = [
    "workload",
    "optimizer",
    "dataset",
    "part",
    "model",
    "parameters",
    "train_examples",
    "label_smoothing",
    "independent",
]


class Curve(NamedTuple):
    """One curve: a workload, an optimizer and a goal.

    Attributes:
        steps: its rows in `analysis.estimates.tuned.table`, by batch size.
        limits: its rows in `analysis.estimates.limits.table`, by definition.
        about: its row of `about`.
    """

    workload: str
    optimizer: str
    metric: str
    threshold: float
    steps: pd.DataFrame
    limits: pd.DataFrame
    about: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.workload} with {self.optimizer}"

    @property
    def goal(self) -> str:
        return goal_text(self.metric, self.threshold)

    @property
    def key(self) -> tuple[str, str, str, float]:
        return self.workload, self.optimizer, self.metric, self.threshold


@dataclass(frozen=True)
class Evidence:
    """What results folders hold on the claims.

    Attributes:
        tables: by name, as in TABLES; a missing one stands for an empty one.
        about: from `about`, for the same curves.
    """

    tables: Mapping[str, pd.DataFrame]
    about: pd.DataFrame

    def table(self, name: str) -> pd.DataFrame:
        """A table by its name; an empty frame if there is none.

        >>> Evidence({}, about([study])).table("trials").empty
        True
        """
        return self.tables.get(name, pd.DataFrame())

    @property
    def curves(self) -> list[Curve]:
        """Every curve, by workload, optimizer and goal.

        >>> from analysis.gallery import gather
        >>> [curve.name for curve in gather.one(published).curves]
        ['mlp_digits with momentum', 'mlp_digits with sgd']
        """
        return self._made

    @cached_property
    def _made(self) -> list[Curve]:
        return list(_curves(self.table("steps_to_result"), self.table("scaling"), self.about))

    def groups(self, *names: str) -> list[list[Curve]]:
        """The curves with equal values of these attributes, or of these columns of `about`.

        >>> from analysis.gallery import gather
        >>> evidence = gather.one(published)
        >>> [[curve.optimizer for curve in group] for group in evidence.groups("workload", "goal")]
        [['momentum', 'sgd']]
        """
        found: dict[tuple[Any, ...], list[Curve]] = {}
        for curve in self.curves:
            key = tuple(getattr(curve, name) if hasattr(curve, name) else curve.about[name] for name in names)
            found.setdefault(key, []).append(curve)
        return list(found.values())


def _curves(steps: pd.DataFrame, limits: pd.DataFrame, about: pd.DataFrame) -> Iterator[Curve]:
    described = about.set_index(["workload", "optimizer"])
    found = {key: rows.set_index("definition") for key, rows in limits.groupby(CURVE)} if len(limits) else {}
    for key, rows in steps.groupby(CURVE, sort=True) if len(steps) else ():
        rows = rows.sort_values("batch_size")
        names = (str(key[0]), str(key[1]), str(key[2]), float(key[3]))
        yield Curve(*names, rows, found.get(key, pd.DataFrame()), described.loc[names[:2]].to_dict())


def about(studies: Iterable[StudyData]) -> pd.DataFrame:
    """What each curve was made of.

    Returns:
        A row for each (workload, optimizer): dataset, part and model as in `analysis.tables.relative.workloads`,
        parameters and train_examples (their numbers; NaN if unknown), label_smoothing (of the workload), and
        independent (True if its trials were drawn independently, so that their shares are shares of the search space).

    >>> about([study])[["workload", "optimizer", "dataset", "part", "independent"]]
         workload optimizer dataset  part  independent
    0  mlp_digits       sgd  digits  1197         True
    """
    studies = list({study.curve: study for study in studies}.values())
    made = relative.workloads(studies).set_index("workload") if studies else pd.DataFrame()
    rows = [
        {
            **{"workload": study.workload, "optimizer": study.optimizer, **made.loc[study.workload].to_dict()},
            "parameters": study.parameters,
            "train_examples": study.question["workload"].get("train_examples") or float("nan"),
            "label_smoothing": study.question["workload"].get("label_smoothing") or 0.0,
            "independent": study.independent,
        }
        for study in studies
    ]
    return pd.DataFrame(rows, columns=ABOUT)


def together(parts: Sequence[tuple[str, Evidence]]) -> tuple[Evidence, list[dict[str, str]]]:
    """The evidence of several folders as one. A curve that an earlier folder holds gets the folder's name added.

    Arguments:
        parts: (name, evidence) of each folder.

    Returns:
        The evidence, and for each folder the new name of each of its workloads.

    >>> tables = {"cost": pd.DataFrame({"workload": ["mlp_digits"], "optimizer": ["sgd"]})}
    >>> once = Evidence(tables, about([study]))
    >>> both, names = together([("first", once), ("second", once)])
    >>> both.about["workload"].tolist(), names[1]
    (['mlp_digits', 'mlp_digits (second)'], {'mlp_digits': 'mlp_digits (second)'})
    """
    seen: set[tuple[str, str]] = set()
    renamed, tables, abouts = [], {name: list[pd.DataFrame]() for name in TABLES}, []
    for name, evidence in parts:
        curves = list(evidence.about[["workload", "optimizer"]].itertuples(index=False, name=None))
        taken = {workload for workload, optimizer in curves if (workload, optimizer) in seen}
        names = {workload: f"{workload} ({name})" if workload in taken else workload for workload, _ in curves}
        seen |= {(names[workload], optimizer) for workload, optimizer in curves}
        renamed.append(names)
        abouts.append(evidence.about.assign(workload=evidence.about["workload"].map(names)))
        for table in TABLES:
            if len(rows := evidence.table(table)):
                tables[table].append(rows.assign(workload=rows["workload"].map(names)))
    merged = {name: pd.concat(each, ignore_index=True) for name, each in tables.items() if each}
    return Evidence(merged, pd.concat(abouts, ignore_index=True)), renamed
