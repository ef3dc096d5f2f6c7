"""The verbs of `python -m study`: one file for each, with its arguments and its body.

Bodies import torch, Optuna and Hydra themselves, so that verbs that only read files start without them.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

from rich.console import Console

from study.commands import advise, calibrate, data, exchange, report, rules, sweep


class Verb(NamedTuple):
    """One verb: a line of help, a function that adds its arguments, and its body (returns the exit status; None: 0)."""

    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    body: Callable[[argparse.Namespace, Console], int | None]


VERBS = {
    "sweep": Verb("tune and train at every batch size, then report", sweep.sweep_arguments, sweep.sweep),
    "plan": Verb("measure on a few real steps what a sweep will cost", sweep.plan_arguments, sweep.plan),
    "status": Verb("show the progress of a running or interrupted sweep", report.status_arguments, report.status),
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
    "data": Verb("list or fetch data sets", data.data_arguments, data.data),
}
USAGE = """\
  python -m study sweep                               the default sweep: digits, eleven batch sizes
  python -m study sweep workload=resnet_cifar         any workload of conf/workload, or your own with --config-dir
  python -m study sweep optimizer=sgd,momentum batch_size=64,256 search.trials=10
  python -m study plan workload=resnet_cifar          the cost of that sweep; trains nothing
  python -m study status results/mlp_digits           the progress of a running or interrupted sweep
  python -m study report results/mlp_digits           tables, figures and report.html from the files alone
  python -m study report results/a results/b          one report on several
  python -m study compare results/sgd results/momentum   which optimizer needs fewer steps
  python -m study rules results/mlp_digits --base-batch-size 32   retuning against transfer from batch size 32
  python -m study advise results/mlp_digits --gpus 8 --memory 80   which batch size, split over how many devices
  python -m study calibrate                           measurements against exact answers
  python -m study export results/mlp_digits tables/ --format csv
  python -m study import runs.csv results/runs --goal 'val/loss<3.9'   runs that another tool logged
  python -m study import batch_science/lm1b results/lm1b --goal 'val/cross_entropy_error<3.9'
  python -m study data list"""


def parser() -> argparse.ArgumentParser:
    """The verbs and their arguments."""
    top = argparse.ArgumentParser(
        prog="python -m study",
        description="How far does a larger batch size cut the number of training steps, and where does it stop paying?",
        epilog=USAGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--debug", action="store_true", help="print whole tracebacks; HYDRA_FULL_ERROR=1 does so, too")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in VERBS.items():
        verb.arguments(verbs.add_parser(name, help=verb.help))
    return top
