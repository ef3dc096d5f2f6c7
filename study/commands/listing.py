"""`study list`: the choices of `workload=`, `optimizer=` and other settings, from the headers of their files."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from study.command_line import as_json
from study.config.choices import GROUPS, Choice, choices, plain
from study.config.paths import path

KINDS = {
    "workloads": "workload",
    "optimizers": "optimizer",
    "schedules": "schedule",
    "searches": "search",
    "presets": "preset",
    "engines": "engine",
    "clusters": "cluster",
    "trackers": "track",
}
"""Kind of choices -> its group."""
DATA = "data"


def list_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("kind", nargs="?", choices=[*KINDS, DATA], help="default: all but data")
    verb.add_argument("--config-dir", type=path, help="list your own files, too")
    verb.add_argument("--json", action="store_true", help="one object, see docs/reference/json.md")


def list_choices(options: argparse.Namespace, console: Console) -> None:
    """`study list`: name, purpose and time of every choice."""
    kinds = [options.kind] if options.kind else list(KINDS)
    found = {kind: _data() if kind == DATA else choices(KINDS[kind], options.config_dir) for kind in kinds}
    if options.json:
        print(as_json.text("list", plain(found)))
        return
    for kind, rows in found.items():
        _show(console, kind, rows)
    if options.kind != DATA:
        console.print("\nChoose them by name, such as python -m study sweep optimizer=sgd,momentum", soft_wrap=True)


def _data() -> list[Choice]:
    """The data sets; `takes` says whether they are here."""
    from study.commands.data import datasets_by_name, where

    return [Choice(row.name, row.what, where(row)) for _, row in datasets_by_name().values()]


def _show(console: Console, kind: str, rows: Sequence[Choice]) -> None:
    about = "Data sets, which workloads name." if kind == DATA else f"{KINDS[kind]}=NAME. {escape(GROUPS[KINDS[kind]])}"
    console.print(f"\n[bold]{kind}[/]: {about}", soft_wrap=True)
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(overflow="fold")
    for row in rows:
        takes = f" Time: {row.takes}" if row.takes and kind != DATA else f"; {row.takes}" if row.takes else ""
        table.add_row(escape(row.name), escape(f"{row.purpose}{takes}"))
    console.print(table)
