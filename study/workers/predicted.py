"""The cost of large batch sizes, predicted for `study plan` from smaller ones instead of measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from study.data.order import places
from study.engine.arithmetic import fused
from study.engine.cost import Cost, parts_of
from study.records import Study
from study.workers.pool import TrialTooLarge, curve_key

LONG = 1.5
"""Seconds; a batch size whose measuring takes longer is predicted."""
UPDATES = {False: 3, True: 30}
"""Whether trials are fused -> about how many updates of one trial measuring makes; heights are checked and timed."""
REACH = 16
"""Only batch sizes up to this many times the largest measured one are measured next: the time of a step grows slowly
up to some batch size, and in proportion to the examples from there on."""
APART = 4
"""Predictions start from two batch sizes at least this factor apart if they can, so that noise does not decide."""
HELPERS = (64, 256)
"""Batch sizes that are measured if a plan with larger ones has fewer than two that are as small."""

Found = Cost | TrialTooLarge


def costs(
    studies: Sequence[Study], measure: Callable[[Sequence[Study]], Sequence[Found]], devices: int = 1
) -> list[Found]:
    """The cost of a trial of each study: measured where that is quick, else predicted from smaller batch sizes.

    A step takes a fixed time and a time for each example.

    Arguments:
        measure: `study.workers.pool.Workers.measure`.
        devices: of a worker.
    """
    groups: dict[str, dict[int, Study]] = {}
    for study in studies:
        groups.setdefault(curve_key(study), {})[study.batch_size] = study
    known: dict[str, dict[int, Found]] = {key: {} for key in groups}
    for key, group in groups.items():  # one after the other: another workload has other data to load
        while asked := _next(group, known[key]):
            known[key] |= zip((study.batch_size for study in asked), measure(asked), strict=True)
    return [
        known[curve_key(study)].get(study.batch_size) or predicted(study, _measured(known[curve_key(study)]), devices)
        for study in studies
    ]


def _next(group: Mapping[int, Study], known: Mapping[int, Found]) -> list[Study]:
    """The studies to measure next: the two smallest, then those that measuring is quick for."""
    some = next(iter(group.values()))
    few = sum(size <= HELPERS[-1] for size in group) < 2 and max(group) > HELPERS[-1]
    helpers = {size: replace(some.constant, batch_size=size, micro_batch=None) for size in HELPERS if few}
    todo = [study for size, study in sorted((helpers | dict(group)).items()) if size not in known]
    measured = _measured(known)
    if len(measured) < 2:
        return todo[: 2 - len(measured)]
    longest = LONG / UPDATES[fused(some)]
    near = [study for study in todo if study.batch_size <= REACH * max(measured)]
    return [study for study in near if predicted(study, measured).step <= longest]


def _measured(known: Mapping[int, Found]) -> dict[int, Cost]:
    return {size: cost for size, cost in known.items() if isinstance(cost, Cost)}


def predicted(study: Study, measured: Mapping[int, Cost], devices: int = 1) -> Cost:
    """The cost of a study by the time of a step at two smaller batch sizes."""
    high = max(measured)
    low = max((size for size in measured if APART * size <= high), default=min(measured))
    each = max(0.0, (measured[high].step - measured[low].step) / (high - low))
    step = measured[high].step + each * (study.batch_size - high)
    parts = parts_of(places(study.batch_size, devices, study.micro_batch), study.batch_size)
    return replace(measured[high], step=step, parts=parts, predicted_from=(low, high))
