"""Which engine trains a study, and how many lanes at once: admitted by their bits, chosen by the clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from study.cost import Cost, least_seconds
from study.evaluation import EVALUATION_CHUNK, Data, Log
from study.evaluation import measure as measure_errors
from study.lanes import Lanes
from study.lanes import train as train_lanes
from study.memory import SHARE, device_bytes, out_of_memory
from study.records import Curve, Study, Trial
from study.serial import Proposals, Run, fitting
from study.serial import train as train_serially
from study.space import values
from study.tuner import point
from workloads.base import Workload

HEIGHTS = (1, 2, 4, 8, 16, 32, 64)
CHECKED_STEPS = 3
CPU_STACK_BYTES = 2**30
"""Of weights, gradients and optimizer state in one stack; far beyond what a CPU's caches still serve."""
GPU_TOLERANCE = 1e-4
TIMED_SECONDS = 0.02
WORTH = 1.04
"""How much slower than the fastest stack a lower one may be and still be preferred."""


def train(
    study: Study, workload: Workload, data: Data, proposals: Proposals, heights: Sequence[int], lanes: int
) -> Iterator[Curve]:
    """Train a study's proposed trials in its recorded arithmetic, `lanes` at once where it fuses them."""
    if study.arithmetic == "plain":
        return train_serially(study, workload, data, proposals)
    return train_lanes(study, workload, data, proposals, heights, lanes)


def measure(study: Study, workload: Workload, data: Data, most: int, lanes: int | None = None) -> Cost:
    """What a trial costs with the number of lanes that is fastest among the admitted heights up to `most`.

    `lanes` forces their number, as far as a height for it is admitted.
    """
    if study.arithmetic == "plain":
        return fitting(study, study.micro_batch, lambda size: _plain_cost(study, workload, data, size))[0]
    heights: Sequence[int]
    if lanes is not None:
        heights = admitted(study, workload, data, next(h for h in HEIGHTS if h >= min(lanes, HEIGHTS[-1])))
        lanes = min(lanes, heights[-1])
        fused, step = _timed(study, workload, data, heights, lanes)
    else:
        heights, fused, step = _fastest(study, workload, data, admitted(study, workload, data, most))
        lanes = heights[-1]
    return _cost(fused.lanes[0].log, step, fused.predictor(range(lanes)), heights, lanes)


def admitted(study: Study, workload: Workload, data: Data, most: int) -> list[int]:
    """Stack heights up to `most` at which the first and the last row compute what they do in a stack of two.

    On a CPU that means bit for bit, after some updates and in an evaluation; on other devices, whose kernels promise
    less, to GPU_TOLERANCE. Kernels choose their blocking by shape, so this is found out with the real model and batch
    size, not assumed. Two is the reference, since a stack of one (at batch size 1, say) may fall into kernels that no
    other height uses; a trial alone then has an idle row beside it.
    """
    found = []
    reference: dict[int, Tensor] = {}
    for height in HEIGHTS:
        if height > max(most, 2):
            break
        try:
            rows = {0, height - 1}
            together = _computed(study, workload, data, range(height), rows)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            break  # fewer lanes
        if together is None:
            break
        for row in rows - set(reference):
            pair = _computed(study, workload, data, [row, row], {0})
            assert pair is not None
            reference[row] = pair[0]
        if all(_agree(together[row], reference[row]) for row in rows):
            found.append(height)
    return found or [2]


def _computed(
    study: Study, workload: Workload, data: Data, indices: Sequence[int], rows: Collection[int]
) -> dict[int, Tensor] | None:
    """Weights and outputs of these rows after some updates of these trials together; None: too large a stack."""
    lanes = _started(study, workload, data, indices)
    if len(indices) > 2 and lanes.stack.bytes > _most_bytes(data):
        return None
    lanes.advance(CHECKED_STEPS)
    inputs = data.as_model_wants(data.evaluated["val"][0][:EVALUATION_CHUNK])
    with torch.no_grad():
        outputs = lanes.predictor(range(len(indices)))(inputs)
    return {row: torch.cat([lanes.stack.weights[row], outputs[row].flatten()]) for row in rows}


def lanes_can(study: Study, workload: Workload, data: Data) -> bool:
    """Whether two lanes of this model can take a step: `vmap` refuses randomness, unused parameters and much else."""
    try:
        _started(replace(study, batch_size=2), workload, data, range(2)).advance(1)
    except (RuntimeError, ValueError, KeyError, TypeError, NotImplementedError):
        return False
    return True


def _agree(a: Tensor, b: Tensor) -> bool:
    if a.device.type != "cpu":
        return torch.allclose(a, b, rtol=GPU_TOLERANCE, atol=GPU_TOLERANCE, equal_nan=True)
    # As integers, NaN equals itself and the two zeros differ.
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def _most_bytes(data: Data) -> float:
    device = data.inputs.device
    return CPU_STACK_BYTES if device.type == "cpu" else SHARE * device_bytes(str(device))


def _fastest(
    study: Study, workload: Workload, data: Data, heights: Sequence[int]
) -> tuple[Sequence[int], Lanes, float]:
    """(heights up to the fastest, lanes of that height, seconds of one of its lanes for a step)."""
    timed: dict[int, tuple[Lanes, float]] = {}
    for height in heights:
        timed[height] = _timed(study, workload, data, [height], height)
        if timed[height][1] > 1.5 * min(seconds for _, seconds in timed.values()):
            break
    least = min(seconds for _, seconds in timed.values())
    # Higher stacks cost memory and a longer tail, so they must be worth it.
    best = next(height for height in timed if timed[height][1] <= WORTH * least)
    return [height for height in heights if height <= best], *timed[best]


def _timed(study: Study, workload: Workload, data: Data, heights: Sequence[int], lanes: int) -> tuple[Lanes, float]:
    """(lanes under way, seconds of one of them for a step)."""
    fused = _started(study, workload, data, range(lanes), heights)
    once = least_seconds(partial(fused.advance, 1), budget=0)
    steps = max(1, min(32, int(TIMED_SECONDS / once)))
    return fused, least_seconds(partial(fused.advance, steps), budget=3 * TIMED_SECONDS) / steps / lanes


def _plain_cost(study: Study, workload: Workload, data: Data, micro_batch: int | None) -> Cost:
    run = Run(study, workload, data, _trial(study, 0), micro_batch)
    return _cost(run.log, least_seconds(_stepper(run)), run.predict)


def _cost(
    log: Log, step: float, predict: Callable[[Tensor], Tensor], heights: Sequence[int] = (1,), lanes: int = 1
) -> Cost:
    def evaluation(*splits: str) -> float:
        return least_seconds(lambda: [measure_errors(log, split, predict) for split in splits]) / lanes

    return Cost(step, evaluation("val"), evaluation("train", "test"), tuple(heights), lanes)


def _started(
    study: Study, workload: Workload, data: Data, indices: Sequence[int], heights: Sequence[int] | None = None
) -> Lanes:
    lanes = Lanes(study, workload, data, heights or [len(indices)], len(indices))
    for index in indices:
        lanes.start(_trial(study, index))
    return lanes


def _trial(study: Study, index: int) -> Trial:
    return study.trial(index, values(study.search.space, point(study, index)))


def _stepper(run: Run) -> Callable[[], None]:
    def step() -> None:
        run.update().item()  # waits for the device
        run.step += 1

    return step
