"""What is measured along tuned runs, beside the measured limits: `study noise`, the gradient noise scale or the best
learning rate of one step, and `study branch`, the critical batch size by branches at larger batch sizes.

`branch` takes either the results of a sweep or the settings of one. Both name a trunk by the same words, so that a run
of a finished sweep and one that is not there yet are branched from alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from study.command_line import as_json, settings
from study.commands import sweep
from study.config.composed.paths import path
from study.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    Shown = tuple[pd.DataFrame, dict[str, pd.DataFrame], list[str], list[str]]
    """Rows, tables of text by title, sentences and warnings."""

CHOICES = ("workload", "optimizer", "batch_size")
"""The settings that choose among the runs of a finished sweep."""
HELP = """\
The trunk is the tuned run of a batch size. Either name the RESULTS of a finished sweep (workload=, optimizer= and
batch_size= choose among its runs), or give the settings of a sweep, which is then trained first:

  python -m study branch results/mlp_digits batch_size=8 checkpoints=6
  python -m study branch workload=fc_mnist optimizer=sgd batch_size=16 'checkpoints=[200,800]'

settings of the branches:
  checkpoints=4 or [200,800]       their number, up to the goal; or steps
  multiples=[1,2,4,8,16,32]        batch sizes, as multiples of that of the trunk
  window=8192 or '1M tokens'       what every branch trains on; default: 16 steps at the largest batch size
  rule=auto                        of the learning rate: square_root, linear or constant; auto: linear for SGD and
                                   momentum, else square_root
  factors=[1]                      further factors on the learning rate; the best one at each batch size counts
  tolerance=0.01                   the share of the small batch's loss that a larger batch may lose
  seeds=4                          branches of each kind

"""


def noise_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("results", type=path, help="of a sweep that is finished at one batch size or more")
    verb.add_argument(
        "--batch-size", type=int, metavar="B", help="of the tuned run; default: the smallest complete one"
    )
    verb.add_argument(
        "--points",
        type=int,
        default=6,
        metavar="N",
        help="recorded evaluations to measure at, up to the goal; default: 6",
    )
    verb.add_argument(
        "--examples",
        type=int,
        metavar="M",
        help="training examples whose gradients are measured at each point, default: 2048; with --one-step those whose "
        "losses are measured for each of 32 batches, default: 256; all if there are fewer",
    )
    verb.add_argument(
        "--one-step",
        action="store_true",
        help="measure the loss after one step over learning rates and batch sizes, in place of the noise scale",
    )
    verb.add_argument(
        "--step-batch-sizes",
        metavar="B,B,...",
        help="of --one-step; default: powers of 4, up to a quarter of the training examples and 4096",
    )
    settings.curve_arguments(verb)
    verb.add_argument("--device", default="auto", help="cpu, cuda, cuda:1; default: a GPU if there is one")
    settings.config_dir_argument(verb)
    settings.plan_or_json_arguments(verb)


def noise(options: argparse.Namespace, console: Console) -> None:
    """`study noise`: measure the missing points of the tuned runs, then write the report with table and figure."""
    from analysis.report.build import build
    from study.devices.placement import usable
    from study.noise import measure, tuned_run
    from study.terminal import show

    request = tuned_run.NoiseRequest(
        batch_size=options.batch_size,
        points=options.points,
        examples=options.examples,
        workload=options.workload,
        optimizer=options.optimizer,
        one_step=options.one_step,
        step_batch_sizes=_sizes(options.step_batch_sizes),
    )
    device = usable(options.device, "--device")
    found, left_out = tuned_run.tuned_runs(options.results, request, device, options.config_dir)
    told = Console(stderr=True, highlight=False) if options.json else console
    if options.batch_size is None:
        told.print("Of each curve, the smallest batch size whose search is complete; --batch-size chooses another.")
    for tuned in found:
        measure.measure(tuned, device, told, options.plan)
    if options.plan:
        return
    data = build([options.results], options.results)
    rows, shown, said, doubts = (_one_step if options.one_step else _noise_scale)(data.tables)
    page = options.results / "report.html"
    if options.json:
        more = {"one_step_rates": data.tables["one_step_rates"]} if options.one_step else {}
        as_json.show("noise", rows, said, [*left_out, *doubts], more, files={"report": page})
        return
    show.measured(console, shown, said, [*left_out, *doubts])
    show.link(console, page)


def _sizes(text: str | None) -> list[int]:
    """The batch sizes of --step-batch-sizes; empty without it. Raises UsageError."""
    try:
        return [] if text is None else [int(each) for each in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--step-batch-sizes are whole numbers such as 4,16,64, but got {text!r}.") from error


def _noise_scale(tables: Mapping[str, pd.DataFrame]) -> Shown:
    from analysis.load import STUDY
    from analysis.noise_scale.table import overview, sentences, warnings

    rows, what = tables["noise_scale"], "gradient noise scale in examples (95 % interval)"
    shown = {
        f"[bold]{key[0]}, {key[1]}, batch size {key[2]:,}[/]: {what}": overview(part)
        for key, part in rows.groupby(STUDY, sort=False)
    }
    return rows, shown, sentences(rows, tables["scaling"]), warnings(rows)


def _one_step(tables: Mapping[str, pd.DataFrame]) -> Shown:
    from analysis.one_step.table import overview, sentences, warnings

    rows, rates = tables["one_step"], tables["one_step_rates"]
    what = "eps(B) = eps_max / (1 + B_n / B), B_n in examples"
    shown = {f"[bold]Best learning rate of one step[/]: {what}": overview(rows)}
    return rows, shown, sentences(rows, tables["scaling"]), warnings(rows, rates)


def branch_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("overrides", nargs="*", metavar="RESULTS or key=value", help="what to branch from, and how")
    settings.training_arguments(verb)
    settings.mix_argument(verb)
    settings.plan_or_json_arguments(verb)
    verb.epilog = HELP


def branch(options: argparse.Namespace, console: Console) -> None:
    """`study branch`: train the missing checkpoints and branches, then write the report with table and figure."""
    from analysis.branched.table import overview, sentences, warnings
    from analysis.load import STUDY
    from analysis.report.build import build
    from study.branch import request as requests
    from study.branch import trunk, windows
    from study.devices.placement import Placement, usable
    from study.terminal import show

    request, words = requests.parsed(options.overrides)
    device = usable(options.device, "--device")
    told = Console(stderr=True, highlight=False) if options.json else console
    if (source := _source(words, options, told)) is None:
        return
    results, chosen = source
    placement = Placement(device=device, workers=options.workers)
    found, left_out = trunk.find(results, request, placement, **chosen, config_dir=options.config_dir)
    branches = [windows.branches(each, request, placement, options.mix) for each in found]
    windows.train(branches, options.config_dir, options.command, told, options.plan)
    if options.plan:
        return
    data = build([results], results)
    rows, losses = data.tables["branched"], data.tables["branched_losses"]
    said, doubts = sentences(rows, data.tables["scaling"]), [*left_out, *warnings(rows, losses)]
    page = results / "report.html"
    if options.json:
        as_json.show("branch", rows, said, doubts, tables={"branched_losses": losses}, files={"report": page})
        return
    runs = rows.groupby(STUDY, sort=False)
    titles = {f"{key[0]}, {key[1]}, from batch size {key[2]:,}": overview(part) for key, part in runs}
    show.along_runs(console, titles, "critical batch size by branches", said, doubts)
    show.link(console, page)


def _source(words: Sequence[str], options: argparse.Namespace, console: Console) -> tuple[Path, dict[str, Any]] | None:
    """(the results folder with the runs, which of them to branch from); trains a sweep if its settings are given.

    None if only a plan is asked for, and the sweep is not trained.
    """
    folders = [word for word in words if "=" not in word]
    pairs = [word for word in words if "=" in word]
    if not words:
        raise UsageError(
            "branch needs a run to branch from: the RESULTS of a finished sweep, or the settings of one, such as "
            "workload=mlp_digits optimizer=sgd batch_size=8."
        )
    if not folders:
        options.overrides = pairs
        if options.plan and _missing(options, console):
            return None
        trained = sweep.run(options, console, shows=False)
        if len(trained) != 1:
            raise UsageError("branch needs one results folder, but these settings have several; give results=DIR once.")
        return trained[0], _narrowed(pairs)
    chosen: dict[str, Any] = dict(word.split("=", 1) for word in pairs)
    others = [key for key in chosen if key not in CHOICES]
    if len(folders) > 1 or others:
        unknown = f"{others[0]}=" if others else folders[1]
        raise UsageError(
            f"with RESULTS, branch takes {', '.join(f'{key}=' for key in CHOICES)} and its own settings (--help), but "
            f"got {unknown}; without RESULTS, it takes the settings of a sweep."
        )
    if (size := chosen.get("batch_size")) is not None:
        if not size.isdecimal():
            raise UsageError(f"batch_size must be a whole number, but got {size}.")
        chosen["batch_size"] = int(size)
    return path(folders[0]), chosen


def _missing(options: argparse.Namespace, console: Console) -> bool:
    """Whether the sweep lacks trials; then their cost is shown."""
    from study import whole_sweep

    if not whole_sweep.jobs_here(options.overrides, options.config_dir, options.mix)[1]:
        return False
    sweep.planned(options, console)
    console.print("What the branches cost is measured on the tuned run: plan again when the sweep is trained.")
    return True


def _narrowed(words: Sequence[str]) -> dict[str, Any]:
    """The run that the settings of a sweep ask for, in a results folder that may hold others."""
    pairs = dict(word.split("=", 1) for word in words)
    size, optimizer = pairs.get("batch_size", ""), pairs.get("optimizer", "")
    found: dict[str, Any] = {"batch_size": int(size)} if size.isdecimal() else {}
    return found | ({"optimizer": optimizer} if optimizer.isidentifier() and optimizer != "torch" else {})
