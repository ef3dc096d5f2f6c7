"""Who is told of a sweep besides the terminal: trackers and a notification, as the command line chose them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from study.observers.aside import Aside
from study.observers.base import Ended, Guarded, Observer
from study.observers.notify import Notify
from study.observers.trackers.base import Tracker

if TYPE_CHECKING:
    from study.config.jobs import Job


class Told(Guarded):
    """The chosen observers. `sentences`: the findings, which they are told at the end."""

    sentences: Sequence[str] = ()


@contextmanager
def told(jobs: Sequence[Job], console: Console) -> Iterator[Told]:
    """The observers that a sweep of these jobs asks for; they are told of its end when the block ends."""
    from study import store

    results = list(dict.fromkeys(job.results for job in jobs))
    warn = partial(console.print, style="yellow", markup=False)
    chosen: list[Observer] = []
    if jobs[0].track:
        identities = {folder: store.identity(folder) for folder in results}
        studies = [(job.results, job.study.name, job.study.series, job.study.batch_size) for job in jobs]
        trackers = [Tracker(name, identities, jobs[0].track_trials, studies) for name in jobs[0].track]
        chosen += [Aside(tracker, warn) for tracker in trackers]
    if jobs[0].notify:
        chosen.append(Notify(jobs[0].notify))
    observers = Told(chosen, warn)
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
