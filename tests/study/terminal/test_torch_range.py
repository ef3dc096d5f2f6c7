"""A torch outside of the tested range gives one warning, and one inside gives none."""

import io

import pytest
from rich.console import Console

from study import warn

INSIDE, OUTSIDE = ("2.11.0", "2.13.0+cpu", "2.13.0a0+git1"), ("2.14.0+cu130", "2.10.1", "3.0")


@pytest.mark.parametrize("installed", INSIDE + OUTSIDE)
def test_a_torch_outside_of_the_tested_range(monkeypatch, installed):
    monkeypatch.setattr(warn, "version", lambda _: installed)
    said = io.StringIO()
    warn.of_torch(Console(file=said, width=200))
    expected = f"torch {installed} is outside of the tested range" if installed in OUTSIDE else ""
    assert said.getvalue().startswith(expected)
    assert bool(said.getvalue()) is bool(expected)
