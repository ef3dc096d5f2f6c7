"""Imports of large packages without collections of garbage in between."""

import gc
import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Import in this block while no thread looks for garbage, which takes a fifth of the time of large packages.

    Later collections leave out what exists at the end. With torch imported, each would take 150 ms.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def imported_aside(package: str) -> Iterator[Callable[[], None]]:
    """Yields a function that starts to import the package in a thread; on leaving, waits for the end of the import.

    At exit Python would end the thread in the midst of C++ code, and that can abort the process.
    """

    def work() -> None:
        with uncollected():
            importlib.import_module(package)

    thread = threading.Thread(target=work, daemon=True)  # a second Ctrl-C does not wait
    try:
        yield thread.start
    finally:
        if thread.is_alive():
            thread.join()
