"""When checkpoints of running trials are due, and progress is shown."""

import time
from collections.abc import Callable
from typing import Any

SLICE = 5.0
"""The longest slice [s], after which progress is shown."""


class Pace:
    """Cuts training into slices, so that checkpoints and progress are on time even if evaluations are far apart.

    Arguments:
        minutes: between checkpoints; 0: after every step; None: no checkpoints.
        broadcast: runs a function on rank 0 and returns its result on every rank, so that all ranks use one clock.
    """

    def __init__(
        self, minutes: float | None, broadcast: Callable[[Callable[[], Any]], Any] = lambda call: call()
    ) -> None:
        self.broadcast = broadcast
        self.seconds = None if minutes is None else 60 * minutes
        self.last = time.monotonic()
        self.step = float("inf")
        """Seconds per step in the latest slice; infinite at first, so that the first slice is a single step."""

    def advance(self, advance: Callable[[int], None], most: int) -> None:
        """Make `most` steps, or fewer if a checkpoint is due earlier or they take longer than SLICE.

        Arguments:
            advance: makes the given number of steps.
        """
        start = time.monotonic()
        left = SLICE if self.seconds is None else min(SLICE, self.last + self.seconds - start)
        steps = self.broadcast(lambda: int(min(most, max(1, left / self.step))))
        advance(steps)
        if steps:
            self.step = max(1e-9, (time.monotonic() - start) / steps)

    def due(self) -> bool:
        """Whether a checkpoint is due; if so the clock restarts."""
        if self.seconds is None:
            return False
        now, next_one = time.monotonic(), self.last + self.seconds
        if not self.broadcast(lambda: now >= next_one):
            return False
        self.last = now
        return True
