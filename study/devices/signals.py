"""How processes end: blocks that postpone or ignore Ctrl-C, and orphans that exit after their parent."""

import multiprocessing as mp
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def postponed() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of this block instead of inside it.

    Needed for compiled code that swallows exceptions and continues with partial results. Python interrupts only the
    main thread; in other threads this does nothing.
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
    """Processes started in this block ignore Ctrl-C, even while they import; their parent handles it.

    Only the main thread can tell them so; in other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def die_with(parent: int) -> None:
    """Start a thread that ends this process soon after its parent died: a restarted sweep must not meet orphans."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def die_with_pool() -> None:
    """`die_with` for a process of a pool: it watches the process that asked for it, not the server that forked it."""
    parent = mp.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
