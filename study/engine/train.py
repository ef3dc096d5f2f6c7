"""Trials -> curves: train a study, or measure its cost, with the engine of its arithmetic."""

from collections.abc import Iterator, Sequence
from functools import partial

from study.data.resident import Data, Source
from study.devices import precision
from study.engine.arithmetic import fused
from study.engine.cost import Cost
from study.engine.lane_count import HEIGHTS, admitted_at_all, affordable, fastest, fused_cost, on_gpu
from study.engine.lanes import train as train_lanes
from study.engine.serial import fitting
from study.engine.serial import train as train_serially
from study.engine.timing import plain_cost
from study.engine.trial.proposals import Proposals
from study.records import Curve, Study
from workloads.base import Workload


def train(
    study: Study,
    workload: Workload,
    data: Source,
    proposals: Proposals,
    heights: Sequence[int],
    lanes: int,
    compiled: bool = False,
) -> Iterator[Curve]:
    """Train proposed trials in the study's arithmetic. `heights` (admitted stack heights), `lanes` (trials at once)
    and `compiled` (whether their update is) matter only if it fuses trials."""
    precision.settle(study.precision)
    if not fused(study):
        return train_serially(study, workload, data, proposals)
    assert isinstance(data, Data)
    return train_lanes(study, workload, data, proposals, heights, lanes, compiled)


def measure(
    study: Study,
    workload: Workload,
    data: Source,
    most: int,
    lanes: int | None = None,
    neighbour: Cost | None = None,
) -> Cost:
    """Measure the cost of a trial.

    Arguments:
        most: the greatest number of lanes to try; `study.engine.lane_count.REFERENCE` if that is more.
        lanes: measure with this number of lanes, or with the highest admitted stack height if that is lower; None: with
            the fastest number of lanes.
        neighbour: the cost at another batch size in the same arithmetic: the search for the fastest number of lanes
            starts from its own, and an evaluation of one model takes as long as there.
    """
    grows, study = study, study.constant  # steps of the first batch size are timed
    precision.settle(study.precision)
    if not fused(study):
        attempt = partial(plain_cost, study, workload, data, neighbour=neighbour)
        return fitting(study, workload, data.team, study.micro_batch, attempt)[0]
    assert isinstance(data, Data)
    if data.device.type != "cpu":
        return on_gpu(study, workload, data, lanes or most, forced=lanes is not None)
    if lanes is None:
        start = None if neighbour is None else neighbour.lanes
        return fastest(study, workload, data, admitted_at_all(grows, workload, data, most, affordable(study)), start)
    highest = next(height for height in HEIGHTS if height >= min(lanes, HEIGHTS[-1]))
    heights = list(admitted_at_all(grows, workload, data, highest))
    return fused_cost(study, workload, data, heights, min(lanes, heights[-1]), {})
