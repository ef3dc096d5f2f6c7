"""`study sizes`: how the critical batch size grows with the size of the model or the data, as a power law."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from study.command_line import as_json, settings
from study.config.composed.paths import path

if TYPE_CHECKING:
    import pandas as pd


def sizes_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "results",
        nargs="+",
        type=path,
        help="folders of sweeps or imports, or a CSV with a column critical_batch_size and one with the size",
    )
    verb.add_argument(
        "--at",
        action="append",
        default=[],
        metavar="[AXIS=]N",
        help="predict the critical batch size at this size, such as 1024 or width=1024; repeatable",
    )
    settings.json_argument(verb)


def sizes(options: argparse.Namespace, console: Console) -> None:
    """`study sizes`: fit power laws to the critical batch sizes of workloads of several sizes."""
    import pandas as pd

    from analysis.sizes import table
    from study.errors import UsageError
    from study.terminal import show
    from workloads.suggest import suggest

    at = [_at(text) for text in options.at]
    found = _sizes(options.results)
    laws = table.laws(found)
    axes = set(laws["axis"])
    for axis, _ in at:
        if axis is not None and axis not in axes:
            raise UsageError(f"--at {axis}=...: there is no law in {axis}{suggest(axis, axes)}")
    asked = [(laws if axis is None else laws[laws["axis"] == axis], size) for axis, size in at]
    predicted = pd.concat([table.predictions(some, [size]) for some, size in asked] or [laws[:0]])
    said, doubts = table.sentences(laws, predicted), table.warnings(found, laws)
    if options.json:
        as_json.show("sizes", laws, said, doubts, {"sizes": found, "predictions": predicted})
        return
    title = "[bold]Critical batch size across sizes[/]: power laws"
    show.measured(console, {title: table.overview(laws)} if len(laws) else {}, said, doubts)


def _at(text: str) -> tuple[str | None, float]:
    """The axis, None if it is any, and the size of `--at`. Raises UsageError."""
    from study.errors import UsageError

    axis, _, size = text.rpartition("=")
    try:
        found = float(size)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise UsageError(f"--at must read N or AXIS=N with a number above 0, such as width=1024, but got {text!r}.")
    return axis or None, found


def _sizes(paths: Sequence[Path]) -> pd.DataFrame:
    """The critical batch sizes in these folders, or in these CSV files."""
    import pandas as pd

    from analysis.report.build import read
    from analysis.sizes import table

    folders = [each for each in paths if not each.is_file()]
    frames = [table.pairs(each) for each in paths if each.is_file()]
    if folders:
        frames.append(read(folders).tables.get("sizes", pd.DataFrame(columns=table.SIZES)))
    return pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)
