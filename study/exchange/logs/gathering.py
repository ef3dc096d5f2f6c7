"""Gathers the rows and settings of tables, under the names of this project.

Shapes: R rows of one table.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from study.exchange.importing import ImportRefused
from study.exchange.logs import names
from study.exchange.logs.names import Asked, listed, plain
from study.exchange.readers.tables import Table, label, number_cure, numbers, refuse, value, written

OF_TRIALS = ("workload", "optimizer", "batch_size")
"""Columns that join a number of a trial to the name of a run: trials are numbered from 0 in every study."""
IDENTITY = (*OF_TRIALS, "dataset", "model")
"""Settings that name a study. They must not change during a run."""


class Gathered(NamedTuple):
    """A table with measurements.

    Attributes:
        rows: as in the table, less those that do not count.
        roles: role -> the column that has it.
        position: the role that says how far training was.
        run: the run of each row [R].
    """

    table: Table
    rows: pd.DataFrame
    roles: dict[str, str]
    position: str
    run: pd.Series

    def place(self, row: int) -> str:
        """The place of a row in the file."""
        return self.table.locate(int(self.rows.index[row]))


class Gathering:
    """Collects the parts of a log, table by table."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.tables: list[Gathered] = []
        self.frames: list[pd.DataFrame] = []
        self.settings: dict[str, dict[str, Any]] = {}
        self.beside: dict[str, dict[str, Any]] = {}  # from tables of runs, by the name or the identifier of a run
        self.listed: dict[str, None] = {}  # the runs of these tables, each by one name
        self.read_as: dict[str, Counter[str]] = {}
        self.facts: dict[str, None] = {}
        self.notes: dict[str, None] = {}
        self.columns: dict[str, None] = {}
        self.left_out: dict[str, None] = {}
        self.described: dict[str, None] = {}  # left out, since their names describe a run
        self.peaks: dict[str, None] = {}  # learning rates that change during a run: their highest value is kept
        self.labels: dict[str, None] = {}  # those of them that keep a value for several rows: they may tell runs apart
        self.of_seeds: dict[str, str] = {}  # runs with several seeds -> the column of the seeds
        self.without_step = 0
        self.of_calls = ""  # the column of steps that may count calls of W&B's log
        self.from_zero = False  # whether steps are counted from 0
        self.of_project = False  # whether a table is an export of this project
        self._readers: dict[str, Callable[[Any], Any]] = {}  # column -> `reader`

    def know(self, run: str, settings: Mapping[str, Any]) -> None:
        """Add settings of a run; they keep the names that they have in the source."""
        known = self.settings.setdefault(run, {})
        for name, given in settings.items():
            if (found := self.reader(name)(given)) is not None:
                known[name] = label(given) if name == "run_id" else found

    def reader(self, column: str) -> Callable[[Any], Any]:
        """Reads a cell of a column of settings. The names of optimizers and workloads stay as they are written."""
        if column not in self._readers:
            roles = names.roles([column], self.asked.columns, nested=names.NAMES)
            self._readers[column] = value if roles.keys().isdisjoint(names.NAMES) else written
        return self._readers[column]

    def leave_out(self, column: str) -> None:
        """Remember a column that was left out; those of W&B itself, such as _runtime, go without saying."""
        if not names.is_of_wandb(column):
            self.left_out[column] = None

    def read(self, role: str, column: str) -> None:
        """Remember which column a role or metric was read from."""
        self.read_as.setdefault(role, Counter())[column] += 1


def shared(tables: Sequence[Table], asked: Asked) -> set[str]:
    """Names of runs that the curves of several files have, such as 0 for the first trial of each, unless one file
    continues the run of another."""
    found: dict[str, list[tuple[float, float]]] = {}
    for table in tables:
        roles = names.roles([str(name) for name in table.rows], asked.columns)
        position = next((roles[role] for role in names.POSITIONS if role in roles), None)
        if table.is_file and "run" in roles and position is not None:
            at = pd.Series(numbers(table.rows[position])[0], index=table.rows.index)
            ends = at.groupby(table.rows[roles["run"]].to_numpy()).agg(["min", "max"])
            for cell, first, last in ends.itertuples():
                found.setdefault(label(cell), []).append((first, last))
    return {name for name, parts in found.items() if len(parts) > 1 and not _continue(sorted(parts))}


def _continue(parts: Sequence[tuple[float, float]]) -> bool:
    """True if each part of a run (its first and last position, by the first) begins in the second half of the one
    before, as after a restart from a checkpoint, and goes further."""
    return all(b[0] > (a[0] + a[1]) / 2 and b[1] > a[1] for a, b in pairwise(parts))


def add(made: Gathering, table: Table, shared: Collection[str]) -> None:
    """Add a table.

    Arguments:
        shared: names of runs that do not tell files apart (`shared`).

    Raises:
        ImportRefused: nothing names the run of a row.
    """
    made.facts |= dict.fromkeys(table.facts)
    rows = table.rows.set_axis([str(name) for name in table.rows], axis=1)
    roles = names.roles(list(rows), made.asked.columns)
    if {"metric", "value"} <= roles.keys() and not numbers(rows[roles["value"]])[1].any():
        rows = _one_column_each(rows, roles)
        roles = names.roles(list(rows), made.asked.columns)
    made.columns |= dict.fromkeys(rows)
    by_user = [role for role in names.POSITIONS if role in made.asked.columns]
    position = next((role for role in (*by_user, *names.POSITIONS) if role in roles), None)
    if rows.empty:
        if table.run is not None:
            made.know(table.run, table.settings)
        return
    rows = _first_searches(rows, made)
    run = _run_of(rows, roles, table, shared, made.asked)
    if position is None:
        _beside(made, table, rows, run)
        return
    if run is None:
        raise refuse(table.where, _no_run(list(rows)))
    found = Gathered(table, rows, roles, position, run)
    if (empty := (run == "None").to_numpy(dtype=bool)).any():
        row = int(np.flatnonzero(empty)[0])
        raise refuse(table.where, f"{found.place(row)}: {roles.get('run', 'the run')} is empty.")
    for name in dict.fromkeys(run):
        made.know(name, table.settings)
    if "run" in roles:
        made.read("run", ",".join(made.asked.columns.get("run", [roles["run"]])))
    made.tables.append(found)


def _no_run(columns: Sequence[str]) -> str:
    known = {name: plain(name) for name in columns if names.metric(name) is None}
    passing = (*names.ROLES["step"], *names.ROLES["epoch"], *names.ROLES["status"], *names.LABELS)
    some = [name for name, short in known.items() if short not in passing][:6]
    return (
        f"no column names the run of a row; its columns are {listed(columns)}. Add {names.cure('run', columns)}, or "
        f"several columns that identify a run together: --map run={','.join(some or ['batch_size', 'seed'])}."
    )


def _one_column_each(rows: pd.DataFrame, roles: Mapping[str, str]) -> pd.DataFrame:
    """Rows of `metric, value` as a column for each metric."""
    metric = rows[roles["metric"]].astype(str).to_numpy()
    kept = rows.drop(columns=[roles["metric"], roles["value"]])
    wide = {name: rows[roles["value"]].where(metric == name) for name in dict.fromkeys(metric)}
    return pd.concat([kept, pd.DataFrame(wide)], axis=1)


def _each(column: pd.Series, function: Callable[[Any], Any]) -> pd.Series:
    """A function of each cell, called once for each different cell."""
    codes, known = pd.factorize(column)
    found = np.empty(len(known) + 1, dtype=object)
    found[:-1] = [function(cell) for cell in known]  # the last one stands for empty cells
    found[-1] = function(None)
    return pd.Series(found[codes], index=column.index, dtype=object)  # of text, pandas would make None NaN


def _run_of(
    rows: pd.DataFrame, roles: Mapping[str, str], table: Table, shared: Collection[str], asked: Asked
) -> pd.Series | None:
    """The run of each row [R]; None if nothing names it."""
    columns = [column for column in asked.columns.get("run", ()) if column in rows]
    if not columns and "run" in roles:
        column = roles["run"]
        alone = rows[column].nunique() == 1 and label(rows[column].iloc[0]) in shared
        if table.run is None or (table.is_file and not alone):
            columns = [column]
        if columns and plain(column) in ("trial", "trial_id"):
            columns = [*(roles[role] for role in OF_TRIALS if role in roles), column]
    if not columns:
        return None if table.run is None else pd.Series(table.run, index=rows.index, dtype=object)
    of_names = {column for column in columns if len(columns) == 1 or plain(column) in names.ROLES["run"]}
    of_names |= {roles[role] for role in names.NAMES if role in roles}
    texts = [_each(rows[column], label if column in of_names else lambda cell: str(value(cell))) for column in columns]
    if len(columns) == 1:
        return texts[0]
    return pd.Series([", ".join(parts) for parts in zip(*texts, strict=True)], index=rows.index, dtype=object)


def _beside(made: Gathering, table: Table, rows: pd.DataFrame, run: pd.Series | None) -> None:
    """A table with one row for each run: settings, by every column that may name a run."""
    keys = [name for name in rows if plain(name) in names.ROLES["run"] and not plain(name).startswith("trial")]
    if not keys and (run is None or run.nunique() < len(rows)):
        made.notes[f"{table.where} has no column for steps: left out"] = None
        return
    kept = rows.drop(columns=[name for name in rows if names.is_certain(name)])
    for number, row in enumerate(kept.to_dict("records")):
        read = {str(name): made.reader(str(name))(cell) for name, cell in row.items()}
        settings = {name: found for name, found in read.items() if found is not None}
        named = ([] if run is None else [run.iloc[number]]) + [label(row[key]) for key in keys]
        made.listed[named[0]] = None
        for name in dict.fromkeys(named):
            made.beside.setdefault(name, {}).update(settings)


def _first_searches(rows: pd.DataFrame, made: Gathering) -> pd.DataFrame:
    """Of an export of this project, the first search of each study; reruns and repeats are others."""
    if not set(names.OF_EXPORT) <= set(rows):
        return rows
    made.of_project = True
    kept = np.ones(len(rows), dtype=bool)
    for name, first in names.OF_EXPORT.items():
        kept &= (_each(rows[name], value).map(lambda cell, first=first: cell == first)).to_numpy(dtype=bool)
    if not kept.all():
        made.notes["repeats, reruns, wider spaces and other budgets of the exported studies are left out"] = None
    return rows[kept]


def _changes(values: np.ndarray, run: pd.Series) -> bool:
    """True if a column has several values in one run."""
    return bool((pd.Series(values).groupby(run.to_numpy()).nunique() > 1).any())


def part_splits(made: Gathering) -> None:
    """Rows of one split each, with columns such as `loss`, as a column for each split: `train/loss`, `val/loss`.

    Columns that change during no run are hyperparameters.
    """
    changing: set[str] = set()
    for each in made.tables:
        for column in filter(names.could_be_metric, each.rows if "split" in each.roles else ()):
            values, odd = numbers(each.rows[column])
            if column not in changing and not odd.any() and _changes(values, each.run):
                changing.add(column)
    for number, each in enumerate(made.tables):
        if "split" in each.roles:
            of_row = _each(each.rows[each.roles["split"]], lambda cell: names.SPLITS.get(str(cell).strip().lower()))
            moved = [column for column in each.rows if column in changing]
            if not of_row.isna().any():
                wide = {f"{one}/{name}": each.rows[name].where(of_row == one) for one in set(of_row) for name in moved}
                kept = each.rows.drop(columns=[each.roles["split"], *moved])
                made.columns |= dict.fromkeys(wide)
                made.tables[number] = each._replace(rows=pd.concat([kept, pd.DataFrame(wide)], axis=1))


def metric_columns(made: Gathering) -> set[str]:
    """The columns that are metrics: certainly by their names, or named like one and changing during a run."""
    certain, changing, named = set(), set(), set()
    for each in made.tables:
        taken = set(each.roles.values())
        for column in each.rows:
            if names.metric(column) is None or column in taken:
                continue
            if names.is_certain(column):
                certain.add(column)
                continue
            values, odd = numbers(each.rows[column])
            if not odd.any():
                named.add(column)
                if column not in changing and _changes(values, each.run):
                    changing.add(column)
    return certain | changing or named


def evaluated(each: Gathered, metrics: Collection[str]) -> np.ndarray:
    """Which rows of a table measured something but training errors [R]."""
    measured = np.zeros(len(each.rows), dtype=bool)
    for name in metrics:
        if name in each.rows and str(names.metric(name)).startswith(("val/", "test/")):
            measured |= ~np.isnan(numbers(each.rows[name])[0])
    return measured


def measure(made: Gathering, each: Gathered, metrics: Collection[str]) -> None:
    """Add the measurements of a table, and the settings in its columns.

    Raises:
        ImportRefused: a cell is malformed, or a run has several batch sizes.
    """
    at = _position(made, each)
    made.read(each.position, each.roles[each.position])
    frame: dict[str, Any] = {"run": each.run.to_numpy(), "position": at, "counts": each.position}
    own = {each.roles[role] for role in names.POSITIONS if role in each.roles}
    if "run" in each.roles and len(made.asked.columns.get("run", "_")) == 1:
        own.add(each.roles["run"])
    mapped = {columns[0]: name for name, columns in made.asked.columns.items() if "/" in name}
    for column in sorted((name for name in each.rows if name not in own), key=lambda name: name not in mapped):
        found = mapped.get(column) or (names.metric(column) if column in metrics else None)
        if found is None:
            _setting(made, column, each)
        elif found not in frame or (column == found and column not in mapped.values()):
            frame[found] = _measurements(each, column)
            made.read(found, column)
        else:
            made.leave_out(column)
    made.frames.append(pd.DataFrame(frame)[~np.isnan(at)])


def _position(made: Gathering, each: Gathered) -> np.ndarray:
    """The steps, epochs or examples of rows [R]; NaN where the cell is empty."""
    column = each.roles[each.position]
    at, odd = numbers(each.rows[column])
    odd |= np.isinf(at) | (at < 0)
    if odd.any():
        row = int(np.flatnonzero(odd)[0])
        found = each.rows[column].iloc[row]
        why = f"{each.place(row)}: {column} is {found!r}, no {each.position}{number_cure(found)}."
        raise refuse(each.table.where, why)
    if each.position == "step" and (at % 1 > 0).any():
        row = int(np.flatnonzero(at % 1 > 0)[0])
        raise refuse(
            each.table.where,
            f"{each.place(row)}: {column} is {at[row]:g}, but steps are whole numbers of updates. If the column counts "
            f"epochs: --map epoch={column} --set train_examples=N.",
        )
    if each.position == "step" and "step" not in made.asked.columns and "epoch" in each.roles:
        epochs = numbers(each.rows[each.roles["epoch"]])[0]
        if len(set(at)) > 1 and (np.array_equal(at, epochs) or np.array_equal(at, epochs - 1)):
            raise refuse(
                each.table.where,
                f"{column} repeats {each.roles['epoch']}, so it counts epochs: --map epoch={column} --set "
                f"train_examples=N; if it counts updates, --map step={column}.",
            )
    made.without_step += int(np.isnan(at).sum())
    return at + 1 if made.from_zero and each.position == "step" else at


def _measurements(each: Gathered, column: str) -> np.ndarray:
    """The values of a metric [R]."""
    values, odd = numbers(each.rows[column])
    if odd.any():
        row = int(np.flatnonzero(odd)[0])
        found = each.rows[column].iloc[row]
        raise refuse(
            each.table.where, f"{each.place(row)}: {column} is {found!r}, which is no number{number_cure(found)}."
        )
    return values


def _setting(made: Gathering, column: str, each: Gathered) -> None:
    """Add a column that is no metric to the settings of the runs, unless it changes during a run."""
    cells = _each(each.rows[column], made.reader(column))
    known = cells[cells.notna()]
    if known.empty:
        return
    run = each.run.loc[known.index].to_numpy()
    pairs = pd.DataFrame({"run": run, "cell": known.map(repr).to_numpy()}).drop_duplicates()
    changing = pairs["run"][pairs["run"].duplicated()]
    role = set(names.roles([column], made.asked.columns))
    if len(changing) and role & set(IDENTITY):
        name = changing.iloc[0]
        some = listed(dict.fromkeys(known[run == name]), 3)
        cure = ",".join([*made.asked.columns.get("run", [each.roles.get("run", "run")]), column])
        raise ImportRefused(
            f"run {name!r} has several values of {column}: {some}. A run has one. If several runs share this name, "
            f"tell them apart: --map run={cure}."
        )
    if "seed" in role:
        made.of_seeds |= dict.fromkeys(map(str, changing), column)
    if len(changing) and "status" not in role:
        if not _peak(made, column, each):
            made.leave_out(column)
        if 2 * len(pairs) <= len(known):
            made.labels[column] = None
        return
    last = pd.DataFrame({"run": run, "cell": known.to_numpy()}).drop_duplicates("run", keep="last")
    for name, cell in zip(last["run"], last["cell"], strict=True):  # a status that changes ends as its last
        made.know(name, {column: cell})


def _peak(made: Gathering, column: str, each: Gathered) -> bool:
    """Take the highest learning rate of a run as its learning rate, if nothing else says it; False if this is none."""
    if not names.is_rate(column):
        return False
    values, odd = numbers(each.rows[column])
    if odd.any():
        return False
    highest = pd.Series(values).groupby(each.run.to_numpy()).max()
    for name, peak in highest[np.isfinite(highest)].items():
        held = made.settings.get(str(name), {})
        if not any(map(names.is_rate, held)):
            made.know(str(name), {column: peak})
            made.peaks[column] = None
    return True
