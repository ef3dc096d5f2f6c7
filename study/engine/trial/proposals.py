"""What an engine needs from the tuner and the store."""

from collections.abc import Callable, Mapping
from typing import Protocol

from study.engine.trial.pace import Pace
from study.records import Trial


class Proposals(Protocol):
    """What an engine needs from the tuner and the store. In worker processes a pipe answers. By default no trial has a
    checkpoint and none is taken. `pace`: when checkpoints of running trials are due."""

    pace: Pace = Pace(None)

    def ask(self, wait: bool) -> Trial | None:
        """The next trial, or None: no more trials will come or, without `wait`, none is ready now."""
        ...

    def train_at_once(self, lanes: int) -> None:
        """The engine trains only this many trials at once from now on."""
        return

    def step_limit(self, index: int) -> int:
        """The step beyond which trial `index` need not run."""
        ...

    def checkpoint(self, index: int) -> bytes | None:
        """The latest checkpoint of trial `index`, or that of the TRUNK."""
        return None

    def keep(self, index: int, checkpoint: bytes) -> None:
        """Store the latest checkpoint of trial `index`, in place of an earlier one."""
        return

    def reached(self, steps: Callable[[], Mapping[int, int]]) -> None:
        """Take note of the progress of running trials. `steps`: returns trial index -> step; called only if needed."""
        return
