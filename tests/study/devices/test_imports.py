"""Blocks of imports without collections of garbage."""

import gc
import subprocess
import sys

import pytest

from study.devices.imports import uncollected


def test_no_garbage_is_looked_for_until_the_end_even_after_an_error():
    looked = []

    def fails():
        with uncollected():
            looked.append(gc.isenabled())
            raise ImportError

    with pytest.raises(ImportError):
        fails()
    assert (looked, gc.isenabled()) == ([False], True)
    gc.unfreeze()


def test_what_was_imported_is_left_out_of_later_collections():
    program = """
import gc
from study.devices.imports import uncollected
with uncollected():
    import numpy
assert gc.get_freeze_count() > 10_000 > len(gc.get_objects()), (gc.get_freeze_count(), len(gc.get_objects()))
"""
    subprocess.run([sys.executable, "-c", program], check=True)
