"""What the verbs of `python -m study` take on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

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
  python -m study advise results/mlp_digits --gpus 8 --memory 80   how to split which batch over devices
  python -m study calibrate                           this instrument against exact answers
  python -m study export results/mlp_digits tables/ --format csv
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
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")

    for name, what in (
        ("sweep", "tune and train at every batch size, then report"),
        ("plan", "what that sweep would cost, by a few real steps; trains nothing"),
    ):
        verb = verbs.add_parser(name, help=what)
        verb.add_argument("overrides", nargs="*", metavar="key=value", help="anything in conf/, a,b sweeps both")
        verb.add_argument("--config-dir", type=Path, help="folder with your own workload/NAME.yaml and its Python file")
        if name == "sweep":
            verb.add_argument("--cfg", action="store_true", help="print the composed configuration and stop")
        else:
            verb.add_argument("--json", action="store_true", help="for programs")

    verb = verbs.add_parser("status", help="how far a running or interrupted sweep is")
    verb.add_argument("results", type=Path)
    verb.add_argument("--json", action="store_true", help="for programs")

    for name, what in (
        ("report", "rebuild tables, figures and report.html of a results folder, or make one of several"),
        ("compare", "a report on optimizers, models or data sets side by side: which needs fewer steps where"),
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
    verb.add_argument("--workers", type=int, metavar="N", help="processes; default: one for each core or GPU")

    _advise(verbs.add_parser("advise", help="the batch size and its split over devices that are fastest and cheapest"))

    verb = verbs.add_parser("calibrate", help="this instrument against the noisy quadratic model, solved exactly")
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="anything in conf/, to make it another sweep")
    verb.add_argument("--results", type=Path, metavar="DIR", default=CALIBRATION, help=f"default: {CALIBRATION}")
    verb.add_argument("--json", type=Path, metavar="FILE", help="write what was found there, for programs")

    verb = verbs.add_parser("export", help="results for others: the layout of the paper's released data, or two tables")
    verb.add_argument("results", type=Path)
    verb.add_argument("folder", type=Path, metavar="DIR", help="new or empty")
    verb.add_argument("--format", choices=FORMATS, default=FORMATS[0], help=f"default: {FORMATS[0]}")

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
        type=_trials,
        metavar="N",
        help="COMPLETE trials that count, or `all`; default: as published, else all",
    )

    verb = verbs.add_parser("data", help="list or fetch data sets")
    verb.add_argument("action", choices=["list", "fetch"])
    verb.add_argument("names", nargs="*", metavar="NAME")
    return top


def _trials(text: str) -> int:
    """How many trials of an imported study count; 0 stands for all."""
    if text != "all" and not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, or all, but got {text}.")
    return 0 if text == "all" else int(text)


def _advise(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("results", type=Path)
    verb.add_argument(
        "--gpus", default="1", metavar="N", help="8: any number of devices up to 8; 1,2,4,8: one of these; default: 1"
    )
    room = verb.add_mutually_exclusive_group()
    room.add_argument("--memory", type=float, metavar="GIB", help="of each device; the model is built to see what fits")
    room.add_argument("--max-per-device-batch", type=int, metavar="N", help="examples that fit on a device at once")
    times = verb.add_mutually_exclusive_group()
    times.add_argument(
        "--step-ms",
        metavar="b:ms,...",
        help="of steps on b examples, such as 32:12.5,64:20; default: as recorded",
    )
    times.add_argument("--measure", action="store_true", help="time the steps of one training alone, here and now")
    exchange = verb.add_mutually_exclusive_group()
    exchange.add_argument("--allreduce-ms", type=float, metavar="MS", help="to exchange gradients after an update")
    exchange.add_argument("--bandwidth", type=float, metavar="GB/S", help="between devices, to estimate that from")
    verb.add_argument("--price", type=float, metavar="P", help="of a device for an hour, in any currency")
    verb.add_argument("--goal", metavar="GOAL", help="'val/classification_error < 0.1'; default: the study's own")
    verb.add_argument("--workload", metavar="NAME", help="only this one; default: each")
    verb.add_argument("--optimizer", metavar="NAME", help="only this one; default: each")
    verb.add_argument(
        "--device", default="auto", help="to --measure on: cpu, cuda, cuda:1; default: a GPU if there is one"
    )
    verb.add_argument("--config-dir", type=Path, help="folder of your own workload, as for its sweep")
    verb.add_argument("--json", action="store_true", help="every split, for programs")
