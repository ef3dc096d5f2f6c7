"""`study certify`: tests whether the mean error of tuned configurations is below a goal, over fresh seeds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from study.command_line import as_json, settings
from study.config.composed.paths import path

if TYPE_CHECKING:
    import pandas as pd

    from analysis.counting import Goal
    from study.transfer import Transfers

CHEAPER = "fewer --seeds, fewer --steps, or one --optimizer"
RULE = (
    "Errors are tested at one step, fixed before training, with seeds that chose nothing: their mean is unbiased, as "
    "that of a best error or of a first crossing would not be."
)


def certify_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("results", type=path, help="of a sweep that is finished at one batch size or more")
    verb.add_argument("--goal", metavar="GOAL", help="'val/classification_error < 0.1'; default: that of the sweep")
    verb.add_argument("--seeds", type=int, default=20, metavar="N", help="trainings of each configuration; default: 20")
    verb.add_argument(
        "--batch-size", type=int, metavar="B", help="of the tuned configuration; default: the smallest complete one"
    )
    verb.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="test the errors after these steps; default: the median steps of the tuned configuration",
    )
    verb.add_argument(
        "--gap", type=float, metavar="X", help="say how many seeds certify a mean this far below the goal"
    )
    settings.curve_arguments(verb)
    settings.training_arguments(verb)
    settings.plan_or_json_arguments(verb)


def certify(options: argparse.Namespace, console: Console) -> None:
    """`study certify`: train the missing seeds, test their errors, and write the report."""
    from analysis.certificates import table as certificates
    from analysis.load import load
    from analysis.report.build import build
    from study.devices.placement import Placement
    from study.errors import UsageError
    from study.terminal import show
    from study.transfer import train
    from study.tuned.certify import CertifyRequest
    from study.tuned.certify import certificates as planned

    if options.gap is not None and not options.gap > 0:
        raise UsageError(f"--gap must be above 0, but got {options.gap:g}.")
    goal = None if options.goal is None else settings.goal(options.goal)
    request = CertifyRequest(options.seeds, options.batch_size, options.steps, options.workload, options.optimizer)
    placement = Placement(device=options.device, workers=options.workers)
    found, left_out = planned(options.results, request, placement, options.config_dir)
    _check_measured(found, goal)
    told = Console(stderr=True, highlight=False) if options.json else console
    if options.batch_size is None:
        told.print("Of each curve, the smallest batch size whose search is complete; --batch-size chooses another.")
    train(found, options.config_dir, options.command, told, CHEAPER, options.plan)
    if options.plan:
        return
    build([options.results], options.results)
    rows = _of_these(certificates.table(load(options.results), (goal,)), found)
    said, doubts = certificates.sentences(rows, options.gap), [*left_out, *certificates.warnings(rows)]
    page = options.results / "report.html"
    if options.json:
        as_json.show("certify", rows, [*said, RULE], doubts, files={"report": page})
        return
    show.measured(console, {"Certificates": certificates.overview(rows)}, [*said, RULE], doubts)
    show.link(console, page)


def _check_measured(found: Sequence[Transfers], goal: Goal | None) -> None:
    """Raise UsageError if trials do not measure the goal's metric."""
    from analysis.load import load_study
    from study import store
    from study.errors import UsageError

    if goal is None:
        return
    for each in found:
        metrics = load_study(store.study_folder(each.job.results, each.job.study)).metrics
        if goal.metric not in metrics:
            raise UsageError(f"{goal.metric} is not measured; there are: {', '.join(sorted(metrics))}.")


def _of_these(rows: pd.DataFrame, found: Sequence[Transfers]) -> pd.DataFrame:
    """The rows of these trainings alone."""
    keys = {(s.name, s.optimizer, s.batch_size, s.branch.certify) for each in found for s in each.studies}
    named = rows[["workload", "optimizer", "batch_size", "step"]].itertuples(index=False, name=None)
    mine = [key in keys for key in named]
    return rows[mine].reset_index(drop=True)
