"""The fused engine: many trials of one study stacked along a lane axis and trained at once on one device.

Each lane has its own initialisation, data order, dropout and hyperparameters. Lanes advance together from one
evaluation to the next. When a lane ends, the last lane moves into its row, and the next trial takes the free row. A
lane's numbers do not depend on its neighbours. Under a batch-size schedule, lanes that begin together go through its
phases together: the next trials begin when all of them have ended.

Shapes: l lanes with running trials, L rows of the stack that take part in a step (lanes padded to an admitted height),
n steps of a segment, B examples in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import TypeVar

import torch
from torch import Tensor, nn

from analysis.question.batch_schedules import PARAMETERS
from analysis.question.branches import TRUNK
from study.data import trees
from study.data.order import Batches
from study.data.resident import Data, augmentation
from study.data.trees import Tree
from study.devices import precision
from study.devices.memory import out_of_memory, release_cached_memory, sent
from study.engine.arithmetic import ARITHMETICS
from study.engine.fused.compiled import Compiled
from study.engine.fused.cuda_graph import replayed
from study.engine.fused.layout import frozen_apart
from study.engine.fused.stack import Predicting
from study.engine.fused.update import of_tensors
from study.engine.trial import checkpoints
from study.engine.trial.checkpoints import Checkpoint
from study.engine.trial.evaluation import Log, Predict, evaluate, initial_model, kinds, timed
from study.engine.trial.proposals import Proposals
from study.optimizers.per_parameter import treatments
from study.records import Curve, Study, Trial
from study.schedules import OWN
from study.user_code.optimizer_state import by_parameter
from workloads.base import Workload
from workloads.layers import keyed_layers, layer_key

T = TypeVar("T")

SEGMENT_INDICES = 2**21
"""Most example indices prepared at once for a segment of steps; bounds memory and changes no result."""
SEGMENT_STEPS = 128
"""Most steps of a segment on a GPU, which computes them while the host prepares the next segment."""
AHEAD = 0.01
"""Updates of all lanes that a GPU makes while the host waits for an evaluation, as a share of those before it: for a
trial that ends there they are in vain."""


def train(
    study: Study,
    workload: Workload,
    data: Data,
    proposals: Proposals,
    heights: Sequence[int],
    most: int,
    compiled: bool = False,
) -> Iterator[Curve]:
    """Train proposed trials side by side.

    If memory runs out, unfinished trials start again, or continue from their latest checkpoint, with half as many
    lanes. A trial is a pure function of its configuration, so only time is lost.

    Arguments:
        heights: admitted stack heights (see `study.engine.lane_count.admitted`), increasing.
        most: number of trials that run at once, at most the greatest height.
        compiled: compile the update of `most` trials.

    Raises:
        RuntimeError: out of memory with a single lane.
    """
    queue: list[Trial] = []
    fused = None
    while True:
        try:
            fused = Lanes(study, workload, data, heights, most, compiled)
            yield from _refilled(fused, proposals, queue)
            return
        except (RuntimeError, MemoryError) as error:
            if most == 1 or not out_of_memory(error):
                raise
        queue[:0] = [lane.trial for lane in fused.lanes] if fused else []
        fused = None
        release_cached_memory()
        most = -(-most // 2)
        proposals.train_at_once(most)
        heights = enough(heights, most)


def _refilled(fused: Lanes, proposals: Proposals, queue: list[Trial]) -> Iterator[Curve]:
    """Train the trials of `queue`, which this empties, then proposed trials until there are no more."""
    while True:
        while fused.takes_another:
            if not queue:
                trial = proposals.ask(wait=not fused.lanes)
                if trial is None:
                    break
                queue.append(trial)
            fused.start(queue[0])
            trial = queue.pop(0)
            fused.restore(proposals.checkpoint)
            if not fused.in_phase():
                queue.insert(0, trial)
                break
        if not fused.lanes:
            return
        yield from fused.run(proposals)


class Lane:
    """One running trial: its step, schedule, batches and measurements.

    Attributes:
        begun: number of evaluations begun. The log holds the latest one once the host has read it.
    """

    def __init__(self, study: Study, workload: Workload, data: Data, trial: Trial) -> None:
        self.trial, self.step, self.begun = trial, 0, 0
        self.hyperparameters = study.resolved(trial.hyperparameters)
        self.learning_rate = study.learning_rate(trial.hyperparameters)
        self.log = Log(study, workload, data, trial)
        self.grid = study.evaluation_steps
        self.batches = Batches(trial.order_seed, data.examples, study.batch_size, data.device, study.phases)
        self.augment = augmentation(workload, trial.order_seed, data.device)

    @property
    def next_evaluation(self) -> int:
        """The step of this lane's next evaluation; after the last one, its own."""
        return self.grid[self.begun] if self.begun < len(self.grid) else self.step


def enough(heights: Sequence[int], lanes: int) -> list[int]:
    """Those of the increasing heights that this number of lanes needs.

    >>> enough([1, 2, 4, 8], 3)
    [1, 2, 4]
    """
    return [height for height in heights if height < lanes] + [height for height in heights if height >= lanes][:1]


class Lanes:
    """The lanes of one study on one device: lane i of `lanes` lives in row i of the stack.

    Arguments:
        compiled: compile the update of a full stack; lower ones, at the end of a search, are not worth it.
    """

    def __init__(
        self,
        study: Study,
        workload: Workload,
        data: Data,
        heights: Sequence[int],
        capacity: int,
        compiled: bool = False,
    ) -> None:
        self.study, self.workload, self.data = study, workload, data
        self.heights, self.capacity = heights, capacity
        self.device = data.device
        template = initial_model(workload, study.trial(0, {}), self.device, data.layout)
        self.keyed = len(keyed_layers(template))
        stack = ARITHMETICS[study.arithmetic].stack
        assert stack is not None
        apart = frozen_apart(template, lambda: initial_model(workload, study.trial(1, {}), self.device))
        self.stack = stack(template, study, heights[-1], treatments(template, workload, study.no_decay), apart)
        self.lanes: list[Lane] = []
        self._scheduled, self._under_way = bool(study.batch_schedule), False
        self._updated: tuple[tuple[int, int], Callable[..., Tensor]] | None = None
        self._predicting = Predicting(self.stack)
        self._unread: list[tuple[list[Lane], list[int], Tensor]] = []
        """Lanes, their steps before some updates, and whether the losses of these were finite [n, l]; not looked at."""
        self._finite: list[bool] = []
        """For each row, whether its trained weights were finite after the latest steps."""
        compiles = compiled and self.stack.replayable
        self._compiled_rows = next(height for height in heights if height >= capacity) if compiles else None
        self._compiled: dict[int, Compiled] = {}

    def start(self, trial: Trial, model: nn.Module | None = None) -> None:
        """Give the next free row to a trial, with its own initial model or the given one."""
        self.stack.load(len(self.lanes), model or initial_model(self.workload, trial, self.device, self.data.layout))
        self.lanes.append(Lane(self.study, self.workload, self.data, trial))

    @property
    def takes_another(self) -> bool:
        """Whether another trial may start now."""
        self._under_way = self._under_way and bool(self.lanes)
        return len(self.lanes) < self.capacity and not (self._scheduled and self._under_way)

    def in_phase(self) -> bool:
        """True if the latest started lane can advance with the others; otherwise it is dropped, to start later."""
        if not self._scheduled or self.lanes[-1].step == self.lanes[0].step:
            return True
        self.lanes.pop()
        return False

    @property
    def batch_size(self) -> int:
        """The examples in the next update of each lane."""
        return self.lanes[0].batches.phases.size(self.lanes[0].step)

    def restore(self, checkpoint: Callable[[int], bytes | None]) -> None:
        """Continue the latest started lane from its checkpoint, if that matches; in a branch, else start from that of
        its trunk."""
        lane, row = self.lanes[-1], len(self.lanes) - 1
        if (found := checkpoints.restore(checkpoint(lane.trial.index), lane.log, self.stack.row(row))) is not None:
            lane.step, lane.begun = found.step, lane.log.evaluations
            self.stack.fill(row, found.weights)
        elif self.study.start is not None:
            begun = checkpoints.started(checkpoint(TRUNK), self.study, self.device)
            self.stack.begin_from(row, begun.weights, by_parameter(begun.state))

    def run(self, proposals: Proposals) -> Iterator[Curve]:
        """Train every lane up to the earliest next evaluation, or until a checkpoint is due. Then evaluate lanes due,
        end finished lanes and yield their curves, and take checkpoints if due. A GPU trains while the host waits for
        its evaluations, unless checkpoints are due."""
        self._under_way = True
        with timed([lane.log for lane in self.lanes], "training"):
            steps = min(lane.next_evaluation - lane.step for lane in self.lanes)
            proposals.pace.advance(self.advance, steps)
        proposals.reached(lambda: {lane.trial.index: lane.step for lane in self.lanes})
        due = [row for row, lane in enumerate(self.lanes) if lane.step == lane.next_evaluation]
        keeps = proposals.pace.due()
        with timed([self.lanes[row].log for row in due], "evaluation"):
            ended = self.evaluate(due, ahead=self.device.type != "cpu" and not keeps)
        for row in reversed(range(len(self.lanes))):  # backwards, because ending a lane moves the last one into its row
            lane = self.lanes[row]
            over = row in ended or lane.log.first_bad_step is not None
            if over or (row in due and lane.next_evaluation > proposals.step_limit(lane.trial.index)):
                self.end(row)
                yield lane.log.curve()
        if keeps:
            for row, lane in enumerate(self.lanes):
                checkpoint = Checkpoint(lane.step - self.stack.pending(row), self.stack.row(row), {})
                proposals.keep(lane.trial.index, checkpoints.pack(lane.log, checkpoint))

    def end(self, row: int) -> None:
        """Free a row: the last lane moves into it."""
        last = len(self.lanes) - 1
        if row != last:
            self.stack.move(last, row)
            self.lanes[row] = self.lanes[last]
        self.lanes.pop()

    def advance(self, steps: int) -> None:
        """Make `steps` updates of every lane, and log each lane's first update with a non-finite loss."""
        self._launch(steps)
        trained = slice(0, self.stack.layout.trained_width)  # running averages are not judged, as in the serial engine
        weights = self.stack.weights[: len(self.lanes), trained].isfinite().all(1)
        each = [*(finite.flatten() for _, _, finite in self._unread), weights]
        found = torch.cat(each).cpu().split([len(part) for part in each])  # waits for the device
        for (lanes, begins, finite), part in zip(self._unread, found, strict=False):
            for lane, begin, of_lane in zip(lanes, begins, part.view(finite.shape).T.logical_not(), strict=True):
                if lane.log.first_bad_step is None and of_lane.any():
                    lane.log.first_bad_step = begin + int(of_lane.nonzero()[0]) + 1
        self._finite, self._unread = found[-1].tolist(), []

    def _launch(self, steps: int) -> None:
        """Make `steps` updates of every lane without waiting for the device."""
        while steps:
            most = max(1, SEGMENT_INDICES // (self.batch_size * len(self.lanes)))
            if self.device.type != "cpu":
                most = min(most, SEGMENT_STEPS)
            count = int(min(most, steps, self.lanes[0].batches.phases.left(self.lanes[0].step)))
            steps -= count
            self._unread.append(([*self.lanes], [lane.step for lane in self.lanes], self._segment(count).isfinite()))
            for lane in self.lanes:
                lane.step += count

    def evaluate(self, rows: Sequence[int], ahead: bool = False) -> list[int]:
        """Measure the lanes in these rows together, except diverged ones; returns the rows of lanes that end here.
        `ahead`: train all lanes while the host waits for the errors."""
        for row in rows:
            log = self.lanes[row].log
            self.lanes[row].begun += 1
            if log.first_bad_step is None and not self._finite[row]:
                log.first_bad_step = self.lanes[row].step
        rows = [row for row in rows if self.lanes[row].log.first_bad_step is None]
        if not rows:
            return []
        lanes = [self.lanes[row] for row in rows]
        logs, steps = [lane.log for lane in lanes], [lane.step for lane in lanes]
        if ahead:
            ended = evaluate(logs, steps, self._predicting.copied(rows, kinds(self.study)), partial(self._go_on, lanes))
        else:
            ended = evaluate(logs, steps, lambda chosen, averaged: self.predictor([rows[i] for i in chosen], averaged))
        return [row for row, over in zip(rows, ended, strict=True) if over]

    def _go_on(self, judged: Sequence[Lane]) -> None:
        """Train all lanes for a small share of the steps of those that are judged, but not beyond an evaluation."""
        left = min(lane.next_evaluation - lane.step for lane in self.lanes)
        share = int(AHEAD * min(lane.step for lane in judged))
        self._launch(min(left, max(1, share), SEGMENT_STEPS))

    def predictor(self, rows: Sequence[int], averaged: bool = False) -> Predict:
        """The models in these rows, dropout off: inputs [N, ...] -> outputs [rows * N, ...]."""
        if self.device.type != "cpu":
            return self._predicting.of(rows, averaged)
        outputs = self.stack.outputs(rows if self.stack.predicts_alone else self._padded(rows), averaged)
        return lambda inputs: trees.mapped(lambda tensor: tensor[: len(rows)].flatten(0, 1), outputs(inputs))

    def _padded(self, lanes: Sequence[T]) -> list[T]:
        """Repeat the last element up to an admitted height; the results of the added rows are discarded."""
        height = next(h for h in self.heights if h >= len(lanes))
        return [*lanes, *[lanes[-1]] * (height - len(lanes))]

    def _segment(self, steps: int) -> Tensor:
        """Make updates without waiting for the device; returns each lane's mean loss before each update [n, l]."""
        lanes = self._padded(self.lanes)
        index = torch.stack([lane.batches.range(lane.step, steps) for lane in lanes], dim=1).view(steps, -1)
        targets = self.data.gather_targets(index.view(-1))
        by_step = [tensor.view(*index.shape, *tensor.shape[1:]) for tensor in trees.leaves(targets)]
        rates = self._table(
            [[lane.learning_rate(step) for step in range(lane.step, lane.step + steps)] for lane in lanes]
        ).T.contiguous()
        before = self.study.start.step if self.study.start else 0  # updates that the optimizer's state has seen
        counts = sent((self._numbers(lanes, steps) + before + 1).float(), self.device)
        names = sorted(lanes[0].hyperparameters.keys() - OWN - PARAMETERS)  # lanes may have other schedules
        constants = [self._table([lane.hyperparameters[name] for lane in lanes]).unsqueeze(1) for name in names]
        tables = (index, *by_step, self._keys(lanes, steps), rates.unsqueeze(2), counts.unsqueeze(2))
        update, losses = self._update(len(lanes), names), []
        with torch.no_grad():
            for i, (chosen, *now) in enumerate(zip(*(table.unbind() for table in tables), strict=True)):
                losses.append(update(*trees.leaves(self._inputs(chosen, i)), *now, *constants))
                for row, lane in enumerate(self.lanes) if self.stack.optimizer.refresh else ():
                    self.stack.refresh(row, lane.hyperparameters, before + lane.step + i + 1)
        return torch.stack(losses).view(steps, len(lanes), -1).mean(2)[:, : len(self.lanes)]

    def _update(self, rows: int, names: Sequence[str]) -> Callable[..., Tensor]:
        """One update of the first `rows` rows as a function of tensors alone, so that a GPU can record and replay it.
        `names`: the hyperparameters that are its last arguments, the same for every lane."""
        key = rows, self.batch_size
        if self._updated is None or self._updated[0] != key:
            self._updated = None  # free the old recording first: each has its own memory
            by = of_tensors(self.workload, self.data, rows, names)
            if rows == self._compiled_rows:
                fresh = Compiled(self.stack, rows, by, precision.TOLERANCE[self.study.precision])
                # Each batch size is compiled once: the stack may be full again.
                update: Callable[..., Tensor] = self._compiled.setdefault(self.batch_size, fresh)
            else:
                update = partial(by, self.stack.step(rows))
            self._updated = key, replayed(update, self.device, "updates") if self.stack.replayable else update
        return self._updated[1]

    def _inputs(self, chosen: Tensor, made: int) -> Tree:
        """The stack's inputs for the next step (see `Stack.inputs`).

        Arguments:
            chosen: indices of the step's examples [L * B].
            made: steps of the segment already made.
        """
        rows = len(chosen) // self.batch_size

        def now() -> Tree:
            inputs = self.data.gather(chosen, rows)
            if self.lanes[0].augment is None:
                return inputs
            each = [self._augmented(row, trees.mapped(itemgetter(row), inputs), made) for row in range(rows)]
            return trees.like(inputs, [torch.stack(leaf) for leaf in zip(*map(trees.leaves, each), strict=True)])

        def ahead(row: int, most: int) -> Tree:
            """Inputs of at most `most` next steps, up to the lane's next evaluation: no other lane affects them."""
            lane = self.lanes[row]
            step = lane.step + made
            left = lane.next_evaluation - step
            steps = left if 0 < left < most else most
            index = lane.batches.range(step, steps)
            if lane.augment is None:
                return self.data.gather(index.flatten())
            return trees.cat([self._augmented(row, self.data.gather(each), made + i) for i, each in enumerate(index)])

        return self.stack.inputs(rows, len(self.lanes), now, ahead)

    def _augmented(self, row: int, inputs: Tree, made: int) -> Tree:
        """The augmented batch [B, ...] of a lane, `made` steps after its current one; padding repeats the last lane."""
        lane = self.lanes[min(row, len(self.lanes) - 1)]
        assert lane.augment is not None
        return lane.augment(inputs, lane.step + made)

    def _keys(self, lanes: Sequence[Lane], steps: int) -> Tensor:
        """Keys of the keyed layers (`workloads.layers.Keyed`) [n, L, layers]."""
        seeds = torch.tensor([[lane.trial.seed % 2**32] for lane in lanes])
        keys = layer_key(seeds, self._numbers(lanes, steps).unsqueeze(2), torch.arange(self.keyed))
        return sent(keys.to(torch.int32), self.device)

    @staticmethod
    def _numbers(lanes: Sequence[Lane], steps: int) -> Tensor:
        """Numbers of the next updates of each lane, counted from 0 [n, L]."""
        return torch.arange(steps).unsqueeze(1) + torch.tensor([lane.step for lane in lanes])

    def _table(self, values: Sequence[float] | Sequence[Sequence[float]]) -> Tensor:
        return sent(torch.tensor(values, dtype=torch.float32), self.device)
