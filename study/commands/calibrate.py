"""`study calibrate`: compares measurements of the noisy quadratic model with its exact solution."""

import argparse
import json
from pathlib import Path

from rich.console import Console

from study.command_line.settings import mix_argument
from study.commands.report import write_report
from study.commands.sweep import train
from study.config.composed.paths import path

CALIBRATION = Path("results/calibration")


def calibrate_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="settings of the sweep, as for `sweep`")
    verb.add_argument("--results", type=path, metavar="DIR", default=CALIBRATION, help=f"default: {CALIBRATION}")
    verb.add_argument("--json", type=path, metavar="FILE", help="write the comparison there, for programs")
    mix_argument(verb)


def calibrate(options: argparse.Namespace, console: Console) -> int:
    """`study calibrate`: sweep the noisy quadratic model, then compare the results with its exact solution."""
    from study.calibration import compare, facts, table
    from study.cluster import launch
    from study.errors import UsageError

    if options.json and not options.json.absolute().parent.is_dir():
        raise UsageError(f"--json writes to a folder that exists, but there is no {options.json.parent}; create it.")
    overrides = [*compare.overrides(options.overrides), f"results={options.results}"]
    where = launch.chosen(overrides, None)
    jobs, missing = launch.jobs_for(overrides, None, where, options.mix)
    compare.check(jobs)
    train(missing, where, None, options.command, console)
    write_report([options.results], options.results, console)
    with console.status("Solving the model exactly ..."):
        comparisons = compare.compare(jobs)
    judged = facts.judged(comparisons)
    table.calibration(console, comparisons, judged, compare.intervals(jobs))
    if options.json:
        options.json.write_text(json.dumps(table.plain(comparisons, judged), indent=1) + "\n")
    return 0 if all(one.agrees for one in comparisons) else 1
