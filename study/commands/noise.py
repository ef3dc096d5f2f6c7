"""`study noise`: the gradient noise scale along the tuned run of one batch size, beside the measured limits."""

from __future__ import annotations

import argparse

from rich.console import Console

from study.command_line import as_json
from study.config.paths import path


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
        help="training examples whose gradients are measured at each point; default: 2048, or all if there are fewer",
    )
    verb.add_argument("--workload", metavar="NAME", help="only this one; default: each")
    verb.add_argument("--optimizer", metavar="NAME", help="only this one; default: each")
    verb.add_argument("--device", default="auto", help="cpu, cuda, cuda:1; default: a GPU if there is one")
    verb.add_argument("--config-dir", type=path, help="folder of your own workload, as for its sweep")
    verb.add_argument("--json", action="store_true", help="one object, see docs/reference/json.md")


def noise(options: argparse.Namespace, console: Console) -> None:
    """`study noise`: measure the missing points of the tuned runs, then write the report with table and figure."""
    from analysis.load import STUDY
    from analysis.noise_scale.table import overview, sentences, warnings
    from analysis.report.build import build
    from study.devices.placement import usable
    from study.noise import measure, tuned_run
    from study.terminal import show

    request = tuned_run.NoiseRequest(
        options.batch_size, options.points, options.examples, options.workload, options.optimizer
    )
    device = usable(options.device, "--device")
    found, left_out = tuned_run.tuned_runs(options.results, request, device, options.config_dir)
    told = Console(stderr=True, highlight=False) if options.json else console
    if options.batch_size is None:
        told.print("Of each curve, the smallest batch size whose search is complete; --batch-size chooses another.")
    for tuned in found:
        measure.measure(tuned, device, told)
    data = build([options.results], options.results)
    rows = data.tables["noise_scale"]
    said, doubts = sentences(rows, data.tables["scaling"]), [*left_out, *warnings(rows)]
    page = options.results / "report.html"
    if options.json:
        print(as_json.text("noise", rows, said, doubts, files={"report": page}))
        return
    runs = rows.groupby(STUDY, sort=False)
    show.noise(
        console, {f"{key[0]}, {key[1]}, batch size {key[2]:,}": overview(part) for key, part in runs}, said, doubts
    )
    show.link(console, page)
