"""Which engine trains a study, and how many lanes at once: admitted by their bits, chosen by the clock."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from study.cost import Cost, least_seconds
from study.devices.memory import SHARE, device_bytes, out_of_memory, release_cached_memory
from study.evaluation import EVALUATION_CHUNK, Data, Log, Source, initial_model, kinds
from study.evaluation import measure as measure_errors
from study.lanes import SEGMENT_STEPS, Lanes
from study.lanes import train as train_lanes
from study.records import Curve, Study, Trial
from study.serial import Proposals, Run, fitting
from study.serial import train as train_serially
from study.space import middle, values
from study.vmapped import Vmapped
from workloads.base import Workload

T = TypeVar("T")

HEIGHTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
REFERENCE = 4
"""The stack height whose bits are those of the study; higher ones were always found to agree with it."""
CHECKED_STEPS = 3
CHECKED_EXAMPLES = 64
"""Of chains of linear layers, whose steps are cheap: the fewer examples are in them, the later other bits show."""
CPU_STACK_BYTES = 2**28
"""Of weights, gradients and optimizer state in one stack; far beyond what a CPU's caches still serve."""
GRAPH_TOLERANCE = 1e-3
"""How far gradients from a model's graph may lie from the model's own, by norms; rounding leaves some 1e-6."""
SLOWEST = 1e-12
"""The least part of the usual learning rate that is tried for a few steps that stay finite."""
GPU_TOLERANCE = 1e-2
"""How far rows of a stack may lie apart on other devices than CPUs, as a part of how far updates moved them. A sign
that rounding turns moves a weight by twice the learning rate, and must not matter; a row that went astray must."""
OVERLAPPING = 8
"""Updates timed at once on such a device, which makes them while the host prepares the next."""
TIMED_SECONDS = 0.02
TIMED_STEPS = 32
"""At most, on a CPU; elsewhere two segments, so that the host prepares the one while the device makes the other."""
WORTH = 1.04
"""How much slower than the fastest stack a lower one may be and still be preferred: it needs less memory."""
GIVE_UP = 1.25
"""How much slower than the fastest so far a stack may be before higher ones are not tried any more; nor are they where
two in a row gained less than WORTH."""


def train(
    study: Study, workload: Workload, data: Source, proposals: Proposals, heights: Sequence[int], lanes: int
) -> Iterator[Curve]:
    """Train a study's proposed trials in its recorded arithmetic, `lanes` at once where it fuses them."""
    if study.arithmetic == "plain":
        return train_serially(study, workload, data, proposals)
    assert isinstance(data, Data)
    return train_lanes(study, workload, data, proposals, heights, lanes)


def measure(study: Study, workload: Workload, data: Source, most: int, lanes: int | None = None) -> Cost:
    """What a trial costs with the number of lanes that is fastest among the admitted heights up to `most`.

    `lanes` forces their number, as far as a height for it is admitted.
    """
    if study.arithmetic == "plain":
        attempt = partial(_plain_cost, study, workload, data)
        return fitting(study, workload, data.team, study.micro_batch, attempt)[0]
    assert isinstance(data, Data)
    if lanes is None:
        return _fastest(study, workload, data, admitted(study, workload, data, most))
    highest = next(height for height in HEIGHTS if height >= min(lanes, HEIGHTS[-1]))
    heights = list(admitted(study, workload, data, highest))
    return _fused_cost(study, workload, data, heights, min(lanes, heights[-1]), {})


def admitted(study: Study, workload: Workload, data: Data, most: int) -> Iterator[int]:
    """Stack heights up to `most` of which every row computes what the first one of the reference stack does.

    On a CPU that means bit for bit, after some updates and in an evaluation; on other devices, whose kernels promise
    less, to GPU_TOLERANCE. Kernels choose their blocking by shape and by where in a cache line a row begins, so this is
    found out with the real model and batch size, not assumed. Lower stacks than the reference (a matrix times a vector,
    groups of few channels) may fall into kernels that no other height uses; then a trial alone has idle rows beside it.
    Where not even rows of one stack agree, trials are trained one at a time; so are they where another device than a
    CPU, which needs no reference of bits, has no room for one.
    """
    compute = partial(_computed, study, workload, data)
    alike = compute(REFERENCE) if data.device.type == "cpu" else _unless_out_of_memory(partial(compute, REFERENCE))
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
        if (
            height == 1 and study.arithmetic == "grouped"
        ):  # convolutions without groups, whose bits part sooner or later
            continue
        if height > max(most, REFERENCE):
            break
        same = _unless_out_of_memory(partial(agrees, height))
        if same is None:  # fewer lanes
            break
        if same:
            none = False
            yield height
    if none:
        yield 1


def _computed(study: Study, workload: Workload, data: Data, height: int, slower: float = 1.0) -> list[Tensor] | None:
    """Weights (on other devices than CPUs how far they went) and outputs [height, ...] after some updates of one trial
    in every row; None: too high a stack.

    Arguments:
        slower: the part of the usual learning rate that is taken.
    """
    lanes = _started(study, workload, data, [0] * height, slower=slower)
    if height > REFERENCE and lanes.stack.bytes > _most_bytes(data):
        return None
    start = lanes.stack.weights[:1].clone()
    chain = study.arithmetic in ("bmm", "deferred")
    lanes.advance(max(CHECKED_STEPS, CHECKED_EXAMPLES // study.batch_size + 1 if chain else 0))
    for row in range(height):
        lanes.stack.settle(row)
    found = [lanes.stack.weights if data.device.type == "cpu" else lanes.stack.weights - start]
    if not lanes.stack.predicts_alone:
        inputs = data.as_model_wants(data.evaluated["val"][0][:EVALUATION_CHUNK])
        with torch.no_grad():
            found.append(lanes.predictor(range(height))(inputs))
    return found


def lanes_can(study: Study, workload: Workload, data: Data) -> bool:
    """Whether two lanes of this model can take a step and be measured: `vmap` refuses randomness, unused parameters and
    much else. What is computed from a model's graph must be what the model computes.
    """
    try:
        with warnings.catch_warnings():
            # What `vmap` has no rule for it does lane by lane, which is slower than one model after the other.
            warnings.filterwarnings("error", message="There is a performance drop")
            lanes = _started(replace(study, batch_size=2), workload, data, range(2))
            if study.arithmetic == "grouped" and not _as_alone(lanes):
                return False
            lanes.advance(1)
            with torch.no_grad():
                lanes.predictor(range(2))(data.as_model_wants(data.inputs[:2]))
    except (RuntimeError, ValueError, KeyError, IndexError, TypeError, NotImplementedError, UserWarning) as error:
        if out_of_memory(error):  # says nothing of the model, and a full device must not choose an arithmetic
            raise
        return False
    return True


def _as_alone(lanes: Lanes) -> bool:
    """Whether fused models have the outputs and gradients of models alone, of a few examples, but for rounding."""
    stack, count = lanes.stack, len(lanes.lanes)
    form = stack.form(stack.weights[:count])
    assert isinstance(form, Vmapped)
    inputs = lanes.data.gather(torch.arange(2 * count) % len(lanes.data.targets), count)
    keys = torch.arange(count * len(form.keys), dtype=torch.int32).view(count, -1)
    losses, found = form.backward(inputs, _squares, keys)
    for lane in range(count):
        weights = {name: view[lane].clone().requires_grad_() for name, view in stack.views.items()}
        buffers = dict(zip(form.keys, keys[lane], strict=True))
        outputs = torch.func.functional_call(stack.template, (weights, buffers), (inputs[lane],))
        loss = _squares(outputs.unsqueeze(0))
        slopes = torch.autograd.grad(loss.mean(), list(weights.values()), allow_unused=True)
        if any(slope is None for slope in slopes):
            return False
        pairs = [(losses.view(count, -1)[lane], loss.detach())]
        pairs += [(gradient[lane], slope.flatten()) for gradient, slope in zip(found, slopes, strict=True)]
        if not all(torch.linalg.vector_norm(a - b) <= GRAPH_TOLERANCE * torch.linalg.vector_norm(b) for a, b in pairs):
            return False
    return True


def _squares(outputs: Tensor) -> Tensor:
    """A loss of any outputs [l, B, ...]: [l * B]."""
    return outputs.flatten(0, 1).flatten(1).square().sum(1)


def refusal(study: Study, workload: Workload, data: Data) -> str | None:
    """Why an optimizer of whole models cannot take two steps at either end of the space; None if it can.

    Classes of others refuse values, models and ways of being called by whatever errors they raise.
    """
    small = replace(study, batch_size=2, micro_batch=None)
    for unit in (0.0, 1 - 1e-9):
        hyperparameters = values(study.search.space, [unit] * len(study.search.space))
        try:
            run = Run(small, workload, data, small.trial(0, hyperparameters))
            for _ in range(2):
                run.update(run.hyperparameters["learning_rate"])
                run.step += 1
        except Exception as error:
            told = str(error).splitlines()[0] if str(error) else type(error).__name__
            return f"with {', '.join(f'{name}={value:g}' for name, value in hyperparameters.items())}: {told}"
    return None


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


def _fastest(study: Study, workload: Workload, data: Data, heights: Iterable[int]) -> Cost:
    """The cost in the lowest stack that is about as fast as the fastest."""
    seconds: dict[int, float] = {}
    for height in heights:
        step = _unless_out_of_memory(partial(_timed, study, workload, data, height))
        if step is None:
            break
        seconds[height] = step
        *before, last_but_one, last = [math.inf, *seconds.values()]
        if last > GIVE_UP * min(seconds.values()) or min(last_but_one, last) * WORTH > min(before, default=math.inf):
            break
    if not seconds:  # nor does this fit, unless something else has ended
        lowest = height if data.device.type == "cpu" else 1
        seconds[lowest] = _timed(study, workload, data, lowest)
    best = next(height for height, step in seconds.items() if step <= WORTH * min(seconds.values()))
    return _fused_cost(study, workload, data, list(seconds), best, seconds)


def _fused_cost(
    study: Study, workload: Workload, data: Data, heights: Sequence[int], lanes: int, seconds: Mapping[int, float]
) -> Cost:
    """The cost with so many lanes, or fewer where memory runs out: evaluations may want more room than steps.

    Arguments:
        seconds: that an update takes, by the number of lanes, where it was measured before.
    """
    counts = [*(height for height in heights if height < lanes), lanes]

    def cost(lanes: int) -> Cost:
        fit = [height for height in heights if height < lanes] + [height for height in heights if height >= lanes][:1]
        fused = _started(study, workload, data, range(lanes), fit)
        fused.advance(fused.stack.period)  # what is recorded of it keeps its memory while evaluations want theirs
        step = seconds.get(lanes) or _step_seconds(fused)
        measured = 1 if fused.stack.predicts_alone else lanes
        return _cost(fused.lanes[0].log, step, fused.predictor(range(measured)), measured, fit, lanes)

    for count in reversed(counts[1:]):
        if (found := _unless_out_of_memory(partial(cost, count))) is not None:
            return found
    return cost(counts[0])


def _unless_out_of_memory(call: Callable[[], T]) -> T | None:
    """What this call returns; None where memory runs out."""
    try:
        return call()
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
    release_cached_memory()
    return None


def _timed(study: Study, workload: Workload, data: Data, lanes: int) -> float:
    """Seconds that an update takes one of so many lanes."""
    return _step_seconds(_started(study, workload, data, range(lanes)))


def _step_seconds(fused: Lanes) -> float:
    """What an update of one of these lanes takes."""
    steps = fused.stack.period
    seconds = least_seconds(partial(fused.advance, steps), budget=0)
    if seconds < TIMED_SECONDS:
        most = TIMED_STEPS if fused.device.type == "cpu" else 2 * SEGMENT_STEPS
        steps *= max(1, min(most // steps, int(TIMED_SECONDS / seconds)))
    if seconds < 3 * TIMED_SECONDS:
        seconds = least_seconds(partial(fused.advance, steps), budget=3 * TIMED_SECONDS)
    return seconds / steps / len(fused.lanes)


def _plain_cost(study: Study, workload: Workload, data: Source, micro_batch: int | None) -> Cost:
    run = Run(study, workload, data, _trial(study, 0), micro_batch)
    cost = _cost(run.log, update_seconds(run), run.predict)
    parts = tuple(tuple(part.stop - part.start for part in taken) for taken in run.shares)
    return cost if parts == ((study.batch_size,),) else replace(cost, parts=parts)


def _cost(
    log: Log,
    step: float,
    predict: Callable[[Tensor], Tensor],
    models: int = 1,
    heights: Sequence[int] = (1,),
    lanes: int = 1,
) -> Cost:
    """With evaluation measured on one chunk of examples, by a predictor of `models` models."""
    examples = log.data.counts
    chunk = min(EVALUATION_CHUNK, examples["val"])
    once = least_seconds(lambda: measure_errors(log, "val", predict, chunk), budget=0) / models / chunk
    seconds = once * len(kinds(log.study))
    validation = seconds * examples["val"]
    return Cost(step, validation, seconds * (examples["train"] + examples["test"]), tuple(heights), lanes)


def _started(
    study: Study,
    workload: Workload,
    data: Data,
    indices: Sequence[int],
    heights: Sequence[int] | None = None,
    slower: float = 1.0,
) -> Lanes:
    """These trials under way, from one initialisation, which is what takes longest to make."""
    lanes = Lanes(study, workload, data, heights or [len(indices)], len(indices))
    model = initial_model(workload, _trial(study, 0), data.inputs.device)
    for index in indices:
        lanes.start(_trial(study, index, slower), model)
    return lanes


def _trial(study: Study, index: int, slower: float = 1.0) -> Trial:
    hyperparameters = middle(study.search.space)
    return study.trial(index, hyperparameters | {"learning_rate": slower * hyperparameters["learning_rate"]})


def update_seconds(run: Run) -> float:
    """What an update takes this trial."""
    updates = 1 if run.data.device.type == "cpu" else OVERLAPPING

    def some() -> None:
        for _ in range(updates):
            loss = run.update(run.hyperparameters["learning_rate"])
            run.step += 1
        loss.item()  # waits for the device

    return least_seconds(some, broadcast=run.data.team.broadcast) / updates
