"""A sweep that is killed again and again ends as one that was left in peace; `benchmarks.chaos` does it more often."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import chaos


@pytest.mark.slow
def test_others_take_over_what_the_killed_leave(tmp_path: Path) -> None:
    survived = chaos.crowd(processes=4, kills=2, folder=tmp_path)
    assert survived.kills >= 1
    assert survived[1:] == (0, 0, [])


@pytest.mark.slow
def test_kills_change_nothing(tmp_path: Path) -> None:
    survived = chaos.survive(kills=5, folder=tmp_path)
    assert survived.kills >= 4
    assert survived[1:] == (0, 0, [])
