"""What advice needs of the device and the model: what was asked for, the memory of a training, the time of its steps.

The answer itself is drawn from files by `analysis.advice.splits` and `analysis.advice.sentences`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from analysis.counting import RECORDED, Goal
from study.data import streaming
from study.devices.memory import PROBE_EXAMPLES, WORKING_SET, out_of_memory, saved_bytes, too_large
from study.devices.placement import settle_arithmetic, usable
from study.engine.serial import Run
from study.engine.timing import update_seconds
from study.errors import UsageError
from study.records import NUMERICS_VERSION, Study
from study.space import middle
from workloads.base import build, importable
from workloads.data.datasets import DataError

GIB = 2**30
WHOLE_SHARE = 0.9
"""Of a device's memory that one training alone may take: the driver, fragments and data on their way need the rest."""
MOST_DEVICES = 100_000


@dataclass(frozen=True)
class Footprint:
    """Bytes that one training takes on each device.

    Attributes:
        example: for each further one that is taken at once.
        held: weights, gradients (twice: updates and exchanges copy them), the optimizer's state, averages of weights.
        gradient: of all parameters, which devices exchange.
    """

    example: float
    held: float
    gradient: float

    def largest(self, memory: float) -> int:
        """The most examples whose step fits in so many bytes; 0 if not even one does.

        >>> Footprint(example=1e6, held=1e9, gradient=2e8).largest(memory=10e9)
        8000
        """
        return max(0, int((WHOLE_SHARE * memory - self.held) / max(self.example, 1.0)))

    def in_words(self, memory: float) -> str:
        """What follows for a device with so many bytes."""
        return (
            f"Estimated: weights, gradients and the optimizer's state take {_bytes(self.held)}, an example "
            f"{_bytes(self.example)}, {WORKING_SET:g} times what its forward pass keeps. Of {_bytes(memory)} a tenth "
            f"is left free, and {self.largest(memory):,} examples fit at once."
        )


def footprint(run: Run) -> Footprint:
    """What a training takes, counted after an update of it, on a CPU as on any device."""
    run.update(run.hyperparameters["learning_rate"])
    few = next(run.data.chunks("train", range(min(PROBE_EXAMPLES, run.data.counts["train"]))))
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
    """Seconds of a step of one training alone, computed as in a sweep's workers, by the examples in it.

    Arguments:
        sizes: increasing; where one does not fit, the larger ones are left out, too.
    """
    settle_arithmetic()
    found: dict[int, float] = {}
    for size in sizes:
        try:
            study = replace(run.study, batch_size=size)
            found[size] = update_seconds(Run(study, run.workload, run.data, run.trial))
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            break
    return found


def rebuilt(question: Mapping[str, Any], device: str) -> Run:
    """One training that a results folder asked for, with small batches, in the middle of its box.

    Raises:
        UsageError: the workload cannot be built or its data cannot be had.
    """
    name = f"{question['workload']['name']} with {question['optimizer']}"
    cure = "Enter --max-per-device-batch for --memory, --step-ms for --measure, --allreduce-ms for --bandwidth."
    if question["stopping"] == RECORDED:
        raise UsageError(f"{name} was imported: its files do not say how its model is built. {cure}")
    try:
        study = Study.from_question({**question, "numerics_version": NUMERICS_VERSION})
        alone = replace(study, batch_size=min(2, study.batch_size), micro_batch=None, arithmetic="plain")
        workload = build(alone.workload)
        data = streaming.source(workload.splits(torch.device("cpu")), device, gigabytes=None, loaders=0)
        trial = alone.trial(0, middle(alone.search.space))
        return Run(alone, workload, data, trial)
    except (ValueError, TypeError, KeyError, DataError) as error:
        raise UsageError(f"{name} cannot be built again: {error} {cure}") from error


@dataclass(frozen=True)
class Asked:
    """The command line, judged.

    Attributes:
        devices: counts of them to choose from.
        step_seconds: entered, by per-device batch; None: as recorded or, where a device to `measure` on is named, as
            measured there.
        memory: of a device [bytes], from which follows what fits; None: `largest` examples, or any number.
        exchange: seconds in which devices exchange gradients.
        bandwidth: between them [bytes/s].
        price: of a device for an hour.
        goal: read off after the fact; None: the study's own.
    """

    devices: Sequence[int]
    step_seconds: Mapping[int, float] | None
    measure: str | None
    memory: float | None
    largest: int | None
    exchange: float
    bandwidth: float
    price: float | None
    goal: Goal | None
    config_dir: Path | None

    @classmethod
    def of(cls, options: argparse.Namespace) -> Asked:
        """Of `python -m study advise`.

        Raises:
            UsageError: a value is none that could be meant.
        """
        least = {"memory": "GiB", "max_per_device_batch": "examples", "bandwidth": "GB/s", "price": "of a device-hour"}
        for name, unit in least.items():
            value = getattr(options, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"--{name.replace('_', '-')} must be above 0 ({unit}), but got {value:g}.")
        if options.allreduce_ms is not None and not 0 <= options.allreduce_ms < math.inf:
            raise UsageError(f"--allreduce-ms must be at least 0 milliseconds, but got {options.allreduce_ms:g}.")
        try:
            goal = None if options.goal is None else Goal.parse(options.goal)
        except ValueError as error:
            raise UsageError(str(error)) from error
        return cls(
            devices=device_counts(options.gpus),
            step_seconds=None if options.step_ms is None else entered_times(options.step_ms),
            measure=usable(options.device, "--device") if options.measure else None,
            memory=None if options.memory is None else GIB * options.memory,
            largest=options.max_per_device_batch,
            exchange=(options.allreduce_ms or 0.0) / 1000,
            bandwidth=math.inf if options.bandwidth is None else 1e9 * options.bandwidth,
            price=options.price,
            goal=goal,
            config_dir=options.config_dir,
        )


@dataclass(frozen=True)
class Facts:
    """What was asked for, as it holds for one curve.

    Attributes:
        step_seconds: by per-device batch; None: as recorded.
        largest: examples that a device takes at once; None: any number.
        gradient_bytes: exchanged after each update; 0 where nobody asked.
        source: of step_seconds, in words.
        notes: how the rest was estimated.
    """

    step_seconds: Mapping[int, float] | None
    largest: int | None
    gradient_bytes: float = 0.0
    source: str = "as entered"
    notes: Sequence[str] = ()


def facts(asked: Asked, question: Mapping[str, Any], largest: int) -> Facts:
    """What holds for the curve of a question; its model is built only where that is needed.

    Arguments:
        largest: batch size of the curve.

    Raises:
        UsageError: the model cannot be built, or one example does not fit where steps are to be measured.
    """
    importable(asked.config_dir)
    found = Facts(asked.step_seconds, asked.largest)
    if asked.memory is not None or math.isfinite(asked.bandwidth):
        takes = footprint(rebuilt(question, "cpu"))
        found = replace(found, gradient_bytes=takes.gradient)
        if asked.memory is not None:
            found = replace(found, largest=takes.largest(asked.memory), notes=[takes.in_words(asked.memory)])
    if asked.measure is not None:
        run = rebuilt(question, asked.measure)
        sizes = {2**power for power in range(largest.bit_length())} | {largest}
        seconds = step_seconds(run, sorted(sizes))
        if not seconds:
            raise UsageError(too_large(run.study, asked.measure))
        source = f"of one training alone, measured now on {asked.measure}"
        found = replace(found, step_seconds=seconds, source=source)
    return found


def device_counts(text: str) -> Sequence[int]:
    """`8`: any number up to 8; `1,2,4`: these.

    >>> list(device_counts("4")), device_counts("1,8")
    ([1, 2, 3, 4], [1, 8])

    Raises:
        UsageError: it is neither.
    """
    words = text.split(",")
    if not all(word.strip().isdecimal() and 1 <= int(word) <= MOST_DEVICES for word in words):
        raise UsageError(
            "--gpus takes a number of at least 1, up to which any number may work together, or the numbers to choose "
            f"from, such as 1,2,4,8, and at most {MOST_DEVICES:,}, but got {text!r}."
        )
    return range(1, int(text) + 1) if len(words) == 1 else sorted({int(word) for word in words})


def entered_times(text: str) -> dict[int, float]:
    """`32:12.5,64:20`: per-device batch -> seconds, from milliseconds.

    >>> entered_times("32:12.5,64:20")
    {32: 0.0125, 64: 0.02}

    Raises:
        UsageError: it reads otherwise, or names a batch twice.
    """
    found: dict[int, float] = {}
    try:
        for pair in text.split(","):
            size, milliseconds = pair.split(":")
            if int(size) < 1 or int(size) in found or not 0 < float(milliseconds) < math.inf:
                raise ValueError(pair)
            found[int(size)] = float(milliseconds) / 1000
    except ValueError as error:
        raise UsageError(
            "--step-ms takes the milliseconds of a step for one or more per-device batches, each once, such as "
            f"32:12.5,64:20, but got {text!r}."
        ) from error
    return found


def _bytes(count: float) -> str:
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 2**power:
            return f"{count / 2**power:.3g} {unit}"
    return f"{count:.0f} bytes"
