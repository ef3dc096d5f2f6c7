"""The verbs of `python -m study`: a file for each or for related ones, with their arguments and bodies.

Bodies import torch, Optuna and Hydra themselves, so that verbs that only read files start without them.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

from rich.console import Console

from study.command_line import completion
from study.command_line.parser import Parser
from study.command_line.version import Version
from study.commands import advise, along_runs, calibrate, exchange, listing, report, rules, status, sweep
from study.commands.beyond import certify, schedules, sizes


class Verb(NamedTuple):
    """One verb: a line of help, a function that adds its arguments, and its body (returns the exit status; None: 0)."""

    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    body: Callable[[argparse.Namespace, Console], int | None]


VERBS = {
    "sweep": Verb("tune and train at every batch size, then report", sweep.sweep_arguments, sweep.sweep),
    "plan": Verb("measure on a few real steps what a sweep will cost", sweep.plan_arguments, sweep.plan),
    "status": Verb("show the progress of a running or interrupted sweep", status.status_arguments, status.status),
    "watch": Verb(
        "serve the report of a running sweep to a browser on this machine", status.watch_arguments, status.watch
    ),
    "report": Verb(
        "rebuild tables, figures and report.html of one or several results folders",
        report.report_arguments,
        report.report,
    ),
    "compare": Verb(
        "report on optimizers, models or data sets side by side: which needs fewer steps",
        report.report_arguments,
        report.compare,
    ),
    "claims": Verb(
        "judge the claims of Shallue et al. (2019) by the tables of results folders",
        report.claims_arguments,
        report.claims,
    ),
    "rules": Verb(
        "measure what retuning saves: train tuned configurations at other batch sizes",
        rules.rules_arguments,
        rules.rules,
    ),
    "advise": Verb(
        "find the fastest and the cheapest batch size, and its split over devices",
        advise.advise_arguments,
        advise.advise,
    ),
    "noise": Verb(
        "measure the gradient noise scale, or the best learning rate of one step, along tuned runs",
        along_runs.noise_arguments,
        along_runs.noise,
    ),
    "branch": Verb(
        "measure the critical batch size along a run, by branches from its checkpoints",
        along_runs.branch_arguments,
        along_runs.branch,
    ),
    "certify": Verb(
        "test over fresh seeds whether the mean error of tuned configurations is below a goal",
        certify.certify_arguments,
        certify.certify,
    ),
    "sizes": Verb(
        "fit a power law of the critical batch size in the size of the model or of the data",
        sizes.sizes_arguments,
        sizes.sizes,
    ),
    "schedule": Verb(
        "write a batch-size schedule for other trainers: Megatron-LM, OLMo-core, torchtitan, CSV",
        schedules.schedule_arguments,
        schedules.schedule,
    ),
    "verify": Verb(
        "train a batch-size schedule and constant batch sizes with fresh seeds: what it saves, what it costs",
        schedules.verify_arguments,
        schedules.verify,
    ),
    "calibrate": Verb(
        "compare measurements of the noisy quadratic model with its exact solution",
        calibrate.calibrate_arguments,
        calibrate.calibrate,
    ),
    "export": Verb(
        "write results in the layout of the paper's released data, or as two tables",
        exchange.export_arguments,
        exchange.export,
    ),
    "import": Verb(
        "read runs of other tools: CSV, W&B, MLflow, TensorBoard, or the paper's released data",
        exchange.import_arguments,
        exchange.import_runs,
    ),
    "list": Verb(
        "list the workloads, optimizers, schedules, searches, presets or data sets",
        listing.list_arguments,
        listing.list_choices,
    ),
    "data": Verb("list or fetch data sets", listing.data_arguments, listing.data),
    "completion": Verb(
        "print the script with which a shell completes commands and settings",
        completion.completion_arguments,
        lambda options, _: print(completion.script(parser("study"), options.shell)),
    ),
}
EVERYDAY = ("sweep", "plan", "status", "report", "compare")
"""The verbs that `python -m study` shows."""
FLAGS = ("--debug", "-V", "--version", "-h", "--help")
"""What may come before a verb."""
STATUSES = """\
exit status:
  0  done
  1  something failed on the way; the message says how to continue
  2  refused before anything was trained or written; the message says what to change
  130  interrupted; the same command continues
"""
USAGE = """\
  python -m study sweep                               the default sweep: digits, eleven batch sizes
  python -m study sweep workload=resnet_cifar         any workload of conf/workload, or your own with --config-dir
  python -m study sweep optimizer=sgd,momentum batch_size=64,256 search.trials=10
  python -m study plan workload=resnet_cifar          the cost of that sweep; trains nothing
  python -m study status results/mlp_digits           the progress of a running or interrupted sweep
  python -m study watch results/mlp_digits            its report in a browser, while it runs
  python -m study report results/mlp_digits           tables, figures and report.html from the files alone
  python -m study report results/a results/b          one report on several
  python -m study compare results/sgd results/momentum   which optimizer needs fewer steps
  python -m study claims results/published/*         which claims of the paper these results show or contradict
  python -m study rules results/mlp_digits --base-batch-size 32   retuning against transfer from batch size 32
  python -m study advise results/mlp_digits --gpus 8 --memory 80   which batch size, split over how many devices
  python -m study noise results/mlp_digits            the gradient noise scale along a tuned run
  python -m study branch results/mlp_digits batch_size=8   the critical batch size along a run, by branches
  python -m study certify results/mlp_digits --seeds 20   is the mean error of a tuned run below the goal?
  python -m study sizes results/fc_mnist --at 2048    the critical batch size at another width
  python -m study schedule results/ramp --format megatron   its batch-size schedule for another trainer
  python -m study verify results/ramp --seeds 8      the schedule against constant batch sizes
  python -m study calibrate                           measurements against exact answers
  python -m study export results/mlp_digits tables/ --format csv
  python -m study import runs.csv results/runs --goal 'val/loss<3.9'   runs that another tool logged
  python -m study import batch_science/lm1b results/lm1b --goal 'val/cross_entropy_error<3.9'
  python -m study list workloads                      the choices of workload=
  python -m study data list
  python -m study completion bash                     TAB completes; put its output into your shell's settings"""


def first_page() -> str:
    """What `python -m study` alone shows."""
    lines = [f"  python -m study {name:<10} {VERBS[name].help}" for name in EVERYDAY]
    return "\n".join(
        [
            "How far does a larger batch size cut the number of training steps, and where does it stop paying?\n",
            *lines,
            "\n`python -m study sweep` alone sweeps handwritten digits, in less than a minute. --help after a command",
            "shows its settings, `python -m study list` their choices, and `python -m study --help` all commands.",
        ]
    )


def parser(name: str = "python -m study") -> argparse.ArgumentParser:
    """The verbs and their arguments; `name`: of the command."""
    top = Parser(
        prog=name,
        description="How far does a larger batch size cut the number of training steps, and where does it stop paying?",
        epilog=f"{STATUSES}\nexamples:\n{USAGE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--debug", action="store_true", help="print whole tracebacks; HYDRA_FULL_ERROR=1 does so, too")
    top.add_argument("-V", "--version", action=Version, help="print versions, device and data folder, and stop")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in VERBS.items():
        made = verbs.add_parser(name, help=verb.help, formatter_class=argparse.RawDescriptionHelpFormatter)
        verb.arguments(made)
        made.description = made.description or f"{verb.help[0].upper()}{verb.help[1:]}."
        made.epilog = "\n".join(filter(None, [made.epilog, STATUSES]))
    return top


def flags_of(name: str) -> list[str]:
    """The options of a verb, such as `--json`."""
    alone = argparse.ArgumentParser()
    VERBS[name].arguments(alone)
    return [each for action in alone._actions for each in action.option_strings]
