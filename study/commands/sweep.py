"""`study sweep` and `study plan`: train the studies that the overrides ask for, or measure what they will cost."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from study.command_line import as_json, observers, settings
from study.commands import power, until
from study.commands.report import STUDIES, write_report
from study.config.composed.paths import own_folder
from study.devices.imports import uncollected

if TYPE_CHECKING:
    from study.cluster.launch import Cluster
    from study.config.jobs import Job
    from study.observers.base import Observer


def sweep_arguments(verb: argparse.ArgumentParser) -> None:
    _overrides(verb)
    verb.add_argument("--cfg", action="store_true", help="print the composed configuration and stop")
    verb.epilog = settings.text()


def plan_arguments(verb: argparse.ArgumentParser) -> None:
    _overrides(verb)
    settings.json_argument(verb)
    verb.epilog = settings.text()


def _overrides(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="any setting; a,b sweeps both values")
    verb.add_argument(
        "--config-dir", type=own_folder, help="folder with your own workload/NAME.yaml and its Python file"
    )
    settings.mix_argument(verb)


def sweep(options: argparse.Namespace, console: Console) -> None:
    """`study sweep`: train the missing trials of every study that the overrides ask for, then write the report."""
    if options.cfg:
        from study.config.composed import compose

        console.print(compose.as_yaml(options.overrides, options.config_dir), markup=False)
        return
    run(options, console)


def run(options: argparse.Namespace, console: Console, shows: bool = True) -> list[Path]:
    """Train the missing trials, then write the reports; `options.imports`: the folder of the workload's class, if that
    is not `options.config_dir`.

    Arguments:
        shows: print the table of steps of each report.

    Returns:
        The results folders.
    """
    with uncollected():
        from study.cluster import launch
        from study.config.jobs import parse_jobs
        from study.errors import Refused
        from study.workers.pool import TrialTooLarge

    where = launch.chosen(options.overrides, options.config_dir)
    jobs, missing = launch.jobs_for(options.overrides, options.config_dir, where, options.mix)
    until.check(jobs)
    if missing:
        launch.check(where)
    said = power.sentences(jobs) if missing else []
    # `jobs` ask for what earlier commands added, too: the stated cost is a multiple of what this command asks for.
    first = parse_jobs(options.overrides, options.config_dir) if jobs[0].options.until else jobs
    overrides = list(options.overrides)
    imports = vars(options).get("imports") or options.config_dir
    command = observers.without_secrets(options.command)
    with observers.told(jobs, command, console) as told:
        while True:
            try:
                train(missing, where, imports, command, console, said, told)
            except (TrialTooLarge, launch.JobsFailed) as error:
                try:
                    _write_reports(jobs, console, shows)
                except Refused as also:  # no trial has finished, or the disk is full; the first error must not be lost
                    raise type(error)(f"{error}\n{also}") from error
                raise
            told.sentences = _write_reports(jobs, console, shows)
            added = until.further(jobs, first, console)
            if not added:
                return list({job.results: None for job in jobs})
            overrides, said = [*overrides, *added], []
            jobs, missing = launch.jobs_for(overrides, options.config_dir, where, options.mix)


def train(
    jobs: Sequence[Job],
    where: Cluster,
    config_dir: Path | None,
    command: str,
    console: Console,
    said: Sequence[str] = (),
    told: Observer | None = None,
) -> None:
    """Train these jobs on this machine, or on a cluster; there, show the progress that their files record. Rewrite the
    reports meanwhile.

    Arguments:
        said: lines to print before.
        told: is told of the sweep.
    """
    from study import whole_sweep
    from study.cluster import slurm
    from study.observers.live_page import LivePage

    if not jobs:
        return
    pages = LivePage([job.results for job in jobs])
    all_told = [pages, *filter(None, [told])]
    if where.kind == "none":
        with pages:
            whole_sweep.train(jobs, config_dir, command, console, said, observers=all_told)
        return
    for line in said:
        console.print(line, markup=False)
    if where.kind == "slurm" and (few := slurm.few_cores(where.launcher)):
        console.print(f"{few}\n", style="yellow", markup=False)
    with pages:
        _follow(jobs, where, config_dir, command, console, all_told)


def _follow(
    jobs: Sequence[Job],
    where: Cluster,
    config_dir: Path | None,
    command: str,
    console: Console,
    told: Sequence[Observer],
) -> None:
    """Train on a cluster, and show and tell what the files of its jobs record."""
    from analysis.load import load
    from analysis.tables import status as progress
    from study.cluster import launch
    from study.observers.base import Guarded, Sweep
    from study.observers.followed import Followed
    from study.terminal.progress import JobsProgress

    guarded = Guarded(told, partial(console.print, style="yellow", markup=False))
    guarded.begin(Sweep(command, []))
    followed = Followed([(job.results, job.study) for job in jobs], guarded)
    with launch.launched(jobs, where, config_dir, command) as looks, JobsProgress(console) as shown:
        try:
            for states in looks:
                followed.look()
                there = {job.results: None for job in jobs if any(job.results.glob(STUDIES))}
                rows = {results: progress.table(load(results)).to_dict("records") for results in there}
                shown.watch([(job.study, launch.states_of(job, states), _rows(job, rows)) for job in jobs])
        except KeyboardInterrupt:
            followed.look()
            raise
    if failed := launch.failures(jobs):
        raise launch.JobsFailed("\n".join([*failed, "The same command continues."]))


def _rows(job: Job, rows: dict[Path, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rows of the searches of one study."""
    key = {"workload": job.study.name, "optimizer": job.study.series, "batch_size": job.study.batch_size}
    return [row for row in rows.get(job.results, []) if key.items() <= row.items()]


def _write_reports(jobs: Sequence[Job], console: Console, shows: bool) -> list[str]:
    """Write the report of each results folder; returns their findings."""
    said: list[str] = []
    for results in {job.results: None for job in jobs}:
        if any(results.glob(STUDIES)):
            data, page = write_report([results], results, console if shows else Console(quiet=True))
            said += data.sentences
            if not shows:
                console.print(f"Report: {page}", markup=False, soft_wrap=True)
    return said


def plan(options: argparse.Namespace, console: Console) -> None:
    """`study plan`: measure what a sweep will cost; writes nothing."""
    rows, said = planned(options, None if options.json else console)
    if options.json:
        as_json.show("plan", rows, said)


def planned(options: argparse.Namespace, console: Console | None) -> tuple[list[dict[str, Any]], list[str]]:
    """The expected work of each search, and what the sweep can show; a console shows both."""
    with uncollected():
        from study import whole_sweep

    jobs, missing = whole_sweep.jobs_here(options.overrides, options.config_dir, options.mix)
    until.check(jobs)
    imports = vars(options).get("imports") or options.config_dir
    rows = whole_sweep.plan(missing, imports, console) if missing else []
    said = power.sentences(jobs)
    if console is not None:
        if not missing:
            console.print(whole_sweep.COMPLETE)
        for line in said:
            console.print(line, markup=False)
    return rows, said
