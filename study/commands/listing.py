"""`study list`: the choices of `workload=`, `optimizer=` and other settings, from the headers of their files; and
`study data`: where data sets are, and their download."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from study.command_line import as_json, settings
from study.config.composed.choices import GROUPS, Choice, choices, plain
from study.config.composed.paths import own_folder

if TYPE_CHECKING:
    from workloads.data.datasets import Row

KINDS = {
    "workloads": "workload",
    "optimizers": "optimizer",
    "schedules": "schedule",
    "batch_schedules": "batch_schedule",
    "searches": "search",
    "presets": "preset",
    "engines": "engine",
    "clusters": "cluster",
    "trackers": "track",
}
"""Kind of choices -> its group."""
DATA = "data"
EXAMPLES = {
    "workload": "mlp_digits,simple_cnn_mnist",
    "optimizer": "sgd,momentum",
    "schedule": "constant,cosine",
    "batch_schedule": "constant,doubling",
    "search": "sobol",
    "preset": "quick",
    "engine": "serial",
    "cluster": "slurm",
    "track": "[tensorboard,mlflow]",
}
"""Group -> a value that shows how its choices are given."""
LEAST = 20
"""The narrowest column of text."""


def list_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("kind", nargs="?", choices=[*KINDS, DATA], help="default: all but data")
    verb.add_argument("--config-dir", type=own_folder, help="list your own files, too")
    settings.json_argument(verb)


def list_choices(options: argparse.Namespace, console: Console) -> None:
    """`study list`: name, purpose and time of every choice."""
    kinds = [options.kind] if options.kind else list(KINDS)
    found = {kind: _data() if kind == DATA else choices(KINDS[kind], options.config_dir) for kind in kinds}
    if options.json:
        as_json.show("list", plain(found))
        return
    for kind, rows in found.items():
        _show(console, kind, rows)
    console.print(f"\n{_example(options.kind or 'optimizers')}", markup=False, soft_wrap=True)


def _example(kind: str) -> str:
    """How the choices of a kind are given."""
    if kind == DATA:
        fetched = next(row.name for _, row in datasets_by_name().values() if row.fetched)
        return f"Workloads fetch their data; to fetch them before, give python -m study data fetch {fetched}"
    return f"Choose them by name, such as python -m study sweep {KINDS[kind]}={EXAMPLES[KINDS[kind]]}"


def _data() -> list[Choice]:
    """The data sets; `takes` says whether they are here."""
    return [Choice(row.name, row.what, where(row)) for _, row in datasets_by_name().values()]


def _show(console: Console, kind: str, rows: Sequence[Choice]) -> None:
    about = "Data sets, which workloads name." if kind == DATA else f"{KINDS[kind]}=NAME. {escape(GROUPS[KINDS[kind]])}"
    console.print(f"\n[bold]{kind}[/]: {about}", soft_wrap=True)
    names = max(len(row.name) for row in rows) + 2
    for row in rows:
        takes = f" Time: {row.takes}" if row.takes and kind != DATA else f"; {row.takes}" if row.takes else ""
        line = f"{row.name:<{names}}{row.purpose}{takes}"
        if console.is_terminal:  # other programs read a line for each choice
            room = max(console.width, names + LEAST)
            line = textwrap.fill(line, room, subsequent_indent=" " * names, break_on_hyphens=False)
        console.print(line, markup=False, soft_wrap=True)


def data_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("action", choices=["list", "fetch"])
    verb.add_argument("names", nargs="*", metavar="NAME", help="only these; default: all")
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
        if options.json:
            raise UsageError("--json is for `study data list`; leave it out.")
        for name in options.names or [name for name, (_, row) in known.items() if row.fetched]:
            room, row = known[name]
            if row.fetched and not row.present:
                console.print(f"{name}: fetching, {row.megabytes:.0f} MB unpacked ...", markup=False)
            try:
                place = room.fetch(name)
            except DataError as error:
                raise Refused(str(error)) from error
            console.print(f"{name}: {place}", markup=False, soft_wrap=True)
        return
    rows = [known[name][1] for name in options.names or known]
    if options.json:
        as_json.show("data", [row._asdict() for row in rows])
        return
    for row in rows:
        size = f" ({row.megabytes:.0f} MB)" if row.megabytes else ""
        lines = [f"[bold]{row.name}[/bold]: {row.what}{size}", where(row), *row.sources]
        console.print("\n    ".join(lines), soft_wrap=True)
