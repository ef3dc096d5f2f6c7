"""What verbs print with `--json`: one object of the same members for each of them (docs/reference/json.md)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

from study.command_line.version import ours

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
"""Grows when a member is renamed or removed; new members may come at any time."""
Rows = Any
"""A frame of pandas, or a list of records."""
_kept: list[str] = []
"""Objects to print at the end of the block of `alone`."""


@contextmanager
def alone() -> Iterator[None]:
    """Print the object of `show` alone: what else is printed in this block goes to stderr. A user's model may print,
    here and in worker processes."""
    _kept.clear()
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        for each in _kept:
            print(each)


def show(*arguments: Any, **more: Any) -> None:
    """Print the object with these arguments of `text` at the end of the block of `alone`."""
    _kept.append(text(*arguments, **more))


def text(
    verb: str,
    rows: Rows,
    sentences: Iterable[str] = (),
    warnings: Iterable[str] = (),
    tables: Mapping[str, pd.DataFrame] | None = None,
    files: Mapping[str, Any] | None = None,
) -> str:
    """The object as text. Missing and infinite numbers become null.

    Arguments:
        rows: what the verb is about, such as one record for each search.
        tables: further tables by name.
        files: what was written, by name.
    """
    content = {
        "format": FORMAT,
        "verb": verb,
        "version": ours(),
        "rows": _records(rows),
        "sentences": [*sentences],
        "warnings": [*warnings],
        "tables": {name: _records(table) for name, table in (tables or {}).items()},
        "files": {name: str(path) for name, path in (files or {}).items()},
    }
    return json.dumps(content, indent=1)


def _records(rows: Rows) -> Sequence[Any]:
    if hasattr(rows, "to_json"):
        found: list[Any] = json.loads(rows.to_json(orient="records"))
        return found
    plain: list[Any] = [_plain(row) for row in rows]
    return plain


def _plain(value: Any) -> Any:
    """A value without the numbers that JSON lacks."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))) else value
