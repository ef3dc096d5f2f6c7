"""Results folders -> frames. The file format is the interface: nothing here knows how the numbers were measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.counting import (
    ADAPTIVE_SAMPLERS,
    EARLY,
    HALF_LIFE,
    RECORDED,
    Branch,
    Goal,
    Rule,
    all_runs,
    beta,
    evaluation_grid,
)

GOAL = ["goal_metric", "goal_threshold"]
CURVE = ["workload", "optimizer", *GOAL]
STUDY = ["workload", "optimizer", "batch_size"]
"""The columns of tables that tell goals, curves and studies apart."""
T = TypeVar("T")
_HELD = "held"


def curve_in_words(workload: str, optimizer: str, metric: str, threshold: float) -> str:
    """The values of the columns CURVE.

    >>> curve_in_words("digits", "sgd", "val/loss", 0.05)
    'digits with sgd to val/loss < 0.05'
    """
    return f"{workload} with {optimizer} to {Goal(metric, threshold)}"


class LoadError(Exception):
    """A results folder cannot be read; the message names the file and what to do."""


@dataclass(frozen=True)
class StudyData:
    """One search of a study as it stands on disk; most studies have one. Measurements stay there until asked for.

    Attributes:
        question: what was asked, as recorded when it was asked.
        provenance: one record for each run that worked on it.
        trials: a row a trial, by `trial` (index): seed, first_bad_step (NA if finite), seconds_training,
            seconds_evaluation (NaN if unknown), recorded (a status that came with an imported trial, else NA),
            trial_id (as it was released; else the index), and a column for each hyperparameter.
        metrics: what was measured, such as `val/classification_error`.
        derived: what was read of the measurements, or computed from them, already (`once`).

    >>> study = load_study("results/published/mlp_digits/studies/mlp_digits/sgd/64")
    >>> study.optimizer, study.batch_size, study.train_steps, str(study.goal), study.hyperparameters
    ('sgd', 64, 375, 'val/classification_error < 0.05', ['learning_rate'])
    """

    folder: Path
    question: dict[str, Any]
    provenance: list[dict[str, Any]]
    trials: pd.DataFrame
    metrics: list[str]
    derived: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def begun(self) -> bool:
        """Whether any trial has ended.

        >>> load_study("results/published/mlp_digits/studies/mlp_digits/sgd/64").begun
        True
        """
        return len(self.trials) > 0

    def read(self, metrics: Sequence[str]) -> pd.DataFrame:
        """A row an evaluation, by trial and step: trial, step, and a column for each of these metrics (NaN where it was
        not measured). Nothing is kept: studies of millions of rows pass one at a time.

        Raises:
            LoadError: a file is torn or has been removed.

        >>> study = load_study("results/published/mlp_digits/studies/mlp_digits/sgd/64")
        >>> study.read(["val/classification_error"]).head(2)
           trial  step  val/classification_error
        0      0     8                      0.50
        1      0     9                      0.44
        """
        held = self.derived.get(_HELD, {})
        key = tuple(metrics)
        if key not in held:
            held[key] = self._read(metrics)
        return held[key]

    def _read(self, metrics: Sequence[str]) -> pd.DataFrame:
        frames = []
        known = set(self.trials.index)
        seen: set[int] = set()
        with _reading(self.folder):
            for path in _files(self.folder):
                with suppress(FileNotFoundError), pq.ParquetFile(path, page_checksum_verification=True) as file:
                    there = [metric for metric in metrics if metric in file.schema_arrow.names]
                    written = {record["index"] for record in _records(file)}
                    new = (written & known) - seen  # some may have been gathered since those were read
                    frame = file.read(columns=["trial", "step", *there]).to_pandas()
                    frames.append(frame if new == written else frame[frame["trial"].isin(new)])
                    seen |= new
        found = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame({"trial": [], "step": []})
        found = found.reindex(columns=["trial", "step", *metrics])
        in_order = (found["trial"] * float(found["step"].max() + 1) + found["step"]).is_monotonic_increasing
        return found if in_order else found.sort_values(["trial", "step"], ignore_index=True)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Read each metric from disk at most once in this block.

        >>> study = load_study("results/published/mlp_digits/studies/mlp_digits/sgd/64")
        >>> with study.held():
        ...     study.read(["val/classification_error"]) is study.read(["val/classification_error"])
        True
        """
        self.derived[_HELD] = {}
        try:
            yield
        finally:
            del self.derived[_HELD]

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returned the first time that it was asked for under this key; must be small.

        >>> study = load_study("results/published/mlp_digits/studies/mlp_digits/sgd/64")
        >>> study.once("evaluations", lambda: len(study.measurements))
        840
        >>> study.once("evaluations", lambda: 0)  # not asked again
        840
        """
        if key not in self.derived:
            self.derived[key] = make()
        return self.derived[key]

    @property
    def measurements(self) -> pd.DataFrame:
        """`read` of every metric."""
        return self.read(self.metrics)

    @property
    def workload(self) -> str:
        return str(self.question["workload"]["name"])

    @property
    def optimizer(self) -> str:
        return str(self.question["optimizer"])

    @property
    def curve(self) -> tuple[str, str]:
        """Workload and optimizer, which one curve has for its batch sizes."""
        return self.workload, self.optimizer

    @property
    def key(self) -> tuple[str, str, int]:
        """What names it among studies: workload, optimizer, batch size."""
        return *self.curve, self.batch_size

    @property
    def batch_size(self) -> int:
        return int(self.question["batch_size"])

    @property
    def branch(self) -> Branch:
        return Branch.of(self.question)

    @property
    def train_steps(self) -> int:
        return int(self.question["train_steps"])

    @property
    def goal(self) -> Goal:
        return Goal(**self.question["goal"])

    @property
    def stopped_by(self) -> str:
        """The stopping rule that its trials ended by when they were run; `recorded` where that is not known."""
        return str(self.question.get("recorded_stopping") or self.question["stopping"])

    @property
    def race_factor(self) -> float | None:
        """How many times the fewest steps so far a trial might take before a race stopped it; None where none did."""
        return self.question["race_factor"] if self.stopped_by == "race" and "race_factor" in self.question else None

    @property
    def independent(self) -> bool:
        """Whether its trials know nothing of one another: a search that learns from them draws better and better ones.

        >>> load_study("results/published/mlp_digits/studies/mlp_digits/sgd/64").independent
        True
        """
        return self.question["search"].get("sampler") not in ADAPTIVE_SAMPLERS

    @property
    def stops_early(self) -> bool:
        """Whether trials end at their goal: their curves know nothing of tighter goals or other metrics."""
        return self.stopped_by in EARLY

    @property
    def imported(self) -> bool:
        """Whether its trials were made elsewhere, by rules of their own."""
        return self.question["stopping"] == RECORDED

    def rule(self, goal: Goal, stopping: str | None = None) -> Rule:
        """When trials end under a goal: by the study's own stopping rule, or read under another.

        >>> study = load_study("results/published/mlp_digits/studies/mlp_digits/sgd/64")
        >>> study.rule(study.goal, stopping="race").bound(best=24)
        46
        """
        stopping = stopping or self.question["stopping"]
        if stopping == RECORDED:
            return Rule(stopping, goal.threshold, ())
        evaluation = self.question["evaluation"]
        grid = evaluation_grid(self.train_steps, evaluation["first"], evaluation["ratio"])
        return Rule(stopping, goal.threshold, grid, self.question["race_factor"])

    @property
    def hyperparameters(self) -> list[str]:
        """Names of the tuned parameters, the learning rate first."""
        return sorted(self.question["search"]["space"], key=lambda name: (name != "learning_rate", name))

    def with_betas(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Hyperparameters and, of betas searched by their half-life in examples, the betas themselves.

        >>> study = load_study("results/published/mlp_digits/studies/mlp_digits/sgd/64")
        >>> {name: float(value) for name, value in study.with_betas({"momentum_half_life_examples": 32.0}).items()}
        {'momentum_half_life_examples': 32.0, 'momentum': 0.25}
        """
        lives = {name: life for name, life in values.items() if name.endswith(HALF_LIFE)}
        return {**values, **{n.removesuffix(HALF_LIFE): beta(life, self.batch_size) for n, life in lives.items()}}


def load(results: Path | str) -> Iterator[StudyData]:
    """The searches in a results folder, one at a time, by workload, optimizer and batch size, a study's first first.

    Raises:
        LoadError: no results are there, or a file is torn.

    >>> studies = list(load("results/published/mlp_digits"))
    >>> len(studies), studies[0].workload, studies[0].optimizer, studies[0].batch_size
    (44, 'mlp_digits', 'momentum', 1)
    """
    return map(load_study, folders(results))


def folders(results: Path | str) -> list[Path]:
    """Where those searches are, in that order.

    Raises:
        LoadError: no results are there.

    >>> str(folders("results/published/mlp_digits")[0].relative_to("results/published/mlp_digits"))
    'studies/mlp_digits/momentum/1'
    """
    top = Path(results) / "studies"
    below = [path.parent.relative_to(top).parts for path in top.rglob("study.json")]
    found = [parts for parts in below if len(parts) >= 3 and parts[2].isdigit()]
    for path in sorted(top.rglob("curves.parquet")):
        if not (path.parent / "study.json").exists():
            raise LoadError(
                f"{path.parent} holds trials, but no study.json that says what they are of: restore it, or "
                "remove the folder and sweep again."
            )
    if not found:
        raise LoadError(f"no studies in {results}; a results folder is what `python -m study sweep` wrote to.")
    return [top.joinpath(*p) for p in sorted(found, key=lambda parts: (*parts[:2], int(parts[2]), parts[3:]))]


def load_study(folder: Path | str) -> StudyData:
    """One search's folder; a trial that stands in two files is one trial.

    Raises:
        LoadError: a file is missing or torn.

    >>> study = load_study("results/published/mlp_digits/studies/mlp_digits/sgd/64")
    >>> study.trials["learning_rate"].head(3).round(3).to_dict()
    {0: 0.044, 1: 1.034, 2: 0.174}
    """
    folder = Path(folder)
    records: dict[int, dict[str, Any]] = {}
    metrics: dict[str, None] = {}
    with _reading(folder):
        apart = list(_runs(folder))  # first, since what is gathered meanwhile stands in what is read next
        held = json.loads((folder / "study.json").read_text())
        for path in _files(folder):
            with suppress(FileNotFoundError), pq.ParquetFile(path, page_checksum_verification=True) as file:
                metrics |= dict.fromkeys(file.schema_arrow.names[2:])
                records = {record["index"]: record for record in _records(file)} | records
    provenance = all_runs(held["provenance"], apart)
    return StudyData(folder, held["question"], provenance, _trials(records), list(metrics))


def _runs(folder: Path) -> Iterator[dict[str, Any]]:
    for path in (folder / "runs").glob("[!.]*.json"):
        with suppress(FileNotFoundError):
            yield json.loads(path.read_text())


def _files(folder: Path) -> list[Path]:
    """A trial's own file is newer than the one that gathers them, which holds whatever is gathered meanwhile."""
    return [*sorted((folder / "trials").glob("[0-9]*.parquet")), folder / "curves.parquet"]


def _records(file: pq.ParquetFile) -> list[dict[str, Any]]:
    return json.loads(file.schema_arrow.metadata[b"trials"])


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        said = str(error).rstrip(". ")
        raise LoadError(f"cannot read {folder}: {said}; remove the torn file and sweep again.") from error


def _trials(records: dict[int, dict[str, Any]]) -> pd.DataFrame:
    rows = [
        {
            "trial": index,
            "seed": record["seed"],
            "first_bad_step": record["first_bad_step"],
            "seconds_training": record["seconds"]["training"],
            "seconds_evaluation": record["seconds"]["evaluation"],
            "recorded": record.get("status"),
            "trial_id": record.get("trial_id", index),
            **record["hyperparameters"],
        }
        for index, record in sorted(records.items())
    ]
    seconds = dict.fromkeys(("seconds_training", "seconds_evaluation"), "float64")
    types = {"trial": "int64", "first_bad_step": "Int64", "recorded": "string", "trial_id": "int64"} | seconds
    frame = pd.DataFrame(rows, columns=None if rows else ["seed", *types])
    return frame.astype(types).set_index("trial")
