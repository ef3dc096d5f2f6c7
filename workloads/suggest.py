"""The end of every message about an unknown name: the nearest known one."""

import difflib
from collections.abc import Iterable

CLOSE = 0.61
"""The least likeness of a name that is meant: `bayes` and `cmaes` have 0.6, `crop` and `crop_flip` 0.62."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that is nearest to a word; None if none is close."""
    lower = {name.lower(): name for name in sorted(known)}  # `adamW` is nearer to `adamw` than to `adam`
    near = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=CLOSE)
    return lower[near[0]] if near else None


def suggest(word: str, known: Iterable[str]) -> str:
    """Text to append: the nearest known name, or all names if there are at most 30."""
    known = sorted(known)
    if (near := nearest(word, known)) is not None:
        return f"; did you mean {near!r}?"
    return f"; there are: {', '.join(known)}." if len(known) <= 30 else "."
