"""The results of a sweep as an object: its tables as frames, its findings as text, its figures on axes.

>>> result = read("results/published/mlp_digits")
>>> result
<Result of results/published/mlp_digits: mlp_digits with momentum and sgd at 11 batch sizes>
>>> result.steps[["optimizer", "batch_size", "steps_to_result", "tuned_steps"]].head(2)
  optimizer  batch_size  steps_to_result  tuned_steps
0  momentum           1              759        628.0
1  momentum           2              293        390.0
>>> result.limits.query("definition == 'maximum_useful_batch_size'")[["optimizer", "estimate", "estimate_bound"]]
  optimizer     estimate estimate_bound
1  momentum  1024.000000              >
6       sgd   341.247962              =
>>> result.compare()[["a", "b", "kind", "ratio"]].round(2).head(1)
          a    b             kind  ratio
0  momentum  sgd  all batch sizes   1.25
>>> result.plot().get_xlabel()
'batch size (examples)'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import figures
from analysis.counting import Goal
from analysis.errors import Refused
from analysis.figures import canvas
from analysis.intervals import steps_text
from analysis.labels import counted, listed, number
from analysis.load import CURVE
from analysis.report.answer import Answer
from analysis.report.answer.headed import headed
from analysis.report.build import Asked
from analysis.report.build import read as read_report
from analysis.report.page import notebook

COMPARED = {"optimizer": "compare", "workload": "compare_workloads"}
"""The column in which a pair of curves differs -> the table of these pairs."""
FOLDER = "a results folder must be a path, such as 'results/mlp_digits'"
GOAL = "a goal must be a text, such as 'val/classification_error < 0.05'"
SHOWN = 3
"""Findings that a notebook shows."""
SIZE = (6.4, 5.0)
"""Width and height of a panel with its legend [inches]."""


class Tables(dict[str, pd.DataFrame]):
    """Frames by name; a KeyError for another name says which there are.

    >>> Tables(trials=pd.DataFrame(), scaling=pd.DataFrame())["trial"]
    Traceback (most recent call last):
    ...
    KeyError: "unknown table 'trial'; did you mean 'trials'?"
    """

    def __missing__(self, name: object) -> pd.DataFrame:
        raise KeyError(_unknown("table", name, self))


@dataclass(frozen=True, repr=False)
class Result:
    """The results in one or several folders, read from their files.

    Attributes:
        folders: the results folders.
        tables: all tables of the report by name, such as `steps_to_result`; docs/methods.md defines their columns.
        sentences: the findings, the conclusion first.
        warnings: the most serious first, each with its cure.
        answers: the finding of each workload and goal, as the first screen of the report has it.
    """

    folders: tuple[Path, ...]
    tables: Mapping[str, pd.DataFrame]
    sentences: Sequence[str]
    warnings: Sequence[str]
    answers: Sequence[Answer]

    @property
    def steps(self) -> pd.DataFrame:
        """S(B): a row for each workload, optimizer and batch size, with the tuned hyperparameters.

        `steps_to_result` are the fewest steps of a trial, `tuned_steps` the median steps of the tuned configuration
        with fresh seeds, between `tuned_low` and `tuned_high` (95 %).
        """
        return self.tables["steps_to_result"]

    @property
    def limits(self) -> pd.DataFrame:
        """Where scaling ends: a row for each workload, optimizer and definition, such as
        `critical_batch_size_mccandlish`; `estimate_bound` is `=` for an estimate, `<` or `>` for a bound."""
        return self.tables["scaling"]

    @property
    def report(self) -> Path | None:
        """The page of the report; None if there is none, or if there are several folders."""
        page = self.folders[0] / "report.html"
        return page if len(self.folders) == 1 and page.exists() else None

    def compare(self, by: str = "optimizer") -> pd.DataFrame:
        """Which of two curves needs fewer steps: a row for each pair and statement, with its interval.

        Arguments:
            by: `optimizer` or `workload`, in which the two differ.

        Raises:
            Refused: `by` is neither.

        >>> read("results/published/mlp_digits").compare("workload").empty
        True
        """
        if by not in [*COMPARED]:  # a list, say, has no hash
            raise Refused(f"by must be one of {', '.join(COMPARED)}, but got {by!r}.")
        return self.tables[COMPARED[by]]

    def plot(self, figure: str = "steps_to_result", ax: Axes | Sequence[Axes] | None = None) -> Any:
        """Draw a figure of the report.

        Arguments:
            figure: its name, a key of `analysis.figures.FIGURES`.
            ax: to draw on, one for each panel; None: new axes, which a notebook shows.

        Returns:
            The axes; a list of them if the figure has several panels, such as one for each workload.

        Raises:
            Refused: there is no such figure, the results have no data for it, or it has another number of panels.

        >>> import matplotlib.pyplot as plt
        >>> figure, axes = plt.subplots()
        >>> read("results/published/mlp_digits").plot("examples_to_result", ax=axes) is axes
        True
        """
        if figure not in [*figures.FIGURES]:
            raise Refused(_unknown("figure", figure, figures.FIGURES))
        found = figures.charts(self.tables, [figure])
        panels = [panel for chart in found for panel in chart.panels]
        if not panels:
            raise Refused(f"these results have no data for {figure}: it needs {figures.FIGURES[figure].needs}.")
        if ax is None:
            new = _new_figure(len(panels))  # before the style: loading the backend of a notebook sets parameters, too
            with matplotlib.rc_context(canvas.STYLE):
                return self.plot(figure, list(new.subplots(1, len(panels), squeeze=False)[0]))
        axes = [ax] if isinstance(ax, Axes) else [*ax]
        if len(axes) != len(panels):
            raise Refused(f"{figure} has {len(panels)} panels, but got {len(axes)} axes; give a list of {len(panels)}.")
        for panel, each in zip(panels, axes, strict=True):
            figures.draw_panel(figures.FIGURES[figure], panel, each)
        return axes[0] if len(axes) == 1 else axes

    def __repr__(self) -> str:
        workloads, optimizers, sizes = (self.steps[name].unique() for name in ("workload", "optimizer", "batch_size"))
        made = f"{listed(workloads)} with {listed(optimizers)} at {counted(len(sizes), 'batch size')}"
        return f"<Result of {listed(self.folders)}: {made}>"

    def __str__(self) -> str:
        """The findings, below the workload and goal that they are about."""
        said = headed(self.sentences, self.answers)
        parts = [
            [answer.subject, *(f"{part.heading}: {text}" for part in found for text in part.sentences)]
            for answer, found in zip(self.answers, said.of_answers, strict=True)
        ]
        return "\n".join([*(line for part in parts for line in part), *said.others])

    def _repr_html_(self) -> str:
        """The table of steps, the first findings, and where the rest is: what a notebook shows."""
        warnings = counted(len(self.warnings), "warning") if self.warnings else ""
        return notebook(
            headed(self.sentences[:SHOWN], self.answers), self.answers, shown(self.steps), warnings, self.report
        )


def read(*folders: Path | str, goals: str | Sequence[str] | None = ()) -> Result:
    """Read results folders. Trains, draws and writes nothing.

    Arguments:
        goals: one, such as `val/classification_error < 0.1`, or a list: read the recorded curves at these goals
            instead of the studies' own.

    Raises:
        Refused: a folder holds no results, no trial has ended, or a goal cannot be read.

    >>> looser = read("results/published/mlp_digits", goals="val/cross_entropy_error < 0.3")
    >>> int(looser.steps["steps_to_result"].min())
    7
    """
    paths = tuple(Path(_of(folder, (str, PathLike), FOLDER)) for each in folders for folder in _several(each))
    if not paths:
        raise Refused("give a results folder, such as results/mlp_digits.")
    try:
        asked = Asked(tuple(Goal.parse(_of(goal, str, GOAL)) for goal in _several(goals)))
    except ValueError as error:
        raise Refused(str(error)) from error
    data = read_report(paths, asked)
    return Result(paths, Tables(data.tables), data.sentences, data.warnings, data.answers)


def _unknown(what: str, name: object, known: Iterable[str]) -> str:
    """The message for a name that is unknown: the nearest known one, or all.

    >>> _unknown("table", "x", ["trials", "scaling"])
    "unknown table 'x'; there are: trials, scaling."
    """
    known = [*known]
    near = get_close_matches(str(name), known, n=1)
    return f"unknown {what} {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}.")


def _several(given: Any) -> Sequence[Any]:
    """The values of a list or tuple; a value by itself is one, and None is none.

    >>> _several("val/loss < 1"), _several(["a", "b"]), _several(None)
    (['val/loss < 1'], ['a', 'b'], [])
    """
    if given is None:
        return []
    return [*given] if isinstance(given, list | tuple) else [given]


def _of(value: Any, kinds: type | tuple[type, ...], wanted: str) -> Any:
    """The value, if it is of one of these types. Raises Refused."""
    if not isinstance(value, kinds):
        raise Refused(f"{wanted}, but got {value!r}.")
    return value


def shown(steps: pd.DataFrame) -> pd.DataFrame:
    """The columns of a table of steps that a person looks at first, as text.

    >>> shown(read("results/published/mlp_digits").steps).head(2)
      optimizer batch size steps       fresh seeds learning rate
    0  momentum          1   759  628 (491 to 803)       0.00569
    1  momentum          2   293  390 (305 to 498)       0.00204
    """
    columns: dict[str, Any] = {
        name: steps[name] for name in CURVE[:2] if name != "workload" or steps[name].nunique() > 1
    }
    columns["batch size"] = [f"{size:,}" for size in steps["batch_size"]]
    rows = steps.to_dict("records")
    columns["steps"] = [steps_text(row, "steps_to_result") if row["reached"] else "not reached" for row in rows]
    if steps["seeds"].any():
        columns["fresh seeds"] = [_with_interval(row) for row in rows]
    if "learning_rate" in steps:
        columns["learning rate"] = [f"{rate:.3g}" if pd.notna(rate) else "" for rate in steps["learning_rate"]]
    return pd.DataFrame(columns)


def _with_interval(row: Mapping[str, Any]) -> str:
    if not row["seeds"] or pd.isna(row["tuned_steps"]):
        return ""
    if row["tuned_steps"] == float("inf"):
        return f"{row['missed']} of {row['seeds']} missed"
    interval = "" if pd.isna(row["tuned_low"]) else f" ({number(row['tuned_low'])} to {number(row['tuned_high'])})"
    return f"{steps_text(row, 'tuned_steps')}{interval}"


def _new_figure(panels: int) -> Figure:
    import matplotlib.pyplot as plt

    return plt.figure(figsize=(SIZE[0] * panels, SIZE[1]), layout="constrained")
