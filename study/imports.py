"""Imports of large packages without collections of garbage in between."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Import in this block without looking for garbage, which takes a fifth of the time of large packages.

    Later collections, each of which would take 150 ms with torch imported, leave out what exists at the end.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
