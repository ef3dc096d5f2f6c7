"""One running trial of the plain engine, with `nn.Module` and `torch.optim`."""

import copy
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from analysis.question.branches import TRUNK
from study.data import trees
from study.data.order import Batches, places
from study.data.resident import AugmentedParts, Source, augmentation
from study.data.single_pass import StreamReader
from study.data.trees import Tree
from study.devices import generators
from study.engine.trial import checkpoints
from study.engine.trial.checkpoints import Checkpoint
from study.engine.trial.evaluation import Log, evaluate, forward, initial_model, timed
from study.engine.trial.proposals import Proposals
from study.errors import Failed
from study.optimizers.base import Plain, decay_
from study.optimizers.foreign import check_rates
from study.optimizers.per_parameter import decayed, treatments
from study.records import Curve, Study, Trial
from study.user_code import hidden_state, optimizer_state, snapshots
from study.user_code.weighting import inverse, weigher, weighted_mean
from workloads.base import Workload
from workloads.layers import ghost_layers, keyed_layers, layer_key, set_keys, together


class Run:
    """One running trial, as seen from one rank of its team.

    Attributes:
        shares: for each rank, its micro-batches as slices of the global batch.
        parts: the micro-batches of this rank.
        trained: the model; in a team, wrapped so that backward passes average gradients over the ranks.
        rates: for each parameter group of the optimizer, the factor on the learning rate that it was built with.
        decayed: see `study.optimizers.per_parameter.decayed`.
    """

    def __init__(
        self, study: Study, workload: Workload, data: Source, trial: Trial, micro_batch: int | None = None
    ) -> None:
        self.study, self.workload, self.data, self.trial = study, workload, data, trial
        self.team = data.team
        self.log = Log(study, workload, data, trial, micro_batch)
        self.model = initial_model(workload, trial, data.device, data.layout)
        self.keyed, self.ghosts = keyed_layers(self.model), ghost_layers(self.model)
        self.hyperparameters = study.resolved(trial.hyperparameters)
        self.learning_rate = study.learning_rate(trial.hyperparameters)
        algorithm = study.algorithm
        build = algorithm.build or (lambda model, h, special: Plain(model, algorithm, h, special))
        special = treatments(self.model, workload, study.no_decay)
        built = snapshots.of_model(self.model)
        self.algorithm, self.optimizer = algorithm, build(self.model, self.hyperparameters, special)
        base = self.hyperparameters["learning_rate"]
        self.rates = [float(group.get("lr", base)) / base for group in self.optimizer.param_groups]
        self.decayed = decayed(self.model, special)
        self.average = copy.deepcopy(self.model).eval() if study.averages else None
        self.phases, self.micro_batch = study.phases, micro_batch
        self._divide(study.batch_size)
        self.loss_hyperparameters = {
            name: value for name, value in trial.hyperparameters.items() if name in workload.hyperparameters
        }
        self.weigh = weigher(workload)
        self.step = 0
        self.fresh = snapshots.of_model(self.model)
        self.hooks = {name for name in snapshots.changed(built, self.fresh) if name.endswith("_hooks")}
        """Those that the optimizer has registered with the model, for example to collect gradients."""
        self.outset = optimizer_state.snapshot(self.optimizer, self.model)
        self._parts_checked = False
        self._leaves_trace: bool | None = None
        """Whether an evaluation changes attributes or buffers of the model; None: no evaluation yet."""
        self.trained: nn.Module = self.model
        if self.team.size > 1:
            self.trained = self.team.parallel(self.model, unused=self._rehearse())

    def _divide(self, batch_size: int) -> None:
        """Read batches of this size from now on, in the micro-batches of each rank."""
        self.batch_size = batch_size
        trial, data = self.trial, self.data
        batches = Batches(trial.order_seed, data.examples, batch_size, data.device, self.phases)
        self.shares = places(batch_size, self.team.size, self.micro_batch, together(self.model, batch_size))
        self.parts = self.shares[self.team.rank]
        self.read = data.reader(batches, self.parts, augmentation(self.workload, trial.order_seed, data.device))

    def _rehearse(self) -> bool:
        """Whether some parameters do not contribute to the loss. Each rank tries it on a copy of the model without
        collectives, so that no rank waits for one that runs out of memory."""
        self.trained = copy.deepcopy(self.model)
        largest = max(range(len(self.parts)), key=lambda part: self.parts[part].stop - self.parts[part].start)
        self.team.agree(lambda: self.losses(largest)[0].sum().backward())
        unused = any(p.requires_grad and p.grad is None for p in self.trained.parameters())
        return bool(self.team.sum(torch.tensor(float(unused))))

    def restore(self, checkpoint: Callable[[int], bytes | None], own: bool = True) -> bool:
        """Continue from the checkpoint of this trial, if it matches; in a branch, else start from that of its trunk.

        Returns:
            False: this run cannot be used, see `resume`; restore another without its `own` checkpoint.
        """
        content = checkpoint(self.trial.index) if own else None
        if (found := checkpoints.restore(content, self.log, self.weights)) is not None:
            return self.resume(found)
        if self.study.start is None:
            return True
        begun = checkpoints.started(checkpoint(TRUNK), self.study, self.data.device)
        return self.resume(begun, settings=False)

    def resume(self, found: Checkpoint, settings: bool = True) -> bool:
        """Continue from a checkpoint of this model and optimizer (`settings`: see `optimizer_state.put_state`).

        Returns:
            False, with a warning, if the optimizer is not as it was when it was saved: a new run must start again.
        """
        self.step = found.step
        for name, tensor in self.weights.items():
            if name in found.weights:  # trunks of earlier versions lack buffers that are not persistent
                tensor.copy_(found.weights[name])
        hidden_state.put(self.model, found.state.get("attributes", {}))
        whole = optimizer_state.put_state(self.optimizer, self.model, found.state, settings)
        if (stream := self.stream()) is not None:
            stream.saved = found.state.get("stream")
        if lost := bool(self.team.sum(torch.tensor(float(not whole)))):
            optimizer_state.warn_of_lost_state(self.study, self.optimizer)
        return not lost

    @property
    def weights(self) -> dict[str, Tensor]:
        """The model's state by name, and its average with the prefix `ema.` if there is one. Buffers that are not
        persistent belong to it, because training may change them."""
        average = {} if self.average is None else self.average.state_dict(prefix="ema.")
        return dict(self.model.named_buffers()) | self.model.state_dict() | average

    def finish(self, proposals: Proposals) -> Curve:
        """Train until the trial reaches its goal, diverges, or reaches its step limit or budget."""
        with generators.restored(self.data.device):
            self._finish(proposals)
        return self.log.curve()

    def _finish(self, proposals: Proposals) -> None:
        log, pace = self.log, proposals.pace
        for step in self.study.evaluation_steps[log.evaluations :]:
            if step > proposals.step_limit(self.trial.index):
                return
            while self.step < step and log.first_bad_step is None:
                with timed([log], "training"):
                    pace.advance(self.advance, step - self.step)
                proposals.reached(lambda: {self.trial.index: self.step})
                if log.first_bad_step is None and pace.due():
                    self._keep(proposals)
            if log.first_bad_step is not None:
                return
            if not torch.stack([p.isfinite().all() for p in self.model.parameters()]).all():  # waits for a GPU once
                log.first_bad_step = step
                return
            with timed([log], "evaluation"):
                [ended] = evaluate([log], [step], lambda _, averaged: partial(self.predict, averaged=averaged))
            if ended:
                return

    def _keep(self, proposals: Proposals) -> None:
        """Hand over a checkpoint, if one can hold the state of the model."""
        if (content := self.packed()) is not None:
            proposals.keep(self.trial.index, content)

    def packed(self) -> bytes | None:
        """A checkpoint; empty on other ranks than 0; None, with a warning, if none can hold the state of the model."""
        inside = optimizer_state.changed_attributes(self.optimizer, self.model, self.outset)
        changed = self._changed_attributes()
        state = optimizer_state.plain_state(self.study, self.model, self.optimizer, changed, inside)
        if state is None:
            return None
        if (stream := self.stream()) is not None and hidden_state.is_plain(stream.saved):
            state["stream"] = stream.saved
        return checkpoints.pack(self.log, Checkpoint(self.step, self.weights, state)) if self.team.rank == 0 else b""

    def stream(self) -> StreamReader | None:
        """The reader of the training data if they are a stream."""
        reader = self.read.whole if isinstance(self.read, AugmentedParts) else self.read
        return reader if isinstance(reader, StreamReader) else None

    def predict(self, inputs: Tree, averaged: bool = False) -> Tree:
        """The model's outputs [N, ...] for inputs [N, ...], dropout off; `averaged`: with averaged weights.

        Evaluations leave no trace in the model. Some third-party optimizers (schedule-free ones) train at one point and
        evaluate at another; their `eval` and `train` switch between the two.
        """
        generators.seed(layer_key(self.trial.seed, self.step, -3), self.data.device)
        given = trees.cloned(inputs)  # the model may write into it
        if averaged:
            assert self.average is not None
            for held, now in zip(self.average.buffers(), self.model.buffers(), strict=True):
                held.copy_(now)  # running statistics: only weights are averaged
            state = {name: value for name, value in self._changed_attributes().items() if not name.endswith("_hooks")}
            hidden_state.put(self.average, state)
            with hidden_state.untouched(self.average) if self._leaves_trace else nullcontext():
                return forward(self.study, self.average, given)
        switched: list[Any] = [self.model, self.optimizer] if hasattr(self.optimizer, "eval") else [self.model]
        for each in switched:
            each.eval()
        if self._leaves_trace is None:
            outputs, self._leaves_trace = hidden_state.watched(
                self.model, lambda: forward(self.study, self.model, given)
            )
        else:
            with hidden_state.untouched(self.model) if self._leaves_trace else nullcontext():
                outputs = forward(self.study, self.model, given)
        for each in switched:
            each.train()
        return outputs

    def advance(self, steps: int) -> None:
        """Make `steps` updates, and log the first with a non-finite training loss. A CPU stops there."""
        check_every_step = self.data.device.type == "cpu"  # reading a loss stalls a GPU
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
        """Make one parameter update; returns the mean training loss before it, as a tensor on the device."""
        if (size := self.phases.size(self.step)) != self.batch_size:
            before = self.stream()
            self._divide(size)
            if before is not None and (after := self.stream()) is not None:
                after.saved = before.saved
        given = [learning_rate * rate for rate in self.rates]
        for group, rate in zip(self.optimizer.param_groups, given, strict=True):
            group["lr"] = rate
        losses: list[Tensor] = []
        draws = self.algorithm.update is None  # third-party optimizers may draw random numbers; rules of ours do not

        def closure() -> Any:
            with generators.of_torch_restored(self.data.device) if draws else nullcontext():
                losses.append(self._descend(learning_rate))
            return losses[-1]

        if draws:  # seed every rank alike
            generators.seed(layer_key(self.trial.seed, self.step, -1), self.data.device)
        self.optimizer.step(closure)
        check_rates(self.optimizer, given, f"at update {self.step + 1} of {self.study.name}")
        if self.average is not None:
            with torch.no_grad():
                for average, weight in zip(self.average.parameters(), self.model.parameters(), strict=True):
                    average.lerp_(weight, 1 - self.hyperparameters["ema_decay"])
        return losses[0]

    def _descend(self, learning_rate: float) -> Tensor:
        """Write the gradient of the batch's mean loss, clipped and with its L2 penalty, into `grad`; apply weight decay
        to the weights. Returns the mean loss.

        Each micro-batch counts by its number of examples, so the split does not change the mean.
        """
        self.optimizer.zero_grad()  # a class may have its own, without arguments
        if self.team.size == len(self.parts) == 1:
            losses, weights = self.losses(0)
            mean = losses.mean() if weights is None else weighted_mean(losses, weights)
            mean.backward()
            total = mean.detach()
        else:
            total = self._accumulate()
        with torch.no_grad():
            for layer in self.ghosts:
                layer.end_step(self.team.sum)
            if "clip_norm" in self.hyperparameters and "clip_norm" not in self.algorithm.own:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.hyperparameters["clip_norm"])
            for rate, parameters in self.decayed:
                pairs = ((p, p.grad) for p in parameters if p.grad is not None)
                decay_(self.algorithm, pairs, learning_rate * rate, self.hyperparameters)
        return total

    def _accumulate(self) -> Tensor:
        """As `_descend`, over the micro-batches of all ranks; the gradient is scaled by the weights in the end."""
        total, weight = torch.zeros(2, device=self.data.device)
        for number in range(len(self.parts)):
            with self._alone() if number < len(self.parts) - 1 else nullcontext():
                losses, weights = self.losses(number)
                part = (losses if weights is None else losses * weights).sum() / self.batch_size
                (part * self.team.size).backward()  # cancels the mean over ranks
            total += part.detach()
            if weights is not None:
                weight += weights.sum()
        self._refuse_changed_attributes()
        self.team.sum(total)
        if self.weigh is not None:
            scale = self.batch_size * inverse(self.team.sum(weight))
            total *= scale
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad *= scale
        return total

    def _changed_attributes(self) -> dict[str, Any]:
        """The attributes of the model that training has changed, by name."""
        found = hidden_state.changed_attributes(self.model, self.fresh)
        return {name: value for name, value in found.items() if name not in self.hooks}

    def _refuse_changed_attributes(self) -> None:
        """Raise Failed if forward passes change attributes of the model: their number depends on the micro-batches.

        The check before a sweep refuses such models in micro-batches; this is for those that halve for want of memory.
        """
        if self._parts_checked:
            return
        self._parts_checked = True
        # What hooks collect does not matter here, as in an optimizer or a test.
        changed = [name for name in self._changed_attributes() if not name.endswith("_hooks")]
        if changed:
            raise Failed(
                f"one trial of {self.study.name} at batch size {self.study.batch_size} does not fit in memory at once, "
                f"and its batch must be one forward pass, which changes the attribute {changed[0]} of its "
                "model; choose a smaller model or batch size, or leave the state out."
            )

    def _alone(self) -> AbstractContextManager[None]:
        """A context in which backward passes do not exchange gradients with other ranks."""
        trained = self.trained
        return trained.no_sync() if isinstance(trained, nn.parallel.DistributedDataParallel) else nullcontext()

    def losses(self, part: int) -> tuple[Tensor, Tensor | None]:
        """The training loss and the weight of each example in micro-batch number `part` of this rank; None: all weigh
        alike."""
        start = self.parts[part].start
        set_keys(self.keyed, self.trial.seed, self.step, start)
        inputs, targets = self.read(self.step, part)
        generators.seed(layer_key(self.trial.seed, self.step, -2 - start), self.data.device)  # for third-party layers
        weights = None if self.weigh is None else self.weigh(targets)
        outputs = forward(self.study, self.trained, inputs)
        return self.workload.loss(outputs, targets, **self.loss_hyperparameters), weights
