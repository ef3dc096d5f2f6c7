"""The fused engine: many trials of one study stacked along a lane axis and trained at once on one device.

Each lane has its own initialisation, data order, dropout, learning rate and every other hyperparameter. Lanes run
together from one evaluation to the next; there a finished lane's row is given to the next trial or, when there is
none, to the last lane, so that no row is computed for nothing. A lane's numbers do not depend on its neighbours.

Shapes: L rows of the stack, l lanes under way, n steps of a segment, B examples in a batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from study.batches import Batches
from study.evaluation import Data, Log, initial_model
from study.optimizers import OPTIMIZERS
from study.records import Curve, Study, Trial
from study.schedules import SCHEDULES
from study.serial import Proposals
from study.stack import Loss, Stack
from workloads.base import Workload
from workloads.layers import dropout_key, dropout_layers

SEGMENT_INDICES = 2**21
"""Indices of examples prepared at once for a segment of steps; bounds memory, alters nothing."""


def train(study: Study, workload: Workload, data: Data, proposals: Proposals, rows: Sequence[int]) -> Iterator[Curve]:
    """Train proposed trials side by side.

    Arguments:
        rows: stack heights that may be computed (see `admitted`); the largest is how many trials run at once.
    """
    fused = Lanes(study, workload, data, rows)
    while True:
        while len(fused.lanes) < fused.capacity:
            trial = proposals.ask(wait=not fused.lanes)
            if trial is None:
                break
            fused.start(trial)
        if not fused.lanes:
            return
        yield from fused.run(proposals)


class Lane:
    """One trial under way, and where it stands."""

    def __init__(self, study: Study, workload: Workload, data: Data, trial: Trial) -> None:
        self.trial, self.step = trial, 0
        self.log = Log(study, workload, data, trial)
        self.grid = study.evaluation_steps
        self.batches = Batches(trial.order_seed, len(data.targets), study.batch_size, data.inputs.device)

    @property
    def next_evaluation(self) -> int:
        """The step at which this lane is measured next."""
        return self.grid[self.log.evaluations]


class Lanes:
    """The lanes of one study on one device: lane i of `lanes` lives in row i of the stack."""

    def __init__(self, study: Study, workload: Workload, data: Data, rows: Sequence[int]) -> None:
        self.study, self.workload, self.data = study, workload, data
        self.heights = sorted(rows)
        self.device = data.inputs.device
        self.optimizer, self.schedule = OPTIMIZERS[study.optimizer], SCHEDULES[study.schedule]
        self.template = initial_model(workload, study.trial(0, {}), self.device)
        self.dropouts = len(dropout_layers(self.template))
        self.stack = Stack(self.template, self.optimizer, self.capacity, study.arithmetic)
        self.lanes: list[Lane] = []

    @property
    def capacity(self) -> int:
        """How many trials run at once."""
        return self.heights[-1]

    def start(self, trial: Trial) -> None:
        """Give the next free row to a trial."""
        self.stack.load(len(self.lanes), initial_model(self.workload, trial, self.device))
        self.lanes.append(Lane(self.study, self.workload, self.data, trial))

    def run(self, proposals: Proposals) -> Iterator[Curve]:
        """Train every lane to the next evaluation of any, measure those that are due, and end those that are done."""
        steps = min(lane.next_evaluation - lane.step for lane in self.lanes)
        with _timed(self.lanes):
            bad = self.advance(steps)
        for row in reversed(range(len(self.lanes))):  # backwards, since ending a lane moves the last one into its row
            lane = self.lanes[row]
            if bad[row] is not None:
                lane.log.first_bad_step = bad[row]
            elif lane.step < lane.next_evaluation:
                continue
            else:
                with lane.log.timed("evaluation"):
                    ended = lane.log.evaluate(self.model(row), lane.step)
                beyond = not ended and lane.next_evaluation > proposals.step_limit(lane.trial.index)
                if not ended and not beyond:
                    continue
            self.end(row)
            yield lane.log.curve()

    def end(self, row: int) -> None:
        """Free a row: the last lane moves into it."""
        last = len(self.lanes) - 1
        if row != last:
            self.stack.move(last, row)
            self.lanes[row] = self.lanes[last]
        self.lanes.pop()

    def advance(self, steps: int) -> list[int | None]:
        """Make `steps` updates of every lane; returns for each the update (from 1) whose loss was not finite."""
        most = max(1, SEGMENT_INDICES // (self.study.batch_size * len(self.lanes)))
        bad: list[int | None] = [None] * len(self.lanes)
        for start in range(0, steps, most):
            count = min(most, steps - start)
            losses = self._segment(count)
            finite = losses.isfinite().cpu()
            for row, lane in enumerate(self.lanes):
                if bad[row] is None and not finite[:, row].all():
                    bad[row] = lane.step + int(finite[:, row].logical_not().nonzero()[0]) + 1
                lane.step += count
        return bad

    def _segment(self, steps: int) -> Tensor:
        """Make updates without looking at the host; returns the losses [n, l] from before each."""
        lanes = self.lanes
        height = next(h for h in self.heights if h >= len(lanes))
        padded = [*lanes, *[lanes[-1]] * (height - len(lanes))]  # rows beyond the lanes compute what nobody reads
        index = torch.stack([lane.batches.range(lane.step, steps) for lane in padded], dim=1)
        keys = self._keys(padded, steps)
        rates = self._table(
            [
                lane.trial.hyperparameters["learning_rate"]
                * self.schedule.at(lane.step + i, self.study.train_steps, lane.trial.hyperparameters)
                for i in range(steps)
                for lane in padded
            ]
        ).view(steps, height, 1)
        counts = self._table([lane.step + i + 1 for i in range(steps) for lane in padded]).view(steps, height, 1)
        hyperparameters = {
            name: self._table([lane.trial.hyperparameters[name] for lane in padded]).unsqueeze(1)
            for name in lanes[0].trial.hyperparameters
        }
        loss = self._loss(hyperparameters)
        losses = torch.empty(steps, height, device=self.device)
        with torch.no_grad():
            for i in range(steps):
                inputs, targets = self._examples(index[i])
                losses[i] = self.stack.step(inputs, loss, targets, keys[i], rates[i], hyperparameters, counts[i])
        return losses[:, : len(lanes)]

    def _examples(self, index: Tensor) -> tuple[Tensor, Tensor]:
        flat = index.reshape(-1)
        inputs = self.data.inputs.index_select(0, flat)
        targets = self.data.targets[flat].view(index.shape)
        return self.data.as_model_wants(inputs.view(*index.shape, *inputs.shape[1:])), targets

    def _loss(self, hyperparameters: Mapping[str, Tensor]) -> Loss:
        """The mean loss of each lane, with its own tuned parameters of the loss."""
        tuned = {name: h for name, h in hyperparameters.items() if name in self.workload.hyperparameters}

        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            each = {name: h.expand(targets.shape[:2]).reshape(-1) for name, h in tuned.items()}
            return (
                self.workload.loss(outputs.flatten(0, 1), targets.flatten(0, 1), **each).view(targets.shape[:2]).mean(1)
            )

        return loss

    def _keys(self, lanes: Sequence[Lane], steps: int) -> Tensor:
        """Dropout keys [n, L, layers]."""
        keys = [
            dropout_key(lane.trial.seed, lane.step + i, layer)
            for i in range(steps)
            for lane in lanes
            for layer in range(self.dropouts)
        ]
        return torch.tensor(keys, dtype=torch.int32, device=self.device).view(steps, len(lanes), self.dropouts)

    def _table(self, values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self.device)

    def model(self, row: int) -> nn.Module:
        """The model of one row as an ordinary module, for evaluation."""
        with torch.no_grad():
            for name, parameter in self.template.named_parameters():
                parameter.copy_(self.stack.views[name][row])
        return self.template


@contextmanager
def _timed(lanes: Sequence[Lane]) -> Iterator[None]:
    """Count the wall time of a block that trains all lanes; each is charged an equal part."""
    logs = [lane.log for lane in lanes]
    start = time.perf_counter()
    yield
    part = (time.perf_counter() - start) / len(logs)
    for log in logs:
        log.seconds["training"] += part
