"""Load records of studies from results folders. The file format is the interface: nothing here imports `study`."""

import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from analysis import counting, units
from analysis.counting import RECORDED, STOPPING, Branch, Goal, Rule, Stopping
from analysis.labels import failed
from analysis.measurements import LoadError, MeasurementReader, files, reading, trial_records
from analysis.question import batch_schedules, older, searches, stages

GOAL = ["goal_metric", "goal_threshold"]
CURVE = ["workload", "optimizer", *GOAL]
STUDY = ["workload", "optimizer", "batch_size"]
ANSWER = [*STUDY, *GOAL]
TASK = ["workload", *GOAL]
"""The columns that identify a goal, a curve, a study, the answer of a study to a goal, and a workload with a goal."""
T = TypeVar("T")


def rows_with(table: pd.DataFrame, columns: Sequence[str], values: Sequence[object]) -> pd.DataFrame:
    """The rows of a table that have these values in these columns; an empty table may lack the columns.

    >>> rows_with(pd.DataFrame({"optimizer": ["sgd", "adam"], "batch_size": 8}), ["optimizer"], ["adam"])
      optimizer  batch_size
    1      adam           8
    """
    return table[(table[list(columns)] == list(values)).all(axis=1)] if len(table) else table


@dataclass(frozen=True)
class StudyData:
    """The record of one search of a study; most studies have only one. Its measurements stay on disk (`reader`).

    Attributes:
        question: the question as recorded before the first trial started.
        provenance: one record for each run that worked on the search.
        trials: one row per trial, indexed by `trial`: seed, first_bad_step (NA if the trial stayed finite),
            seconds_training, seconds_evaluation (NaN if unknown), recorded (the status that an imported trial came
            with, else NA), ended (how the run of a log ended, else NA), trial_id (as released; else the index), and a
            column for each hyperparameter.
        metrics: names of the measured metrics, such as `val/classification_error`.
        reader: reads the measurements when they are needed.
        failures: trials that were commands and failed -> their exit `status` and the last lines of their `output`.
        derived: values computed from the measurements so far (`once`).

    >>> study.optimizer, study.batch_size, study.train_steps, str(study.goal), study.hyperparameters
    ('sgd', 64, 375, 'val/cross_entropy_error < 0.2', ['learning_rate'])
    """

    folder: Path
    question: dict[str, Any]
    provenance: list[dict[str, Any]]
    trials: pd.DataFrame
    metrics: list[str]
    reader: MeasurementReader
    failures: dict[int, dict[str, Any]] = field(default_factory=dict, repr=False)
    derived: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def results(self) -> Path:
        """The results folder that holds it.

        >>> study.results.name
        'mlp_digits'
        """
        return next(folder.parent for folder in self.folder.parents if folder.name == "studies")

    @property
    def begun(self) -> bool:
        """True if any trial has ended."""
        return len(self.trials) > 0

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Call `make` once for each key and keep its result, which must be small, because it stays in memory.

        >>> study.once("evaluations", lambda: len(study.measurements))
        840
        >>> study.once("evaluations", lambda: 0)  # not called: the first result stands
        840
        """
        if key not in self.derived:
            self.derived[key] = make()
        return self.derived[key]

    @property
    def measurements(self) -> pd.DataFrame:
        """Every measurement (`MeasurementReader.read` of all metrics)."""
        return self.reader.read(self.metrics)

    @property
    def workload(self) -> str:
        return str(self.question["workload"]["name"])

    @property
    def optimizer(self) -> str:
        """The optimizer; with its schedule if the batch size grows: such curves are no points of S(B)."""
        return batch_schedules.series(self.question)

    @property
    def parameters(self) -> float:
        """The number of parameters of the model; NaN if no run recorded it.

        >>> study.parameters
        9610.0
        """
        return self._recorded("parameters")

    def untrained(self, metric: str) -> float:
        """An error before training: measured at step 0, as some scripts do, or else on the few training examples that
        runs record it of. NaN if it is unknown.

        >>> round(study.untrained("val/cross_entropy_error"), 2)
        3.24
        """
        if metric in self.metrics:
            rows = self.reader.read(metric)
            measured = float(rows.loc[rows["step"] == 0, metric].median())
            if not np.isnan(measured):
                return measured
        return self._recorded(f"untrained {metric.rpartition('/')[2].removeprefix('ema_')}")

    def _recorded(self, key: str) -> float:
        """A number of the fingerprint that the last run recorded; NaN if none did."""
        found = [(run.get("fingerprint") or {}).get(key) for run in self.provenance]
        return float(next((number for number in reversed(found) if number is not None), "nan"))

    @property
    def curve(self) -> tuple[str, str]:
        """Workload and optimizer: the name of the S(B) curve that the study belongs to."""
        return self.workload, self.optimizer

    @property
    def key(self) -> tuple[str, str, int]:
        """Workload, optimizer and batch size: the name of the study."""
        return *self.curve, self.batch_size

    @property
    def names(self) -> dict[str, Any]:
        """The columns STUDY of its rows in tables.

        >>> study.names
        {'workload': 'mlp_digits', 'optimizer': 'sgd', 'batch_size': 64}
        """
        return dict(zip(STUDY, self.key, strict=True))

    @property
    def batch_size(self) -> int:
        return int(self.question["batch_size"])

    @property
    def batch_schedule(self) -> batch_schedules.BatchSchedule:
        """How its batch size grows; False if it is constant."""
        return batch_schedules.BatchSchedule.of(self.question)

    def phases(self, trial: int) -> batch_schedules.Phases:
        """The batch size of each update of a trial on file.

        >>> study.phases(0).examples(375) == 375 * study.batch_size
        True
        """
        values = dict(self.trials.loc[trial, self.hyperparameters]) if self.batch_schedule else {}
        return batch_schedules.phases_of(self.question, values)

    def grid_of(self, trial: int) -> list[int] | None:
        """The steps at which a trial is measured, if trials have grids of their own; else None.

        >>> study.grid_of(0)  # its trials do not tune their batch sizes
        """
        if not batch_schedules.tuned(self.question):
            return None
        evaluation = self.question["evaluation"]
        return counting.evaluation_grid(self.phases(trial).steps, evaluation["first"], evaluation["ratio"])

    @property
    def tokens_per_example(self) -> int | None:
        """Tokens in each example; None for a workload without tokens."""
        return self.question.get(units.TOKENS)

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
        """The stopping rule that its trials ran under; `recorded` if it is unknown."""
        return str(self.question.get("recorded_stopping") or self.question["stopping"])

    @property
    def ran_under(self) -> Stopping:
        """The stopping rule named `stopped_by`; `recorded` if the name is unknown."""
        return STOPPING.get(self.stopped_by, STOPPING[RECORDED])

    @property
    def race_factor(self) -> float | None:
        """The multiple of the fewest steps so far at which a race stopped a trial; None without a race."""
        return self.question.get("race_factor") if self.ran_under.races else None

    @property
    def searched(self) -> dict[str, Any]:
        """The search space: parameter -> dimension. Ranges that rounds of `refine` extended are as wide as they got.

        >>> study.searched["learning_rate"]["high"]
        10.0
        """
        return self.once("searched", lambda: {**self.question["search"]["space"], **self._round.get("wider", {})})

    @property
    def _round(self) -> dict[str, Any]:
        """The record of the latest round of `refine`; empty if there is none."""
        latest = max((self.folder / "rounds").glob("[0-9]*.json"), key=lambda path: int(path.stem), default=None)
        if latest is None:
            return {}
        with reading(latest):
            return dict(json.loads(latest.read_text()))

    @property
    def independent(self) -> bool:
        """True if trials were drawn independently; `refine` and adaptive searches learn from earlier trials."""
        return not self.refines and self.question["search"].get("sampler") not in counting.ADAPTIVE_SAMPLERS

    @property
    def refines(self) -> bool:
        """True if `search=refine` chose the trials."""
        return bool(self.question["search"].get("sampler") == stages.REFINE)

    @property
    def stops_early(self) -> bool:
        """True if trials end at their goal: their curves cannot answer tighter goals or goals on other metrics."""
        return self.ran_under.ends_at_goal

    @property
    def exact(self) -> bool:
        """False if evaluations ended when they missed the goal (`evaluation.exact=false`): before the end of the
        budget, a missing error of the goal's metric is at least its threshold."""
        return bool(self.question.get("evaluation", {}).get("exact", True))

    @property
    def imported(self) -> bool:
        """True if the trials were imported: they keep the ends and statuses that they came with."""
        return self.question["stopping"] == RECORDED

    @property
    def is_command(self) -> bool:
        """True if its trials ran a script of the user, which evaluates when it likes.

        >>> study.is_command
        False
        """
        return self.question.get("arithmetic") == "command"

    def rule(self, goal: Goal, stopping: str | None = None) -> Rule:
        """The rule by which trials end under a goal: the study's own stopping rule unless another is given.

        >>> study.rule(study.goal, stopping="race").bound(best=24)
        46
        """
        stopping = stopping or self.question["stopping"]
        if stopping == RECORDED:
            return Rule(stopping, goal.threshold, ())
        evaluation = self.question["evaluation"]
        grid = counting.evaluation_grid(self.train_steps, evaluation["first"], evaluation["ratio"], self.branch.certify)
        ends = stages.ends(self.question["search"], self.question["race_over"])
        return Rule(stopping, goal.threshold, grid, self.question["race_factor"], ends)

    @property
    def hyperparameters(self) -> list[str]:
        """Names of the tuned parameters, the learning rate first."""
        return sorted(self.question["search"]["space"], key=lambda name: (name != "learning_rate", name))

    def with_betas(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The hyperparameters, plus the beta of every half-life among them.

        >>> {name: float(value) for name, value in study.with_betas({"momentum_half_life_examples": 32.0}).items()}
        {'momentum_half_life_examples': 32.0, 'momentum': 0.25}
        """
        lives = {
            units.stem(name): life
            for name, life in units.in_examples(values, self.tokens_per_example).items()
            if name.endswith(units.HALF_LIFE)
        }
        return {**values, **{name: units.beta(life, self.batch_size) for name, life in lives.items()}}


def load(results: Path | str) -> Iterator[StudyData]:
    """Read the searches in a results folder one at a time, by workload, optimizer and batch size; first searches first.

    Raises:
        LoadError: the folder holds no results, a study.json is missing, or a file is torn.

    >>> studies = list(load(published))
    >>> len(studies), studies[0].workload, studies[0].optimizer, studies[0].batch_size
    (44, 'mlp_digits', 'momentum', 1)
    """
    return map(load_study, folders(results))


def folders(results: Path | str) -> list[Path]:
    """The folders of the searches in a results folder, in the order of `load`.

    Raises:
        LoadError: the folder holds no results, or a study.json is missing.

    >>> str(folders(published)[0].relative_to(published))
    'studies/mlp_digits/momentum/1'
    """
    top = Path(results) / "studies"
    inside = [folder.relative_to(top).parts for folder in searches.holding(top, "study.json")]
    found = [parts for parts in inside if len(parts) >= 3 and parts[2].isdecimal()]
    for folder in searches.holding(top, "curves.parquet"):
        if not (folder / "study.json").exists():
            raise LoadError(
                f"{folder} holds trials but no study.json with their question: restore it, or remove the folder "
                "and sweep again."
            )
    if not found:
        raise LoadError(searches.nothing_in(Path(results)))
    return [top.joinpath(*p) for p in sorted(found, key=lambda parts: (*parts[:2], int(parts[2]), parts[3:]))]


def load_study(folder: Path | str) -> StudyData:
    """Read the folder of one search; a trial that is in two files counts once.

    Raises:
        LoadError: a file is missing or torn.

    >>> load_study(f"{published}/studies/mlp_digits/sgd/64").trials["learning_rate"].head(3).round(3).to_dict()
    {0: 0.044, 1: 1.034, 2: 0.174}
    """
    folder = Path(folder)
    records: dict[int, dict[str, Any]] = {}
    metrics: dict[str, None] = {}
    apart = list(_runs(folder))  # before study.json: a run gathered meanwhile is then read twice, not missed
    with reading(folder / "study.json", "restore it, or remove the folder and sweep again"):
        search = json.loads((folder / "study.json").read_text())
    for path in files(folder):
        with (
            reading(path),
            suppress(FileNotFoundError),
            pq.ParquetFile(path, page_checksum_verification=True) as file,
        ):
            metrics |= dict.fromkeys(file.schema_arrow.names[2:])
            records = {record["index"]: record for record in trial_records(file)} | records
    provenance = [older.run(run) for run in counting.all_runs(search["provenance"], apart)]
    trials = _trials(records)
    reader = MeasurementReader(folder, frozenset(trials.index))
    ended = {index: record["command"] for index, record in sorted(records.items()) if record.get("command")}
    failures = {index: each for index, each in ended.items() if failed(each)}
    return StudyData(folder, older.question(search["question"]), provenance, trials, list(metrics), reader, failures)


def _runs(folder: Path) -> Iterator[dict[str, Any]]:
    for path in searches.matching(folder, "runs/[!.]*.json"):
        with reading(path), suppress(FileNotFoundError):
            yield json.loads(path.read_text())


def _trials(records: dict[int, dict[str, Any]]) -> pd.DataFrame:
    rows = [
        {
            "trial": index,
            "seed": record["seed"],
            "first_bad_step": record["first_bad_step"],
            "seconds_training": record["seconds"]["training"],
            "seconds_evaluation": record["seconds"]["evaluation"],
            "recorded": record.get("status"),
            "ended": record.get("ended"),
            "trial_id": record.get("trial_id", index),
            **record["hyperparameters"],
        }
        for index, record in sorted(records.items())
    ]
    seconds = dict.fromkeys(("seconds_training", "seconds_evaluation"), "float64")
    types = {"trial": "int64", "first_bad_step": "Int64", "recorded": "string", "ended": "string", "trial_id": "int64"}
    types |= seconds
    frame = pd.DataFrame(rows, columns=None if rows else ["seed", *types])
    return frame.astype(types).set_index("trial")
