"""The plain engine: one trial at a time, `nn.Module` and `torch.optim`; the oracle that faster engines must equal."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from study.data.order import Batches, places
from study.data.resident import Source
from study.devices.distributed import Team
from study.devices.memory import out_of_memory, release_cached_memory
from study.engine import checkpoints
from study.engine.checkpoints import Checkpoint, Pace
from study.engine.evaluation import Log, evaluate, forward, initial_model, timed
from study.optimizers.base import Plain, decay_
from study.records import Curve, Study, Trial
from study.schedules import learning_rate
from workloads.base import Workload
from workloads.layers import ghost_layers, keyed_layers, layer_key, set_keys, together

T = TypeVar("T")


class Proposals(Protocol):
    """What an engine needs of a tuner and a store; worker processes put a pipe behind the same questions. By default no
    trial has a checkpoint and none is taken; `pace` says when one of those under way is."""

    pace: Pace = Pace(None)

    def ask(self, wait: bool) -> Trial | None:
        """The next trial, or None: nothing to start now or, if it may `wait`, nothing any more."""
        ...

    def step_limit(self, index: int) -> int:
        """The step beyond which trial `index` need not run."""
        ...

    def checkpoint(self, index: int) -> bytes | None:
        """The latest checkpoint of trial `index`."""
        return None

    def keep(self, index: int, checkpoint: bytes) -> None:
        """Keep this as the latest checkpoint of trial `index`."""


def train(study: Study, workload: Workload, data: Source, proposals: Proposals) -> Iterator[Curve]:
    """Train proposed trials one after the other, on the device of the data or with the team that shares them. Raises
    RuntimeError or MemoryError if memory runs out with as few examples as the model can take."""
    micro_batch = study.micro_batch
    while (trial := proposals.ask(wait=True)) is not None:
        attempt = partial(_curve, study, workload, data, proposals, trial)
        curve, micro_batch = fitting(study, workload, data.team, micro_batch, attempt)
        yield curve


def _curve(
    study: Study, workload: Workload, data: Source, proposals: Proposals, trial: Trial, micro_batch: int | None
) -> Curve:
    run = Run(study, workload, data, trial, micro_batch)
    run.restore(proposals.checkpoint(trial.index))
    return run.finish(proposals)


def fitting(
    study: Study, workload: Workload, team: Team, micro_batch: int | None, attempt: Callable[[int | None], T]
) -> tuple[T, int | None]:
    """(the result of an attempt, its micro-batch), halving the micro-batch for as long as memory runs out. Another size
    changes the last bits, so each attempt starts from step 0 or from a checkpoint of its own size."""
    while True:
        try:
            return attempt(micro_batch), micro_batch
        except (RuntimeError, MemoryError) as error:
            share = -(-study.batch_size // team.size)
            examples = min(share, micro_batch or share)
            least = together(workload.model(), study.batch_size)
            if examples <= least or not (out_of_memory(error) and team.agreed(error)):
                raise
            micro_batch = -(-examples // 2)
        release_cached_memory()


class Run:
    """One trial under way, as one process of its team sees it.

    Attributes:
        shares: the micro-batches of each process, as places in the global batch.
        parts: those of this one.
        trained: the model, through which a team's gradients become one.
    """

    def __init__(
        self, study: Study, workload: Workload, data: Source, trial: Trial, micro_batch: int | None = None
    ) -> None:
        self.study, self.workload, self.data, self.trial = study, workload, data, trial
        self.team = data.team
        self.log = Log(study, workload, data, trial, micro_batch)
        self.model = initial_model(workload, trial, data.device)
        self.keyed, self.ghosts = keyed_layers(self.model), ghost_layers(self.model)
        self.hyperparameters = study.resolved(trial.hyperparameters)
        self.learning_rate = learning_rate(study.schedule, study.train_steps, study.batch_size, self.hyperparameters)
        algorithm = study.algorithm
        build = algorithm.build or (lambda model, h: Plain(model, algorithm, h))
        self.algorithm, self.optimizer = algorithm, build(self.model, self.hyperparameters)
        self.average = copy.deepcopy(self.model).eval() if study.averages else None
        batches = Batches(trial.order_seed, data.examples, study.batch_size, data.device)
        unit = together(self.model, study.batch_size)
        self.shares = places(study.batch_size, self.team.size, micro_batch, unit)
        self.parts = self.shares[self.team.rank]
        self.read = data.reader(batches, self.parts)
        self.loss_hyperparameters = {
            name: value for name, value in trial.hyperparameters.items() if name in workload.hyperparameters
        }
        self.step = 0
        self.trained: nn.Module = self.model
        if self.team.size > 1:
            self.trained = self.team.parallel(self.model, unused=self._rehearse())

    def _rehearse(self) -> bool:
        """Whether some parameters have no part in the loss, found out on a copy, by each process alone: one that runs
        out of memory later would leave the others waiting for it."""
        self.trained = copy.deepcopy(self.model)
        largest = max(range(len(self.parts)), key=lambda part: self.parts[part].stop - self.parts[part].start)
        self.team.agree(lambda: self.losses(largest).sum().backward())
        unused = any(p.requires_grad and p.grad is None for p in self.trained.parameters())
        return bool(self.team.sum(torch.tensor(float(unused))))

    def restore(self, content: bytes | None) -> None:
        """Go on from a checkpoint, if it is one of this trial."""
        if (found := checkpoints.restore(content, self.log, self.weights)) is None:
            return
        self.step = found.step
        for name, tensor in self.weights.items():
            tensor.copy_(found.weights[name])
        groups = self.optimizer.state_dict()["param_groups"]
        kept = [{**group, **held} for group, held in zip(groups, found.state["groups"], strict=True)]
        self.optimizer.load_state_dict({"state": found.state["state"], "param_groups": kept})

    @property
    def weights(self) -> dict[str, Tensor]:
        """All that is trained, by name, and the averages of it."""
        average = {} if self.average is None else self.average.state_dict(prefix="ema.")
        return self.model.state_dict() | average

    def finish(self, proposals: Proposals) -> Curve:
        """Train to the end of the trial: its goal, its divergence, its limit or its budget."""
        log, pace = self.log, proposals.pace
        for step in self.study.evaluation_steps[log.evaluations :]:
            if step > proposals.step_limit(self.trial.index):
                break
            while self.step < step and log.first_bad_step is None:
                with timed([log], "training"):
                    pace.advance(self.advance, step - self.step)
                if log.first_bad_step is None and pace.due():
                    held = self.optimizer.state_dict()
                    # Some optimizers count their steps in the groups.
                    groups = [{k: v for k, v in group.items() if k != "params"} for group in held["param_groups"]]
                    state = {"state": held["state"], "groups": groups}
                    checkpoint = Checkpoint(self.step, self.weights, state)
                    content = checkpoints.pack(log, checkpoint) if self.team.rank == 0 else b""
                    proposals.keep(self.trial.index, content)
            if log.first_bad_step is not None:
                break
            if not torch.stack([p.isfinite().all() for p in self.model.parameters()]).all():  # waits for a GPU once
                log.first_bad_step = step
                break
            with timed([log], "evaluation"):
                [ended] = evaluate([log], [step], lambda _, averaged: partial(self.predict, averaged=averaged))
            if ended:
                break
        return log.curve()

    def predict(self, inputs: Tensor, averaged: bool = False) -> Tensor:
        """The model's outputs [1, N, ...] for inputs [N, ...], dropout off; `averaged`: by the average of its weights.

        Some optimizers of others train at one point and are measured at another: `train` and `eval` are theirs too.
        """
        if averaged:
            assert self.average is not None
            for held, now in zip(self.average.buffers(), self.model.buffers(), strict=True):
                held.copy_(now)  # running statistics: only weights are averaged
            return forward(self.study, self.average, inputs).unsqueeze(0)
        switched: list[Any] = [self.model, self.optimizer] if hasattr(self.optimizer, "eval") else [self.model]
        for each in switched:
            each.eval()
        outputs = forward(self.study, self.model, inputs)
        for each in switched:
            each.train()
        return outputs.unsqueeze(0)

    def advance(self, steps: int) -> None:
        """Make `steps` updates, or as many as leave the training loss finite."""
        check_every_step = self.data.device.type == "cpu"  # elsewhere reading a loss stalls the device
        losses: list[Tensor] = []
        for _ in range(steps):
            loss = self.update(self.learning_rate(self.step))
            self.step += 1
            if not check_every_step:
                losses.append(loss)
            elif not math.isfinite(loss.item()):
                self.log.first_bad_step = self.step
                return
        if losses:
            bad = torch.stack(losses).isfinite().logical_not().nonzero()
            if len(bad):
                self.log.first_bad_step = self.step - len(losses) + int(bad[0]) + 1

    def update(self, learning_rate: float) -> Tensor:
        """One parameter update; returns the mean training loss, on the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        losses: list[Tensor] = []

        def closure() -> Any:
            with _apart(self.data.device):
                losses.append(self._descend(learning_rate))
            return losses[-1]

        if self.algorithm.update is None:  # third-party optimizers may draw random numbers: seed every rank alike
            _seed(layer_key(self.trial.seed, self.step, -1), self.data.device)
        self.optimizer.step(closure)
        if self.average is not None:
            with torch.no_grad():
                for average, weight in zip(self.average.parameters(), self.model.parameters(), strict=True):
                    average.lerp_(weight, 1 - self.hyperparameters["ema_decay"])
        return losses[0]

    def _descend(self, learning_rate: float) -> Tensor:
        """Leave the gradient of the mean loss on the step's batch behind, penalised; returns that loss.

        A batch taken in parts, one after the other or each on its device, weights each by its examples, so that
        unequal ones make the same mean.
        """
        self.optimizer.zero_grad(set_to_none=True)
        if self.team.size == len(self.parts) == 1:
            mean = self.losses(0).mean()
            mean.backward()
            total = mean.detach()
        else:
            total = torch.zeros((), device=self.data.device)
            for number in range(len(self.parts)):
                with self._alone() if number < len(self.parts) - 1 else nullcontext():
                    part = self.losses(number).sum() / self.study.batch_size
                    (part * self.team.size).backward()  # the team takes the mean
                total += part.detach()
            self.team.sum(total)
        with torch.no_grad():
            for layer in self.ghosts:
                layer.end_step(self.team.sum)
            pairs = ((p, p.grad) for p in self.model.parameters() if p.grad is not None)
            decay_(self.algorithm, pairs, learning_rate, self.hyperparameters)
        return total

    def _alone(self) -> AbstractContextManager[None]:
        """Backward passes that leave the gradients of this process alone."""
        trained = self.trained
        return trained.no_sync() if isinstance(trained, nn.parallel.DistributedDataParallel) else nullcontext()

    def losses(self, part: int) -> Tensor:
        """The training loss of each example of a part of the step's batch."""
        start = self.parts[part].start
        set_keys(self.keyed, self.trial.seed, self.step, start)
        _seed(layer_key(self.trial.seed, self.step, -2 - start), self.data.device)  # for layers that draw by themselves
        inputs, targets = self.read(self.step, part)
        outputs = forward(self.study, self.trained, inputs)
        return self.workload.loss(outputs, targets, **self.loss_hyperparameters)


def _seed(key: int, device: torch.device) -> None:
    """Settle what torch's own generators give next to models and optimizers of others: trials share the process.

    `torch.manual_seed` asks all kinds of devices, and takes 70 microseconds.
    """
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        torch.cuda.manual_seed(key)


def _apart(device: torch.device) -> AbstractContextManager[None]:
    """Draws in this block leave torch's generators as they were."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])
