"""`python -m study VERB`: sweep, plan, status, report, compare, rules, calibrate, export, import, data."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from analysis.build import Asked
    from study.config import Job

REPORT = Path("results/report")
"""Where a report on several results folders goes."""
CALIBRATION = Path("results/calibration")
FORMATS = ("batch_science", "csv", "parquet")
"""Those of `analysis.export`, which takes a while to load."""
USAGE = """\
  python -m study sweep                               the default job: digits, eleven batch sizes
  python -m study sweep workload=resnet_cifar         any workload of conf/workload, or your own with --config-dir
  python -m study sweep optimizer=sgd,momentum batch_size=64,256 search.trials=10
  python -m study plan workload=resnet_cifar          what that sweep would cost; trains nothing
  python -m study status results/mlp_digits           how far a running or interrupted sweep is
  python -m study report results/mlp_digits           tables, figures and report.html from the files alone
  python -m study report results/a results/b          one report on several
  python -m study compare results/sgd results/momentum   which optimizer needs fewer steps, where
  python -m study rules results/mlp_digits --base-batch-size 32   tuning anew against moving what was tuned at 32
  python -m study calibrate                           this instrument against exact answers
  python -m study export results/mlp_digits released/ --format csv
  python -m study import batch_science/lm1b results/lm1b --goal 'val/cross_entropy_error<3.9'
  python -m study data list"""


def sweep(options: argparse.Namespace, console: Console) -> None:
    """Run every study that the overrides ask for, as far as it is not done, then write the report."""
    from study import config
    from study import sweep as studies

    if options.cfg:
        console.print(config.as_yaml(options.overrides, options.config_dir), markup=False, highlight=False)
        return
    jobs, missing = studies.jobs_of(options.overrides, options.config_dir)
    try:
        if missing:
            studies.train(missing, options.config_dir, options.command, console)
    except studies.TrialTooLarge:
        _write_reports(jobs, console)
        raise
    _write_reports(jobs, console)


def _write_reports(jobs: Sequence[Job], console: Console) -> None:
    for results in {job.results: None for job in jobs}:
        if any(results.glob("studies/*/*/*/study.json")):
            write_report([results], results, console)


def plan(options: argparse.Namespace, console: Console) -> None:
    """`study plan`: what a sweep would cost; nothing is trained or written."""
    from study import sweep as studies

    _, missing = studies.jobs_of(options.overrides, options.config_dir)
    rows = studies.plan(missing, options.config_dir, None if options.json else console) if missing else []
    if options.json:
        print(json.dumps(rows, indent=1))
    elif not missing:
        console.print("Nothing is left to do.")


def status(options: argparse.Namespace, console: Console) -> None:
    """`study status`: how far a running or interrupted sweep is."""
    from analysis import status as progress
    from analysis.load import load
    from study import show

    table = progress.table(load(options.results))
    if options.json:
        print(table.to_json(orient="records", indent=1))
    else:
        show.status(console, table)


def write_report(results: Sequence[Path], output: Path, console: Console, asked: Asked | None = None) -> None:
    """Rebuild tables, figures and page from the files alone, and show the table."""
    from analysis.build import Asked, build
    from study import show

    data = build(results, output, asked or Asked())
    show.results(console, data.tables["steps_to_result"], data.sentences)
    console.print(f"\nReport: {output / 'report.html'}", highlight=False)


def report(options: argparse.Namespace, console: Console) -> None:
    """`study report`."""
    from analysis.build import Asked
    from analysis.counting import Goal
    from study.config import UsageError

    try:
        goals = [Goal.parse(text) for text in options.goal]
    except ValueError as error:
        raise UsageError(str(error)) from error
    output = options.output or (options.results[0] if len(options.results) == 1 else REPORT)
    asked = Asked(tuple(goals), options.base_batch_size, options.normalise_at)
    write_report(options.results, output, console, asked)


def comparison(options: argparse.Namespace, console: Console) -> None:
    """`study compare`: a report that needs two curves with something in common."""
    from analysis.load import LoadError

    paths = (path for results in options.results for path in results.glob("studies/*/*/*/study.json"))
    curves = sorted({(path.parts[-4], path.parts[-3]) for path in paths})
    if curves and not any(one[0] == other[0] or one[1] == other[1] for one, other in combinations(curves, 2)):
        there = ", ".join(f"{workload} with {optimizer}" for workload, optimizer in curves)
        raise LoadError(
            "nothing to compare: it takes a workload that was swept with two optimizers, or two workloads with one, "
            f"but there is {there}."
        )
    report(options, console)


def rules(options: argparse.Namespace, console: Console) -> None:
    """`study rules`: train tuned configurations moved by rules, as far as it is not done, then write the report."""
    from analysis.build import build
    from analysis.rules import sentences
    from study import moves, show
    from study.schema import EngineConfig

    asked = moves.Asked(options.base_batch_size, options.rules.split(",") if options.rules else (), options.seeds)
    engine = EngineConfig(device=options.device, workers=options.workers)
    found, left_out = moves.arrivals(options.results, asked, engine, options.config_dir)
    for text in left_out:
        console.print(text, style="yellow", markup=False, highlight=False)
    moves.train(found, options.config_dir, options.command, console)
    data = build([options.results], options.results)
    show.rules(console, data.tables["rules"], sentences(data.tables["rules"]))
    console.print(f"\nReport: {options.results / 'report.html'}", highlight=False)


def calibration(options: argparse.Namespace, console: Console) -> int:
    """`study calibrate`: sweep the noisy quadratic model, then hold what is on file against its exact solution."""
    from study import calibrate, calibration_facts, show_calibration
    from study import sweep as studies

    jobs, missing = studies.jobs_of([*calibrate.OVERRIDES, *options.overrides, f"results={options.results}"], None)
    calibrate.check(jobs)
    if missing:
        studies.train(missing, None, options.command, console)
    write_report([options.results], options.results, console)
    with console.status("Solving the model exactly ..."):
        comparisons = calibrate.compare(jobs)
    facts = calibration_facts.judged(comparisons)
    show_calibration.calibration(console, comparisons, facts)
    if options.json:
        options.json.write_text(json.dumps(show_calibration.plain(comparisons, facts), indent=1) + "\n")
    return 0 if all(one.agrees for one in comparisons) else 1


def export(options: argparse.Namespace, console: Console) -> None:
    """`study export`: a results folder in the released layout of the paper's data, or as two tables."""
    from analysis.export import export
    from study import show

    with show.StudiesProgress(console, "exporting") as progress:
        export(options.results, options.folder, options.format, progress.watch, progress.begin)
    console.print(f"Exported: {options.folder}", highlight=False)


def import_released(options: argparse.Namespace, console: Console) -> None:
    """`study import`: a released tree into a results folder, then the status of what came."""
    from study import show
    from study.interchange import import_released

    with show.StudiesProgress(console, "importing") as progress:
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
        console.print(warning, style="yellow", markup=False, highlight=False)
    console.print(f"{progress.done}\nNow: python -m study report {options.results}", highlight=False)


def data(options: argparse.Namespace, console: Console) -> None:
    """`study data list` and `study data fetch NAME`."""
    from rich.table import Table

    from study.config import UsageError
    from workloads import datasets
    from workloads.suggest import suggest

    for name in options.names:
        if name not in datasets.DATASETS:
            raise UsageError(f"unknown data set {name!r}{suggest(name, datasets.DATASETS)}")
    if options.action == "fetch":
        for name in options.names or datasets.DATASETS:
            console.print(f"{name}: {datasets.fetch(name)}", highlight=False)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    rows = [row for row in datasets.status() if row.name in (options.names or datasets.DATASETS)]
    for heading in rows[0]._fields:
        table.add_column(heading)
    for row in rows:
        table.add_row(*(f"{value:.0f}" if isinstance(value, float) else str(value) for value in row))
    console.print(table)


def parser() -> argparse.ArgumentParser:
    """The verbs and their arguments."""
    top = argparse.ArgumentParser(
        prog="python -m study",
        description="How far does a larger batch size cut the number of training steps, and where does it stop paying?",
        epilog=USAGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")

    for name, what, run in (
        ("sweep", "tune and train at every batch size, then report", sweep),
        ("plan", "what that sweep would cost, by a few real steps; trains nothing", plan),
    ):
        verb = verbs.add_parser(name, help=what)
        verb.add_argument("overrides", nargs="*", metavar="key=value", help="anything in conf/, a,b sweeps both")
        verb.add_argument("--config-dir", type=Path, help="folder with your own workload/NAME.yaml and its Python file")
        verb.set_defaults(run=run)
        if name == "sweep":
            verb.add_argument("--cfg", action="store_true", help="print the composed configuration and stop")
        else:
            verb.add_argument("--json", action="store_true", help="for programs")

    verb = verbs.add_parser("status", help="how far a running or interrupted sweep is")
    verb.add_argument("results", type=Path)
    verb.add_argument("--json", action="store_true", help="for programs")
    verb.set_defaults(run=status)

    for name, what, run in (
        ("report", "rebuild tables, figures and report.html of a results folder, or make one of several", report),
        (
            "compare",
            "a report on optimizers, models or data sets side by side: which needs fewer steps where",
            comparison,
        ),
    ):
        verb = verbs.add_parser(name, help=what)
        verb.add_argument("results", nargs="+", type=Path)
        verb.add_argument(
            "--goal", action="append", default=[], metavar="GOAL", help="'val/classification_error < 0.1'; repeatable"
        )
        verb.add_argument("--output", type=Path, metavar="DIR", help=f"default: RESULTS, or {REPORT} for several")
        verb.add_argument("--base-batch-size", type=float, metavar="B", help="of perfect scaling and Zhang et al.")
        verb.add_argument(
            "--normalise-at", type=int, metavar="B", help="where compared workloads have relative steps 1"
        )
        verb.set_defaults(run=run)

    verb = verbs.add_parser(
        "rules", help="what tuning anew saves: move tuned configurations to other batch sizes and train"
    )
    verb.add_argument("results", type=Path, help="of a finished sweep")
    verb.add_argument(
        "--base-batch-size",
        action="append",
        default=[],
        type=int,
        metavar="B",
        help="where it was tuned; repeatable; default: the smallest that reached the goal and the middle one",
    )
    verb.add_argument(
        "--rules", metavar="a,b", help="constant, square_root, linear; with _half_life for Adam; default: all"
    )
    verb.add_argument("--seeds", type=int, default=10, metavar="N", help="trainings of each; default: 10")
    verb.add_argument("--config-dir", type=Path, help="folder of your own workload, as for its sweep")
    verb.add_argument("--device", default="auto", help="cpu, cuda, cuda:1; default: a GPU if there is one")
    verb.add_argument("--workers", type=int, metavar="N", help="processes; default: one for each core, one on a GPU")
    verb.set_defaults(run=rules)

    verb = verbs.add_parser("calibrate", help="this instrument against the noisy quadratic model, solved exactly")
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="anything in conf/, to make it another sweep")
    verb.add_argument("--results", type=Path, metavar="DIR", default=CALIBRATION, help=f"default: {CALIBRATION}")
    verb.add_argument("--json", type=Path, metavar="FILE", help="write what was found there, for programs")
    verb.set_defaults(run=calibration)

    verb = verbs.add_parser("export", help="results for others: the layout of the paper's released data, or two tables")
    verb.add_argument("results", type=Path)
    verb.add_argument("folder", type=Path, metavar="DIR", help="new or empty")
    verb.add_argument("--format", choices=FORMATS, default=FORMATS[0], help=f"default: {FORMATS[0]}")
    verb.set_defaults(run=export)

    verb = verbs.add_parser("import", help="read measurements in the layout of the paper's released data")
    verb.add_argument("folder", type=Path, metavar="DIR", help="of dataset/model/optimizer/batch_size/study.json")
    verb.add_argument("results", type=Path)
    verb.add_argument(
        "--goal",
        action="append",
        default=[],
        metavar="[WORKLOAD:]GOAL",
        help="'val/cross_entropy_error<3.9', for all or for a WORKLOAD such as 'fc_*'; default: as published",
    )
    verb.add_argument(
        "--trials",
        type=lambda text: 0 if text == "all" else int(text),
        metavar="N",
        help="COMPLETE trials that count, or `all`; default: as published, else all",
    )
    verb.set_defaults(run=import_released)

    verb = verbs.add_parser("data", help="list or fetch data sets")
    verb.add_argument("action", choices=["list", "fetch"])
    verb.add_argument("names", nargs="*", metavar="NAME")
    verb.set_defaults(run=data)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status: 0 done, 1 failed, 2 refused, 130 interrupted."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if "WORLD_SIZE" in os.environ:
        return _launched(argv)
    return _main(argv)


def _launched(argv: Sequence[str]) -> int:
    """One of several processes that torchrun started: the first does what is asked, the others train with it."""
    from study import team, worker

    seat = team.launched()
    if seat is None:
        return _main(argv)
    if seat.rank > 0:
        return worker.follow(seat)
    with team.leading(seat):
        return _main(argv)


def _main(argv: Sequence[str]) -> int:
    options, rest = parser().parse_known_args(argv)
    if options.verb in ("sweep", "plan", "calibrate"):  # argparse wants overrides in one piece; people do not
        options.overrides += [word for word in rest if not word.startswith("-")]
        rest = [word for word in rest if word.startswith("-")]
    if rest:
        parser().error(f"unrecognized arguments: {' '.join(rest)}")
    options.command = shlex.join(["python", "-m", "study", *argv])
    console, errors = Console(), Console(stderr=True, soft_wrap=True)
    try:
        return _run(options, console, errors)
    except KeyboardInterrupt:
        errors.print("study: interrupted; the same command continues where this one stopped.", highlight=False)
        return 130


def _run(options: argparse.Namespace, console: Console, errors: Console) -> int:
    from analysis.export import ExportError
    from analysis.load import LoadError
    from study.config import UsageError
    from study.interchange import ImportRefused
    from study.store import StoreError
    from study.workers import TrialTooLarge, WorkerError
    from workloads.datasets import DataError

    try:
        return options.run(options, console) or 0
    except (UsageError, StoreError, LoadError, DataError, ExportError, ImportRefused) as error:
        errors.print(f"study: {error}", markup=False, highlight=False)
        return 2
    except (WorkerError, TrialTooLarge) as error:
        errors.print(f"study: {error}", markup=False, highlight=False)
        return 1


if __name__ == "__main__":
    sys.exit(main())
