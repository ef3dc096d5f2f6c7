"""Tables -> one log: a frame of all measurements in long form, and the settings of each run.

Shapes: M rows of measurements of all runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.labels import counted
from study.exchange.importing import ImportRefused
from study.exchange.logs import against_epochs, calls_of_log, names, run_settings
from study.exchange.logs.gathering import Gathering, add, measure, metric_columns, part_splits, shared
from study.exchange.logs.names import Asked, listed
from study.exchange.readers.tables import Table

MOST_AGAIN = 0.5
"""If more of the steps were measured again with other values, these are several runs, not restarts."""


@dataclass(frozen=True)
class Log:
    """All runs of a source.

    Attributes:
        runs: name of a run -> its settings, by their names in this project; in the order of the source.
        rows: run, step, and each metric [M], sorted by run and step. A metric is NaN where it was not measured and
            infinite where it was not finite.
        read_as: role or metric -> the columns that it was read from.
        facts: how values were computed, as sentences without a full stop.
        notes: what was left out or is odd.
        left_out: columns that change during a run and are no metrics.
    """

    runs: dict[str, dict[str, Any]]
    rows: pd.DataFrame
    read_as: dict[str, list[str]]
    facts: list[str]
    notes: list[str]
    left_out: list[str]

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics, such as `val/loss`."""
        return [name for name in self.rows if name not in ("run", "step")]


def gather(tables: Sequence[Table], asked: Asked) -> Log:
    """Join tables to a log.

    Raises:
        ImportRefused: a column or a batch size is missing, or a cell is malformed; the message has the cure.
    """
    made = Gathering(asked)
    in_several = shared(tables, asked)
    for table in tables:
        add(made, table, in_several)
    _check_asked(made)
    if not made.tables:
        raise ImportRefused(_no_rows(tables) or _no_steps(made))
    part_splits(made)
    metrics = metric_columns(made)
    calls_of_log.check(made, metrics)
    against_epochs.find_from_zero(made, metrics)
    for each in made.tables:
        measure(made, each, metrics)
    runs = run_settings.with_batch_size(made, run_settings.of_runs(made))
    against_epochs.check_lengths(made, runs)
    rows = pd.concat(made.frames, ignore_index=True)
    rows = rows[rows["run"].isin(runs)]
    rows = _in_steps(rows, runs, made)
    read_as = {role: list(found) for role, found in made.read_as.items()}
    return Log(runs, rows, read_as, list(made.facts), _notes(made, runs), list(made.left_out))


def _no_rows(tables: Sequence[Table]) -> str:
    """The message that all tables are empty; empty if one is not."""
    if any(len(table.rows) for table in tables):
        return ""
    where = listed(dict.fromkeys(table.where for table in tables), 5)
    return f"{where}: there are no rows, so nothing was measured. Export the runs again."


def _no_steps(made: Gathering) -> str:
    return (
        "no column counts steps, so there are no curves, only final values. The columns are "
        f"{listed(made.columns)}. Add {names.cure('step', list(made.columns))}; if a column counts epochs, "
        "--map epoch=COLUMN --set train_examples=N; if it counts examples, --map examples=COLUMN. Exports with one row "
        "for each run hold no curves: export the history of the runs."
    )


def _check_asked(made: Gathering) -> None:
    """Refuse a `--map` of a column that no table and no settings have."""
    known = {*made.columns, *(name for settings in made.settings.values() for name in settings)}
    known |= {name for settings in made.beside.values() for name in settings}
    for role, columns in made.asked.columns.items():
        for number, column in enumerate(columns):
            if column not in known and not (role == "batch_size" and number and column.isdecimal()):
                some = listed(sorted(known), 40)
                raise ImportRefused(f"--map {role}={column}: there is no such column; there are {some}.")


def _in_steps(rows: pd.DataFrame, runs: Mapping[str, Mapping[str, Any]], made: Gathering) -> pd.DataFrame:
    """The rows by run and step, each step once. Epochs and examples become steps."""
    at = rows["position"].to_numpy(dtype=float)
    for role in ("epoch", "examples"):
        if (of_role := (rows["counts"] == role).to_numpy()).any():
            at = np.where(of_role, _as_steps(role, at, of_role, rows["run"], runs, made), at)
    order = {run: number for number, run in enumerate(runs)}
    rows = rows.assign(step=np.rint(at).astype(np.int64), order=rows["run"].map(order))
    metrics = [name for name in rows if name not in ("run", "position", "counts", "step", "order")]
    if not metrics:
        return rows[["run", "step"]]
    rows = rows[rows[metrics].notna().any(axis=1)]
    of_updates = [name for name in metrics if name.startswith("train/")] if (rows["counts"] == "epoch").any() else []
    judged = [name for name in metrics if name not in of_updates] or metrics  # an epoch has many training errors
    again = rows[rows.duplicated(["order", "step"], keep=False)].groupby(["order", "step"])[judged]
    conflicting = int((again.nunique() > 1).any(axis=1).sum()) if len(again) else 0
    if len(again) and made.of_seeds:
        differing = again.nunique().max(axis=1).gt(1).groupby("order").any()
        for run in (list(runs)[number] for number in differing.index[differing]):
            if run in made.of_seeds:
                raise ImportRefused(_of_seeds(made, run))
    if conflicting > MOST_AGAIN * len(rows.drop_duplicates(["order", "step"])):
        raise ImportRefused(_several(made, runs))
    if conflicting:
        steps = counted(conflicting, "step of a run was", "steps of a run were")
        made.notes[f"{steps} measured more than once, as after a restart: the last value counts"] = None
    found = rows.groupby(["order", "step"], sort=True)[metrics].last().reset_index()
    if "step" in made.read_as and "step" not in made.asked.columns and _may_be_epochs(found):
        column = next(iter(made.read_as["step"]))
        made.notes[
            f"each run is evaluated at every {column} from the first to the last: if these are epochs, --map "
            f"epoch={column} --set train_examples=N"
        ] = None
    named = np.array(list(runs), dtype=object)[found["order"].to_numpy(dtype=np.int64)]
    return found.drop(columns="order").assign(run=named)[["run", "step", *metrics]]


def _may_be_epochs(rows: pd.DataFrame) -> bool:
    """True if every run is evaluated at three steps or more, one after the other: few are evaluated at each update.

    Arguments:
        rows: `order` of the run, step, and metrics [M], by run and step.
    """
    evaluated = [name for name in rows if name.startswith(("val/", "test/"))]
    steps = rows[rows[evaluated].notna().any(axis=1)].groupby("order")["step"].agg(["min", "max", "size"])
    return bool(len(steps) and (steps["size"] >= 3).all() and (steps["max"] - steps["min"] + 1 == steps["size"]).all())


def _of_seeds(made: Gathering, run: str) -> str:
    """The message that a run has several seeds, and steps that were measured with each."""
    column = made.of_seeds[run]
    known = made.asked.columns.get("run") or list(made.read_as.get("run", ())) or ["run"]
    return (
        f"run {run!r} has several values of {column}, and other measurements at the same steps. A run has one seed. If "
        f"several runs share this name, tell them apart: --map run={','.join([*known, column])}."
    )


def _several(made: Gathering, runs: Mapping[str, Any]) -> str:
    """The message that several runs share a name."""
    known = made.asked.columns.get("run") or list(made.read_as.get("run", ())) or ["run"]
    cure = f"--map run={','.join([*known, *made.labels])}" if made.labels else "give them names of their own"
    cure += "; or, if the steps of one run begin again at each epoch, --map step=COLUMN with one that counts on"
    differing = f" They differ in {listed(made.labels)}." if made.labels else ""
    return (
        f"most steps of a run were measured more than once, with other values, so several runs share a name such as "
        f"{next(iter(runs))!r}.{differing} Tell them apart: {cure}."
    )


def _as_steps(
    role: str,
    at: np.ndarray,
    of_role: np.ndarray,
    run: pd.Series,
    runs: Mapping[str, Mapping[str, Any]],
    made: Gathering,
) -> np.ndarray:
    """Epochs or examples as steps."""
    sizes = run.map(lambda name: _whole(runs[name].get("batch_size"))).to_numpy(dtype=float)
    if role == "examples":
        tokens = [name for name in made.read_as.get("examples", ()) if "token" in names.plain(name)]
        if not tokens:
            made.facts["Steps are examples divided by the batch size"] = None
            return at / sizes
        each = run.map(lambda name: _whole(runs[name].get("tokens_per_example"))).to_numpy(dtype=float)
        if "examples" not in made.asked.columns and np.isnan(each[of_role]).any():
            raise ImportRefused(
                f"{tokens[0]} counts tokens, but a batch size may count sequences. If it does, say how many tokens "
                "each has: --set tokens_per_example=N, such as 1024; if it counts tokens, too: "
                f"--map examples={tokens[0]}."
            )
        known = ~np.isnan(each)
        unit = "tokens, divided by tokens_per_example and" if known.any() else "tokens, divided by"
        made.facts[f"Steps are {unit} the batch size"] = None
        return at / sizes / np.where(known, each, 1)
    examples = run.map(lambda name: _whole(runs[name].get("train_examples"))).to_numpy(dtype=float)
    if np.isnan(examples[of_role]).any():
        raise ImportRefused(
            "epochs become steps by the number of training examples, which the log does not say; add --set "
            "train_examples=N."
        )
    whole, first = bool((at[of_role] % 1 == 0).all()), float(at[of_role].min(initial=1))
    if whole and first == 0:
        made.notes["epochs are counted from 0, so epoch 0 is taken as the end of the first epoch"] = None
        at = at + 1
    return at * _of_epoch(examples, sizes, of_role, run, runs, made)


def _of_epoch(
    examples: np.ndarray,
    sizes: np.ndarray,
    of_role: np.ndarray,
    run: pd.Series,
    runs: Mapping[str, Mapping[str, Any]],
    made: Gathering,
) -> np.ndarray:
    """The steps of an epoch: its smaller last batch is one, unless `drop_last` leaves it out."""
    dropped = {name: _is_true(name, settings.get("drop_last")) for name, settings in runs.items()}
    drops = run.map(dropped).to_numpy(dtype=bool)
    if (none := of_role & drops & (sizes > examples)).any():
        row = int(np.flatnonzero(none)[0])
        raise ImportRefused(
            f"run {run.iloc[row]!r} has no step in an epoch: with drop_last, batches of {sizes[row]:,.0f} of "
            f"{examples[row]:,.0f} training examples are left out. Correct one of these, or --set drop_last=false."
        )
    odd = of_role & (examples % sizes > 0)
    ways = {
        "up, as the last batch of an epoch is smaller (if it was left out: --set drop_last=true)": odd & ~drops,
        "down where drop_last left out the smaller last batch": odd & drops,
    }
    rounded = "".join(f", rounded {way}" for way, rows in ways.items() if rows.any())
    made.facts[f"Steps are epochs times training examples divided by the batch size{rounded}"] = None
    return np.where(drops, np.floor(examples / sizes), np.ceil(examples / sizes))


def _is_true(run: str, found: Any) -> bool:
    """Whether a run has a setting that is true or false; without it, False."""
    text = str(found).lower()
    if text not in ("true", "1", "false", "0", "none"):
        raise ImportRefused(f"run {run!r} has drop_last={found}; it must be true or false: --set drop_last=true.")
    return text in ("true", "1")


def _whole(found: Any) -> float:
    return float(found) if isinstance(found, int) and found >= 1 else np.nan


def _notes(made: Gathering, runs: Mapping[str, Any]) -> list[str]:
    found = list(made.notes)
    if made.of_calls:
        found.append(
            f"steps are W&B's own {made.of_calls}, which counts calls of log, from 0: if these are not updates, "
            "--map step=COLUMN"
        )
    if made.without_step:
        rows = counted(made.without_step, "row without a step is", "rows without a step are")
        found.append(f"{rows} left out")
    if made.left_out:
        found.append(
            "left out, because they change during a run and are no train/, val/ or test/ metric: "
            f"{listed(made.left_out)}"
        )
    if described := [name for name in made.described if name not in made.left_out]:
        first = described[0]
        found.append(
            f"left out, because such names describe a run and are no hyperparameters: {listed(described)}. If one "
            f"is a hyperparameter: --map {names.plain(first)}={first}"
        )
    measured = {name for frame in made.frames for name in frame["run"].unique()}
    without = [run for run in made.settings if run not in measured and run not in runs]
    if without:
        some = counted(len(without), "run without measurements is", "runs without measurements are")
        found.append(f"{some} left out: {listed(without, 5)}")
    return found
