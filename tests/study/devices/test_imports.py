"""Blocks of imports without collections of garbage, and imports in a thread."""

import gc
import subprocess
import sys
import threading

import pytest

from study.devices.imports import imported_aside, uncollected


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


def test_an_import_aside_is_over_when_its_block_is(tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with imported_aside("slow_to_import") as begin:
            assert "slow_to_import" not in sys.modules  # nothing is imported before it is asked for
            begin()
        assert not any(thread.name.endswith("(work)") for thread in threading.enumerate())
        assert "slow_to_import" in sys.modules
    finally:
        gc.unfreeze()
        sys.modules.pop("slow_to_import", None)
    with imported_aside("no_such_package"):
        pass
