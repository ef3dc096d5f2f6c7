"""What to train, and who is told of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from study.records import Curve, Study
from study.search.optuna_storage import Storage
from study.search.rounds import Point, Pool
from study.search.tuner import Tuner


@dataclass(frozen=True)
class SearchRun:
    """One search to train, and how to train it.

    Attributes:
        command: recorded with the results.
        storage: of Optuna's trials; None: in memory.
        shards: number of shards of the trials; different processes can train different shards.
        first_shard: the shard that this process tries to take first.
        fingerprint, notes: of the workload, as in `study.config.jobs.Job`; recorded with the results.
        pool: with `search=refine`, proposes the points of the trials.
    """

    study: Study
    results: Path
    command: str = ""
    storage: Storage | None = None
    shards: int = 1
    first_shard: int = 0
    fingerprint: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    pool: Pool | None = None

    def points(self) -> Sequence[Point]:
        """The points of the trials by index, up to the first unknown one; empty if the tuner finds them itself."""
        return self.pool.points(self.study.batch_size) if self.pool else ()


class Watcher:
    """Is told how searches go on. This one does nothing: override what is of interest."""

    def search(self, search: SearchRun, tuner: Tuner) -> None:
        """The trials of a search on file, before it trains here and when it is complete."""

    def trial(self, search: SearchRun, tuner: Tuner, curve: Curve) -> None:
        """A trial of a search has ended; the tuner knows it."""

    def tick(self, search: SearchRun, steps: Mapping[int, int]) -> None:
        """Trials under way have reached these steps: trial index -> step. Called every second or so for each worker."""
