"""`study status` and `study watch`: look at a running sweep, on the terminal or in a browser. They import no torch."""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from analysis.question.searches import matching
from study.command_line import as_json, settings
from study.commands.report import STUDIES
from study.config.composed.paths import path
from study.devices.imports import uncollected

if TYPE_CHECKING:
    import pandas as pd

SECONDS = 5.0
"""Between two looks of `--watch`."""
PORT = 8000


def status_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("results", type=path, help="a results folder, or a folder of results folders")
    how = verb.add_mutually_exclusive_group()
    settings.json_argument(how)
    how.add_argument("--watch", action="store_true", help="look again every few seconds, until all is done or Ctrl-C")


def watch_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("results", type=path, help="a results folder, or a folder of results folders")
    verb.add_argument("--port", type=int, default=PORT, metavar="N", help=f"default: {PORT}, or a free one")


def status(options: argparse.Namespace, console: Console) -> None:
    """`study status`: show the progress of a running or interrupted sweep, or of all sweeps below a folder."""
    if not options.watch:
        with uncollected():
            table = progress(options.results)
        if options.json:
            as_json.show("status", table)
        else:
            _show(console, table, options.results)
        return
    try:
        _look_again(options.results, console)
    except KeyboardInterrupt:
        return


def _look_again(folder: Path, console: Console) -> None:
    """Show the progress every few seconds, until all is done. A sweep may begin, or begin again, meanwhile."""
    waiting = f"No study is on file in {folder} yet: waiting for a sweep with results={folder}. Ctrl-C ends this."
    if not _has_studies(folder):
        console.print(waiting, markup=False, soft_wrap=True)
    while not _has_studies(folder):
        time.sleep(SECONDS)
    with Live(console=console, auto_refresh=False) as shown:
        while True:
            table = progress(folder) if _has_studies(folder) else None
            shown.update(Text(waiting) if table is None else _text(console, table, folder), refresh=True)
            if table is not None and (table["state"] == "done").all():
                return
            time.sleep(SECONDS)


def _has_studies(folder: Path) -> bool:
    return bool(matching(folder, STUDIES)) or any(True for _ in results_below(folder))


def progress(folder: Path) -> pd.DataFrame:
    """The progress of every search in a results folder. For a folder of results folders also the column `results`.

    Raises:
        LoadError: there are no studies.
    """
    import pandas as pd

    from analysis.load import load
    from analysis.tables import status as of_files

    found = [] if matching(folder, STUDIES) else list(results_below(folder))
    if not found:
        return of_files.table(load(folder))
    tables = [of_files.table(load(each)) for each in found]
    for each, table in zip(found, tables, strict=True):
        table.insert(0, "results", str(each))
    return pd.concat(tables, ignore_index=True)


def results_below(folder: Path) -> Iterator[Path]:
    """The results folders in a folder, and in the folders in it."""
    for depth in ("*", "*/*"):
        yield from sorted({path.parents[4] for path in matching(folder, f"{depth}/{STUDIES}")})


def _show(console: Console, table: pd.DataFrame, folder: Path) -> None:
    from study.terminal import show

    if "results" in table:
        show.sweeps(console, table.assign(results=[str(Path(each).relative_to(folder)) for each in table["results"]]))
    else:
        show.status(console, table)


def _text(console: Console, table: pd.DataFrame, folder: Path) -> Text:
    """What `study status` prints, to be replaced by the next look; its end if it is higher than the terminal.

    It has a console of its own, because `Live` adds what it shows to all that is printed on its console.
    """
    apart = Console(file=io.StringIO(), force_terminal=console.is_terminal, width=console.width, highlight=False)
    with apart.capture() as held:
        _show(apart, table, folder)
    lines = held.get().splitlines()
    return Text.from_ansi("\n".join(lines[1 - console.height :] if console.is_terminal else lines))


def watch(options: argparse.Namespace, console: Console) -> None:
    """`study watch`: serve the reports of a folder to browsers on this machine, until Ctrl-C."""
    from study.terminal import served

    try:
        with served.server(options.results, options.port) as server:
            place = f"http://127.0.0.1:{server.server_port}/"
            console.print(f"{options.results} is served at {place}; Ctrl-C ends it.", markup=False, soft_wrap=True)
            server.serve_forever()
    except KeyboardInterrupt:
        return
