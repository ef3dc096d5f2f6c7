"""`track=tensorboard`: event files in `tracking/tensorboard/`, a folder for each run.

View them with `tensorboard --logdir RESULTS/tracking/tensorboard`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.text.plugin_data_pb2 import TextPluginData
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from study.observers.trackers.base import About, Table

SECONDS = 2
"""The time from one writing to the next; EventFileWriter's own is two minutes, which a kill would lose."""


class Run:
    """A folder with event files: a resumed sweep adds another file."""

    def __init__(self, about: About) -> None:
        self._writer = EventFileWriter(str(about.folder / "tensorboard" / about.identity), flush_secs=SECONDS)
        settings = [[name, str(value)] for name, value in {**about.settings, "command": about.command}.items()]
        self.table("settings", Table(["setting", "value"], settings))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._write(step, *(Summary.Value(tag=name, simple_value=value) for name, value in values.items()))

    def table(self, name: str, table: Table) -> None:
        """As text, in Markdown: TensorBoard has no tables of its own."""
        rows = [table.columns, ["---"] * len(table.columns), *table.rows]
        lines = ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
        text = TensorProto(
            dtype="DT_STRING",
            string_val=["\n".join(lines).encode()],
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        )
        plugin = SummaryMetadata.PluginData(plugin_name="text", content=TextPluginData(version=0).SerializeToString())
        self._write(0, Summary.Value(tag=name, metadata=SummaryMetadata(plugin_data=plugin), tensor=text))

    def end(self, failed: bool) -> None:
        self._writer.close()

    def _write(self, step: int, *values: Summary.Value) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))


def _cell(value: float | str | None) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value.replace("|", r"\|")
