"""`study data list` and `study data fetch`: show where data sets are, and download them."""

import argparse

from rich.console import Console


def data_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("action", choices=["list", "fetch"])
    verb.add_argument("names", nargs="*", metavar="NAME")


def data(options: argparse.Namespace, console: Console) -> None:
    """`study data list` and `study data fetch [NAME ...]`."""
    from study.errors import Refused, UsageError
    from workloads.data import datasets
    from workloads.data.images import places
    from workloads.data.text import corpora
    from workloads.suggest import suggest

    known = {
        **dict.fromkeys(datasets.DATASETS, datasets),
        **dict.fromkeys(places.FOLDERS, places),
        **dict.fromkeys(corpora.TEXTS, corpora),
    }
    for name in options.names:
        if name not in known:
            raise UsageError(f"unknown data set {name!r}{suggest(name, known)}")
    rows = {row.name: row for room in (datasets, places, corpora) for row in room.status()}
    if options.action == "fetch":
        for name in options.names or [name for name, row in rows.items() if row.fetched]:
            try:
                place = known[name].fetch(name)
            except datasets.DataError as error:
                raise Refused(str(error)) from error
            console.print(f"{name}: {place}", markup=False, soft_wrap=True)
        return
    for row in (rows[name] for name in options.names or rows):
        size = f" ({row.megabytes:.0f} MB)" if row.megabytes else ""
        absent = f"not here: python -m study data fetch {row.name}" if row.fetched else "not here"
        here = row.where or ("here" if row.present else absent)
        lines = [f"[bold]{row.name}[/bold]: {row.what}{size}", here, *row.sources]
        console.print("\n    ".join(lines), soft_wrap=True)
