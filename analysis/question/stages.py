"""The stages of a search: the trials that are proposed together, and that bound each other's steps in a race."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

INDEXED_SAMPLERS = ("sobol", "random")
"""Samplers whose point i is a pure function of (seed, i, space)."""
REFINE = "refine"
"""The sampler that proposes trials in rounds: scouts, points that a model of all batch sizes chooses, and screens,
which repeat the best candidates with other seeds."""
STAGE, EARLIER = "stage", "earlier"
"""The trials that bound a trial in a race: all of its stage and the stages before, or (in older studies) those of lower
index."""


def ends(search: Mapping[str, Any], race_over: str) -> tuple[int, ...]:
    """The first trial index after each stage, increasing; empty if each trial is a stage of its own.

    All wanted trials of an indexed search are one stage, and each round of `refine` is one. An adaptive search proposes
    its trials one after another.

    Arguments:
        search: the `search` of a recorded question.
        race_over: STAGE or EARLIER.

    >>> ends({"sampler": "sobol", "trials": 20}, STAGE), ends({"sampler": "tpe", "trials": 20}, STAGE)
    ((20,), ())
    >>> ends({"sampler": "refine", "scouts": 6, "refine": [4, 3], "candidates": 2, "screens": 2}, STAGE)
    (6, 10, 13, 17)
    """
    if search.get("sampler") == REFINE:
        return tuple(accumulate((search["scouts"], *search["refine"], search["candidates"] * search["screens"])))
    if race_over == EARLIER or search.get("sampler") not in INDEXED_SAMPLERS:
        return ()
    return (search["trials"],)
