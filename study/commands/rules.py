"""`study rules`: measures what retuning saves over transferring the tuned configuration of another batch size."""

import argparse

from rich.console import Console

from study.command_line.settings import mix_argument, plan_argument, training_arguments
from study.config.composed.paths import path


def rules_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("results", type=path, help="of a finished sweep")
    verb.add_argument(
        "--base-batch-size",
        action="append",
        default=[],
        type=int,
        metavar="B",
        help="transfer from here; repeatable; default: the smallest that reached the goal and the middle one",
    )
    verb.add_argument(
        "--rules", metavar="a,b", help="constant, square_root, linear; with _half_life for Adam; default: all"
    )
    verb.add_argument("--seeds", type=int, default=10, metavar="N", help="trainings of each configuration; default: 10")
    training_arguments(verb)
    mix_argument(verb)
    plan_argument(verb)


def rules(options: argparse.Namespace, console: Console) -> None:
    """`study rules`: train the missing transfers of tuned configurations, then write the report."""
    from analysis.report.build import build
    from analysis.tables.transfer import sentences
    from study import transfer
    from study.devices.placement import Placement
    from study.terminal import show

    names = options.rules.split(",") if options.rules else ()
    request = transfer.TransferRequest(options.base_batch_size, names, options.seeds)
    placement = Placement(device=options.device, workers=options.workers)
    found, left_out = transfer.transfers(options.results, request, placement, options.config_dir, options.mix)
    for text in left_out:
        console.print(text, style="yellow", markup=False)
    transfer.train(found, options.config_dir, options.command, console, plan=options.plan)
    if options.plan:
        return
    data = build([options.results], options.results)
    show.rules(console, data.tables["rules"], sentences(data.tables["rules"]))
    console.print()
    show.link(console, options.results / "report.html")
