"""`track=wandb`: Weights & Biases; offline in `tracking/wandb/` without an account, or as WANDB_MODE and WANDB_DIR say.

Offline runs are uploaded with `wandb sync RESULTS/tracking/wandb/offline-run-*`.
"""

from __future__ import annotations

import netrc
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import wandb

from study.observers.trackers.base import PROJECT, About, Table


class Run:
    """A run of the project PROJECT, or of the one that WANDB_PROJECT names."""

    def __init__(self, about: About) -> None:
        about.folder.mkdir(parents=True, exist_ok=True)
        self._steps = about.steps
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            dir=os.environ.get("WANDB_DIR") or about.folder,
            id=about.identity,
            name=about.name,
            group=about.group,
            config={**about.settings, "command": about.command},
            resume="allow",
            reinit="create_new",
            mode=_mode(),
            settings=wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True),
        )
        self._run.define_metric(self._steps)
        self._run.define_metric("*", step_metric=self._steps)  # its own steps must increase over all names

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({self._steps: step, **values})

    def table(self, name: str, table: Table) -> None:
        self._run.log({name: wandb.Table(columns=list(table.columns), data=[list(row) for row in table.rows])})

    def end(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


def _mode() -> Any:
    """None: as WANDB_MODE says, or online for a user who is logged in. Else offline: no key is asked for."""
    if os.environ.get("WANDB_MODE"):
        return None
    settings = wandb.setup().settings
    return None if settings.api_key or _is_in_netrc(urlsplit(settings.base_url).hostname or "") else "offline"


def _is_in_netrc(host: str) -> bool:
    """Whether `wandb login` left a key for this host."""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
