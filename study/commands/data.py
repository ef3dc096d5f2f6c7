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
    from workloads.suggest import suggest

    for name in options.names:
        if name not in datasets.DATASETS:
            raise UsageError(f"unknown data set {name!r}{suggest(name, datasets.DATASETS)}")
    if options.action == "fetch":
        for name in options.names or datasets.DATASETS:
            try:
                place = datasets.fetch(name)
            except datasets.DataError as error:
                raise Refused(str(error)) from error
            console.print(f"{name}: {place}", markup=False, soft_wrap=True)
        return
    for row in datasets.status():
        if row.name in (options.names or datasets.DATASETS):
            size = f" ({row.megabytes:.0f} MB)" if row.megabytes else ""
            here = row.where or ("here" if row.present else f"not here: python -m study data fetch {row.name}")
            lines = [f"[bold]{row.name}[/bold]: {row.what}{size}", here, *row.sources]
            console.print("\n    ".join(lines), soft_wrap=True)
