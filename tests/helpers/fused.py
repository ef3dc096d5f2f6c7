"""Shared by tests of fused trials: studies in each arithmetic, trials that differ, and a loop without any engine."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partialmethod
from itertools import cycle, islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.blobs import CPU, WORKLOADS
from helpers.desks import Desk
from study.data.order import epoch_permutation
from study.engine import lane_count
from study.engine.fused import vmapped
from study.optimizers import OPTIMIZERS
from study.records import Study, Trial
from study.schedules import SCHEDULES
from workloads.layers import keyed_layers, set_keys

STEPS = 30
HYPERPARAMETERS = {
    "learning_rate": [0.05, 0.02, 0.1, 0.03, 0.08, 0.01, 0.04],
    "momentum": [0.0, 0.9, 0.5, 0.8, 0.3, 0.95, 0.7],
    "beta1": [0.9, 0.0, 0.5, 0.8, 0.3, 0.95, 0.7],
    "beta2": [0.99, 0.9, 0.95, 0.999, 0.8, 0.9, 0.9],
    "epsilon": [1e-6] * 7,
    "momentum_correction": [0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0],
    "weight_decay": [0.0, 0.01, 0.1, 0.0, 0.02, 0.03, 0.1],
    "trust_coefficient": [1.0, 0.5, 0.8, 0.9, 0.6, 2.0, 0.7],
    "precondition_frequency": [3, 5, 1, 4, 2, 7, 10],
    "learning_rate_decay_fraction": [0.5, 1.0, 0.7, 0.9, 0.6, 0.8, 1.0],
    "end_learning_rate_factor": [0.1, 0.01, 0.001, 0.3, 0.1, 0.01, 0.1],
    "learning_rate_first_drop_fraction": [0.5, 0.2, 0.4, 0.8, 0.3, 0.6, 1.0],
    "learning_rate_drops": [2, 1, 3, 2, 1, 3, 2],
    "learning_rate_drop_factor": [0.1, 0.3, 0.5, 0.01, 0.2, 0.1, 0.1],
    "learning_rate_timescale_fraction": [0.1, 1.0, 0.01, 0.3, 0.5, 0.05, 2.0],
    "label_smoothing": [0.0, 0.1, 0.2, 0.0, 0.3, 0.05, 0.1],
}
FUSING = [name for name, optimizer in OPTIMIZERS.items() if optimizer.update is not None]
PARAM = type(pytest.param())
CASES = ["linear_chain", "linear_blocks", "vmap"]


def each_once(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Rows for `parametrize` in which every value of every axis comes at least once, in place of the whole product."""
    values = [list(axis) for axis in axes]
    return list(islice(zip(*map(cycle, values), strict=True), max(map(len, values))))


def partly(
    rows: Iterable[Any],
    every: int,
    first: int = 0,
    kept: Sequence[pytest.MarkDecorator] = (),
    rest: pytest.MarkDecorator = pytest.mark.slow,
) -> list[Any]:
    """Rows for `parametrize`: each `every`-th with the marks `kept`, the others with the mark `rest`."""
    return [
        pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=kept if number % every == first else [rest])
        for number, row in enumerate(rows)
    ]


def seldom(rows: Iterable[Any]) -> list[Any]:
    """Rows for `parametrize`: each third among the slow tests, the others before a release. Of rows that are
    `pytest.param`, as `partly` makes them, those without marks remain as they are."""
    params = [row if isinstance(row, PARAM) else partly([row], 1, 1)[0] for row in rows]
    slow = [number for number, row in enumerate(params) if row.marks]
    late = {number for third, number in enumerate(slow) if third % 3}
    return [row._replace(marks=[pytest.mark.release]) if n in late else row for n, row in enumerate(params)]


def fusing(optimizer: str) -> list[str]:
    """The arithmetics with lanes that can train this optimizer."""
    return [how for how in CASES if how != "linear_blocks" or OPTIMIZERS[optimizer].linear]


class Queue(Desk):
    """Hands out trials in this order; trial i takes the i-th of HYPERPARAMETERS, trial 2 with some changed."""

    def __init__(self, study: Study, order: Iterable[int], **changed: float) -> None:
        wanted = {*study.asked_hyperparameters, "label_smoothing"}
        chosen = {i: {name: HYPERPARAMETERS[name][i] for name in wanted} | (changed if i == 2 else {}) for i in order}
        super().__init__([study.trial(index, chosen[index]) for index in order])


def asked(
    make_study: Callable[..., Study], how: str, optimizer: str = "momentum", schedule: str = "constant", **fields: Any
) -> Study:
    """A study of Blobs in an arithmetic; by default every trial runs its whole budget."""
    names = {**OPTIMIZERS[optimizer].hyperparameters, **SCHEDULES[schedule].hyperparameters, "label_smoothing": 0}
    return make_study(
        space={name: {"choices": HYPERPARAMETERS[name]} for name in names},
        optimizer=optimizer,
        schedule=schedule,
        arithmetic=how,
        **{"steps": STEPS, "batch_size": 6} | fields,
    )


def admitted(study: Study) -> list[int]:
    workload = WORKLOADS[study.arithmetic]
    heights = sorted([*lane_count.HEIGHTS, *lane_count.BETWEEN])
    return list(lane_count.admitted(study, workload, workload.data(), most=8, heights=heights))


class Rule:
    """A registered rule for single parameters, applied to a model without any engine.

    Arguments:
        factors: parameter name -> factor on its learning rate, 1 for all others.
        undecayed: names of parameters without l2 and weight decay.
    """

    def __init__(
        self,
        model: nn.Module,
        name: str,
        h: Mapping[str, float],
        factors: Mapping[str, float] | None = None,
        undecayed: Collection[str] = (),
    ) -> None:
        self.rule, self.h, self.made = OPTIMIZERS[name], dict(h), 0
        self.factors, self.undecayed = factors or {}, undecayed
        self.trained = {key: p for key, p in model.named_parameters() if p.requires_grad}
        self.state = {key: dict(self.rule.init(p.detach())) for key, p in self.trained.items()}

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> None:
        with torch.enable_grad():
            closure()
        self.made += 1
        for key, p in self.trained.items():
            h = {**self.h, "learning_rate": self.factors.get(key, 1.0) * self.h["learning_rate"]}
            if key in self.undecayed:
                h |= {name: 0.0 for name in ("l2", "weight_decay") if name in h}
            assert p.grad is not None
            g, w = p.grad + h.get("l2", 0.0) * p, p
            if "weight_decay" not in self.rule.own:
                w = p * (1 - h["learning_rate"] * h.get("weight_decay", 0.0))
            scalars = {name: torch.tensor(float(value)) for name, value in h.items()}
            assert self.rule.update is not None
            new, state = self.rule.update(w, g, self.state[key], scalars, torch.tensor(float(self.made)))
            p.copy_(new)
            self.state[key] = dict(self.rule.refresh(state, h, self.made) if self.rule.refresh else state)


class Flat(vmapped.Vmapped):
    """As on a GPU."""

    __init__ = partialmethod(vmapped.Vmapped.__init__, flat=True)


class Scheduled:
    """An optimizer of torch whose learning rates a schedule multiplies; it keeps the training loss of each step."""

    def __init__(self, optimizer: torch.optim.Optimizer, multiplier: Callable[[int], float]) -> None:
        self.optimizer, self.losses = optimizer, list[float]()
        self.schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, multiplier)

    def step(self, closure: Callable[[], Tensor]) -> None:
        self.losses.append(self.optimizer.step(closure).item())
        self.schedule.step()


def plain_loop(
    study: Study, workload: Any, trial: Trial, build: Callable[[nn.Module, dict[str, float]], Any]
) -> Iterator[float]:
    """The validation loss after each step of a plain torch loop. `build`: (model, hyperparameters) -> optimizer."""
    torch.manual_seed(trial.seed)
    model, (train, val, _) = workload.model(), workload.splits(CPU)
    optimizer = build(model, dict(trial.hyperparameters))
    size, examples = study.batch_size, len(train[1])
    epochs = range(-(-study.train_steps * size // examples))
    order = torch.cat([epoch_permutation(trial.order_seed, epoch, examples) for epoch in epochs])
    for step in range(study.train_steps):
        inputs, targets = (part[order[step * size : (step + 1) * size]] for part in train)
        set_keys(keyed_layers(model.train()), trial.seed, step)

        def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
            model.zero_grad()
            loss = workload.loss(model(inputs), targets).mean()
            loss.backward()
            if "clip_norm" in trial.hyperparameters:
                nn.utils.clip_grad_norm_(model.parameters(), trial.hyperparameters["clip_norm"])
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            yield float(workload.errors["loss"](model.eval()(val[0]), val[1]).mean())
