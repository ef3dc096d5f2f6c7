"""The stages of a search: the trials that are proposed together, and that bound each other's steps in a race."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

INDEXED_SAMPLERS = ("sobol", "random")
"""Samplers whose point i is a pure function of (seed, i, space)."""
REFINE = "refine"
"""The sampler that proposes trials in rounds: scouts, points that a model of all batch sizes chooses, and screens,
which repeat the best candidates with other seeds."""
FRESH_SEEDS = "search.reruns=4, or search.confirm=4 with search=refine"
"""What asks for fresh seeds."""
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
    >>> refine = {"sampler": "refine", "scouts": 6, "refine": [4, 3], "candidates": 2, "screens": 2}
    >>> ends(refine, STAGE), ends({**refine, "added": 1}, STAGE)
    ((6, 10, 13, 17), (6, 10, 13, 17, 20, 24))
    """
    if search.get("sampler") == REFINE:
        screens = search["candidates"] * search["screens"]
        added = (*search["refine"][-1:], screens) * search.get("added", 0)
        return tuple(accumulate((search["scouts"], *search["refine"], screens, *added)))
    if race_over == EARLIER or search.get("sampler") not in INDEXED_SAMPLERS:
        return ()
    return (search["trials"],)


def screens(search: Mapping[str, Any], number: int) -> bool:
    """True if stage `number` (from 0) of `refine` screens candidates.

    >>> refine = {"sampler": "refine", "scouts": 6, "refine": [4, 3], "candidates": 2, "screens": 2, "added": 1}
    >>> [number for number in range(6) if screens(refine, number)]
    [3, 5]
    """
    after = number - len(search["refine"])
    return after > 0 and after % 2 == 1
