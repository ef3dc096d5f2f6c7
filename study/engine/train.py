"""Trials -> curves: train a study, or measure what it costs, by the engine that its arithmetic names."""

from collections.abc import Iterator, Sequence
from functools import partial

from study.data.resident import Data, Source
from study.engine.arithmetic import fused
from study.engine.cost import Cost
from study.engine.lane_count import HEIGHTS, admitted, fastest, fused_cost
from study.engine.lanes import train as train_lanes
from study.engine.serial import Proposals, fitting
from study.engine.serial import train as train_serially
from study.engine.timing import plain_cost
from study.records import Curve, Study
from workloads.base import Workload


def train(
    study: Study, workload: Workload, data: Source, proposals: Proposals, heights: Sequence[int], lanes: int
) -> Iterator[Curve]:
    """Train a study's proposed trials in its recorded arithmetic, `lanes` at once where it fuses them."""
    if not fused(study):
        return train_serially(study, workload, data, proposals)
    assert isinstance(data, Data)
    return train_lanes(study, workload, data, proposals, heights, lanes)


def measure(study: Study, workload: Workload, data: Source, most: int, lanes: int | None = None) -> Cost:
    """What a trial costs with `lanes` lanes, up to the highest admitted height; None: with the number of lanes that is
    fastest among the admitted heights up to `most`."""
    if not fused(study):
        attempt = partial(plain_cost, study, workload, data)
        return fitting(study, workload, data.team, study.micro_batch, attempt)[0]
    assert isinstance(data, Data)
    if lanes is None:
        return fastest(study, workload, data, admitted(study, workload, data, most))
    highest = next(height for height in HEIGHTS if height >= min(lanes, HEIGHTS[-1]))
    heights = list(admitted(study, workload, data, highest))
    return fused_cost(study, workload, data, heights, min(lanes, heights[-1]), {})
