"""The batch size of each update under a batch-size schedule, a pure function of its number.

The batch size grows at points that are counted in examples: a new phase begins with the first update before which as
many examples were seen. It never shrinks.

Symbols: B the first batch size, E the budget in examples, g batch_growth, e the examples seen.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

CONSTANT, LISTED = "constant", "listed"
Point = tuple[float, float]
"""(examples seen, the batch size from there on)."""


@dataclass(frozen=True)
class Phases:
    """The batch size of each update: constant between a few updates at which it changes.

    Attributes:
        starts: the first update of each phase, increasing from 0.
        sizes: the batch size of each phase.
        steps: the updates of the whole budget. Later ones, which only timing makes, have the last size.

    >>> phases = Phases(starts=(0, 10), sizes=(8, 32), steps=15)
    >>> phases.size(9), phases.size(10), phases.examples(10), phases.examples(15), phases.left(7)
    (8, 32, 80, 240, 3)
    >>> phases.phase(9), phases.phase(10)
    (0, 1)
    """

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: int

    @cached_property
    def _seen(self) -> tuple[int, ...]:
        """The examples seen before each phase."""
        lengths = (end - start for start, end in itertools.pairwise(self.starts))
        made = (length * size for length, size in zip(lengths, self.sizes, strict=False))
        return tuple(itertools.accumulate(made, initial=0))

    def phase(self, step: int) -> int:
        """The phase of update number `step`, both from 0."""
        return bisect_right(self.starts, step) - 1

    def size(self, step: int) -> int:
        """The examples in update number `step`."""
        return self.sizes[self.phase(step)]

    def examples(self, step: int) -> int:
        """The examples in all updates before number `step`."""
        phase = self.phase(step)
        return self._seen[phase] + (step - self.starts[phase]) * self.sizes[phase]

    def left(self, step: int) -> float:
        """The updates from number `step` on to the end of its phase; infinite in the last one."""
        following = self.phase(step) + 1
        return self.starts[following] - step if following < len(self.starts) else math.inf


def at_steps(
    first: int, budget: float, *, batch_growth: float, batch_first_switch_fraction: float, batch_switches: float
) -> Iterator[Point]:
    """B g^k after k of n switches, the i-th (from 0) at (f (n - i) + i) E / n examples.

    The points of the learning-rate schedule `step`: drops by 1 / g there keep learning rate / batch size the same.

    Arguments:
        batch_growth: g, at least 1.
        batch_first_switch_fraction: f, in (0, 1].
        batch_switches: n; if it is not whole, it sets the distance, and as many switches are made as fit.

    >>> list(at_steps(8, 1000, batch_growth=4, batch_first_switch_fraction=0.5, batch_switches=2))
    [(500.0, 32), (750.0, 128)]
    """
    share, count = batch_first_switch_fraction, batch_switches
    for i in range(math.ceil(count)):
        yield (share * (count - i) + i) * budget / count, first * batch_growth ** (i + 1)


def ramp(first: int, budget: float, *, batch_growth: float, batch_ramp_fraction: float) -> Iterator[Point]:
    """B (1 + floor(n e / R)), at most g B, with R = fraction x E and n = ceil(g) - 1 increments of B.

    The linear ramp of Smith et al. 2022 and Brown et al. 2020, in the increments of Megatron-LM.

    Arguments:
        batch_growth: g, at least 1.
        batch_ramp_fraction: R / E, in (0, 1].

    >>> list(ramp(8, 1000, batch_growth=3, batch_ramp_fraction=0.5))
    [(250.0, 16), (500.0, 24)]
    """
    count = math.ceil(batch_growth) - 1
    for k in range(1, count + 1):
        yield batch_ramp_fraction * budget * k / count, first * min(k + 1, batch_growth)


def doubling(
    first: int, budget: float, *, batch_first_switch_fraction: float, batch_switch_ratio: float
) -> Iterator[Point]:
    """B 2^(k + 1) from f r^k E examples on, k = 0, 1, ...: with r = 2, b grows as e; with r = 4, as its square root.

    Critical batch sizes grow about as the square root of the data (Zhang et al. 2024, Merrill et al. 2025).

    Arguments:
        batch_first_switch_fraction: f, in (0, 1].
        batch_switch_ratio: r, above 1.

    >>> list(doubling(8, 1000, batch_first_switch_fraction=0.2, batch_switch_ratio=2))
    [(200.0, 16), (400.0, 32), (800.0, 64)]
    """
    place = batch_first_switch_fraction * budget
    for k in itertools.count(1):
        if place >= budget or k > 60:
            return
        yield place, first * 2**k
        place *= batch_switch_ratio


class Kind(NamedTuple):
    """A kind of schedule.

    Attributes:
        points: (B, E, **parameters) -> its points, increasing.
        parameters: name -> the interval of its legal values.
    """

    points: Callable[..., Iterator[Point]]
    parameters: Mapping[str, str]


GROWTH, FRACTION = "[1, inf)", "(0, 1]"
KINDS = {
    CONSTANT: Kind(lambda first, budget: iter(()), {}),
    "step": Kind(
        at_steps, {"batch_growth": GROWTH, "batch_first_switch_fraction": FRACTION, "batch_switches": "[1, inf)"}
    ),
    "ramp": Kind(ramp, {"batch_growth": GROWTH, "batch_ramp_fraction": FRACTION}),
    "doubling": Kind(doubling, {"batch_first_switch_fraction": FRACTION, "batch_switch_ratio": "(1, inf)"}),
    LISTED: Kind(lambda first, budget: iter(()), {}),
}
PARAMETERS = frozenset(name for kind in KINDS.values() for name in kind.parameters)
"""Tuned parameters of batch-size schedules. They enter the batch size and nothing else."""
