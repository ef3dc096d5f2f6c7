"""The observers of a sweep that the command line chose: trackers and a notification."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from study.observers.background import Background
from study.observers.base import Ended, Guarded, Observer, Sweep
from study.observers.notify import Notify
from study.observers.trackers.base import Tracker

if TYPE_CHECKING:
    from study.config.jobs import Job
    from study.records import Study


class Told(Guarded):
    """The chosen observers. They also learn of the trials on file, because a tracker may have missed some.

    Arguments:
        studies: results folder and study of the trials on file that observers learn of.
        command: of the sweep.

    Attributes:
        sentences: the findings, reported at the end.
    """

    def __init__(
        self,
        observers: Sequence[Observer],
        warn: Callable[[str], None],
        studies: Sequence[tuple[Path, Study]],
        command: str,
    ) -> None:
        super().__init__(observers, warn)
        self._studies, self._command = studies, command
        self._begun = False
        self.sentences: Sequence[str] = ()

    def begin(self, sweep: Sweep) -> None:
        from study.observers.followed import Followed

        super().begin(sweep)
        if not self._begun:
            self._begun = True
            Followed(self._studies, self).look()

    def report(self, ended: Ended) -> None:
        if not (self._begun or ended.interrupted or ended.error is not None) and self.has_left:
            self.begin(Sweep(self._command, ()))
        super().report(ended)


@contextmanager
def told(jobs: Sequence[Job], command: str, console: Console) -> Iterator[Told]:
    """The observers that a sweep of these jobs asks for. The end of the block reports the end of the sweep."""
    from study import store

    options, results = jobs[0].options, list(dict.fromkeys(job.results for job in jobs))
    warn = partial(console.print, style="yellow", markup=False)
    chosen: list[Observer] = []
    if options.track:
        identities = {folder: store.identity(folder) for folder in results}
        studies = [(job.results, job.study.name, job.study.series, job.study.batch_size) for job in jobs]
        trackers = [Tracker(name, identities, options.track_trials, studies) for name in options.track]
        chosen += [Background(tracker, warn) for tracker in trackers]
    if options.notify:
        chosen.append(Notify(options.notify))
    on_file = [(job.results, job.study) for job in jobs] if options.track else []
    observers = Told(chosen, warn, on_file, command)
    try:
        yield observers
    except KeyboardInterrupt:
        observers.report(Ended(results, interrupted=True))
        raise
    except Exception as error:
        observers.report(Ended(results, error=str(error)))
        raise
    observers.report(Ended(results, observers.sentences))


def without_secrets(command: str) -> str:
    """The command as it is recorded: without `notify=`, whose URL may hold a password. A call from Python, such as
    `study.sweep(...)`, is recorded without it (`study.library.calls`).

    >>> without_secrets("python -m study sweep 'notify=mailto://me:secret@host' batch_size=64")
    'python -m study sweep batch_size=64'
    """
    if command.startswith("study."):
        return command
    return shlex.join(word for word in shlex.split(command) if not word.lstrip("+").startswith("notify="))
