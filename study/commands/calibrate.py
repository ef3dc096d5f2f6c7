"""`study calibrate`: this instrument held against the noisy quadratic model, solved exactly."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from study.commands.report import write_report
from study.commands.sweep import train

CALIBRATION = Path("results/calibration")


def calibrate_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="anything in conf/, to make it another sweep")
    verb.add_argument("--results", type=Path, metavar="DIR", default=CALIBRATION, help=f"default: {CALIBRATION}")
    verb.add_argument("--json", type=Path, metavar="FILE", help="write what was found there, for programs")


def calibrate(options: argparse.Namespace, console: Console) -> int:
    """`study calibrate`: sweep the noisy quadratic model, then hold what is on file against its exact solution."""
    from study.calibration import compare, facts, table
    from study.cluster import launch

    overrides = [*compare.OVERRIDES, *options.overrides, f"results={options.results}"]
    where = launch.chosen(overrides, None)
    jobs, missing = launch.jobs_for(overrides, None, where)
    compare.check(jobs)
    train(missing, where, None, options.command, console)
    write_report([options.results], options.results, console)
    with console.status("Solving the model exactly ..."):
        comparisons = compare.compare(jobs)
    judged = facts.judged(comparisons)
    table.calibration(console, comparisons, judged)
    if options.json:
        options.json.write_text(json.dumps(table.plain(comparisons, judged), indent=1) + "\n")
    return 0 if all(one.agrees for one in comparisons) else 1
