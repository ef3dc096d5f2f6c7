"""Export a results folder as two tidy tables, or in the layout that Shallue et al. released (`batch_science`).

`csv` and `parquet` write these tables search by search (in parquet as separate row groups); NaN and NA are empty:

    trials          one row per trial: workload, dataset, model, optimizer, batch_size [examples]; search (its folder
                    below the study; empty for the first search), which identifies the search, and in single columns
                    repeat, budget_multiple, stage, rerun (the trial whose configuration is trained again; empty for a
                    search), rule and base_batch_size (empty unless the configuration was transferred) and certify (the
                    step at which `study certify` tests; else empty); trial (index) and trial_id (as released; else the
                    index); status, end [step], steps_to_goal, least_error (of the goal's metric; empty if none
                    is known), exact (false if evaluations ended when they missed the goal), counted
                    (the first N feasible trials and every trial before the last of them), goal_metric, goal_threshold,
                    train_steps (the budget), first_bad_step, seconds_training, seconds_evaluation; and a column for
                    each hyperparameter (text for `schedule`, else a number; empty if the trial lacks it).
    measurements    one row per evaluation: workload, optimizer, batch_size, search, repeat, budget_multiple, stage,
                    rerun, rule, base_batch_size, certify, trial; step and a column for each metric. If not exact, an
                    empty value of the goal's metric before train_steps is at least goal_threshold.

`batch_science` writes the search that S(B) of each study is read from, each trial up to its end. study.json has fields
that the released files lack, so that an import restores the study: `workload`, `goal`, `trials` (N), `stopping` and,
after a race, `race_factor`.
"""

import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from analysis.counting import AS_ERRORS, INCOMPLETE
from analysis.errors import Refused, Unwritten
from analysis.labels import counted, listed
from analysis.load import StudyData, load
from analysis.question.branches import BRANCHED_RESULTS, VERIFIED_RESULTS
from analysis.question.searches import results_in
from analysis.tables import answers
from analysis.tables.steps_to_result import is_complete, outcomes

FORMATS = ("batch_science", "csv", "parquet")
NAMED = 3
"""The most searches or folders that a sentence names; of more, their number."""
SEARCH = {"workload": pa.string(), "optimizer": pa.string(), "batch_size": pa.int64(), "search": pa.string()}
SEARCH |= {"repeat": pa.int64(), "budget_multiple": pa.float64(), "stage": pa.int64(), "rerun": pa.int64()}
SEARCH |= {"rule": pa.string(), "base_batch_size": pa.int64(), "certify": pa.int64()}
TRIAL = {"trial": pa.int64(), "trial_id": pa.int64(), "dataset": pa.string(), "model": pa.string()}
TRIAL |= {"goal_metric": pa.string(), "goal_threshold": pa.float64(), "status": pa.string(), "end": pa.int64()}
TRIAL |= {"steps_to_goal": pa.int64(), "least_error": pa.float64(), "counted": pa.bool_(), "exact": pa.bool_()}
TRIAL |= {"train_steps": pa.int64()}
TRIAL |= {"first_bad_step": pa.int64(), "seconds_training": pa.float64(), "seconds_evaluation": pa.float64()}

Watch = Callable[[str], None]
"""Called with the name of each search after it is written."""


class ExportError(Refused):
    """No export was begun; the message says why and what to do."""


def export(
    results: Path | str,
    folder: Path | str,
    form: str,
    watch: Watch = lambda name: None,
    begin: Callable[[int], None] = lambda searches: None,
) -> list[str]:
    """Export a results folder to a new or empty folder, completely or not at all.

    Arguments:
        form: `batch_science`, `csv` or `parquet`.
        begin: called once with the number of searches, before the first is written.

    Returns:
        A sentence about each kind of trials that the export lacks.

    Raises:
        ExportError, Unwritten: the format is unknown, the folder holds files, or it cannot be written.
        LoadError: the results folder holds no results, a file is torn, or two folders hold the same search.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = export(published, f"{folder}/tables", "parquet")
    ...     trials = pd.read_parquet(f"{folder}/tables/trials.parquet")
    >>> len(trials), int(trials["rerun"].notna().sum())  # all trials, and reruns among them
    (551, 110)
    """
    if form not in FORMATS:
        raise ExportError(f"the format must be one of {', '.join(FORMATS)}, but got {form!r}.")
    made = answers.each_once(load(results))
    studies = answers.answers(made) if form == "batch_science" else made
    with _whole(Path(folder).absolute()) as temporary:
        begin(len(studies))
        if form == "batch_science":
            _write_tree(temporary, studies, watch)
        else:
            _write_tables(temporary, studies, form, watch)
    return [*unfinished(studies), *(answers.orphans(made) if form == "batch_science" else apart(results))]


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A folder to write to, which becomes `folder` when all is written, and vanishes if anything fails."""
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ExportError(f"an export needs an empty folder, but {folder} holds files; choose another DIR.")
        temporary.mkdir(parents=True)
        yield temporary
        temporary.replace(folder)
    except OSError as error:
        cure = "make room, change its permissions or choose another DIR"
        raise Unwritten(f"cannot write to {folder}: {error.strerror or error}; {cure}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def unfinished(studies: Sequence[StudyData]) -> list[str]:
    """A sentence that names the searches without all of their trials; empty if all are complete.

    >>> unfinished([study])
    []
    """
    lacking = [_name(study) for study in studies if not is_complete(study)]
    if not lacking:
        return []
    return [
        f"Trials are missing in {len(lacking):,} of {counted(len(studies), 'search', 'searches')}: "
        f"{listed(lacking, most=NAMED)}. `study status` shows their state; sweep again to continue, and export "
        "to another folder."
    ]


def apart(results: Path | str) -> list[str]:
    """A sentence about the trainings of `study verify` and `study branch`, which lie in results folders of their own.

    >>> apart(published)
    []
    """
    found = results_in(Path(results), VERIFIED_RESULTS, BRANCHED_RESULTS)
    if not found:
        return []
    return [
        "Left out: the trainings of `study verify` and `study branch`, which lie in results folders of their own. "
        f"Export each by itself: {listed(found, most=NAMED)}."
    ]


def _write_tree(folder: Path, studies: Sequence[StudyData], watch: Watch) -> None:
    for study in studies:
        if not study.exact:
            raise ExportError(
                f"{_name(study)} has errors that are only known to miss the goal (evaluation.exact=false), for which "
                "the layout batch_science has no place; choose csv or parquet."
            )
        _write_released(folder, study)
        watch(_name(study))


def _write_tables(folder: Path, studies: Sequence[StudyData], form: str, watch: Watch) -> None:
    tuned = _in_order(study.hyperparameters for study in studies)
    metrics = _in_order(study.metrics for study in studies)
    named = {name for study in studies for name, each in _space(study).items() if _has_names(each)}
    kinds = {name: pa.string() if name in named else pa.float64() for name in tuned if name not in TRIAL}
    of_trials = SEARCH | TRIAL | kinds
    measured = SEARCH | {"trial": pa.int64(), "step": pa.int64()} | dict.fromkeys(metrics, pa.float64())
    schemas = {"trials": pa.schema(of_trials), "measurements": pa.schema(measured)}
    kind: Any = pq.ParquetWriter if form == "parquet" else csv.CSVWriter
    with ExitStack() as files:
        writers = {n: files.enter_context(kind(folder / f"{n}.{form}", schema)) for n, schema in schemas.items()}
        for study in studies:
            for name, frame in (("trials", trials(study)), ("measurements", measurements(study))):
                frame = frame.reindex(columns=schemas[name].names)
                writers[name].write_table(pa.Table.from_pandas(frame, schemas[name], preserve_index=False))
            watch(_name(study))


def _space(study: StudyData) -> dict[str, Any]:
    space: dict[str, Any] = study.question["search"]["space"]
    return space


def _has_names(dimension: dict[str, Any]) -> bool:
    """Whether the values are names, as of `schedule`."""
    return all(isinstance(value, str) for value in dimension.get("choices", [0]))


def _name(study: StudyData) -> str:
    return f"{study.workload}/{study.optimizer}/{study.batch_size} {study.branch}".strip()


def _in_order(names: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for some in names for name in some))


def trials(study: StudyData) -> pd.DataFrame:
    """One row per trial on file; for the columns see the docstring of the module.

    >>> trials(study)[["trial", "learning_rate", "status", "steps_to_goal"]].head(2)
       trial  learning_rate    status  steps_to_goal
    0      0       0.043631  COMPLETE            192
    1      1       1.033845  COMPLETE             21
    """
    ended = outcomes(study).drop(columns="step_before").loc[study.trials.index]
    workload = study.question["workload"]
    frame = pd.concat([ended, study.trials.drop(columns=["seed", "recorded", "ended"])], axis=1).reset_index()
    return frame.replace({"least_error": {np.inf: np.nan}}).assign(
        **_search(study),
        dataset=workload.get("dataset"),
        model=workload.get("model"),
        goal_metric=study.goal.metric,
        goal_threshold=study.goal.threshold,
        exact=study.exact,
        train_steps=study.train_steps,
    )


def measurements(study: StudyData) -> pd.DataFrame:
    """One row per evaluation on file, by trial and step; for the columns see the docstring of the module.

    >>> measurements(study)[["batch_size", "trial", "step", "val/classification_error"]].head(2)
       batch_size  trial  step  val/classification_error
    0          64      0     8                      0.50
    1          64      0     9                      0.44
    """
    return study.measurements.assign(**_search(study))


def _search(study: StudyData) -> dict[str, Any]:
    branch = study.branch
    return {
        **study.names,
        "search": branch.path,
        "repeat": branch.repeat,
        "budget_multiple": branch.budget,
        "stage": branch.stage,
        "rerun": branch.rerun,
        "rule": branch.rule,
        "base_batch_size": branch.base,
        "certify": branch.certify,
    }


def _write_released(folder: Path, study: StudyData) -> None:
    workload, space = study.question["workload"], _space(study)
    dataset, model = workload.get("dataset") or study.workload, workload.get("model") or study.workload
    target = folder.joinpath(*str(dataset).split("/"), model, study.optimizer, str(study.batch_size))
    target.mkdir(parents=True)
    described = {
        "batch_size": study.batch_size,
        "dataset": str(dataset).rpartition("/")[2],
        "early_stopping": study.question.get("early_stopping", study.stops_early),
        "goal": study.question["goal"],
        "model": model,
        "optimizer": study.optimizer,
        "stopping": study.stopped_by,
        **({"race_factor": study.race_factor} if study.race_factor is not None else {}),
        "parameter_configs": {name: _parameter_config(dimension) for name, dimension in sorted(space.items())},
        "train_steps": 0 if study.question.get("time_budget") else study.train_steps,
        "trials": study.question["search"]["trials"],
        "workload": study.workload,
    }
    _write_json(target / "study.json", described)
    kinds = {name: _kind(dimension) for name, dimension in space.items()}
    ended = outcomes(study)
    names, columns = _released_columns(study)
    table = pa.table({"step": columns["step"], **{names[metric]: columns[metric] for metric in names}})
    steps = columns["step"]
    first, after = (np.searchsorted(columns["trial"], study.trials.index, side=side) for side in ("left", "right"))
    for (index, trial), begin, stop in zip(study.trials.iterrows(), first, after, strict=True):
        status, end = ended.at[index, "status"], int(ended.at[index, "end"])
        if status != INCOMPLETE:  # measurements beyond the end do not count
            stop = begin + int(np.searchsorted(steps[begin:stop], end, side="right"))
        parameters = {name: trial[name] for name in study.trials.columns.intersection(study.hyperparameters)}
        place = target / str(int(trial["trial_id"]))
        place.mkdir()
        metadata = {
            "parameters": {n: kinds[n](value) for n, value in parameters.items() if pd.notna(value)},
            "status": status,
            "steps": end,
            "trial_id": int(trial["trial_id"]),
        }
        _write_json(place / "metadata.json", metadata)
        with (place / "measurements.csv").open("wb") as file:
            file.write(f"{','.join(table.column_names)}\n".encode())  # Arrow would quote the names
            csv.write_csv(table.slice(begin, stop - begin), file, csv.WriteOptions(include_header=False))


def _released_columns(study: StudyData) -> tuple[dict[str, str], dict[str, Any]]:
    """(metric -> its released name, the columns as trial, step and metrics); NaN is null, written as an empty cell.

    An error that is 1 - metric becomes the metric again.
    """
    read = study.measurements
    columns: dict[str, Any] = {"trial": read["trial"].to_numpy(), "step": read["step"].to_numpy(dtype=np.int64)}
    back = {error: metric for metric, error in AS_ERRORS.items()}
    names = {}
    for metric in study.metrics:
        split, _, error = metric.rpartition("/")
        names[metric] = f"{split}/{back[error]}" if error in back else metric
        values = read[metric].to_numpy()
        columns[metric] = pa.array(1 - values if error in back else values, from_pandas=True)
    return names, columns


def _kind(dimension: dict[str, Any]) -> Callable[[Any], Any]:
    if _has_names(dimension):
        return str
    return int if dimension.get("integer") else float


def _parameter_config(dimension: dict[str, Any]) -> dict[str, Any]:
    if "choices" in dimension:
        kind = "CATEGORICAL" if _has_names(dimension) else "DISCRETE"
        return {"type": kind, "feasible_points": dimension["choices"]}
    return {
        "type": "INTEGER" if dimension["integer"] else "DOUBLE",
        "min_value": dimension["low"],
        "max_value": dimension["high"],
        "scale": f"{dimension['scale'].upper()}_SCALE",
    }


def _write_json(path: Path, tree: dict[str, Any]) -> None:
    path.write_text(json.dumps(tree, indent=2) + "\n")
