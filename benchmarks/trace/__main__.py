"""Kernels, bytes and FLOP of one update on a GPU, and its least time on a named card. Needs no GPU.

    python -m benchmarks.trace [--json FILE] [--models cnn,resnet8] [--batch-sizes 2,8] [--optimizer adam] [--lanes 64]
        [--card H100] [--compiled | --no-compiled] [--stored fp32,bf16] [--kernels]
    python -m benchmarks.trace --paper [--no-compiled]

Each model is traced as the lanes that a GPU would train, and as one model alone (`plain`). Columns: kernels of an
update of all lanes; megabytes read and written, and MFLOP of products and convolutions, of one lane; launches from
Python at every step, a replayed CUDA graph being one; how often the host waits for the GPU in a segment of 128 steps;
and, at each precision, the lane-steps a second if every kernel were as fast as the card allows
(`benchmarks.trace.roofline`). `docs/speed.md` has measured rates beside them. Takes about two minutes.

With `precision=tf32` numbers are stored as with `fp32`. With `bf16` most are stored in half the bytes: that update has
lines of its own, for the models whose layers `benchmarks.trace.autocast` knows (`--stored` chooses the lines).

The update is also counted as `torch.compile` would fuse it, which takes ten to thirty seconds for each model and batch
size: for the two of the last lines, with `--compiled` for all, with `--no-compiled` for none. `--kernels` lists every
kernel. `--paper` traces ResNet-8 at the thirteen batch sizes of the paper, compiled, too, unless `--no-compiled`, and
adds up the hours of 100 trials at full budget, by the fastest line of each batch size.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine import BATCH_SIZES, MODELS, USUAL_BATCH_SIZES, WRITTEN, paper_updates
from benchmarks.trace.roofline import CARDS, PRECISIONS, Card
from benchmarks.trace.updates import LANES, Update, traced

STORED = {"fp32": ("fp32", "tf32"), "bf16": ("bf16",)}
"""Precision that is traced -> the precisions whose updates are the same."""
FUSED_LAYERS = ("transformer", "lstm")
"""Models whose `plain` is not counted: a GPU has fused kernels for attention and LSTMs, `meta` has not."""
RECURRENT = ("lstm",)
"""Models that are not compiled: their graphs have thousands of operations."""
NOT_IN_BF16 = FUSED_LAYERS
"""Models with other layers under autocast than products and convolutions."""
HEADLINES = (("resnet8", 128, "ResNet-8: {:.1f} MB an example"), ("cnn", 2, "CNN at B = 2: {:.0f} MB a lane"))


def updates(models: Sequence[str], sizes: Sequence[int] | None, chosen: argparse.Namespace) -> Iterator[Update]:
    """The updates that were asked for."""
    for model, precision in product(models, chosen.stored.split(",")):
        if precision == "bf16" and model in NOT_IN_BF16:
            continue
        for batch_size in sizes or BATCH_SIZES.get(model, USUAL_BATCH_SIZES):
            how = model, batch_size, chosen.optimizer
            yield traced(*how, lanes=chosen.lanes, precision=precision)
            if _compiles(model, batch_size, chosen.compiled):
                from benchmarks.trace.compiled import compiled  # imports torch's compiler, which takes seconds

                yield compiled(*how, chosen.lanes, precision)
            if model not in FUSED_LAYERS:
                yield traced(*how, "plain", precision=precision)


def _compiles(model: str, batch_size: int, asked: bool | None) -> bool:
    judged = (model, batch_size) in {(name, size) for name, size, _ in HEADLINES}
    return model not in RECURRENT and (judged if asked is None else asked)


def rates(update: Update, card: Card) -> dict[str, float]:
    """Precision -> lane-steps a second by the roofline."""
    same = STORED[update.precision]
    return {each: update.lanes / card.seconds(update.kernels, each, update.launches) for each in same}


def headlines(update: Update) -> Iterator[str]:
    """The lines of the two figures that the GPU path is judged by."""
    for model, batch_size, text in HEADLINES:
        if (update.model, update.batch_size) == (model, batch_size) and update.lanes > 1:
            share = 1e6 * (batch_size if "an example" in text else 1)
            copied = sum(kernel.bytes for kernel in update.kernels if kernel.kind == "copy") / update.lanes
            how = f"{update.arithmetic}, {update.precision}"
            yield f"{text.format(update.bytes / share)} ({how}; copies: {copied / share:.1f})"


def hours(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Precision -> hours of the paper's ResNet-8 study without its evaluations."""
    seconds = dict.fromkeys((each for each in PRECISIONS if any(each in row["rates"] for row in rows)), 0.0)
    for batch_size, updates in paper_updates().items():
        for precision in seconds:
            fastest = max(row["rates"].get(precision, 0.0) for row in rows if row["batch_size"] == batch_size)
            seconds[precision] += updates / fastest
    return {precision: each / 3600 for precision, each in seconds.items()}


def line(update: Update, row: dict[str, Any]) -> str:
    """A line of the table."""
    speeds = "".join(f"{row['rates'][each]:12,.0f}" if each in row["rates"] else f"{'':12}" for each in PRECISIONS)
    return (
        f"{update.model:12}{update.batch_size:5} {update.arithmetic:22}{row['kernels']:7}{update.bytes / 1e6:11.2f}"
        f"{update.flop / 1e6:11,.1f}{update.launches:9}{update.meetings:10}{speeds}"
    )


def main() -> None:
    """Count and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batch-sizes", help="such as 2,8; default: those of each model")
    parser.add_argument("--optimizer", choices=WRITTEN, default="momentum")
    parser.add_argument("--lanes", type=int, default=LANES)
    parser.add_argument("--card", choices=CARDS, default="H100")
    parser.add_argument("--compiled", action=argparse.BooleanOptionalAction)
    parser.add_argument("--stored", default=",".join(STORED))
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--paper", action="store_true")
    chosen = parser.parse_args()
    if chosen.paper:
        chosen.models, chosen.batch_sizes = "resnet8", ",".join(map(str, paper_updates()))
        chosen.compiled = chosen.compiled is not False
    sizes = list(map(int, chosen.batch_sizes.split(","))) if chosen.batch_sizes else None
    rows: list[dict[str, Any]] = []
    figures: list[str] = []
    print(f"lane-steps a second by the roofline of the {chosen.card}, an estimate")
    heads = "".join(f"{name:>12}" for name in PRECISIONS)
    print(f"model       batch arithmetic            kernels    MB/lane MFLOP/lane launches  meetings{heads}")
    for update in updates(chosen.models.split(","), sizes, chosen):
        row = {**update.row(), "rates": {k: round(v, 1) for k, v in rates(update, CARDS[chosen.card]).items()}}
        rows.append(row)
        figures += headlines(update)
        print(line(update, row), flush=True)
        for kernel in update.kernels if chosen.kernels else ():
            print(f"    {kernel.kind:12} {kernel.read:14,} B read {kernel.written:14,} B written  {kernel.name}")
    print(*figures, sep="\n")
    if chosen.paper:
        said = ", ".join(f"{each:.2f} h in {precision}" for precision, each in hours(rows).items())
        print(f"100 trials at full budget at each of these batch sizes, without evaluations: {said}")
    if chosen.json:
        versions = {"torch": torch.__version__, "python": platform.python_version()}
        versions["project"] = metadata.version("batch-size-study")
        held = {"versions": versions, "card": chosen.card}
        text = ",\n".join(f"  {json.dumps(row)}" for row in rows)
        chosen.json.write_text(f'{json.dumps(held)[:-1]}, "rows": [\n{text}\n]}}\n')


if __name__ == "__main__":
    main()
