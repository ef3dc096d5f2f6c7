"""The plain engine: one trial at a time, `nn.Module` and `torch.optim`. The oracle that every faster engine must equal.

Shapes: B examples in a batch, N examples in a split, E evaluations.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from study.batches import Batches
from study.optimizers import OPTIMIZERS
from study.records import Curve, Study, Trial
from study.schedules import SCHEDULES
from workloads.base import Splits, Workload
from workloads.layers import dropout_layers, set_keys

EVALUATION_CHUNK = 1024
"""Examples per forward pass of an evaluation; fixed, since another size changes the last bits."""


class Proposals(Protocol):
    """What an engine needs of a tuner; worker processes put a pipe behind the same two questions."""

    def ask(self) -> Trial | None:
        """The next trial, or None when there is nothing more to start."""
        ...

    def step_limit(self, index: int) -> int:
        """The step beyond which trial `index` need not run."""
        ...


def train(study: Study, workload: Workload, splits: Splits, proposals: Proposals) -> Iterator[Curve]:
    """Train proposed trials one after the other on the device that holds the splits."""
    data = Data.of(study, splits)
    while (trial := proposals.ask()) is not None:
        yield Run(study, workload, data, trial).finish(proposals)


@dataclass(frozen=True)
class Data:
    """The examples as the engine reads them: training data, and what each split is evaluated on."""

    inputs: Tensor
    targets: Tensor
    evaluated: Mapping[str, tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, study: Study, splits: Splits) -> Data:
        """Images are kept with their channels last, the layout that CPU convolutions are fastest in."""
        train, val, test = ((_channels_last(inputs), targets) for inputs, targets in splits)
        return cls(*train, {"val": val, "train": _subset(train, len(val[1])), "test": test})


class Run:
    """One trial under way."""

    def __init__(self, study: Study, workload: Workload, data: Data, trial: Trial) -> None:
        self.study, self.workload, self.data, self.trial = study, workload, data, trial
        device = data.inputs.device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(trial.seed)
            model = workload.model()
        self.model = _to_channels_last(model.to(device))
        self.dropouts = dropout_layers(self.model)
        optimizer = OPTIMIZERS[study.optimizer]
        self.optimizer = optimizer.build(self.model.parameters(), trial.hyperparameters)
        self.batches = Batches(trial.order_seed, len(data.targets), study.batch_size, device)
        self.loss_hyperparameters = {
            name: value for name, value in trial.hyperparameters.items() if name in workload.hyperparameters
        }
        self.step = 0
        self.first_bad_step: int | None = None
        self.steps: list[int] = []
        self.errors: dict[str, list[float]] = {
            f"{split}/{error}": [] for split in ("train", "val", "test") for error in workload.errors
        }
        self.seconds = {"training": 0.0, "evaluation": 0.0}

    def finish(self, proposals: Proposals) -> Curve:
        """Train to the end of the trial: its goal, its divergence, its limit or its budget."""
        for number, step in enumerate(self.study.evaluation_steps):
            if step > proposals.step_limit(self.trial.index):
                break
            with _timed(self.seconds, "training"):
                self.advance(step)
            if self.first_bad_step is not None:
                break
            with _timed(self.seconds, "evaluation"):
                reached = self.evaluate(number)
            if self.first_bad_step is not None or (reached and self.study.stopping == "goal"):
                break
        return self.curve()

    def advance(self, step: int) -> None:
        """Make updates until `step` of them are done, or the training loss is no longer finite."""
        study, schedule = self.study, SCHEDULES[self.study.schedule]
        learning_rate = self.trial.hyperparameters["learning_rate"]
        check_every_step = self.data.inputs.device.type == "cpu"  # elsewhere reading a loss stalls the device
        losses: list[Tensor] = []
        self.model.train()
        while self.step < step:
            factor = schedule.at(self.step, study.train_steps, self.trial.hyperparameters)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate * factor
            loss = self.update()
            self.step += 1
            if not check_every_step:
                losses.append(loss)
            elif not math.isfinite(loss.item()):
                self.first_bad_step = self.step
                return
        if losses:
            bad = torch.stack(losses).isfinite().logical_not().nonzero()
            if len(bad):
                self.first_bad_step = self.step - len(losses) + int(bad[0]) + 1

    def update(self) -> Tensor:
        """One parameter update; returns the mean training loss, on the device."""
        index = self.batches(self.step)
        set_keys(self.dropouts, self.trial.seed, self.step)
        outputs = self.model(_gather(self.data.inputs, index))
        loss = self.workload.loss(outputs, self.data.targets[index], **self.loss_hyperparameters).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def evaluate(self, number: int) -> bool:
        """Measure evaluation `number` (from 0) of the grid; returns whether the goal is met."""
        if not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            self.first_bad_step = self.step
            return False
        self.steps.append(self.step)
        goal = self.study.goal
        measured = self.measure("val")
        reached = measured.get(goal.metric, math.inf) < goal.threshold
        crossed = reached and not any(e < goal.threshold for e in self.errors[goal.metric])
        last = self.step == self.study.train_steps
        if number % self.study.evaluation.every == 0 or crossed or last:
            measured |= self.measure("train") | self.measure("test")
        for metric, values in self.errors.items():
            values.append(measured.get(metric, math.nan))
        return reached

    def measure(self, split: str) -> dict[str, float]:
        """Every error of the workload on one split: metric -> mean over its examples."""
        inputs, targets = self.data.evaluated[split]
        totals = dict.fromkeys(self.workload.errors, 0.0)
        self.model.eval()
        with torch.inference_mode():
            for start in range(0, len(targets), EVALUATION_CHUNK):
                chunk = slice(start, start + EVALUATION_CHUNK)
                outputs = self.model(_as_images(inputs[chunk]))
                for name, error in self.workload.errors.items():
                    totals[name] += error(outputs, targets[chunk]).sum(dtype=torch.float64).item()
        return {f"{split}/{name}": total / len(targets) for name, total in totals.items()}

    def curve(self) -> Curve:
        """What was measured so far."""
        errors = {metric: np.array(values) for metric, values in self.errors.items()}
        steps = np.array(self.steps, dtype=np.int64)
        return Curve(self.trial, self.first_bad_step, steps, errors, dict(self.seconds))


class _timed:
    """Adds the wall time of a block to `seconds[name]`."""

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self.seconds, self.name = seconds, name

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds[self.name] += time.perf_counter() - self.start


def _subset(split: tuple[Tensor, Tensor], size: int) -> tuple[Tensor, Tensor]:
    """The first examples of the training set, itself a fixed permutation: the recorded subset for training errors."""
    inputs, targets = split
    return inputs[:size], targets[:size]


def _channels_last(inputs: Tensor) -> Tensor:
    """[N, C, H, W] images -> contiguous [N, H, W, C]; anything else as it is."""
    return inputs.permute(0, 2, 3, 1).contiguous() if inputs.dim() == 4 else inputs


def _as_images(inputs: Tensor) -> Tensor:
    """[B, H, W, C] in memory -> a [B, C, H, W] view in channels-last format; anything else as it is."""
    return inputs.permute(0, 3, 1, 2) if inputs.dim() == 4 else inputs


def _gather(inputs: Tensor, index: Tensor) -> Tensor:
    return _as_images(inputs.index_select(0, index))


def _to_channels_last(model: nn.Module) -> nn.Module:
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
