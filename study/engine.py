"""Which engine trains a study, and how many lanes at once: admitted by their bits, chosen by the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from study.cost import Cost, least_seconds
from study.evaluation import Data
from study.lanes import Lanes
from study.lanes import train as train_lanes
from study.memory import SHARE, device_bytes, out_of_memory
from study.records import Curve, Study, Trial
from study.serial import Proposals, Run
from study.serial import train as train_serially
from study.space import values
from study.tuner import point
from workloads.base import Workload

HEIGHTS = (1, 2, 4, 8, 16, 32, 64)
CHECKED_STEPS = 3
CPU_STACK_BYTES = 2**30
"""Of weights, gradients and optimizer state in one stack; far beyond what a CPU's caches still serve."""
GPU_TOLERANCE = 1e-4


def train(
    study: Study, workload: Workload, data: Data, proposals: Proposals, heights: Sequence[int]
) -> Iterator[Curve]:
    """Train a study's proposed trials in its recorded arithmetic, at most heights[-1] at once."""
    if study.arithmetic == "plain":
        return train_serially(study, workload, data, proposals)
    return train_lanes(study, workload, data, proposals, heights)


def measure(study: Study, workload: Workload, data: Data, most: int) -> Cost:
    """What a trial costs with the stack height that is fastest among the admitted ones up to `most`."""
    run = Run(study, workload, data, _trial(study, 0))
    heights, step = [1], least_seconds(_stepper(run))
    if study.arithmetic != "plain":
        heights, step = _calibrated(study, workload, data, most)
    return Cost(
        step=step,
        validation=least_seconds(lambda: run.log.measure(run.model, "val")),
        others=least_seconds(lambda: [run.log.measure(run.model, split) for split in ("train", "test")]),
        heights=tuple(heights),
    )


def admitted(study: Study, workload: Workload, data: Data, most: int) -> list[int]:
    """Stack heights at which the first and the last row compute what they do in a stack of two.

    On a CPU that means bit for bit; on other devices, whose kernels promise less, to GPU_TOLERANCE. Kernels choose
    their blocking by shape, so this is found out with the real model and batch size, not assumed. Two is the reference,
    since a stack of one (at batch size 1, say) may fall into kernels that no other height uses; a trial alone then has
    an idle row beside it.
    """
    found = []
    reference: dict[int, Tensor] = {}
    for height in HEIGHTS:
        try:
            together = _started(study, workload, data, range(height))
            together.advance(CHECKED_STEPS)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            break  # fewer lanes
        if height > 1 and together.stack.bytes > _most_bytes(data):
            break
        for row in {0, height - 1} - set(reference):
            pair = _started(study, workload, data, [row, row])
            pair.advance(CHECKED_STEPS)
            reference[row] = pair.stack.weights[0]
        if all(_agree(together.stack.weights[row], reference[row]) for row in (0, height - 1)):
            found.append(height)
        if 2 * height > max(most, 2):
            break
    return found or [2]


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


def _calibrated(study: Study, workload: Workload, data: Data, most: int) -> tuple[list[int], float]:
    """(admitted heights up to the fastest, its seconds for one step of one lane)."""
    heights = admitted(study, workload, data, most)
    timed: dict[int, float] = {}
    for height in heights:
        lanes = _started(study, workload, data, range(height))
        timed[height] = least_seconds(partial(lanes.advance, 1), budget=0.1) / height
        if timed[height] > 1.5 * min(timed.values()):
            break
    best = min(timed, key=lambda height: timed[height])
    return [height for height in heights if height <= best], timed[best]


def _started(study: Study, workload: Workload, data: Data, indices: Sequence[int]) -> Lanes:
    lanes = Lanes(study, workload, data, [len(indices)])
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
