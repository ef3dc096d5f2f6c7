"""What every engine measures, and when: the data as engines read it, and the log of one trial under way.

Shapes: B examples in a batch, N examples in a split, E evaluations.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from study.records import Curve, Study, Trial
from workloads.base import Splits, Workload

EVALUATION_CHUNK = 1024
"""Examples per forward pass of an evaluation; fixed, since another size changes the last bits."""


@dataclass(frozen=True)
class Data:
    """The examples as the engines read them: training data, and what each split is evaluated on.

    Attributes:
        inputs: [N, ...]; images [N, H, W, C], the layout that CPU convolutions are fastest in.
        evaluated: split -> (inputs, targets); `train` is the fixed subset that training errors are measured on.
    """

    inputs: Tensor
    targets: Tensor
    evaluated: Mapping[str, tuple[Tensor, Tensor]]
    images: bool

    @classmethod
    def of(cls, splits: Splits) -> Data:
        """The training set is itself a fixed permutation: its first examples, as many as validate, are the subset."""
        train, val, test = ((_channels_last(inputs), targets) for inputs, targets in splits)
        subset = len(val[1])
        evaluated = {"val": val, "train": (train[0][:subset], train[1][:subset]), "test": test}
        return cls(*train, evaluated, images=splits.train[0].dim() == 4)

    def gather(self, index: Tensor) -> Tensor:
        """The inputs [B, ...] of these examples [B]; images as a [B, C, H, W] view in channels-last format."""
        return self.as_model_wants(self.inputs.index_select(0, index))

    def as_model_wants(self, inputs: Tensor) -> Tensor:
        """Images [..., B, H, W, C] in memory -> a [..., B, C, H, W] view in channels-last format; else as they are."""
        return inputs.movedim(-1, -3) if self.images else inputs


class Log:
    """What one trial measured so far."""

    def __init__(
        self, study: Study, workload: Workload, data: Data, trial: Trial, micro_batch: int | None = None
    ) -> None:
        self.micro_batch = micro_batch
        self.study, self.workload, self.data, self.trial = study, workload, data, trial
        self.first_bad_step: int | None = None
        self.steps: list[int] = []
        self.errors: dict[str, list[float]] = {
            f"{split}/{error}": [] for split in ("train", "val", "test") for error in workload.errors
        }
        self.seconds = {"training": 0.0, "evaluation": 0.0}

    @property
    def evaluations(self) -> int:
        """How many evaluations were made: the number of the next one."""
        return len(self.steps)

    def evaluate(self, model: nn.Module, step: int) -> bool:
        """Measure the model after `step` updates; returns whether the trial ends here: goal, divergence or budget."""
        if not all(bool(p.isfinite().all()) for p in model.parameters()):
            self.first_bad_step = step
            return True
        goal, last = self.study.goal, step == self.study.train_steps
        measured = self.measure(model, "val")
        reached = measured.get(goal.metric, math.inf) < goal.threshold
        crossed = reached and not any(error < goal.threshold for error in self.errors[goal.metric])
        if self.evaluations % self.study.evaluation.every == 0 or crossed or last:
            measured |= self.measure(model, "train") | self.measure(model, "test")
        self.steps.append(step)
        for metric, values in self.errors.items():
            values.append(measured.get(metric, math.nan))
        return last or (reached and self.study.stopping == "goal")

    def measure(self, model: nn.Module, split: str) -> dict[str, float]:
        """Every error of the workload on one split: metric -> mean over its examples."""
        inputs, targets = self.data.evaluated[split]
        totals = dict.fromkeys(self.workload.errors, 0.0)
        model.eval()
        with torch.no_grad():
            for start in range(0, len(targets), EVALUATION_CHUNK):
                chunk = slice(start, start + EVALUATION_CHUNK)
                outputs = forward(self.study, model, self.data.as_model_wants(inputs[chunk]))
                for name, error in self.workload.errors.items():
                    totals[name] += error(outputs, targets[chunk]).sum(dtype=torch.float64).item()
        model.train()
        return {f"{split}/{name}": total / len(targets) for name, total in totals.items()}

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Count the wall time of a block as `training` or `evaluation`."""
        start = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - start

    def curve(self) -> Curve:
        """What was measured so far."""
        errors = {metric: np.array(values) for metric, values in self.errors.items()}
        steps = np.array(self.steps, dtype=np.int64)
        return Curve(self.trial, self.first_bad_step, steps, errors, dict(self.seconds), self.micro_batch)


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


def _channels_last(inputs: Tensor) -> Tensor:
    """[N, C, H, W] images -> contiguous [N, H, W, C]; anything else as it is."""
    return inputs.permute(0, 2, 3, 1).contiguous() if inputs.dim() == 4 else inputs
