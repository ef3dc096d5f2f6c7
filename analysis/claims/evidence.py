"""The tables of results folders as the claims read them: curve by curve, with what each was made of."""

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd

from analysis.claims.copies import copies
from analysis.labels import goal_text
from analysis.load import CURVE, StudyData
from analysis.tables import relative

TABLES = ("steps_to_result", "scaling", "critical_by_goal", "rerun_steps", "trials", "best_errors", "cost", "compare")
"""The tables of `analysis.report.derived.tables` that claims are judged by."""
MEASURED = ("trials", "steps_to_result")
"""Those whose rows tell the trainings of two curves apart: the first that has any."""
ABOUT = ["workload", "optimizer", "dataset", "part", "model", "parameters", "train_examples"]
ABOUT += ["label_smoothing", "independent"]


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
    """The evidence of several folders as one.

    Trainings count once: of two curves that share most of their trials, such as a folder and its extended copy,
    the one with more trials stays (`analysis.claims.copies`). A workload gets the folder's name added if an earlier
    folder holds a curve of it with other measurements, or another workload, of other data or with another model, under
    its name.

    Arguments:
        parts: (name, evidence) of each folder.

    Returns:
        The evidence, and for each folder the new name of each of its workloads; of copies alone there is none.

    >>> steps = pd.DataFrame({"workload": ["mlp_digits"], "optimizer": ["sgd"], "steps_to_result": [90]})
    >>> once = Evidence({"steps_to_result": steps}, about([study]))
    >>> again = Evidence({"steps_to_result": steps.assign(steps_to_result=80)}, about([study]))
    >>> every, names = together([("first", once), ("copy", once), ("second", again)])
    >>> every.about["workload"].tolist(), names[1:]
    (['mlp_digits', 'mlp_digits (second)'], [{}, {'mlp_digits': 'mlp_digits (second)'}])
    """
    made: dict[str, tuple[Any, ...]] = {}
    seen: set[tuple[str, str]] = set()
    renamed, tables, abouts = [], {name: list[pd.DataFrame]() for name in TABLES}, []
    for (name, evidence), copied in zip(parts, _copied([evidence for _, evidence in parts]), strict=True):
        kept = _without(evidence, copied)
        names = {}
        for workload, rows in kept.about.groupby("workload", sort=False):
            is_of = _made_of(next(rows.itertuples()))
            curves = [(str(workload), optimizer) for optimizer in rows["optimizer"]]
            taken = made.get(str(workload), is_of) != is_of or not seen.isdisjoint(curves)
            names[str(workload)] = _free(str(workload), name, made) if taken else str(workload)
            made[names[str(workload)]] = is_of
        seen.update((names[row.workload], row.optimizer) for row in kept.about.itertuples())
        renamed.append(names)
        abouts.append(kept.about.assign(workload=kept.about["workload"].map(names)))
        for table in TABLES:
            if len(rows := kept.table(table)):
                tables[table].append(rows.assign(workload=rows["workload"].map(names)))
    merged = {name: pd.concat(each, ignore_index=True) for name, each in tables.items() if each}
    return Evidence(merged, pd.concat(abouts, ignore_index=True)), renamed


def _copied(parts: Sequence[Evidence]) -> list[set[tuple[str, str]]]:
    """For each part, its curves (workload, optimizer) whose trainings another part holds."""
    alike: dict[tuple[Any, ...], list[tuple[int, pd.DataFrame]]] = {}
    for index, evidence in enumerate(parts):
        for row in evidence.about.itertuples():
            curve = (row.workload, row.optimizer)
            measured = [_of_curves(evidence.table(name), {curve}) for name in MEASURED]
            rows = next((each for each in measured if len(each)), pd.DataFrame())
            alike.setdefault((curve, _made_of(row)), []).append((index, rows))
    copied: list[set[tuple[str, str]]] = [set() for _ in parts]
    for (curve, *_), tables in alike.items():
        for index in copies([rows for _, rows in tables]):
            copied[tables[index][0]].add(curve)
    return copied


def _made_of(row: Any) -> tuple[Any, ...]:
    """Data, model and loss of a workload, by a row of `about`."""
    return row.dataset, row.part, row.model, row.label_smoothing


def _of_curves(table: pd.DataFrame, curves: Set[tuple[str, str]]) -> pd.DataFrame:
    """The rows of a table that are about these curves."""
    if table.empty:
        return table
    return table[[key in curves for key in zip(table["workload"], table["optimizer"], strict=True)]]


def _without(evidence: Evidence, copies: Set[tuple[str, str]]) -> Evidence:
    """The evidence without these curves."""
    if not copies:
        return evidence
    left = set(zip(evidence.about["workload"], evidence.about["optimizer"], strict=True)) - copies
    tables = {
        name: _of_curves(rows, left) if "optimizer" in rows else rows[rows["workload"].isin({key[0] for key in left})]
        for name, rows in evidence.tables.items()
    }
    return Evidence(tables, _of_curves(evidence.about, left))


def _free(workload: str, folder: str, taken: Container[str]) -> str:
    """A name that no workload has: folders, too, can share their names."""
    names = (f"{workload} ({folder}{', ' + str(count) if count > 1 else ''})" for count in itertools.count(1))
    return next(name for name in names if name not in taken)
