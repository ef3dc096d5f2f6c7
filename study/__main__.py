"""`python -m study VERB`: sweep, plan, status, report, compare, rules, advise, calibrate, export, import, data."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from study.arguments import REPORT, parser

if TYPE_CHECKING:
    from analysis.load import StudyData
    from analysis.report.build import Asked
    from study.cluster.launch import Cluster
    from study.config.jobs import Job

STUDIES = "studies/*/*/*/study.json"


def sweep(options: argparse.Namespace, console: Console) -> None:
    """Run every study that the overrides ask for, as far as it is not done, then write the report."""
    from study import sweep as studies
    from study.cluster import launch
    from study.config import compose

    if options.cfg:
        console.print(compose.as_yaml(options.overrides, options.config_dir), markup=False, highlight=False)
        return
    where = launch.chosen(options.overrides, options.config_dir)
    jobs, missing = studies.jobs_of(options.overrides, options.config_dir, where.here)
    try:
        _train(missing, where, options.config_dir, options.command, console)
    except (studies.TrialTooLarge, launch.JobsFailed):
        _write_reports(jobs, console)
        raise
    _write_reports(jobs, console)


def _train(jobs: Sequence[Job], where: Cluster, config_dir: Path | None, command: str, console: Console) -> None:
    """Train these jobs here, or on a cluster and show what their files say until the last has ended."""
    from analysis.load import load
    from analysis.tables import status as progress
    from study import sweep as studies
    from study.cluster import launch
    from study.terminal.progress import JobsProgress

    if not jobs:
        return
    if where.kind == "none":
        studies.train(jobs, config_dir, command, console)
        return
    with launch.launched(jobs, where, config_dir, command) as looks, JobsProgress(console) as shown:
        for states in looks:
            there = {job.results: None for job in jobs if any(job.results.glob(STUDIES))}
            rows = {results: progress.table(load(results)).to_dict("records") for results in there}
            shown.watch([(job.study, launch.states_of(job, states), _rows(job, rows)) for job in jobs])
    if failed := launch.failures(jobs):
        raise launch.JobsFailed("\n".join([*failed, "The same command continues."]))


def _rows(job: Job, rows: dict[Path, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Of the searches of one study."""
    key = {"workload": job.study.name, "optimizer": job.study.optimizer, "batch_size": job.study.batch_size}
    return [row for row in rows.get(job.results, []) if key.items() <= row.items()]


def _write_reports(jobs: Sequence[Job], console: Console) -> None:
    for results in {job.results: None for job in jobs}:
        if any(results.glob(STUDIES)):
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
    from analysis.load import load
    from analysis.tables import status as progress
    from study.terminal import show

    table = progress.table(load(options.results))
    if options.json:
        print(table.to_json(orient="records", indent=1))
    else:
        show.status(console, table)


def write_report(results: Sequence[Path], output: Path, console: Console, asked: Asked | None = None) -> None:
    """Rebuild tables, figures and page from the files alone, and show the table."""
    from analysis.report.build import Asked, build
    from study.terminal import show

    data = build(results, output, asked or Asked())
    show.results(console, data.tables["steps_to_result"], data.sentences, data.warnings)
    console.print(f"\nReport: {output / 'report.html'}", highlight=False)


def report(options: argparse.Namespace, console: Console) -> None:
    """`study report`."""
    from analysis.counting import Goal
    from analysis.report.build import Asked
    from study.errors import UsageError

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

    paths = (path for results in options.results for path in results.glob(STUDIES))
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
    from analysis.report.build import build
    from analysis.tables.transfer import sentences
    from study import moves
    from study.devices.placement import Placement
    from study.terminal import show

    asked = moves.Asked(options.base_batch_size, options.rules.split(",") if options.rules else (), options.seeds)
    engine = Placement(device=options.device, workers=options.workers)
    found, left_out = moves.arrivals(options.results, asked, engine, options.config_dir)
    for text in left_out:
        console.print(text, style="yellow", markup=False, highlight=False)
    moves.train(found, options.config_dir, options.command, console)
    data = build([options.results], options.results)
    show.rules(console, data.tables["rules"], sentences(data.tables["rules"]))
    console.print(f"\nReport: {options.results / 'report.html'}", highlight=False)


def advise(options: argparse.Namespace, console: Console) -> None:
    """`study advise`: the batch size and its split over devices that reach the goal first, and at the least cost."""
    from analysis.advice import splits, step_times, tables
    from analysis.advice.sentences import notes, sentences
    from analysis.report import warnings
    from analysis.tables import answers
    from study.advise import Asked, facts
    from study.terminal import show

    asked = Asked.of(options)
    advised, refused = [], []
    for made in _curves(options):
        found = answers.answers(made)
        waiting = [*warnings.waiting(found), *answers.orphans(made)]
        studies = [study for study in found if study.begun]
        if not studies:
            refused += waiting
            continue
        known = facts(asked, studies[0].question, max(study.batch_size for study in studies))
        given = known.step_seconds
        try:
            machine = splits.Machine(
                devices=asked.devices,
                times=step_times.recorded(made) if given is None else step_times.StepTimes(given, known.source),
                largest=known.largest,
                exchange=asked.exchange,
                gradient_bytes=known.gradient_bytes,
                bandwidth=asked.bandwidth,
                price=asked.price,
            )
            found = splits.table(studies, machine, asked.goal)
        except splits.AdviceError as error:
            refused += [str(error), *waiting]
        else:
            advised.append((found, sentences(found), [*notes(found, machine, studies), *known.notes, *waiting]))
    if not advised:
        raise splits.AdviceError(" ".join(refused))
    if options.json:
        print(json.dumps([tables.plain(*each) for each in advised], indent=1))
        return
    for found, said, doubts in advised:
        show.advice(console, tables.overview(found), tables.alternatives(found), said, doubts)
    for text in refused:
        console.print(text, style="yellow", markup=False, highlight=False)


def _curves(options: argparse.Namespace) -> list[list[StudyData]]:
    """The searches of each curve that is asked for."""
    from analysis.load import load
    from study.errors import UsageError
    from workloads.suggest import suggest

    curves: dict[tuple[str, str], list[StudyData]] = {}
    for study in load(options.results):
        curves.setdefault(study.curve, []).append(study)
    for place, what in enumerate(("workload", "optimizer")):
        name, there = getattr(options, what), {curve[place] for curve in curves}
        if name is not None and name not in there:
            raise UsageError(f"no {what} {name!r} in {options.results}{suggest(name, there)}")
        curves = {curve: made for curve, made in curves.items() if name in (None, curve[place])}
    return list(curves.values())


def calibration(options: argparse.Namespace, console: Console) -> int:
    """`study calibrate`: sweep the noisy quadratic model, then hold what is on file against its exact solution."""
    from study import sweep as studies
    from study.calibration import compare, facts, table
    from study.cluster import launch

    overrides = [*compare.OVERRIDES, *options.overrides, f"results={options.results}"]
    where = launch.chosen(overrides, None)
    jobs, missing = studies.jobs_of(overrides, None, where.here)
    compare.check(jobs)
    _train(missing, where, None, options.command, console)
    write_report([options.results], options.results, console)
    with console.status("Solving the model exactly ..."):
        comparisons = compare.compare(jobs)
    judged = facts.judged(comparisons)
    table.calibration(console, comparisons, judged)
    if options.json:
        options.json.write_text(json.dumps(table.plain(comparisons, judged), indent=1) + "\n")
    return 0 if all(one.agrees for one in comparisons) else 1


def export(options: argparse.Namespace, console: Console) -> None:
    """`study export`: a results folder in the released layout of the paper's data, or as two tables."""
    from analysis.export import export
    from study.terminal.progress import StudiesProgress

    with StudiesProgress(console, "exporting") as progress:
        export(options.results, options.folder, options.format, progress.watch, progress.begin)
    console.print(f"Exported: {options.folder}", highlight=False)


def import_released(options: argparse.Namespace, console: Console) -> None:
    """`study import`: a released tree into a results folder, then the status of what came."""
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
        console.print(warning, style="yellow", markup=False, highlight=False)
    console.print(f"{progress.done}\nNow: python -m study report {options.results}", highlight=False)


def data(options: argparse.Namespace, console: Console) -> None:
    """`study data list` and `study data fetch NAME`."""
    from study.errors import UsageError
    from workloads.data import datasets
    from workloads.suggest import suggest

    for name in options.names:
        if name not in datasets.DATASETS:
            raise UsageError(f"unknown data set {name!r}{suggest(name, datasets.DATASETS)}")
    if options.action == "fetch":
        for name in options.names or datasets.DATASETS:
            console.print(f"{name}: {datasets.fetch(name)}", highlight=False)
        return
    for row in datasets.status():
        if row.name in (options.names or datasets.DATASETS):
            size = f" ({row.megabytes:.0f} MB)" if row.megabytes else ""
            here = row.where or ("here" if row.present else f"not here: python -m study data fetch {row.name}")
            lines = [f"[bold]{row.name}[/bold]: {row.what}{size}", here, *row.sources]
            console.print("\n    ".join(lines), highlight=False, soft_wrap=True)


VERBS: Mapping[str, Callable[[argparse.Namespace, Console], int | None]] = {
    "sweep": sweep,
    "plan": plan,
    "status": status,
    "report": report,
    "compare": comparison,
    "rules": rules,
    "advise": advise,
    "calibrate": calibration,
    "export": export,
    "import": import_released,
    "data": data,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status: 0 done, 1 failed, 2 refused, 130 interrupted."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if "WORLD_SIZE" in os.environ:
        return _launched(argv)
    return _main(argv)


def _launched(argv: Sequence[str]) -> int:
    """One of several processes that torchrun started: the first does what is asked, the others train with it."""
    from study.devices import distributed
    from study.workers import process

    rank = distributed.launched()
    if rank is None:
        return _main(argv)
    if rank.index > 0:
        process.follow(rank)
    with distributed.leading(rank):
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
        status = _run(options, console, errors)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever reads this has seen enough; Python would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt as interrupt:
        said = str(interrupt) or "the same command continues where this one stopped"
        errors.print(f"study: interrupted; {said}.", highlight=False)
        return 130


def _run(options: argparse.Namespace, console: Console, errors: Console) -> int:
    from analysis.advice.splits import AdviceError
    from analysis.export import ExportError
    from analysis.load import LoadError
    from study.cluster.launch import JobsFailed
    from study.errors import UsageError
    from study.exchange.importing import ImportRefused
    from study.store import StoreError
    from study.workers.pool import TrialTooLarge, WorkerError
    from workloads.data.datasets import DataError

    try:
        return VERBS[options.verb](options, console) or 0
    except (UsageError, StoreError, LoadError, DataError, ExportError, AdviceError, ImportRefused) as error:
        errors.print(f"study: {error}", markup=False, highlight=False)
        return 2
    except (WorkerError, TrialTooLarge, JobsFailed) as error:
        errors.print(f"study: {error}", markup=False, highlight=False)
        return 1


if __name__ == "__main__":
    sys.exit(main())
