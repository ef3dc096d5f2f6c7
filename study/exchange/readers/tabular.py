"""Reads CSV, TSV, JSON lines, JSON and parquet files as tables; nothing in them is executed.

The state that Hugging Face's Trainer writes beside its checkpoints (`trainer_state.json`) is one of the JSON files.
"""

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv

from study.exchange.readers.tables import Table, flat, numbers, refuse

OF_TEXT = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
OF_LINES = (".jsonl", ".ndjson")
SUFFIXES = (*OF_TEXT, *OF_LINES, ".json", ".parquet")
TRAINER_STATE = "trainer_state.json"
_COMMA = r"^(\s*[+-]?\d+),(\d+(?:[eE][+-]?\d+)?\s*)$"
_NO_THOUSANDS = r"^\s*[+-]?(?:0,\d+|\d+,(?:\d{1,2}|\d{4,}))(?:[eE][+-]?\d+)?\s*$"
_POINT = r"^\s*[+-]?\d*\.\d+(?:[eE][+-]?\d+)?\s*$"
"""A number with a decimal comma, one whose comma cannot separate thousands, and one with a decimal point."""
_DOWNLOADED = re.compile(r"(?:run-)?(?P<run>.+?)-tag-(?P<tag>.+)\.csv")
"""The name of a file that TensorBoard's web page writes: one metric of one run."""


def stem(path: Path) -> str:
    """The name of a file without the suffixes of its format."""
    name = path.name.removesuffix(".gz")
    return name.rpartition(".")[0] or name


def read(path: Path, where: str) -> Table | None:
    """The table in a file; None if it holds no rows of a log, such as a JSON file of settings.

    Raises:
        ImportRefused: the file is malformed; the message has the line.
    """
    try:
        if path.name.endswith(OF_TEXT):
            return _text(path, where)
        if path.name.endswith(OF_LINES):
            return _lines(path, where)
        return _parquet(path, where) if path.suffix == ".parquet" else _json(path, where)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        said = "it is not text in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error).rstrip(". ")
        raise refuse(where, f"{said}.") from error


def _opened(path: Path) -> io.TextIOWrapper:
    """The text of a file, uncompressed, without a byte order mark."""
    return io.TextIOWrapper(pa.input_stream(str(path)), encoding="utf-8-sig", newline="")


def _text(path: Path, where: str) -> Table:
    with _opened(path) as file:
        first = file.readline()
    delimiter = max("\t;,", key=lambda mark: (first.count(mark), mark == ","))
    names = [name.strip() for name in next(csv.reader([first], delimiter=delimiter), [])]
    if not any(names):
        raise refuse(where, "line 1 is empty; it must hold the names of the columns.")
    numeric, odd = numbers(pd.Series(names, dtype="string"))
    if not odd.any() and pd.notna(numeric).any():
        raise refuse(where, "line 1 holds numbers; put a line with the names of the columns above it.")
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise refuse(where, f"line 1 names {', '.join(twice)} more than once; rename one of the columns.")
    keys = [name or f" {number}" for number, name in enumerate(names)]  # pandas writes an index without a name
    try:
        table = arrow_csv.read_csv(
            pa.input_stream(str(path)),
            read_options=arrow_csv.ReadOptions(use_threads=False, column_names=keys, skip_rows=1),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(keys, pa.string()), strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        for line, cells in _cells(path, delimiter):
            if len(cells) != len(names):
                why = f"line {line} has {len(cells)} cells, but line 1 has {len(names)}."
                raise refuse(where, why) from error
        raise
    table = table.select([key for key in keys if not key.startswith(" ")])
    facts: tuple[str, ...] = ()
    if delimiter != "," and _has_decimal_commas(table):
        columns = [pc.replace_substring_regex(column, _COMMA, r"\1.\2") for column in table.columns]
        table = pa.table(columns, names=table.column_names)
        facts = (f"Commas in the numbers of {where} are decimal points",)
    rows = table.to_pandas()
    return _downloaded(path, Table(where, rows, locate=partial(_line_of_cells, path, delimiter), facts=facts))


def _has_decimal_commas(table: pa.Table) -> bool:
    """True if the numbers of a table have decimal commas: a comma that separates no thousands, and no point."""
    commas, points = (
        any(pc.any(pc.match_substring_regex(column, pattern)).as_py() for column in table.columns)
        for pattern in (_NO_THOUSANDS, _POINT)
    )
    return commas and not points


def _cells(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of each row below the header; blank lines are none."""
    with _opened(path) as file:
        reader = csv.reader(file, delimiter=delimiter)
        next(reader)
        for cells in reader:
            if cells:
                yield reader.line_num, cells


def _line_of_cells(path: Path, delimiter: str, row: int) -> str:
    return next((f"line {line}" for number, (line, _) in enumerate(_cells(path, delimiter)) if number == row), "")


def _downloaded(path: Path, table: Table) -> Table:
    """The columns `Wall time,Step,Value` that TensorBoard's page writes, with the run and tag of the file's name."""
    match = _DOWNLOADED.fullmatch(path.name)
    if match is None or list(table.rows) != ["Wall time", "Step", "Value"]:
        return table
    rows = table.rows[["Step", "Value"]].rename(columns={"Value": match["tag"]})
    return Table(table.where, rows, run=match["run"], locate=table.locate)


def _infinite(_: str) -> float:
    """JSON's NaN and Infinity: measured, but not finite."""
    return math.inf


def _lines(path: Path, where: str) -> Table:
    rows, lines = [], []
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                found = _parsed(line, where, f"line {number}")
                if not isinstance(found, dict):
                    raise refuse(where, f"line {number} is {line.strip()[:40]!r}, but each line must be an object.")
                rows.append(flat(found))
                lines.append(number)
    return Table(where, _frame(rows), locate=lambda row: f"line {lines[row]}")


def _parsed(text: str, where: str, place: str) -> Any:
    try:
        return json.loads(text, parse_constant=_infinite)
    except json.JSONDecodeError as error:
        at = place or f"line {error.lineno}"
        raise refuse(where, f"{at} is not JSON: {error.msg} at column {error.colno}.") from error


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a frame; the text NaN, which W&B writes, stays text."""
    return pd.DataFrame(rows, dtype=object).infer_objects()


def _json(path: Path, where: str) -> Table | None:
    with _opened(path) as file:
        held = _parsed(file.read(), where, "")
    if path.name == TRAINER_STATE and isinstance(held, dict):
        return _trainer_state(held, where)
    if isinstance(held, list) and held and all(isinstance(row, dict) for row in held):
        return Table(where, _frame([flat(row) for row in held]))
    if isinstance(held, dict) and held and all(isinstance(column, list) for column in held.values()):
        lengths = {len(column) for column in held.values()}
        if len(lengths) == 1 and lengths != {0}:  # a column for each metric
            rows = pd.DataFrame(held, dtype=object).infer_objects()
            counted = {"step", "epoch"} & {str(name).lower() for name in held}
            return Table(where, rows if counted else rows.assign(epoch=range(1, len(rows) + 1)))  # as of Keras
    return None


def _trainer_state(held: dict[str, Any], where: str) -> Table:
    """`log_history` of Hugging Face's Trainer; the training loss is `loss`, validation has the prefix `eval_`."""
    history = held.get("log_history")
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        raise refuse(where, "it has no list log_history.")
    rows = [{"train/loss" if name == "loss" else name: cell for name, cell in flat(row).items()} for row in history]
    kept = ("train_batch_size", "max_steps")
    settings = {name: held[name] for name in kept if held.get(name)}
    return Table(where, _frame(rows), settings)


def _parquet(path: Path, where: str) -> Table:
    table = pq.read_table(path)
    for number, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):
            column = table[field.name]  # an empty cell was not measured; NaN was measured
            column = pc.if_else(pc.is_nan(column), math.inf, column)
            table = table.set_column(number, field.name, column)
    rows = table.to_pandas()
    for field in table.schema:
        if pa.types.is_nested(field.type):  # lists become text, as in other formats
            rows[field.name] = [None if cell is None else str(cell) for cell in table[field.name].to_pylist()]
    return Table(where, rows)
