"""The memory and step times of training one model on a device, for `study advise`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from analysis.counting import RECORDED
from study.data import streaming
from study.devices.memory import WORKING_SET, out_of_memory
from study.devices.placement import settle_arithmetic
from study.engine.run import Run
from study.engine.timing import update_seconds
from study.errors import UsageError
from study.records import NUMERICS_VERSION, Study
from study.space import middle
from study.user_code.activations import PROBE_EXAMPLES, saved_bytes
from workloads.data.datasets import DataError
from workloads.user_code.importing import build

WHOLE_SHARE = 0.9
"""Share of a device's memory for training one model: driver, fragmentation and data in transit need the rest."""


@dataclass(frozen=True)
class Footprint:
    """Bytes that training one model takes on each device.

    Attributes:
        example: for each example in a micro-batch.
        held: weights, gradients (twice: updates and exchanges copy them), optimizer state, averages of weights.
        gradient: the gradients of all parameters, which devices exchange.
    """

    example: float
    held: float
    gradient: float

    def largest(self, memory: float) -> int:
        """The largest number of examples whose step fits in `memory` bytes; 0 if not even one fits.

        >>> Footprint(example=1e6, held=1e9, gradient=2e8).largest(memory=10e9)
        8000
        """
        return max(0, int((WHOLE_SHARE * memory - self.held) / max(self.example, 1.0)))

    def in_words(self, memory: float) -> str:
        """The estimate for a device with `memory` bytes, as text."""
        return (
            f"Estimated: weights, gradients and optimizer state take {_bytes(self.held)}; each example takes "
            f"{_bytes(self.example)}, {WORKING_SET:g} times the activations that its forward pass keeps. With a tenth "
            f"of {_bytes(memory)} left free, {self.largest(memory):,} examples fit at once."
        )


def footprint(run: Run) -> Footprint:
    """The footprint of a run, counted after making one update. A CPU gives the same counts as any other device."""
    run.update(run.hyperparameters["learning_rate"])
    few = next(run.data.chunks("train", range(min(PROBE_EXAMPLES, run.data.counts["train"])), PROBE_EXAMPLES))
    example = WORKING_SET * saved_bytes(run.workload, *few, run.loss_hyperparameters)
    gradient = sum(p.numel() * p.element_size() for p in run.model.parameters() if p.requires_grad)
    held = [*run.weights.values(), *_tensors(run.optimizer.state_dict()["state"])]
    return Footprint(example, 2 * gradient + sum(tensor.nbytes for tensor in held), gradient)


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping | list | tuple):
        for branch in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _tensors(branch)


def step_seconds(run: Run, sizes: Sequence[int]) -> dict[int, float]:
    """Batch size -> seconds per step of one model trained alone, computed as in a sweep's workers. `sizes`: increasing
    batch sizes; if one does not fit in memory, it and all larger ones are left out."""
    settle_arithmetic()
    found: dict[int, float] = {}
    for size in sizes:
        try:
            study = replace(run.study.constant, batch_size=size)
            found[size] = update_seconds(Run(study, run.workload, run.data, run.trial))
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            break
    return found


def rebuilt(question: Mapping[str, Any], device: str) -> Run:
    """A run of a recorded study, with at most two examples per batch, in the middle of its search space.

    Arguments:
        question: the recorded configuration of the study (`study.json`).
        device: the device that trains.

    Raises:
        UsageError: the workload cannot be built, or its data cannot be fetched.
    """
    name = f"{question['workload']['name']} with {question['optimizer']}"
    cure = (
        "Give --max-per-device-batch instead of --memory, --step-ms instead of --measure, --allreduce-ms instead of "
        "--bandwidth."
    )
    if question["stopping"] == RECORDED:
        raise UsageError(f"{name} was imported: its files do not say how its model is built. {cure}")
    try:
        study = Study.from_question({**question, "numerics_version": NUMERICS_VERSION})
        alone = replace(study.constant, batch_size=min(2, study.batch_size), micro_batch=None, arithmetic="plain")
        workload = build(alone.workload)
        data = streaming.of_workload(workload, device, gigabytes=None, loaders=0)
        trial = alone.trial(0, middle(alone.search.space))
        return Run(alone, workload, data, trial)
    except (ValueError, TypeError, KeyError, DataError) as error:
        raise UsageError(f"{name} cannot be built again: {error} {cure}") from error


def _bytes(count: float) -> str:
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 2**power:
            return f"{count / 2**power:.3g} {unit}"
    return f"{count:.0f} bytes"
