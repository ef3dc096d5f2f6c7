"""Posts one message at the end of a sweep, or when it fails, to any service that apprise knows."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from study.observers.base import Ended, Observer, Sweep

MISSING = "its package is not installed: pip install 'batch-size-study[notify]'"


class Notify(Observer):
    """Posts one message when the sweep ends, except when a person interrupts it.

    Arguments:
        url: of a service, such as `ntfy://topic` or `mailto://user:password@host`. It may hold a password and is never
            shown.
    """

    name = "notify"

    def __init__(self, url: str) -> None:
        self._url = url

    def begin(self, sweep: Sweep) -> None:
        """Raises ValueError, before hours of training, if the post cannot work."""
        if importlib.util.find_spec("apprise") is None:
            raise ValueError(MISSING)
        self._service()

    def report(self, ended: Ended) -> None:
        if ended.interrupted:
            return
        names = ", ".join(folder.name for folder in ended.results)
        title = f"Sweep failed: {names}" if ended.error else f"Sweep finished: {names}"
        body = ended.error or "\n".join(ended.sentences) or "All trials are on file."
        if not self._service().notify(title=title, body=body):
            raise OSError("the service did not accept the message")

    def _service(self) -> Any:
        service = importlib.import_module("apprise").Apprise()
        if not service.add(self._url):
            raise ValueError(f"notify={self._url.partition(':')[0]}:... is not a URL that apprise can post to")
        return service
