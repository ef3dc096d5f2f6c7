"""Where the ticks of a log axis go, and how they read."""

from collections.abc import Callable, Sequence
from math import ceil, floor, log2, log10

Ticks = Callable[[float, float, int], Sequence[float]]


def powers_of_two(low: float, high: float, most: int) -> list[int]:
    """Powers of two in [low, high], evenly spaced, at most `most`: 1, 2, 4, ... or 1, 4, 16, ...

    >>> powers_of_two(3, 300, most=4)
    [4, 16, 64, 256]
    """
    exponents = range(max(0, ceil(log2(low))), floor(log2(high)) + 1)
    strides = ([2**e for e in exponents if e % stride == 0] for stride in range(1, len(exponents) + 2))
    return next(ticks for ticks in strides if len(ticks) <= max(1, most))


def round_decimals(low: float, high: float, most: int) -> list[float]:
    """At most `most` round numbers in [low, high]: 1, 2, 5, 10, or 1, 3, 10, or powers of ten.

    >>> round_decimals(0.03, 2, most=6), round_decimals(0.03, 2, most=4)
    ([0.05, 0.1, 0.2, 0.5, 1.0, 2.0], [0.03, 0.1, 0.3, 1.0])
    """
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    choices = [((1, 2, 5), 1), ((1, 3), 1), *(((1,), stride) for stride in range(1, len(decades) + 2))]
    strides = (
        [v for d in decades if d % stride == 0 for m in mantissas if low <= (v := float(f"{m}e{d}")) <= high]
        for mantissas, stride in choices
    )
    return next(ticks for ticks in strides if len(ticks) <= max(1, most))


def in_binary(count: int) -> str:
    """A power of two with k = 1,024 and M = 1,048,576.

    >>> in_binary(512), in_binary(32768), in_binary(2**21)
    ('512', '32k', '2M')
    """
    size, unit = next((each for each in ((2**20, "M"), (2**10, "k")) if count >= each[0]), (1, ""))
    return f"{count / size:g}{unit}"
