"""Critical batch sizes across sizes of the model or the data, and the power laws through them."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.labels import listed, number, with_interval
from analysis.load import GOAL, LoadError, StudyData, rows_with
from analysis.sizes.fit import PowerLaw, power_law
from analysis.tables.scaling import CRITICAL, ZHANG

DEFINITIONS = {CRITICAL: "McCandlish et al.", ZHANG: "Zhang et al."}
"""Definition of a critical batch size that laws are fitted to -> its authors."""
LAW = ["of", "optimizer", *GOAL, "axis", "definition"]
"""The columns that identify a law: what all its workloads share, and the axis in which they differ."""
SIZES = [*LAW, "workload", "size", "critical_batch_size", "low", "high", "bound"]
LAWS = [*LAW, *PowerLaw._fields, "left_out", "smallest", "largest"]
PARAMETERS = "parameters"
FEWEST = 3
"""Fewer sizes give no law: two always lie on one."""


def sizes(studies: Iterable[StudyData], scaling: pd.DataFrame) -> pd.DataFrame:
    """The critical batch sizes of workloads that differ in one number only.

    The number is an argument of the workload, such as `width`, a list of equal numbers such as `widths=[128]`, the
    number of training examples, or a size that imported runs came with. Where it changes the parameters of the model,
    their number is a second axis.

    Arguments:
        studies: the answering search of each study.
        scaling: the limits of scaling, from `analysis.estimates.limits.table`.

    Returns:
        A row for each (of, optimizer, goal, axis, definition, workload), with the columns SIZES, by size: the estimate
        with its interval (NaN if no critical batch size was found), and bound (`=`; `<` or `>` if the measured batch
        sizes show only a bound). A definition without any value has no rows.

    >>> sizes([study], pd.read_csv(f"{published}/tables/scaling.csv")).empty  # one workload
    True
    """
    described: dict[str, dict[str, Any]] = {}
    parameters: dict[str, float] = {}
    for study in studies:
        described[study.workload] = {k: v for k, v in study.question["workload"].items() if k != "name"}
        if not np.isnan(study.parameters):
            parameters[study.workload] = study.parameters
    axes = list(_axes(described, parameters))
    parts = scaling[scaling["definition"].isin(DEFINITIONS)].groupby(["optimizer", *GOAL, "definition"], sort=False)
    rows = [row for key, part in parts for axis in axes for row in _rows(key, part.set_index("workload"), *axis)]
    return pd.DataFrame(rows, columns=SIZES)


def _rows(key: tuple, limits: pd.DataFrame, axis: str, shared: str, sizes: Mapping[str, float]) -> Iterator[tuple]:
    """The rows of one axis.

    Arguments:
        key: optimizer, goal and definition.
        limits: their limits, by workload.
        shared: what the workloads share.
        sizes: workload -> size.
    """
    mine = sorted((size, name) for name, size in sizes.items() if name in limits.index)
    if len({size for size, _ in mine}) > 1 and limits.loc[[name for _, name in mine], "estimate"].notna().any():
        *named, definition = key
        law = (shared, *named, axis, definition)
        for size, name in mine:
            row = limits.loc[name]
            ends = row["estimate_low"], row["estimate_high"], row["estimate_bound"]
            yield (*law, name, size, row["estimate"], *ends)


def _axes(
    described: Mapping[str, Mapping[str, Any]], parameters: Mapping[str, float]
) -> Iterator[tuple[str, str, dict[str, float]]]:
    """(axis, what the workloads share, workload -> size) of each set of workloads that differ in one number only."""
    for key in dict.fromkeys(key for about in described.values() for key in about):
        groups: dict[str, dict[str, float]] = {}
        for name, about in described.items():
            size = _number(about.get(key))
            if size is not None:
                rest = json.dumps({k: v for k, v in about.items() if k != key}, sort_keys=True)
                groups.setdefault(rest, {})[name] = size
        for group in groups.values():
            if len(set(group.values())) > 1:
                shared = _shared(list(group), key)
                yield key, shared, group
                counts = {name: parameters[name] for name in group if name in parameters}
                if len(set(counts.values())) == len(set(group.values())):
                    yield PARAMETERS, shared, counts


def _number(value: Any) -> float | None:
    """A size above 0: a number, or a list of equal numbers; else None."""
    values = value if isinstance(value, list) else [value]
    whole = [each for each in values if isinstance(each, int | float) and not isinstance(each, bool) and each > 0]
    return float(whole[0]) if whole and len(whole) == len(values) and len(set(whole)) == 1 else None


def _shared(names: Sequence[str], axis: str) -> str:
    """What the names of workloads share, less the axis: `net` of `net_width-128` and `net_width-256`."""
    first, last = min(names), max(names)  # all between begin as these two do
    alike = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    shared = first[:alike].rstrip("0123456789").rstrip("_-.,+=")
    return shared.removesuffix(axis).rstrip("_-.,+=") or listed(names)


def laws(table: pd.DataFrame) -> pd.DataFrame:
    """The power law through the critical batch sizes of each axis with three sizes or more.

    Bounds are left out of the fit: a size whose critical batch size lies outside the measured batch sizes has no value.
    So are critical batch sizes that are missing or infinite.

    Arguments:
        table: from `sizes`.

    Returns:
        A row for each law, with the columns LAWS: those of `analysis.sizes.fit.PowerLaw`, left_out (how many sizes are
        bounds or have no value), smallest and largest (size that was fitted).

    >>> law = {"of": "mlp", "optimizer": "sgd", "goal_metric": "val/loss", "goal_threshold": 0.2, "axis": "width"}
    >>> made = pd.DataFrame({"size": [64, 128, 256, 512], "critical_batch_size": [20, 28.3, 40, 50], "low": np.nan,
    ...     "high": np.nan, "bound": ["=", "=", "=", ">"], "definition": "critical_batch_size_zhang"}).assign(**law)
    >>> laws(made)[["axis", "exponent", "points", "left_out"]].round(3).values.tolist()
    [['width', 0.5, 3, 1]]
    """
    rows = []
    for key, part in table.groupby(LAW, sort=False):
        known = _known(part)
        if known["size"].nunique() >= FEWEST:
            ends = (known[name].to_numpy(dtype=float) for name in ("low", "high"))
            found = power_law(known["size"], known["critical_batch_size"], *ends)
            rows.append((*key, *found, len(part) - len(known), known["size"].min(), known["size"].max()))
    return pd.DataFrame(rows, columns=LAWS)


def _known(part: pd.DataFrame) -> pd.DataFrame:
    """The rows whose critical batch size is a value: no bound, not missing and not infinite."""
    return part[(part["bound"] == "=") & np.isfinite(part["critical_batch_size"].astype(float))]


def law(row: Mapping[str, Any]) -> PowerLaw:
    """The law in a row of `laws`.

    >>> fitted = power_law([1, 10, 100], [20, 65, 190])
    >>> law(fitted._asdict() | {"of": "mlp"}) == fitted
    True
    """
    return PowerLaw(**{name: row[name] for name in PowerLaw._fields})


def predictions(table: pd.DataFrame, at: Sequence[float]) -> pd.DataFrame:
    """The critical batch size that each law predicts at other sizes, with the interval of the law.

    Arguments:
        table: from `laws`.
        at: sizes.

    >>> law = {"of": "mlp", "optimizer": "sgd", "goal_metric": "val/loss", "goal_threshold": 0.2, "axis": "width"}
    >>> fitted = power_law([64, 128, 256], [20, 28.3, 40])._asdict() | {"definition": "critical_batch_size_mccandlish"}
    >>> predictions(pd.DataFrame([law | fitted]), [1024])[["size", "critical_batch_size"]].round(1).values.tolist()
    [[1024.0, 80.0]]
    """
    rows = []
    for row in table.to_dict("records"):
        key = [row[name] for name in LAW]
        rows += [(*key, float(size), *map(float, law(row).predict(size))) for size in at]
    return pd.DataFrame(rows, columns=[*LAW, "size", "critical_batch_size", "low", "high"])


def pairs(path: Path) -> pd.DataFrame:
    """The rows of a CSV with a size and a critical batch size each, as `sizes` gives them.

    Its columns are `critical_batch_size`, if known `low` and `high` (the ends of its 95 % interval), and one other,
    whose name becomes the axis. With a column `bound`, `<` or `>` marks a bound.

    Raises:
        LoadError: the file cannot be read, or its columns are others.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "published.csv"
    ...     _ = path.write_text("parameters,critical_batch_size\\n85e6,300\\n302e6,540\\n1.2e9,1040\\n")
    ...     print(*laws(pairs(path))[["axis", "exponent"]].round(2).values[0])
    parameters 0.47
    """
    try:
        read = pd.read_csv(path)
    except (OSError, ValueError) as error:
        said = "it is not text in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error).strip().rstrip(".")
        raise _no_pairs(path, said) from error
    others = [name for name in read if name not in ("critical_batch_size", "low", "high", "bound")]
    if "critical_batch_size" not in read or len(others) != 1:
        raise _no_pairs(path, f"its columns are {listed(read, most=8)}")
    if not pd.api.types.is_numeric_dtype(read[others[0]]):
        raise LoadError(f"{path}: {others[0]}, the size, must be numbers above 0; correct it.")
    usual = {"of": path.stem, "optimizer": "", "goal_metric": "", "goal_threshold": np.nan, "axis": str(others[0])}
    usual |= {"definition": "critical_batch_size", "workload": path.stem, "low": np.nan, "high": np.nan, "bound": "="}
    found = read.rename(columns={others[0]: "size"})
    missing = {name: value for name, value in usual.items() if name not in found}
    made = found.assign(**missing)[SIZES].fillna({"goal_threshold": 0.0, "bound": "="})
    _check(path, made)
    return made


def _no_pairs(path: Path, why: str) -> LoadError:
    return LoadError(
        f"{path} is no folder, and no CSV with critical batch sizes: {why}; give the folder that `study sweep` wrote "
        "to, or a CSV with a column critical_batch_size, one with the size, such as parameters, and, if known, low, "
        "high and bound."
    )


def _check(path: Path, made: pd.DataFrame) -> None:
    """Raise LoadError, with the line of the file, for what no law can be fitted to."""
    for name in ("critical_batch_size", "low", "high"):
        if not pd.api.types.is_numeric_dtype(made[name]):
            raise LoadError(
                f"{path}: {name} must be numbers, empty where they are unknown; mark bounds in a column bound."
            )
    number, size, low, high = (made[name] for name in ("critical_batch_size", "size", "low", "high"))
    rules = {
        "the size must be a number above 0": ~((size > 0) & np.isfinite(size)),
        "critical_batch_size must be above 0, or empty if it is unknown": number <= 0,
        "low <= critical_batch_size <= high must hold": (low > number) | (high < number) | (low > high),
        "bound must be =, < or >": ~made["bound"].isin(["=", "<", ">"]),
    }
    for rule, broken in rules.items():
        if broken.any():
            row = made[broken].iloc[0]
            values = ", ".join(f"{key}={row[key]}" for key in ("size", "critical_batch_size", "low", "high", "bound"))
            raise LoadError(f"{path}, line {broken.to_numpy().argmax() + 2}: {rule}, but got {values}; correct it.")


def overview(table: pd.DataFrame) -> pd.DataFrame:
    """Laws as text, a row for each.

    >>> law = {"of": "mlp", "optimizer": "sgd", "goal_metric": "val/loss", "goal_threshold": 0.2, "axis": "width"}
    >>> fitted = power_law([64, 128, 256, 512], [20, 28.3, 40, 57])._asdict() | {"left_out": 0, "smallest": 64}
    >>> made = pd.DataFrame([law | fitted | {"largest": 512, "definition": "critical_batch_size_mccandlish"}])
    >>> overview(made).iloc[0, 3:].tolist()
    ['McCandlish et al.', '64 to 512 (4)', '2.46', '0.503 (0.495 to 0.511)', '0']
    """
    return pd.DataFrame(
        {
            "workload": row["of"],
            "optimizer": row["optimizer"],
            "axis": row["axis"],
            "definition": DEFINITIONS.get(row["definition"], ""),
            "sizes": f"{number(row['smallest'])} to {number(row['largest'])} ({row['points']})",
            "a": number(row["coefficient"]),
            "b, 95 %": f"{row['exponent']:.3g} ({_between(row['low'], row['high'])})",
            "left out": str(row["left_out"]),
        }
        for row in table.to_dict("records")
    )


def _named(of: str, optimizer: str) -> str:
    return f"{of} with {optimizer}" if optimizer else of


def _by(definition: str) -> str:
    """The authors of a definition, as the end of "critical batch size"; empty if they are unknown."""
    return f" by {DEFINITIONS[definition]}" if definition in DEFINITIONS else ""


def _between(low: float, high: float) -> str:
    return "unknown" if np.isnan(low) else f"{low:.3g} to {high:.3g}"


def _beyond(size: float, law: Mapping[str, Any]) -> str:
    """How far a size lies outside those that the law was fitted to, as the end of a sentence; empty if it does not."""
    if size > law["largest"]:
        return f", if the law holds up to {number(size / law['largest'])} times the largest size that was fitted"
    if size < law["smallest"]:
        return f", if the law holds down to {number(size / law['smallest'])} times the smallest size that was fitted"
    return ""


def sentences(table: pd.DataFrame, predicted: pd.DataFrame) -> list[str]:
    """A sentence for each law, and one for each prediction.

    Arguments:
        table: from `laws`.
        predicted: from `predictions`.

    >>> law = {"of": "mlp", "optimizer": "sgd", "goal_metric": "val/loss", "goal_threshold": 0.2, "axis": "width"}
    >>> fitted = power_law([64, 128, 256, 512], [20, 28.3, 40, 57])._asdict() | {"left_out": 1, "smallest": 64}
    >>> made = pd.DataFrame([law | fitted | {"largest": 512, "definition": "critical_batch_size_mccandlish"}])
    >>> sentences(made, predictions(made, []))[0].partition(", from ")[0]
    'mlp with sgd: the critical batch size by McCandlish et al. goes as width to the power 0.503 (0.495 to 0.511)'
    """
    said = []
    for row in table.to_dict("records"):
        none = row["low"] <= 0 <= row["high"]
        shown = "; no dependence is shown" if none else ""
        out = f"; left out: {row['left_out']} more, with a bound only or no value" if row["left_out"] else ""
        said.append(
            f"{_named(row['of'], row['optimizer'])}: the critical batch size{_by(row['definition'])} goes as "
            f"{row['axis']} to the power {row['exponent']:.3g} ({_between(row['low'], row['high'])}), from "
            f"{row['axis']} {number(row['smallest'])} to {number(row['largest'])}; {row['points']} sizes{out}{shown}."
        )
        mine = rows_with(predicted, LAW, [row[name] for name in LAW])
        said += [
            f"At {row['axis']} {number(each['size'])} it predicts "
            f"{with_interval(each['critical_batch_size'], each['low'], each['high'])}{_beyond(each['size'], row)}."
            for each in mine.to_dict("records")
        ]
    return said


def warnings(table: pd.DataFrame, fitted: pd.DataFrame) -> list[str]:
    """What a reader should know of laws, and why there are none.

    Arguments:
        table, fitted: from `sizes` and `laws`.

    >>> warnings(pd.DataFrame(columns=SIZES), pd.DataFrame(columns=LAWS))[0].partition(":")[0]
    'no law'
    """
    if table.empty:
        return [
            "no law: there are no two workloads with one goal and optimizer that differ in one number only; sweep one, "
            "such as workload.width=128,256,512."
        ]
    said = []
    for key, part in table.groupby(LAW, sort=False):
        known, there = _known(part)["size"].nunique(), part["size"].nunique()
        if known < FEWEST:
            said.append(
                f"no law of {_named(*key[:2])} in {key[4]}: {known} of {there} sizes have a critical batch "
                f"size{_by(key[5])} that is more than a bound, and {FEWEST} are needed; sweep more sizes or batch "
                "sizes."
            )
    return said + [
        f"{_named(row['of'], row['optimizer'])}: the sizes in {row['axis']} span less than a factor of 4: a vague "
        "exponent."
        for row in fitted.to_dict("records")
        if row["largest"] < 4 * row["smallest"]
    ]
