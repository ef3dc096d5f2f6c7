"""A sweep that is killed again and again ends as one that was left in peace; `benchmarks.chaos` does it more often."""

from functools import partial

import pytest

from benchmarks import chaos


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sweep", "kills"),
    [
        (chaos.relay, 3),
        pytest.param(partial(chaos.crowd, 4), 2, marks=pytest.mark.release),
        pytest.param(partial(chaos.relay, command=chaos.refined, processes=2), 4, marks=pytest.mark.release),
        pytest.param(
            partial(chaos.relay, command=chaos.refined, processes=2, cluster="local"), 3, marks=pytest.mark.release
        ),
    ],
    ids=["one process", "a crowd", "in rounds", "in rounds, by jobs"],
)
def test_kills_change_nothing(sweep, kills, tmp_path):
    survived = sweep(kills, folder=tmp_path)
    assert survived.kills >= 1  # a fast machine may end the sweep before the last ones
    assert survived[1:] == (0, 0, [])
