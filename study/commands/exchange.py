"""`study export` and `study import`: results in the layout of the paper's released data, or as tables."""

import argparse
import shlex

from rich.console import Console

from study.config.paths import path

FORMATS = ("batch_science", "csv", "parquet")
"""The formats of `analysis.export`; repeated here because importing it takes a while."""


def export_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("results", type=path)
    verb.add_argument("folder", type=path, metavar="DIR", help="new or empty")
    verb.add_argument("--format", choices=FORMATS, default=FORMATS[0], help=f"default: {FORMATS[0]}")


def import_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("folder", type=path, metavar="DIR", help="of dataset/model/optimizer/batch_size/study.json")
    verb.add_argument("results", type=path)
    verb.add_argument(
        "--goal",
        action="append",
        default=[],
        metavar="[WORKLOAD:]GOAL",
        help="'val/cross_entropy_error<3.9', for all workloads or for one such as 'fc_*'; default: as published",
    )
    verb.add_argument(
        "--trials",
        type=_trials,
        metavar="N",
        help="number of COMPLETE trials that count, or `all`; default: as published, else all",
    )


def _trials(text: str) -> int:
    """Number of trials of an imported study that count; 0 stands for all."""
    if text != "all" and not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, or all, but got {text}.")
    return 0 if text == "all" else int(text)


def export(options: argparse.Namespace, console: Console) -> None:
    """`study export`: write a results folder in the layout of the paper's released data, or as two tables."""
    from analysis.export import export
    from study.terminal.progress import StudiesProgress

    with StudiesProgress(console, "exporting") as progress:
        export(options.results, options.folder, options.format, progress.watch, progress.begin)
    console.print(f"Exported: {options.folder}", markup=False, soft_wrap=True)


def import_released(options: argparse.Namespace, console: Console) -> None:
    """`study import`: read a released tree into a results folder."""
    from study.exchange.importing import import_released
    from study.terminal.progress import StudiesProgress

    with StudiesProgress(console, "importing") as progress:
        warnings = import_released(
            options.folder,
            options.results,
            options.goal,
            options.trials,
            options.command,
            progress.watch,
            progress.begin,
        )
    for warning in warnings:
        console.print(warning, style="yellow", markup=False)
    console.print(progress.done)
    console.print(f"Now: {shlex.join(['python', '-m', 'study', 'report', str(options.results)])}", markup=False)
