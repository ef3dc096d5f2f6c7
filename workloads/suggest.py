"""The end of every message about an unknown name: the nearest known one."""

import difflib
from collections.abc import Iterable

CLOSE = 0.61
"""The least likeness of a name that is meant: `bayes` and `cmaes` have 0.6, `crop` and `crop_flip` 0.62."""


def suggest(word: str, known: Iterable[str]) -> str:
    """Text to append: the nearest known name, or all names if there are at most 30."""
    known = sorted(known)
    lower = {name.lower(): name for name in known}  # `adamW` is nearer to `adamw` than to `adam`
    near = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=CLOSE)
    if near:
        return f"; did you mean {lower[near[0]]!r}?"
    return f"; there are: {', '.join(known)}." if len(known) <= 30 else "."
