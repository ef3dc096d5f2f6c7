"""How many lanes at once: stack heights are admitted by their bits, and chosen among by the clock."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from study.data.resident import EVALUATION_CHUNK, Data
from study.devices.memory import SHARE, device_bytes, unless_out_of_memory
from study.engine import timing
from study.engine.arithmetic import ARITHMETICS
from study.engine.cost import Cost
from study.records import Study
from workloads.base import Workload

T = TypeVar("T")

HEIGHTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

REFERENCE = 4
"""The stack height whose bits are those of the study; higher ones were always found to agree with it."""

CHECKED_STEPS = 3

CPU_STACK_BYTES = 2**28
"""Of weights, gradients and optimizer state in one stack; far beyond what a CPU's caches still serve."""

SLOWEST = 1e-12
"""The least part of the usual learning rate that is tried for a few steps that stay finite."""

GPU_TOLERANCE = 1e-2
"""How far rows of a stack may lie apart on other devices than CPUs, as a part of how far updates moved them. A sign
that rounding turns moves a weight by twice the learning rate, and must not matter; a row that went astray must."""

WORTH = 1.04
"""How much slower than the fastest stack a lower one may be and still be preferred: it needs less memory."""

GIVE_UP = 1.25
"""How much slower than the fastest so far a stack may be before higher ones are not tried any more; nor are they where
two in a row gained less than WORTH."""


def admitted(study: Study, workload: Workload, data: Data, most: int) -> Iterator[int]:
    """Stack heights up to `most` whose rows all compute what the first row of the reference stack computes.

    On a CPU that means bit for bit, after some updates and in an evaluation; on other devices, whose kernels promise
    less, to GPU_TOLERANCE. Kernels choose their blocking by shape and by where in a cache line a row begins, so this is
    found out with the real model and batch size, not assumed. Lower stacks than the reference (a matrix times a vector,
    groups of few channels) may fall into kernels that no other height uses; then a trial alone has idle rows beside it.
    Where not even rows of one stack agree, trials are trained one at a time; so are they where another device than a
    CPU, which needs no reference of bits, has no room for one.
    """
    compute = partial(_computed, study, workload, data)
    alike = compute(REFERENCE) if data.device.type == "cpu" else unless_out_of_memory(partial(compute, REFERENCE))
    slower = 1.0
    while alike is not None and not all(bool(tensor.isfinite().all()) for tensor in alike) and slower > SLOWEST:
        slower /= 100  # what is not finite is alike in all kernels
        compute = partial(_computed, study, workload, data, slower=slower)
        alike = compute(REFERENCE)
    if alike is None:
        yield 1
        return
    reference, none = [tensor[:1].clone() for tensor in alike], True
    del alike

    def agrees(height: int) -> bool | None:
        together = compute(height)
        if together is None:
            return None
        return all(_agree(rows, row) for rows, row in zip(together, reference, strict=True))

    for height in HEIGHTS:
        if height > max(most, REFERENCE):
            break
        same = unless_out_of_memory(partial(agrees, height))
        if same is None:  # fewer lanes
            break
        if same:
            none = False
            yield height
    if none:
        yield 1


def _computed(study: Study, workload: Workload, data: Data, height: int, slower: float = 1.0) -> list[Tensor] | None:
    """Weights (on other devices than CPUs how far they went) and outputs [height, ...] after some updates of one trial
    in every row, at `slower` times the usual learning rate; None: too high a stack."""
    lanes = timing.started(study, workload, data, [0] * height, slower=slower)
    if height > REFERENCE and lanes.stack.bytes > _most_bytes(data):
        return None
    start = lanes.stack.weights[:1].clone()
    lanes.advance(max(CHECKED_STEPS, ARITHMETICS[study.arithmetic].checked_examples // study.batch_size + 1))
    for row in range(height):
        lanes.stack.settle(row)
    found = [lanes.stack.weights if data.device.type == "cpu" else lanes.stack.weights - start]
    if not lanes.stack.predicts_alone:
        inputs = data.as_model_wants(data.evaluated["val"][0][:EVALUATION_CHUNK])
        with torch.no_grad():
            found.append(lanes.predictor(range(height))(inputs))
    return found


def _agree(rows: Tensor, row: Tensor) -> bool:
    """Whether rows [l, ...] are what another row [1, ...] is."""
    if rows.device.type != "cpu":
        return _near(rows, row)
    # As integers, NaN equals itself and the two zeros differ.
    return torch.equal(rows.view(torch.int32), row.expand_as(rows).view(torch.int32))


def _near(rows: Tensor, row: Tensor) -> bool:
    """Whether rows [l, ...] lie near another [1, ...], by norms, and are finite where it is."""
    if not torch.equal(rows.isfinite(), row.isfinite().expand_as(rows)):
        return False
    rows, row = (each.where(each.isfinite(), 0).flatten(1) for each in (rows, row))
    apart, size = (torch.linalg.vector_norm(each, dim=1) for each in (rows - row, row))
    return bool((apart <= GPU_TOLERANCE * size).all())


def _most_bytes(data: Data) -> float:
    device = data.inputs.device
    return CPU_STACK_BYTES if device.type == "cpu" else SHARE * device_bytes(str(device))


def fastest(study: Study, workload: Workload, data: Data, heights: Iterable[int]) -> Cost:
    """The cost in the lowest stack that is about as fast as the fastest."""
    seconds: dict[int, float] = {}
    for height in heights:
        step = unless_out_of_memory(partial(timing.update_seconds_of, study, workload, data, height))
        if step is None:
            break
        seconds[height] = step
        *before, last_but_one, last = [math.inf, *seconds.values()]
        if last > GIVE_UP * min(seconds.values()) or min(last_but_one, last) * WORTH > min(before, default=math.inf):
            break
    if not seconds:  # nor does this fit, unless something else has ended
        lowest = height if data.device.type == "cpu" else 1
        seconds[lowest] = timing.update_seconds_of(study, workload, data, lowest)
    best = next(height for height, step in seconds.items() if step <= WORTH * min(seconds.values()))
    return fused_cost(study, workload, data, list(seconds), best, seconds)


def fused_cost(
    study: Study, workload: Workload, data: Data, heights: Sequence[int], lanes: int, seconds: Mapping[int, float]
) -> Cost:
    """The cost with `lanes` lanes, or fewer if memory runs out: evaluations may need more memory than steps. `seconds`:
    that an update takes, by the number of lanes, where it was measured before."""
    counts = [*(height for height in heights if height < lanes), lanes]

    def cost(lanes: int) -> Cost:
        fit = [height for height in heights if height < lanes] + [height for height in heights if height >= lanes][:1]
        fused = timing.started(study, workload, data, range(lanes), fit)
        fused.advance(fused.stack.period)  # what is recorded of it keeps its memory while evaluations want theirs
        step = seconds.get(lanes) or timing.step_seconds(fused)
        measured = 1 if fused.stack.predicts_alone else lanes
        return timing.cost_of(fused.lanes[0].log, step, fused.predictor(range(measured)), measured, fit, lanes)

    for count in reversed(counts[1:]):
        if (found := unless_out_of_memory(partial(cost, count))) is not None:
            return found
    return cost(counts[0])
