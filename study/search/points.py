"""Points of indexed searches: pure functions of the search seed and an index."""

from functools import lru_cache

import numpy as np

from study.devices import signals
from study.records import Study


def point(study: Study, index: int) -> list[float]:
    """Point `index` of the search in the unit cube [D]: a pure function of (search seed, batch size, branch, index,
    sampler, D). In a branch, whose space has choices alone, the points take turns."""
    if study.start is not None:
        return _turn(study, index)
    dimensions, seed = len(study.search.space), study.seeds.search
    if study.seed_key:  # each batch size, stage and repetition has its own sequence
        seed = study.seeds.of("search", 0, study.seed_key)
    if study.search.sampler == "random":
        return np.random.default_rng((seed, index)).random(dimensions).tolist()
    return _sobol(seed, dimensions, max(6, index.bit_length()))[index].tolist()


def _turn(study: Study, index: int) -> list[float]:
    """The middle of each choice of point `index` among all points of a space without ranges [D]."""
    unit, left = [], index % study.search.configurations
    for dimension in study.search.space.values():
        assert dimension.choices is not None
        left, choice = divmod(left, len(dimension.choices))
        unit.append((choice + 0.5) / len(dimension.choices))
    return unit


@lru_cache(maxsize=8)
def _sobol(seed: int, dimensions: int, log2_points: int) -> np.ndarray:
    """The first 2^m points [2^m, D] of a scrambled Sobol sequence (Owen 1998), m = `log2_points`. Sequences of one seed
    and several lengths have the same prefix."""
    from scipy.stats import qmc  # takes a second to import

    # SciPy loads its direction numbers at first use. If Ctrl-C interrupts this, SciPy continues without them and every
    # point is the same.
    with signals.postponed():
        sequence = qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(seed))
    return np.asarray(sequence.random_base2(log2_points))
