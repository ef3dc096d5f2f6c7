"""`track=trackio`: Hugging Face Trackio, in `tracking/trackio/`, or where TRACKIO_DIR says.

View them with `TRACKIO_DIR=RESULTS/tracking/trackio trackio show`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from study.observers.trackers.base import PROJECT, About, Table


class Run:
    """A run of the project PROJECT."""

    def __init__(self, about: About) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(about.folder.resolve() / "trackio"))  # read at its import
        import trackio

        self._trackio = trackio
        self._run = trackio.init(
            project=PROJECT,
            name=about.identity,
            group=about.group,
            config={**about.settings, "command": about.command},
            resume="allow",
            embed=False,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def table(self, name: str, table: Table) -> None:
        import pandas as pd

        self._run.log({name: self._trackio.Table(dataframe=pd.DataFrame(table.rows, columns=list(table.columns)))})

    def end(self, failed: bool) -> None:
        self._run.finish()
