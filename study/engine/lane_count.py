"""The number of lanes: stack heights are admitted by their bits, and the fastest admitted one is chosen.

A GPU promises no bits and records every height that it computes: there, few heights are tried, and rows need only be
near each other.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from study.data import trees
from study.data.resident import Data, in_chunks
from study.data.trees import Tree
from study.devices import precision
from study.devices.memory import SHARE, free_bytes, out_of_memory, unless_out_of_memory
from study.engine import timing
from study.engine.arithmetic import ARITHMETICS
from study.engine.cost import Cost
from study.engine.fused.stack import EVALUATED_TOGETHER
from study.engine.lanes import Lanes, enough
from study.engine.trial.evaluation import evaluated_examples
from study.records import Study
from workloads.base import Workload

HEIGHTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BETWEEN = (6, 12, 24, 48)
"""More heights for long studies: fewer rows are empty while trials end, and one may fit the number of trials better."""

REFERENCE = 4
"""The stack height that defines the bits of a study; every higher stack tried so far agreed with it."""

CHECKED_STEPS = 3
PREDICTED = 32
"""Examples that rows predict in the check on a GPU."""
LOW_EXAMPLES = 64
"""Examples that each row of a stack lower than the reference sees in the check."""

CPU_STACK_BYTES = 2**28
"""Most bytes of weights, gradients and optimizer state in one stack on a CPU; far more than its caches hold."""

SLOWEST = 1e-12
"""The smallest factor on the usual learning rate that is tried to keep the checked steps finite."""

WORTH = 1.04
"""A lower stack, which needs less memory, is preferred if it takes at most this many times as long as the fastest."""

GIVE_UP = 1.25
"""Higher stacks are not tried once a stack is this many times slower than the fastest so far."""
REACH, BESIDE = 4, 2
"""Nor once a stack is this many times as high as the best: from the lowest height on, and beside the number of lanes of
a neighbouring batch size."""

CHECKED_SHARE, BETWEEN_SHARE = 0.02, 0.002
"""Most updates in all checks of HEIGHTS, and in those of BETWEEN, as shares of the study's at its full budget."""


def affordable(study: Study) -> list[int]:
    """The stack heights that are checked: the reference, and others whose checks take little of the study."""
    updates = study.search.trials * study.last_step
    left = CHECKED_SHARE * updates - REFERENCE * _checked_steps(study)
    others = [height for height in HEIGHTS if height != REFERENCE]
    found = [REFERENCE, *_within(left, others, study)]
    found += _within(BETWEEN_SHARE * updates, [height for height in BETWEEN if height < max(found)], study)
    return sorted(found)


def _within(updates: float, heights: Sequence[int], study: Study) -> list[int]:
    """The first heights whose checks take at most this number of updates."""
    spent = accumulate(_checked_updates(study, height) for height in heights)
    return [height for height, so_far in zip(heights, spent, strict=True) if so_far <= updates]


def _checked_updates(study: Study, height: int) -> int:
    """Updates of all rows in the checks of a stack."""
    updates = height * _checked_steps(study)
    if height < REFERENCE and not _checked_for_long(study):
        updates += (height + REFERENCE) * _checked_steps(study, LOW_EXAMPLES)
    return updates


def admitted(
    study: Study, workload: Workload, data: Data, most: int, heights: Sequence[int] = HEIGHTS
) -> Iterator[int]:
    """Those of the stack heights, up to `most` (or REFERENCE, if higher), whose rows all agree with the first row of
    the reference stack.

    They agree bit for bit, on a CPU, after some updates and in evaluations of each number of examples. Kernels choose
    their blocking by shape and by the place of a row in a cache line, so the check uses the real model and batch size.
    Stacks lower than the reference (a matrix times a vector, groups of few channels) may use kernels with other bits,
    which may show in few of their updates: they are checked for LOW_EXAMPLES. If they are not admitted, a trial alone
    has idle rows beside it. Only height 1 (one trial at a time) is yielded if no height agrees.
    """
    compute = partial(_computed, study, workload, data)
    alike = compute(REFERENCE)
    assert alike is not None
    slower = 1.0
    while not all(bool(tensor.isfinite().all()) for tensor in alike) and slower > SLOWEST:
        slower /= 100  # non-finite values are equal in all kernels, so they prove nothing
        compute = partial(_computed, study, workload, data, slower=slower)
        alike = compute(REFERENCE)
        assert alike is not None
    reference, none = [tensor[:1].clone() for tensor in alike], True
    alike_itself = all(_agree(rows, row) for rows, row in zip(alike, reference, strict=True))
    del alike

    def agrees(height: int) -> bool | None:
        if height == REFERENCE:
            return alike_itself
        together = compute(height)
        if not together:
            return None if together is None else False
        same = all(_agree(rows, row) for rows, row in zip(together, reference, strict=True))
        return same and (height > REFERENCE or _low_agrees(compute, height, study))

    for height in [height for height in heights if height <= max(most, REFERENCE)]:
        same = unless_out_of_memory(partial(agrees, height))
        if same is None:  # too little memory
            break
        if same:
            none = False
            yield height
    if none:
        yield 1


def admitted_at_all(
    study: Study, workload: Workload, data: Data, most: int, heights: Sequence[int] = HEIGHTS
) -> Iterable[int]:
    """The stack heights that are `admitted` at every batch size of a trial; 1 if there is none."""
    first, *later = (replace(study.constant, batch_size=size) for size in study.batch_sizes)
    if not later:
        return admitted(first, workload, data, most, heights)
    found = list(admitted(first, workload, data, most, heights))
    for each in later:
        found = [height for height in admitted(each, workload, data, most, found) if height in found]
    return found or [1]


def _low_agrees(compute: Callable[..., list[Tensor] | None], height: int, study: Study) -> bool:
    """Whether a stack lower than the reference agrees with it for LOW_EXAMPLES; in studies that were checked for so
    long, it does."""
    if _checked_for_long(study):
        return True
    low, reference = (compute(rows, examples=LOW_EXAMPLES) for rows in (height, REFERENCE))
    assert low is not None
    assert reference is not None
    return all(_agree(rows, row[:1]) for rows, row in zip(low, reference, strict=True))


def _computed(
    study: Study, workload: Workload, data: Data, height: int, slower: float = 1.0, examples: int = 0
) -> list[Tensor] | None:
    """Train one trial in every row for a few updates, at `slower` times the usual learning rate.

    Arguments:
        examples: that each row sees at least.

    Returns:
        The weights and, unless models are evaluated one by one, their outputs (`_evaluated`); each [height, ...]. None
        if the stack takes too many bytes; an empty list if a stack lower than the reference cannot be used.
    """
    lanes = timing.started(study, workload, data, [0] * height, slower=slower)
    if height == 1 and any(rows.dim() == 6 for rows in lanes.stack.views.values()):
        return []  # one lane of a convolution of volumes has other bits in fewer updates than are checked
    if height > REFERENCE and lanes.stack.bytes > CPU_STACK_BYTES:
        return None
    try:
        lanes.advance(_checked_steps(study, examples))
    except RuntimeError as error:  # one row of a group norm after a convolution, for example
        if height >= REFERENCE or out_of_memory(error):
            raise
        return []
    for row in range(height):
        lanes.stack.settle(row)
    found = [lanes.stack.weights]
    if not lanes.stack.predicts_alone:
        predict = lanes.predictor(range(height))
        with torch.no_grad():
            outputs = [leaf for inputs in _evaluated(study, data) for leaf in trees.leaves(predict(inputs))]
        found += [leaf.unflatten(0, (height, -1)) for leaf in outputs if leaf.dtype == torch.float32]
    return found


def _checked_steps(study: Study, examples: int = 0) -> int:
    """Updates of each row in one check. `examples`: that each row sees at least."""
    examples = max(examples, ARITHMETICS[study.arithmetic].checked_examples)
    return max(CHECKED_STEPS, examples // study.batch_size + 1)


def _checked_for_long(study: Study) -> bool:
    """Whether each row sees LOW_EXAMPLES in every check."""
    return _checked_steps(study) == _checked_steps(study, LOW_EXAMPLES)


def _evaluated(study: Study, data: Data) -> Iterator[Tree]:
    """Inputs of each number of examples that a forward pass of an evaluation may have: kernels may differ between
    them."""
    seen: set[int] = set()
    for split, count in data.counts.items():
        for chunk in in_chunks(evaluated_examples(count, study.evaluation.examples), study.evaluation_chunk):
            if len(chunk) not in seen:
                seen.add(len(chunk))
                yield next(data.chunks(split, chunk, len(chunk)))[0]


def _agree(rows: Tensor, row: Tensor) -> bool:
    """Whether all rows [l, ...] agree with another row [1, ...] in every bit."""
    # Compare as integers: NaN equals itself, and the two zeros differ.
    return torch.equal(rows.view(torch.int32), row.expand_as(rows).view(torch.int32))


def _near(rows: Tensor, row: Tensor, tolerance: float) -> bool:
    """Whether rows [l, ...] are finite where another row [1, ...] is, and within the tolerance of it in norm."""
    if not torch.equal(rows.isfinite(), row.isfinite().expand_as(rows)):
        return False
    rows, row = (each.where(each.isfinite(), 0).flatten(1) for each in (rows, row))
    apart, size = (torch.linalg.vector_norm(each, dim=1) for each in (rows - row, row))
    return bool((apart <= tolerance * size).all())


def fastest(study: Study, workload: Workload, data: Data, heights: Iterable[int], neighbour: int | None = None) -> Cost:
    """The cost with the lowest of these admitted heights that is about as fast as the fastest (see WORTH).

    Arguments:
        neighbour: the number of lanes of a neighbouring batch size: the search goes up from there, then down while
            lower stacks are about as fast. None: it goes up from the lowest height.
    """
    seconds: dict[int, float] = {}

    def timed(height: int) -> float | None:
        step = unless_out_of_memory(partial(timing.update_seconds_of, study, workload, data, height))
        if step is not None:
            seconds[height] = step
        return step

    known, tried = [], math.inf
    for height in heights:
        known.append(height)
        if neighbour is not None and height < neighbour:
            continue
        tried = min(tried, height)
        if timed(height) is None or not _goes_on(seconds, REACH if neighbour is None else BESIDE):
            break
    for lower in reversed([height for height in known if height < tried]):
        if seconds and seconds[min(seconds)] > WORTH * min(seconds.values()):
            break
        timed(lower)
    if not seconds:  # retry the lowest: it raises, unless another program has freed memory
        seconds[known[0]] = timing.update_seconds_of(study, workload, data, known[0])
    known = [height for height in known if height <= max(seconds)]
    return fused_cost(study, workload, data, known, _best(seconds), seconds)


def _best(seconds: Mapping[int, float]) -> int:
    """The lowest height that is about as fast as the fastest."""
    return min(height for height, step in seconds.items() if step <= WORTH * min(seconds.values()))


def _goes_on(seconds: Mapping[int, float], reach: int) -> bool:
    """Whether a stack higher than these may be faster. `reach`: the height to try, in multiples of the best so far."""
    highest = max(seconds)
    return highest < reach * _best(seconds) and seconds[highest] <= GIVE_UP * min(seconds.values())


def fused_cost(
    study: Study, workload: Workload, data: Data, heights: Sequence[int], lanes: int, seconds: Mapping[int, float]
) -> Cost:
    """The cost with `lanes` lanes, or fewer if memory runs out: evaluations may need more memory than steps.

    Arguments:
        heights: admitted stack heights, increasing.
        seconds: number of lanes -> seconds per update and lane, if measured before.
    """
    counts = [*(height for height in heights if height < lanes), lanes]

    def cost(lanes: int) -> Cost:
        fit = enough(heights, lanes)
        fused = timing.started(study, workload, data, range(lanes), fit)
        fused.advance(fused.stack.period)  # train first: a recorded CUDA graph keeps its memory during evaluations
        step = seconds.get(lanes) or timing.step_seconds(fused)
        measured = 1 if fused.stack.predicts_alone else lanes
        if data.device.type != "cpu":
            measured = next(count for count in EVALUATED_TOGETHER if count <= lanes)
        return timing.cost_of(fused.lanes[0].log, step, fused.predictor(range(measured)), measured, fit, lanes)

    for count in reversed(counts[1:]):
        if (found := unless_out_of_memory(partial(cost, count))) is not None:
            return found
    return cost(counts[0])


def on_gpu(study: Study, workload: Workload, data: Data, most: int, forced: bool = False) -> Cost:
    """The cost with the fastest number of lanes on a GPU among few: `most` (or half of it, and so on, until memory
    suffices and rows are near those of the reference), half of that, the reference, and one model alone.

    No shape of the times is assumed: one model uses other kernels than several, and few lanes may be slower than one
    where many are the fastest.

    Arguments:
        most: the greatest number of lanes, such as that of all trials.
        forced: use it, or the next that is possible, without trying lower ones.
    """
    tries, height = _Tries(study, workload, data), min(most, HEIGHTS[-1])
    tries.add(min(REFERENCE, height))
    while height > REFERENCE and tries.reference and not tries.add(height):
        height = -(-height // 2)
    if not forced:
        tries.add(max(1, -(-height // 2)))
    if not tries.seconds or not forced:
        tries.add(1)
    if not tries.seconds:  # it raises, unless another program has freed memory
        tries.seconds[1] = timing.update_seconds_of(study, workload, data, 1)
    best = max(tries.seconds) if forced else min(tries.seconds, key=lambda lanes: (tries.seconds[lanes], -lanes))
    if best == 1 < most:
        why = tries.obstacle or "several at once take longer"
        warnings.warn(
            f"{study.name} with {study.optimizer} at batch size {study.batch_size:,}: trials train one at a time on "
            f"this GPU, because {why}.",
            stacklevel=2,
        )
    return fused_cost(study, workload, data, rungs(best), best, tries.seconds)


def rungs(lanes: int) -> list[int]:
    """The stack heights for up to this number of lanes on a GPU, where any height may be used, but each is recorded. In
    the upper half at most a twentieth of the rows is empty while trials end one after the other.

    >>> rungs(100)[-4:], rungs(3)
    ([85, 90, 95, 100], [1, 2, 3])
    """
    found = {lanes - part * lanes // 20 for part in range(11)}
    while (lowest := min(found)) > 1:
        found.add(lowest // 2)
    return sorted(found)


class _Tries:
    """Numbers of lanes tried on a GPU.

    Attributes:
        reference: what the first row of the first number changed and predicted; None: it did not fit in memory.
        seconds: number of lanes -> seconds per update and lane, for those that may be used.
        obstacle: why the first of the others may not, as text.
    """

    def __init__(self, study: Study, workload: Workload, data: Data) -> None:
        self._asked = study, workload, data
        self._tolerance, self._slower = precision.TOLERANCE[study.precision], 1.0
        self.reference: list[Tensor] | None = None
        self.seconds: dict[int, float] = {}
        self.obstacle: str | None = None

    def add(self, height: int) -> bool:
        """Check and time this number of lanes; returns whether it may be used."""
        if height not in self.seconds:
            found = unless_out_of_memory(partial(self._seconds, height)) or f"{height} do not fit in its memory"
            if isinstance(found, str):
                self.obstacle = self.obstacle or found
                return False
            self.seconds[height] = found
        return True

    def _seconds(self, height: int) -> float | str | None:
        """Seconds per update and lane; why this number may not be used, as text; None: it needs too much memory."""
        study, workload, data = self._asked
        lanes = timing.started(study, workload, data, [0] * height, slower=self._slower)
        if height > REFERENCE and lanes.stack.bytes > SHARE * free_bytes(str(data.device)):
            return None
        rows = _changes(lanes)
        while self.reference is None and not all(bool(each.isfinite().all()) for each in rows):
            if self._slower <= SLOWEST:
                break
            self._slower /= 100  # what is not finite proves nothing
            timing.begin(lanes, [0] * height, self._slower)
            rows = _changes(lanes)
        self.reference = self.reference or [each[:1].clone() for each in rows]
        if not all(_near(each, row, self._tolerance) for each, row in zip(rows, self.reference, strict=True)):
            return (
                f"{height} that train the same trial differ by more than {self._tolerance:g} of the distance that "
                "updates moved them"
            )
        timing.begin(lanes, range(height))
        return timing.step_seconds(lanes)


def _changes(lanes: Lanes) -> list[Tensor]:
    """How some updates change the weights of each lane, and what it then predicts; each [lanes, ...]."""
    study, data, count = lanes.study, lanes.data, len(lanes.lanes)
    start = lanes.stack.weights[:count].clone()
    lanes.advance(_checked_steps(study))
    few = range(min(PREDICTED, data.counts["val"]))
    with torch.no_grad():
        outputs = lanes.stack.outputs(range(count))(next(data.chunks("val", few, len(few)))[0])
    return [lanes.stack.weights[:count] - start, *(e for e in trees.leaves(outputs) if e.is_floating_point())]
