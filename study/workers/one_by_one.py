"""Trials whose data or batch sizes differ train one after another: lanes share one data set and one batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from study.records import Study, Trial

if TYPE_CHECKING:
    from study.engine.trial.proposals import Proposals


def by_data(study: Study, proposals: Proposals) -> Iterator[tuple[Study, Proposals]]:
    """(the study with the data and batch sizes of some trials, the proposals of these trials): all together, or each
    trial alone if it has its own. Each part must be trained before the next one is taken."""
    if not study.differs_by_trial:
        yield study, proposals
        return
    while (trial := proposals.ask(wait=True)) is not None:
        yield study.of_trial(trial), Alone(trial, proposals)


class Alone:
    """Proposes one trial and passes all other calls on to the proposals that it came from."""

    def __init__(self, trial: Trial, others: Proposals) -> None:
        self._trial: Trial | None = trial
        self._others = others
        self.pace = others.pace

    def ask(self, wait: bool) -> Trial | None:
        """The trial, once."""
        trial, self._trial = self._trial, None
        return trial

    def train_at_once(self, lanes: int) -> None:
        """Do nothing: one trial trains at a time."""

    def step_limit(self, index: int) -> int:
        return self._others.step_limit(index)

    def checkpoint(self, index: int) -> bytes | None:
        return self._others.checkpoint(index)

    def keep(self, index: int, checkpoint: bytes) -> None:
        self._others.keep(index, checkpoint)

    def reached(self, steps: Callable[[], Mapping[int, int]]) -> None:
        self._others.reached(steps)
