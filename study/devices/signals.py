"""How processes end: interrupts, blocks that postpone or ignore them, and orphans that exit after their parent."""

import multiprocessing as mp
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

OF_TERMINALS = (signal.SIGINT, signal.SIGHUP)
"""Signals that a terminal sends to all processes of a command: Ctrl-C, and that it closes."""


def interrupt(number: int, _: FrameType | None) -> NoReturn:
    """A signal handler that does what Ctrl-C does. After a terminal closed, nothing more is written to it."""
    if number == signal.SIGHUP:
        signal.signal(number, signal.SIG_IGN)  # a shell and the kernel may both send it
        for output in (1, 2):
            _leave_closed_terminal(output)
    raise KeyboardInterrupt


def _leave_closed_terminal(output: int) -> None:
    """Let what is written to this file descriptor vanish if it is a terminal that closed, where writing fails."""
    with suppress(OSError):  # there is no such output
        if stat.S_ISCHR(os.fstat(output).st_mode) and not os.isatty(output):
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)


@contextmanager
def postponed() -> Iterator[None]:
    """Let signals that interrupt do so at the end of this block instead of inside it.

    Needed for compiled code that swallows exceptions and continues with partial results. Python interrupts only the
    main thread; in other threads this does nothing.
    """
    came: list[int] = []
    with _answered((*OF_TERMINALS, signal.SIGTERM), lambda number, _: came.append(number)):
        yield
    for number in came:
        signal.raise_signal(number)


@contextmanager
def ignored() -> Iterator[None]:
    """Processes started in this block ignore what a terminal sends, even while they import; their parent handles it.

    Only the main thread can tell them so; in other threads this does nothing.
    """
    with _answered(OF_TERMINALS, signal.SIG_IGN):
        yield


@contextmanager
def _answered(
    numbers: Sequence[int], handler: Callable[[int, FrameType | None], object] | signal.Handlers
) -> Iterator[None]:
    """In this block, answer these signals so. Does nothing in other threads than the main one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Python does not know a handler in C (None), and could not restore it.
    before = {number: signal.signal(number, handler) for number in numbers if signal.getsignal(number) is not None}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


def tell_of_threads(say: Callable[[str], object], seconds: float = 3.0) -> None:
    """Say which threads this process waits for at its end, if they have not ended by then: Python waits for ever."""
    own = threading.main_thread()

    def tell() -> None:
        time.sleep(seconds)
        left = [each.name for each in threading.enumerate() if each is not own and not each.daemon and each.is_alive()]
        if left:
            say(
                f"the command is done, but your code still runs {', '.join(left)}: let the thread end, or start it "
                "with daemon=True; Ctrl-C ends the command."
            )

    threading.Thread(target=tell, daemon=True).start()


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
