"""Training is cut into slices, so that checkpoints and progress are on time."""

from types import SimpleNamespace

import pytest

from study.engine.trial import pace
from study.engine.trial.pace import Pace


@pytest.mark.parametrize(
    ("minutes", "seconds_per_step", "slices"),
    [
        (None, 0.001, [1, 4999]),  # too short to be noticed
        (None, 1.0, [1, *[5] * 999, 4]),  # progress is shown after each slice
        (10, 0.0001, [1, 4999]),
        (10, 0.01, [1, *[500] * 9, 499]),
        (10, 700.0, [1] * 5000),
        (0, 1.0, [1] * 5000),
    ],
)
def test_training_is_cut_where_the_time_comes(monkeypatch, minutes, seconds_per_step, slices):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)  # only training moves it
    monkeypatch.setattr(pace, "time", clock)
    cut, made, due = Pace(minutes), [], []

    def advance(steps: int) -> None:
        clock.now += steps * seconds_per_step
        made.append(steps)

    while sum(made) < 5000:
        cut.advance(advance, 5000 - sum(made))
        if cut.due():
            due.append(clock.now)
    assert made == slices
    assert len(due) == (5000 if slices[1] == 1 else 0)


def test_a_checkpoint_is_on_time_between_slices(monkeypatch):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(pace, "time", clock)
    cut, due = Pace(10), []
    for _ in range(1000):
        cut.advance(lambda steps: setattr(clock, "now", clock.now + 1.0 * steps), 10**6)
        if cut.due():
            due.append(clock.now)
    assert due == [600.0 * (i + 1) for i in range(len(due))]
    assert len(due) >= 8
