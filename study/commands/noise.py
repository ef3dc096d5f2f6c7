"""`study noise`: gradients along the tuned run of one batch size, beside the measured limits: their noise scale, or the
best learning rate of one step."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console

from study.command_line import as_json
from study.config.paths import path

if TYPE_CHECKING:
    import pandas as pd

    Shown = tuple[pd.DataFrame, dict[str, pd.DataFrame], list[str], list[str]]
    """Rows, tables of text by title, sentences and warnings."""


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
        default=2048,
        metavar="M",
        help="training examples whose gradients, or with --one-step whose losses after the step, are measured at each "
        "point; default: 2048, or all if there are fewer",
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
    verb.add_argument("--workload", metavar="NAME", help="only this one; default: each")
    verb.add_argument("--optimizer", metavar="NAME", help="only this one; default: each")
    verb.add_argument("--device", default="auto", help="cpu, cuda, cuda:1; default: a GPU if there is one")
    verb.add_argument("--config-dir", type=path, help="folder of your own workload, as for its sweep")
    verb.add_argument("--json", action="store_true", help="one object, see docs/reference/json.md")


def noise(options: argparse.Namespace, console: Console) -> None:
    """`study noise`: measure the missing points of the tuned runs, then write the report with table and figure."""
    from analysis.report.build import build
    from study.devices.placement import usable
    from study.noise import measure, tuned_run
    from study.terminal import show

    sizes = _sizes(options.step_batch_sizes)
    which = options.workload, options.optimizer, options.one_step, sizes
    request = tuned_run.NoiseRequest(options.batch_size, options.points, options.examples, *which)
    device = usable(options.device, "--device")
    found, left_out = tuned_run.tuned_runs(options.results, request, device, options.config_dir)
    told = Console(stderr=True, highlight=False) if options.json else console
    if options.batch_size is None:
        told.print("Of each curve, the smallest batch size whose search is complete; --batch-size chooses another.")
    for tuned in found:
        measure.measure(tuned, device, told)
    data = build([options.results], options.results)
    rows, shown, said, doubts = (_one_step if options.one_step else _noise_scale)(data.tables)
    page = options.results / "report.html"
    if options.json:
        more = {"one_step_rates": data.tables["one_step_rates"]} if options.one_step else {}
        print(as_json.text("noise", rows, said, [*left_out, *doubts], more, files={"report": page}))
        return
    show.measured(console, shown, said, [*left_out, *doubts])
    show.link(console, page)


def _sizes(text: str | None) -> list[int]:
    """The batch sizes of --step-batch-sizes; empty without it. Raises UsageError."""
    from study.errors import UsageError

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
