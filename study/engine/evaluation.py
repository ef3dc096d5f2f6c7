"""Evaluation, shared by all engines: which errors are measured when, and the log of a running trial.

Shapes: B examples in a batch, N examples in a split, E evaluations.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from analysis.counting import STOPPING
from study.data.resident import Source
from study.records import Curve, Study, Trial
from workloads.base import Workload

Predictors = Callable[[Sequence[int], bool], Callable[[Tensor], Tensor]]
"""(positions of trials, whether to use their averaged weights) -> (inputs [N, ...] -> outputs [trials, N, ...])."""

AVERAGED = "ema_"
"""Prefix of the errors of averaged weights: `val/ema_classification_error`."""


def metrics(study: Study, workload: Workload) -> list[str]:
    """The names of all measured errors, such as `val/classification_error`."""
    return [_metric(split, e, a) for a in kinds(study) for split in ("train", "val", "test") for e in workload.errors]


def kinds(study: Study) -> Sequence[bool]:
    """Which weights are evaluated: False for the weights, True for their average, if the study has one."""
    return (False, True) if study.averages else (False,)


def _metric(split: str, error: str, averaged: bool) -> str:
    return f"{split}/{AVERAGED if averaged else ''}{error}"


class Log:
    """The measurements of one trial so far."""

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
        """The number of evaluations made, which is the index of the next one."""
        return len(self.steps)

    def wants_all(self, step: int, errors: Mapping[str, float]) -> bool:
        """Whether to measure the training subset and the test set too at this step. `errors`: its validation errors."""
        on_grid = (self.evaluations + 1) % self.study.evaluation.every == 0 or step == self.study.train_steps
        threshold = self.study.goal.threshold
        met_before = any(error < threshold for error in self.errors[self.study.goal.metric])
        return on_grid or (self._meets_goal(errors) and not met_before)

    def record(self, step: int, errors: Mapping[str, float]) -> bool:
        """Add the errors measured after `step` updates; returns whether the trial ends here, at its goal or budget."""
        self.steps.append(step)
        for metric, values in self.errors.items():
            values.append(errors.get(metric, math.nan))
        ends_at_goal = STOPPING[self.study.stopping].ends_at_goal
        return step == self.study.train_steps or (ends_at_goal and self._meets_goal(errors))

    def _meets_goal(self, errors: Mapping[str, float]) -> bool:
        goal = self.study.goal
        return errors.get(goal.metric, math.inf) < goal.threshold

    def curve(self) -> Curve:
        """The measurements so far as a curve."""
        errors = {metric: np.array(values) for metric, values in self.errors.items()}
        steps = np.array(self.steps, dtype=np.int64)
        return Curve(self.trial, self.first_bad_step, steps, errors, dict(self.seconds), self.micro_batch)


def evaluate(logs: Sequence[Log], steps: Sequence[int], predictors: Predictors) -> list[bool]:
    """Measure trials of one study together, and return for each whether it ends here. Every trial is measured on the
    validation set, and on the training subset and the test set if its log wants them (`Log.wants_all`)."""
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
    """The errors of l models on one split: for each model, name -> mean over the examples.

    Arguments:
        log: the log of any trial of the study.
        predict: inputs [N, ...] -> outputs [l, N, ...].
        examples: measure only the first ones of the split; None: all.
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
        if totals is None:  # this rank has no examples; teams train one model
            totals = torch.zeros(len(errors), 1, dtype=torch.float64, device=data.device)
        means = (data.team.sum(totals) / count).T.tolist()
    return [dict(zip(errors, values, strict=True)) for values in means]


@contextmanager
def timed(logs: Sequence[Log], what: str) -> Iterator[None]:
    """Add the wall time of the block to `seconds[what]` (`training` or `evaluation`), in equal parts to each log."""
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
    """The trial's model at step 0, in training mode: drawn on the CPU from the trial's seed alone, then moved."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trial.seed)
        model = workload.model()
    return model.to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
