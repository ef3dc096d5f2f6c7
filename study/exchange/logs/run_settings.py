"""What is known of each run: batch size, optimizer, hyperparameters, status, seed."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.labels import counted
from study.exchange.importing import ImportRefused
from study.exchange.logs import names
from study.exchange.logs.gathering import Gathering
from study.exchange.logs.names import OF_SETTINGS, listed, plain
from study.exchange.readers.tables import PROJECT, value, written

DIVERGED = ("infeasible", "diverged", "nan")
"""Statuses, in lower case, of runs that diverged."""
A_BATCH_SIZE = "a whole number of examples, at least 1"
GROUPS = ("name", "run_name", "experiment", "exp_name")
"""Names of runs that several runs may share where another column tells runs apart."""
MOST_OF_UPDATE = 1.25
"""An update with more than this many times the examples of a batch has several parts. The limit is below 2, because
speeds are rounded."""
PER_PROCESS = ("train_batch_size", "per_device_train_batch_size")
"""Names under which some tools keep the batch size of one process."""


def of_runs(made: Gathering) -> dict[str, dict[str, Any]]:
    """Run -> its settings by their names in this project.

    What the user sets counts most, then the pattern of the name, then the log itself, then tables of runs.
    """
    measured = dict.fromkeys(name for frame in made.frames for name in frame["run"].unique())
    every = {**made.listed, **measured, **made.settings}
    held = {run: {**_of_tables(made, run), **made.settings.get(run, {})} for run in every}
    order = [run for run in every if run in measured or _diverged(held[run])]
    held = {run: held[run] for run in order}
    keys = list(dict.fromkeys(name for settings in held.values() for name in settings))
    known = names.roles(keys, made.asked.columns, nested=OF_SETTINGS)
    roles = {name: role for role, name in known.items() if role in OF_SETTINGS}
    factors = made.asked.columns.get("batch_size", ())[1:]
    named = _named(made, held, [key for key in keys if key not in factors], roles)
    _check_one_each(held, {key: name for key, name in named.items() if name not in made.asked.set_otherwise})
    runs = {run: {named[key]: cell for key, cell in held[run].items() if key in named} for run in order}
    if factors:
        _multiply(made, runs, held)
    elif "batch_size" not in {*made.asked.columns, *made.asked.set_otherwise}:
        _check_whole(held, roles)
    _match(made, runs)
    fixed = {name: _given(name, text) for name, text in made.asked.values.items()}
    return {run: settings | fixed for run, settings in runs.items()}


def _named(
    made: Gathering, held: Mapping[str, Mapping[str, Any]], keys: Sequence[str], roles: Mapping[str, str]
) -> dict[str, str]:
    """Name in the log -> name in this project, of the settings that are kept.

    Arguments:
        held: run -> its settings.
        roles: name in the log -> its role.
    """
    mapped = {columns[0]: name for name, columns in made.asked.columns.items() if name != "run"}
    labels = names.FROM_EXPORT if made.of_project else ()
    metrics = [name for name in made.read_as if "/" in name]
    named: dict[str, str] = {}
    rate = min((key for key in keys if names.is_rate(key)), key=names.is_certain, default=None)
    for key in keys:
        if key in mapped or key in roles:
            named[key] = mapped.get(key) or roles[key]
            made.read(named[key], key)
            _study(made, key, named[key], [settings.get(key) for settings in held.values()])
        elif names.describes_run(key) or plain(key) in labels:
            _label(made, key, [settings.get(key) for settings in held.values()])
        elif (
            not names.is_of_wandb(key)
            and names.metric(key) not in metrics
            and (key == rate or not names.is_certain(key))
        ):
            name = names.hyperparameter(key, keys)
            if name in mapped.values():
                made.facts[f"Left out {key}, because --map names another {name}"] = None
            else:
                named[key] = name
                if key in made.peaks:
                    made.facts[
                        f"The highest {key} that a run logged is its {name}; between two logs it may be higher"
                    ] = None
                if name in names.SHORT.values() or name.startswith("own_"):
                    made.read(name, key)
    return named


def _study(made: Gathering, key: str, name: str, cells: Sequence[Any]) -> None:
    """Say that each value of a setting names studies of their own, if its name may mean something else, such as `task`.

    Arguments:
        cells: its value in each run; None: it has none.
    """
    asked = [column for columns in made.asked.columns.values() for column in columns]
    several, short = len({repr(cell) for cell in cells if cell is not None}) > 1, plain(names.last(key))
    if several and name in ("workload", "dataset", "model") and key not in asked and short != name:
        made.facts[f"Each value of {key} is a workload of its own; if it is a hyperparameter: --map {short}={key}"] = (
            None
        )


def _label(made: Gathering, key: str, cells: Sequence[Any]) -> None:
    """Remember a setting that is left out for its name, if runs differ in it: it may be a hyperparameter.

    Arguments:
        cells: its value in each run; None: it has none.
    """
    values, short = len({repr(cell) for cell in cells}), plain(key)
    if short == PROJECT:
        some = listed(dict.fromkeys(cell for cell in cells if cell is not None), 3)
        if values > 1:
            made.notes[
                f"runs of several projects or experiments ({some}) count as one workload; if each is a workload of its "
                f"own: --map workload={key}"
            ] = None
        return
    of_runs = short in names.ROLES["run"] and not (short in GROUPS and values < len(cells))
    if names.describes_run(key) and values > 1 and not of_runs and not names.is_of_wandb(key):
        made.described[key] = None


def _check_one_each(held: Mapping[str, Mapping[str, Any]], named: Mapping[str, str]) -> None:
    """Raise ImportRefused if a run has two values of one setting. `named`: name in the log -> name in this project."""
    for run, settings in held.items():
        first: dict[str, str] = {}
        for key in [key for key in settings if key in named]:
            other = first.setdefault(named[key], key)
            if value(settings[key]) != value(settings[other]):
                raise ImportRefused(
                    f"run {run!r} has two values of {named[key]}: {other}={settings[other]} and {key}={settings[key]}. "
                    f"Choose one: --map {named[key]}={other}, or --map {named[key]}={key}."
                )


def _multiply(made: Gathering, runs: Mapping[str, dict[str, Any]], held: Mapping[str, Mapping[str, Any]]) -> None:
    """Make the batch size of each run the product of its columns; if one of them is no number, it has none."""
    columns = made.asked.columns["batch_size"]
    for run, settings in runs.items():
        cells = [held[run].get(column, value(column) if column.isdecimal() else None) for column in columns]
        whole = all(isinstance(cell, int) for cell in cells)
        settings["batch_size"] = math.prod(cells) if whole else "*".join(map(str, cells))
    made.facts[f"Batch sizes are {' times '.join(columns)}"] = None


def _check_whole(held: Mapping[str, Mapping[str, Any]], roles: Mapping[str, str]) -> None:
    """Raise ImportRefused if a batch size may be that of one part of an update: one process, or one accumulation step.

    Arguments:
        roles: name in the log -> its role.
    """
    column = next((name for name, role in roles.items() if role == "batch_size"), None)
    if column is None or plain(names.last(column)) in names.WHOLE_BATCH:
        return
    for run, settings in held.items():
        if column in settings and (examples := _of_an_update(settings)) > MOST_OF_UPDATE * _number(settings[column]):
            raise ImportRefused(
                f"run {run!r} has {column}={settings[column]}, but its speeds say that an update had about "
                f"{examples:.3g} examples. A batch size counts the examples of a whole update. If {column} counts one "
                f"part of it: --map 'batch_size={column}*N' for N parts, or give a column of whole batch sizes: --map "
                f"batch_size=COLUMN; if it counts the whole: --map batch_size={column}."
            )
        parts = [name for name in settings if plain(names.last(name)) in names.PARTS]
        several = [name for name in parts if isinstance(settings[name], int) and settings[name] > 1]
        if several and column in settings:
            known = listed(f"{name}={settings[name]}" for name in (column, *several))
            raise ImportRefused(
                f"run {run!r} has {known}. A batch size counts the examples of a whole update. If {column} counts one "
                f"part of it: --map 'batch_size={'*'.join([column, *several])}'; if it counts the whole: --map "
                f"batch_size={column}."
            )


def _of_an_update(settings: Mapping[str, Any]) -> float:
    """Examples of an update, by the speeds that Hugging Face's Trainer logs at the end of a run; NaN without them."""
    speeds = {plain(names.last(name)): _number(cell) for name, cell in settings.items()}
    examples, steps = (speeds.get(f"train_{unit}_per_second", math.nan) for unit in ("samples", "steps"))
    return examples / steps if steps > 0 else math.nan


def _number(cell: Any) -> float:
    return float(cell) if isinstance(cell, int | float) else math.nan


def _diverged(settings: Mapping[str, Any]) -> bool:
    """True if a run says that it diverged: it counts even if it measured nothing before."""
    return any(plain(name) in names.ROLES["status"] and str(settings[name]).lower() in DIVERGED for name in settings)


def _of_tables(made: Gathering, run: str) -> dict[str, Any]:
    """The settings of a run in a table of runs, found by its name or its identifier."""
    identifier = str(made.settings.get(run, {}).get("run_id", run))
    return made.beside.get(run) or made.beside.get(identifier) or {}


def _match(made: Gathering, runs: Mapping[str, dict[str, Any]]) -> None:
    """Add what the names of the runs say by the pattern of `--run-name`."""
    if made.asked.pattern is None:
        return
    for run, settings in runs.items():
        found = made.asked.in_name(run)
        if found is None:
            raise ImportRefused(f"--run-name {made.asked.pattern!r} does not fit the run {run!r}.")
        settings.update({names.SHORT.get(name, name): _given(name, text) for name, text in found.items()})


def _given(name: str, text: str) -> Any:
    """A setting of the command line, or of the name of a run."""
    return written(text) if name in names.NAMES else value(text)


def _by_name(run: str) -> str:
    """The name of a run, and how it can say the batch size.

    >>> _by_name("adam_bs64_lr0.1")
    "'adam_bs64_lr0.1', a pattern: --run-name 'adam_bs{batch_size}*'"
    """
    size = re.match(r"(.*?(?:bs|batch(?:[_-]?size)?|b)[_=-]?)\d+(.*)", run, re.IGNORECASE)
    if size and names.GOES_ON.match(size[2]):
        cure = "a table with the columns run and batch_size, in one folder with the log"
        return f"{run!r} does by more than its digits, {cure}"
    pattern = f"{size[1]}{{batch_size}}{'*' if size[2] else ''}" if size else "bs{batch_size}_*"
    return f"{run!r}, a pattern: --run-name '{pattern}'"


def with_batch_size(made: Gathering, runs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The runs with a batch size.

    Raises:
        ImportRefused: no run has one; the message has the cures.
    """
    known, odd = {}, []
    for run, settings in runs.items():
        size = settings.get("batch_size")
        if isinstance(size, int) and size >= 1:
            known[run] = settings
        elif size is not None:
            odd.append(f"{run!r} has {size!r}")
    if odd and not known:
        raise ImportRefused(
            f"a batch size is {A_BATCH_SIZE}, but {listed(odd, 3)}. Correct these values, or give another column with "
            "--map batch_size=COLUMN; if all runs have one batch size, --set batch_size=N."
        )
    if not known:
        held = sorted({name for settings in made.settings.values() for name in settings} | set(made.columns))
        raise ImportRefused(
            f"no run has a batch size. The columns and settings are {listed(held, 40)}. Add "
            f"{names.cure('batch_size', held)}; if the names of the runs say it, as {_by_name(next(iter(runs), ''))}; "
            "if all runs have the same, --set batch_size=N."
        )
    for column in () if "batch_size" in made.asked.columns else made.read_as.get("batch_size", ()):
        if plain(names.last(column)) in PER_PROCESS:
            made.notes[
                f"the batch size is that of {column}: if this is of one process or one accumulation step, give the "
                "examples of a whole update with --map or --set batch_size=N"
            ] = None
    if odd:
        some = counted(len(odd), "run is", "runs are")
        made.notes[f"{some} left out, since a batch size is {A_BATCH_SIZE}: {listed(odd, 5)}"] = None
    without = [run for run, settings in runs.items() if settings.get("batch_size") is None]
    if without:
        some = counted(len(without), "run without a batch size is", "runs without a batch size are")
        made.notes[f"{some} left out: {listed(without, 5)}"] = None
    return known
