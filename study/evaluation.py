"""What every engine measures, and when: the data as engines read it, and the log of one trial under way.

Shapes: B examples in a batch, N examples in a split, E evaluations.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from study.batches import Batches
from study.devices.distributed import Team
from study.records import Curve, Study, Trial
from workloads.base import Splits, Workload

EVALUATION_CHUNK = 1024
"""Examples per forward pass of an evaluation; fixed, since another size changes the last bits."""

Reader = Callable[[int, int], tuple[Tensor, Tensor]]
"""(step, number of a part of its batch) -> inputs [B, ...] and targets [B, ...] of that part, on the device."""

Predictors = Callable[[Sequence[int], bool], Callable[[Tensor], Tensor]]
"""(numbers of trials, whether by the averages of their weights) -> (inputs [N, ...] -> outputs [trials, N, ...])."""

AVERAGED = "ema_"
"""What the names of errors begin with that the average of the weights made: `val/ema_classification_error`."""


class Source(Protocol):
    """What the serial engine asks of the examples, wherever they are; for its members see `Data`."""

    @property
    def team(self) -> Team: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def examples(self) -> int: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    def shared(self, team: Team) -> Source: ...
    def reader(self, batches: Batches, parts: Sequence[slice]) -> Reader: ...
    def chunks(self, split: str, examples: range) -> Iterator[tuple[Tensor, Tensor]]: ...


@dataclass(frozen=True)
class Data:
    """The examples as the engines read them, all on one device: training data, and what each split is evaluated on.

    Attributes:
        inputs: [N, ...]; images [N, H, W, C], the layout that CPU convolutions are fastest in.
        evaluated: split -> (inputs, targets); `train` is the fixed subset that training errors are measured on.
        team: who trains on them together, each with a copy.
    """

    inputs: Tensor
    targets: Tensor
    evaluated: Mapping[str, tuple[Tensor, Tensor]]
    images: bool
    team: Team = field(default_factory=Team)

    @classmethod
    def of(cls, splits: Splits, device: torch.device | None = None) -> Data:
        """The training set is itself a fixed permutation: its first examples, as many as validate, are the subset.

        Arguments:
            splits: tensors, none of them a data set.
            device: where they go; None: they stay where they are.
        """
        held = (split for split in splits if isinstance(split, tuple))
        # Laid out before they are moved: a device that holds them need not hold them twice.
        train, val, test = ((channels_last(inputs).to(device), targets.to(device)) for inputs, targets in held)
        subset = len(val[1])
        evaluated = {"val": val, "train": (train[0][:subset], train[1][:subset]), "test": test}
        return cls(*train, evaluated, images=train[0].dim() == 4)

    @property
    def device(self) -> torch.device:
        """Where they are, and are trained on."""
        return self.inputs.device

    @property
    def examples(self) -> int:
        """Of the training set."""
        return len(self.targets)

    @property
    def counts(self) -> dict[str, int]:
        """How many examples each split is measured on."""
        return {split: len(targets) for split, (_, targets) in self.evaluated.items()}

    def shared(self, team: Team) -> Data:
        """The same, trained on with these."""
        return replace(self, team=team)

    def reader(self, batches: Batches, parts: Sequence[slice]) -> Reader:
        """What a trial reads its micro-batches through."""
        return lambda step, part: self.examples_of(batches(step)[parts[part]])

    def chunks(self, split: str, examples: range) -> Iterator[tuple[Tensor, Tensor]]:
        """These consecutive examples of a split in chunks, as the model wants them."""
        inputs, targets = self.evaluated[split]
        for chunk in in_chunks(examples):
            yield self.as_model_wants(inputs[chunk.start : chunk.stop]), targets[chunk.start : chunk.stop]

    def examples_of(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [B, ...] and targets [B, ...] of these training examples."""
        return self.gather(index), self.targets[index]

    def gather(self, index: Tensor, lanes: int | None = None) -> Tensor:
        """The inputs of these examples: [B, ...] for index [B], [l, B, ...] for l lanes and index [l * B].

        Images come as a [..., B, C, H, W] view in channels-last format.
        """
        inputs = self.inputs.index_select(0, index)
        return self.as_model_wants(inputs if lanes is None else inputs.unflatten(0, (lanes, -1)))

    def as_model_wants(self, inputs: Tensor) -> Tensor:
        """Images [..., B, H, W, C] in memory -> a [..., B, C, H, W] view in channels-last format; else as they are."""
        return inputs.movedim(-1, -3) if self.images else inputs


def in_chunks(examples: range) -> Iterator[range]:
    """The chunks that these examples are measured in."""
    return (examples[first : first + EVALUATION_CHUNK] for first in range(0, len(examples), EVALUATION_CHUNK))


def metrics(study: Study, workload: Workload) -> list[str]:
    """The names of all that is measured, such as `val/classification_error`."""
    return [_metric(split, e, a) for a in kinds(study) for split in ("train", "val", "test") for e in workload.errors]


def kinds(study: Study) -> Sequence[bool]:
    """What is measured: the weights and, where that is asked for, their average."""
    return (False, True) if study.averages else (False,)


def _metric(split: str, error: str, averaged: bool) -> str:
    return f"{split}/{AVERAGED if averaged else ''}{error}"


class Log:
    """What one trial measured so far."""

    def __init__(
        self, study: Study, workload: Workload, data: Source, trial: Trial, micro_batch: int | None = None
    ) -> None:
        self.micro_batch = micro_batch
        self.study, self.workload, self.data, self.trial = study, workload, data, trial
        self.first_bad_step: int | None = None
        self.steps: list[int] = []
        self.errors: dict[str, list[float]] = {metric: [] for metric in metrics(study, workload)}
        self.seconds = {"training": 0.0, "evaluation": 0.0}

    @property
    def evaluations(self) -> int:
        """How many evaluations were made: the number of the next one."""
        return len(self.steps)

    def wants_all(self, step: int, errors: Mapping[str, float]) -> bool:
        """Whether the training subset and the test set are measured too at this step, given the validation errors."""
        on_grid = (self.evaluations + 1) % self.study.evaluation.every == 0 or step == self.study.train_steps
        threshold = self.study.goal.threshold
        met_before = any(error < threshold for error in self.errors[self.study.goal.metric])
        return on_grid or (self._meets_goal(errors) and not met_before)

    def record(self, step: int, errors: Mapping[str, float]) -> bool:
        """Note what was measured after `step` updates; returns whether the trial ends here: goal or budget."""
        self.steps.append(step)
        for metric, values in self.errors.items():
            values.append(errors.get(metric, math.nan))
        return step == self.study.train_steps or (self.study.stopping != "budget" and self._meets_goal(errors))

    def _meets_goal(self, errors: Mapping[str, float]) -> bool:
        goal = self.study.goal
        return errors.get(goal.metric, math.inf) < goal.threshold

    def curve(self) -> Curve:
        """What was measured so far."""
        errors = {metric: np.array(values) for metric, values in self.errors.items()}
        steps = np.array(self.steps, dtype=np.int64)
        return Curve(self.trial, self.first_bad_step, steps, errors, dict(self.seconds), self.micro_batch)


def evaluate(logs: Sequence[Log], steps: Sequence[int], predictors: Predictors) -> list[bool]:
    """Measure trials of one study together; returns which of them end here.

    The validation set is measured for all, the training subset and the test set for those whose grid says so.
    """
    errors: list[dict[str, float]] = [{} for _ in logs]

    def add(split: str, chosen: Sequence[int]) -> None:
        for averaged in kinds(logs[0].study):
            for i, measured in zip(chosen, measure(logs[0], split, predictors(chosen, averaged)), strict=True):
                errors[i] |= {_metric(split, name, averaged): value for name, value in measured.items()}

    add("val", range(len(logs)))
    rest = [i for i, log in enumerate(logs) if log.wants_all(steps[i], errors[i])]
    for split in ("train", "test") if rest else ():
        add(split, rest)
    return [log.record(step, measured) for log, step, measured in zip(logs, steps, errors, strict=True)]


def measure(
    log: Log, split: str, predict: Callable[[Tensor], Tensor], examples: int | None = None
) -> list[dict[str, float]]:
    """Every error of the workload on one split, for each of l models: name -> mean over its examples.

    Arguments:
        log: of any trial of the study.
        predict: inputs [N, ...] -> outputs [l, N, ...].
        examples: take only the first ones.
    """
    data, errors = log.data, log.workload.errors
    count = data.counts[split] if examples is None else examples
    totals: Tensor | None = None
    with torch.no_grad():
        for inputs, targets in data.chunks(split, data.team.share(count)):
            outputs = predict(inputs)
            models = len(outputs)
            flat = outputs.flatten(0, 1), targets.repeat(models, *[1] * (targets.dim() - 1))
            each = [error(*flat).view(models, -1).sum(1, dtype=torch.float64) for error in errors.values()]
            totals = torch.stack(each) if totals is None else totals + torch.stack(each)
        if totals is None:  # fewer examples than processes, which train one model
            totals = torch.zeros(len(errors), 1, dtype=torch.float64, device=data.device)
        means = (data.team.sum(totals) / count).T.tolist()
    return [dict(zip(errors, values, strict=True)) for values in means]


@contextmanager
def timed(logs: Sequence[Log], what: str) -> Iterator[None]:
    """Count the wall time of a block as `training` or `evaluation`; each trial is charged an equal part."""
    start = time.perf_counter()
    yield
    elapsed = time.perf_counter() - start
    for log in logs:
        log.seconds[what] += elapsed / len(logs)


def forward(study: Study, model: nn.Module, inputs: Tensor) -> Tensor:
    """The model's outputs in fp32, computed in the study's precision."""
    if study.precision == "fp32":
        return model(inputs)
    with torch.autocast(inputs.device.type, torch.bfloat16, cache_enabled=False):
        return model(inputs).float()


def initial_model(workload: Workload, trial: Trial, device: torch.device) -> nn.Module:
    """The trial's model at step 0: drawn on the CPU from the trial's seed alone, then moved; ready to train."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trial.seed)
        model = workload.model()
    return model.to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]


def channels_last(inputs: Tensor) -> Tensor:
    """[N, C, H, W] images -> contiguous [N, H, W, C]; anything else as it is."""
    return inputs.permute(0, 2, 3, 1).contiguous() if inputs.dim() == 4 else inputs
