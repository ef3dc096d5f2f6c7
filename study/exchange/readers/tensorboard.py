"""Reads TensorBoard's event files with TensorBoard's own reader (the package `tensorboard`).

Each folder with event files is a run, with three exceptions. Keras writes `RUN/train` and `RUN/validation`: one run,
whose tags get these prefixes. torch's `add_hparams` writes hyperparameters to a folder below that of the run.
`add_scalars("loss", {"val": x})` writes `loss` to `RUN/loss_val`, or to `RUN/loss/val` with tensorboardX: `loss/val`.
Lightning writes hyperparameters beside the event files, to `hparams.yaml`.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from study.exchange.importing import ImportRefused
from study.exchange.readers.settings import read as read_settings
from study.exchange.readers.tables import LIGHTNING, Table, measured, refuse

PART = ".tfevents."
SPLITS = {"train": "train", "validation": "val", "val": "val", "eval": "val", "test": "test"}
"""Folder of one part of a run -> the prefix of its metrics."""
HYPERPARAMETERS = "_hparams_/session_start_info"


def folders(root: Path) -> list[Path]:
    """The folders below `root` with event files."""
    return sorted({path.parent for path in root.rglob(f"*{PART}*") if path.is_file()})


def read(root: Path, where: str) -> Iterator[Table]:
    """The runs below a folder, or of one event file.

    Raises:
        ImportRefused: the package is missing, or a file is no event file.
    """
    runs: dict[Path, list[pd.DataFrame]] = {}
    settings: dict[Path, dict[str, Any]] = {}
    for folder in folders(root) if root.is_dir() else [root]:
        scalars, given = _events(folder, f"{where}: {folder.name}")
        if folder == root and root.is_file() and not scalars:
            raise refuse(where, "it holds no scalars, or it is torn.")
        own = folder if root.is_dir() else folder.parent
        if given and own.parent in runs and own != root and all(len(rows) <= 1 for rows in scalars.values()):
            settings[own.parent] = settings.get(own.parent, {}) | given
            continue
        above = [folder for folder in own.parents if folder in runs and own != root]
        whole, named = next(filter(None, (_of_add_scalars(own, folder, scalars) for folder in above)), (None, {}))
        split = SPLITS.get(own.name.lower()) if own != root else None
        run = whole or (own.parent if split else own)
        prefix = f"{split}/" if split else ""
        frames = runs.setdefault(run, [])
        frames += [rows.rename(columns=named or _columns(tag, prefix)) for tag, rows in scalars.items()]
        settings[run] = settings.get(run, {}) | _beside(own, where) | given
    top = root if root.is_dir() else root.parent
    for run, frames in runs.items():
        name = top.name if run == top else run.relative_to(top).as_posix()
        for position in ("epoch", "step"):
            some = [rows for rows in frames if position in rows]
            if some or (position == "step" and not frames):
                rows = pd.concat(some, ignore_index=True) if some else pd.DataFrame({"step": []})
                lightning = (run / LIGHTNING).is_file() and "epoch" in rows
                yield Table(f"{where}: {name}", rows, settings[run], run=name, from_zero=lightning)


def _beside(folder: Path, where: str) -> dict[str, Any]:
    """The hyperparameters that Lightning wrote beside the event files of a run."""
    path = folder / LIGHTNING
    return read_settings(path, f"{where}: {folder.name}/{LIGHTNING}") if path.is_file() else {}


def _columns(tag: str, prefix: str) -> dict[str, str]:
    """The names of the columns of a tag. Those that Keras begins with `epoch_` are counted in epochs, not in steps."""
    if not prefix:
        return {}
    return {tag: f"{prefix}{tag.removeprefix('epoch_')}"} | ({"step": "epoch"} if tag.startswith("epoch_") else {})


def _of_add_scalars(folder: Path, run: Path, tags: Collection[str]) -> tuple[Path, dict[str, str]] | None:
    """(the run, its tag -> the name of the column) if `add_scalars` made a folder below that of the run, else None.

    >>> _of_add_scalars(Path("run/loss_val"), Path("run"), ["loss"])[1]
    {'loss': 'loss/val'}
    """
    tag, below = next(iter(tags), ""), folder.relative_to(run).as_posix()
    for begin in (f"{tag.replace('/', '_')}_", f"{tag}/"):  # of torch, and of tensorboardX
        if len(tags) == 1 and below.startswith(begin):
            return run, {tag: f"{tag}/{below.removeprefix(begin)}"}
    return None


def _events(folder: Path, where: str) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """(tag -> its steps and values, the hyperparameters) of the event files in one folder."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        cure = "pip install tensorboard, or download the charts as CSV"
        raise ImportRefused(f"{where} holds event files, which the package tensorboard reads; {cure}.") from error
    try:
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
        tags: Mapping[str, list[str]] = events.Tags()
    except Exception as error:  # protobuf and the reader have errors of their own
        raise refuse(where, f"it is torn or no event file ({type(error).__name__}).") from error
    found = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags["scalars"]}
    for tag in tags["tensors"]:  # what TensorFlow 2 writes
        if events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars":
            found[tag] = [(event.step, _number(event.tensor_proto)) for event in events.Tensors(tag)]
    frames = {
        tag: pd.DataFrame([(step, measured(value)) for step, value in rows], columns=["step", tag])
        for tag, rows in found.items()
    }
    return frames, _hyperparameters(events)


def _number(tensor: Any) -> float:
    from tensorboard.util.tensor_util import make_ndarray

    return float(make_ndarray(tensor))


def _hyperparameters(events: Any) -> dict[str, Any]:
    """The hyperparameters that the hparams plugin recorded; empty if there are none."""
    from tensorboard.plugins.hparams.metadata import parse_session_start_info_plugin_data

    try:
        content = events.SummaryMetadata(HYPERPARAMETERS).plugin_data.content
    except KeyError:
        return {}
    held = parse_session_start_info_plugin_data(content).hparams
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in held.items() if value.WhichOneof("kind")}
