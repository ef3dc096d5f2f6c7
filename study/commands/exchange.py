"""`study export` and `study import`: results as tables or in the paper's released layout, and runs of other tools."""

import argparse
import shlex

from rich.console import Console

from study.config.composed.paths import path

FORMATS = ("batch_science", "csv", "parquet")
"""The formats of `analysis.export`; repeated here because importing it takes a while."""


def export_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("results", type=path)
    verb.add_argument("folder", type=path, metavar="DIR", help="new or empty")
    verb.add_argument("--format", choices=FORMATS, default=FORMATS[0], help=f"default: {FORMATS[0]}")


def import_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "source",
        type=path,
        metavar="SOURCE",
        help="a CSV, JSON-lines or parquet file in long form, a W&B export, MLflow's mlruns or SQLite file, "
        "TensorBoard event files, a folder of these, or the paper's layout "
        "dataset/model/optimizer/batch_size/study.json",
    )
    verb.add_argument("results", type=path)
    verb.add_argument(
        "--goal",
        action="append",
        default=[],
        metavar="[WORKLOAD:]GOAL",
        help="'val/loss<3.9' or 'val/accuracy>0.9', for all workloads or for one such as 'fc_*'; default for the "
        "paper's layout: as published",
    )
    verb.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="NAME=COLUMN",
        help="the column of run, step, epoch, examples, batch_size, optimizer, status, a metric such as val/loss, or a "
        "hyperparameter; run=A,B joins columns; default: by the usual names",
    )
    verb.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a value for all runs, such as optimizer=adam, train_examples=50000 or workload=NAME",
    )
    verb.add_argument(
        "--run-name",
        metavar="PATTERN",
        help="what the names of the runs say, such as '{optimizer}_bs{batch_size}_lr{learning_rate}_*'",
    )
    _layout_arguments(verb)


def _layout_arguments(verb: argparse.ArgumentParser) -> None:
    """What the runs of a log are to each other."""
    verb.add_argument(
        "--size",
        metavar="COLUMN",
        help="the size of the model or the data, such as parameters: each of its values is a workload of its own, and "
        "`study sizes` fits their critical batch sizes",
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
        lacking = export(options.results, options.folder, options.format, progress.watch, progress.begin)
    for line in lacking:
        console.print(line, style="yellow", markup=False)
    console.print(f"Exported: {options.folder}", markup=False, soft_wrap=True)


def import_runs(options: argparse.Namespace, console: Console) -> None:
    """`study import`: read a released tree, or a log of other runs, into a results folder."""
    from study.exchange.importing import import_released
    from study.exchange.logs.importing import Said, import_log
    from study.exchange.logs.names import Asked
    from study.exchange.released_tree import is_result
    from study.terminal.progress import StudiesProgress

    named = options.map or options.set or options.run_name or options.size
    released = not named and not all(map(is_result, options.source.rglob("study.json")))
    how = (options.goal, options.trials, options.command)
    with StudiesProgress(console, "importing") as progress:
        seen = (progress.watch, progress.begin)
        if released:
            said = Said([], import_released(options.source, options.results, *how, *seen))
        else:
            asked = Asked.parse(options.map, options.set, options.run_name, options.size)
            said = import_log(options.source, options.results, asked, *how, *seen)
    for line in said.read:
        console.print(line, markup=False)
    for warning in said.warnings:
        console.print(warning, style="yellow", markup=False)
    console.print(progress.done)
    console.print(f"Now: {shlex.join(['python', '-m', 'study', 'report', str(options.results)])}", markup=False)
