"""`study data list` and `study data fetch`: show where data sets are, and download them."""

from __future__ import annotations

import argparse
from types import ModuleType
from typing import TYPE_CHECKING

from rich.console import Console

from study.command_line import as_json

if TYPE_CHECKING:
    from workloads.data.datasets import Row


def data_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("action", choices=["list", "fetch"])
    verb.add_argument("names", nargs="*", metavar="NAME")
    verb.add_argument("--json", action="store_true", help="list as one object, see docs/reference/json.md")


def datasets_by_name() -> dict[str, tuple[ModuleType, Row]]:
    """Name of each data set -> the module that fetches it, and its description."""
    from workloads.data import datasets
    from workloads.data.images import places
    from workloads.data.text import corpora

    rooms: tuple[ModuleType, ...] = (datasets, places, corpora)
    return {row.name: (room, row) for room in rooms for row in room.status()}


def where(row: Row) -> str:
    """The place of a data set, or how to get it."""
    absent = f"not here: python -m study data fetch {row.name}" if row.fetched else "not here"
    return row.where or ("here" if row.present else absent)


def data(options: argparse.Namespace, console: Console) -> None:
    """`study data list` and `study data fetch [NAME ...]`."""
    from study.errors import Refused, UsageError
    from workloads.data.fetching import DataError
    from workloads.suggest import suggest

    known = datasets_by_name()
    for name in options.names:
        if name not in known:
            raise UsageError(f"unknown data set {name!r}{suggest(name, known)}")
    if options.action == "fetch":
        for name in options.names or [name for name, (_, row) in known.items() if row.fetched]:
            try:
                place = known[name][0].fetch(name)
            except DataError as error:
                raise Refused(str(error)) from error
            console.print(f"{name}: {place}", markup=False, soft_wrap=True)
        return
    rows = [known[name][1] for name in options.names or known]
    if options.json:
        print(as_json.text("data", [row._asdict() for row in rows]))
        return
    for row in rows:
        size = f" ({row.megabytes:.0f} MB)" if row.megabytes else ""
        lines = [f"[bold]{row.name}[/bold]: {row.what}{size}", where(row), *row.sources]
        console.print("\n    ".join(lines), soft_wrap=True)
