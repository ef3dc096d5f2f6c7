"""When a process ends: Ctrl-C held back where it would do harm, and orphans that follow their parents."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def postponed() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of this block instead of inside it; only the main thread is ever interrupted.

    For calls into compiled code that swallows an exception and goes on with what it has.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came and before is not signal.SIG_IGN:
        raise KeyboardInterrupt


@contextmanager
def ignored() -> Iterator[None]:
    """Processes started in this block never see Ctrl-C, not even while they import: it is the parent's to handle."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def die_with(parent: int) -> None:
    """From now on, end this process soon after its parent is dead: a restart must never race orphans."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
