"""`track=mlflow`: runs in `tracking/mlflow.db`, or where MLFLOW_TRACKING_URI says.

View them with `mlflow ui --backend-store-uri sqlite:///RESULTS/tracking/mlflow.db`.
"""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Mapping

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from study.observers.trackers.base import PROJECT, About, Table

IDENTITY = "batch_size_study.identity"
"""The tag by which a resumed sweep finds its run again."""
MOST, SECONDS = 1000, 2.0
"""The most metrics that MLflow takes at once, and the time from one writing to the next: each is a transaction on disk,
and a learning curve would be dozens."""


class Run:
    """A run of the experiment PROJECT, or of the one that MLFLOW_EXPERIMENT_NAME names."""

    def __init__(self, about: About) -> None:
        self._waiting: list[Metric] = []
        self._written = 0.0
        about.folder.mkdir(parents=True, exist_ok=True)
        place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{about.folder.resolve() / 'mlflow.db'}"
        self._client = MlflowClient(tracking_uri=place)
        experiment = self._experiment(about)
        found = self._client.search_runs([experiment], f"tags.`{IDENTITY}` = '{about.identity}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._client.create_run(
                experiment, run_name=about.name, tags={IDENTITY: about.identity, "workload": about.group}
            ).info.run_id
            settings = [Param(name, str(value)) for name, value in about.settings.items()]
            self._client.log_batch(self._id, params=settings)
        self._client.log_batch(self._id, tags=[RunTag("command", about.command)])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = time.time()
        self._waiting += [Metric(name, value, int(1000 * now), step) for name, value in values.items()]
        if now - self._written > SECONDS or len(self._waiting) > MOST:
            self._write()

    def table(self, name: str, table: Table) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([table.columns, *table.rows])
        self._client.log_text(self._id, text.getvalue(), f"{name}.csv")

    def end(self, failed: bool) -> None:
        self._write()
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")

    def _write(self) -> None:
        for first in range(0, len(self._waiting), MOST):
            self._client.log_batch(self._id, self._waiting[first : first + MOST])
        self._waiting, self._written = [], time.time()

    def _experiment(self, about: About) -> str:
        """The identifier of the experiment, which the first run creates."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        if (there := self._client.get_experiment_by_name(name)) is not None:
            return str(there.experiment_id)
        own = "MLFLOW_TRACKING_URI" not in os.environ
        artifacts = (about.folder / "mlflow-artifacts").resolve().as_uri() if own else None
        try:
            return str(self._client.create_experiment(name, artifact_location=artifacts))
        except MlflowException:  # another process created it meanwhile
            there = self._client.get_experiment_by_name(name)
            if there is None:
                raise
            return str(there.experiment_id)
