"""The trials of a search that this process trains, as a queue for workers (`study.workers.dispatch.Queue`)."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import cast

from study import store
from study.config.code_fingerprint import code_of_command
from study.engine.trial import checkpoints
from study.errors import Failed
from study.records import COMMAND, Curve, Trial
from study.search.tuner import Tuner
from study.store.claims import WHOLE, Claim, Shard
from study.store.curves import Reader
from study.training.provenance import provenance
from study.training.search import SearchRun, Watcher
from study.workers.pool import Workers
from workloads.command import Command
from workloads.user_code.importing import build

POLL = 2.0
"""Seconds between two reads of the trials of other processes."""


class Part:
    """A claimed shard of a search, with the trials on file and those under way.

    Attributes:
        folder: of the search.
        checkpoints: trial index -> latest checkpoint of the trials under way.
    """

    def __init__(self, search: SearchRun, claim: Claim, workers: Workers, watcher: Watcher) -> None:
        study, shard = search.study, claim.shard
        self.study, self.claim = study, claim
        self._search, self._watcher = search, watcher
        self.folder = store.study_folder(search.results, study)
        self._record = store.open_study(search.results, study, provenance(search, workers, shard))
        self.checkpoints = store.Checkpoints(self.folder, shard, store.start_file(search.results, study))
        reader = Reader(self.folder)
        finished = reader.new()
        under_way = checkpoints.trials(self.checkpoints)
        others = _at_intervals(reader.new, shard)
        self.tuner = Tuner(study, finished, under_way, search.storage, shard, others, search.points)
        self._unfinished = {curve.trial.index for curve in finished} - self.tuner.outcomes.keys()
        self._spent: Counter[str] = Counter(doubled_trials=0)
        """Seconds of the trials trained here, and the number of duplicate trials."""
        self._under_way = 0
        self._changed: list[str] = []
        """The files of a command that changed since the sweep began, so that no further trial begins."""
        self._words = cast(Command, build(study.workload)).words if study.arithmetic == COMMAND else ()

    def ask(self) -> Trial | None:
        if self._words and self.begins_more and self._other_code():
            return None  # trials under way end, and are kept
        trial = self.tuner.ask()
        self._under_way += trial is not None
        return trial

    def _other_code(self) -> bool:
        """Whether the code of a command is not the recorded one: each trial reads it as it is then."""
        if held := self._search.fingerprint:
            now = code_of_command(self._words)
            differ = [key for key in sorted({*held, *now} - {"code"}) if held.get(key) != now.get(key)]
            self._changed = [key.removeprefix("code ") for key in differ]
        return bool(self._changed)

    def refuse_changes(self) -> None:
        """Raise Failed if the code of a command changed, so that its other trials did not begin."""
        if self._changed:
            raise Failed(
                f"the code of {self.study.name} changed while it trained ({', '.join(self._changed)}). "
                "Finished trials are kept: undo the change and repeat the same command, train on beside these "
                "trials with --mix, or choose another results=DIR."
            )

    @property
    def learns(self) -> bool:
        return self.tuner.learns

    def step_limit(self, index: int) -> int:
        return self.tuner.step_limit(index)

    def keep(self, curve: Curve) -> None:
        """Write a finished trial and tell the tuner."""
        self.claim.check()
        replaces = curve.trial.index in self._unfinished
        self._spent["doubled_trials"] += not store.save(self.folder, curve, replaces=replaces)
        self._spent.update({f"seconds_{what}": seconds for what, seconds in curve.seconds.items()})
        self.tuner.tell(curve)
        if self._search.pool:
            self._search.pool.add(self.study.batch_size, curve)
        self._under_way -= 1
        self._watcher.trial(self._search, self.tuner, curve)

    def reached(self, steps: Mapping[int, int]) -> None:
        """Trials under way have reached these steps."""
        self._watcher.tick(self._search, steps)

    @property
    def over(self) -> bool:
        """True if all trials of the shard have ended."""
        shard = self.claim.shard
        done = shard != WHOLE and self.tuner.next_index(shard) is None
        return self._under_way == 0 and (done or self.tuner.complete)

    @property
    def begins_more(self) -> bool:
        """Whether a trial can begin now."""
        return self.tuner.next_index(self.claim.shard) is not None

    def end(self) -> None:
        """Record the end of the run."""
        spent = {what: round(amount, 3) for what, amount in self._spent.items()}
        store.end_run(self._record, {"ended": store.now(), **spent})


def _at_intervals(read: Callable[[], list[Curve]], shard: Shard) -> Callable[[], list[Curve]]:
    """Limit `read`, which returns the curves of other processes, to one call per POLL seconds; never call it if the
    shard is the whole search, because then no other process trains it."""
    last = time.monotonic()

    def news() -> list[Curve]:
        nonlocal last
        if shard == WHOLE or time.monotonic() < last + POLL:
            return []
        last = time.monotonic()
        return read()

    return news
