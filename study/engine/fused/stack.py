"""A stack: the parameters of L lanes along a leading axis, updated at once.

Shapes: L rows of the stack (one per lane), l of them in a step, B examples in a batch, P numbers in a row with the
parameters of one model (see `Layout`), p of them trained.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn

from study.data import trees
from study.data.trees import Tree
from study.devices.memory import sent
from study.engine.fused.cuda_graph import replayed
from study.engine.fused.layout import Form, Layout, Loss, tensors
from study.errors import Failed
from study.optimizers.base import Optimizer, Scalars, Values, clipped, decay_, in_place
from study.optimizers.per_parameter import ALL_USUAL, USUAL, Treatment, Treatments
from study.user_code import snapshots

Update = Callable[[Tree, Loss, Tensor, Scalars, Tensor], Tensor]
"""One update of some rows, with the arguments of `Step.__call__`."""
Predict = Callable[[Tree], Tree]
"""Inputs [N, ...] -> the outputs of l models, one model after the other [l * N, ...]."""

EVALUATED_TOGETHER = (32, 4, 1)
"""Numbers of models that a GPU evaluates at once: the first keeps it busy, and more would take memory from training."""


class Stack:
    """L equal models and their optimizer state, one row each.

    Arguments:
        half: compute products and convolutions in bfloat16.

    Attributes:
        weights: [L, P], the parameters of a model side by side in a row, without the frozen ones that all models share:
            those are the template's. With them go the running averages of ghost batch norms.
        state: optimizer state. For an elementwise rule: name -> [L, p]; otherwise: "parameter.name" -> [L, ...]. With
            `averages`, also `ema` [L, P], the average of the weights.
        views: parameter name -> view [L, *shape] of `weights`.
        treatments: of each trained parameter.
        period: number of steps after which the cost per step repeats.
        replayable: whether every step launches the same kernels on the same addresses, so that a CUDA graph can replay
            it.
    """

    period = 1
    replayable = True

    def __init__(
        self,
        template: nn.Module,
        optimizer: Optimizer,
        lanes: int,
        form: type[Form],
        averages: bool = False,
        special: Treatments = ALL_USUAL,
        apart: Collection[str] = (),
        half: bool = False,
    ) -> None:
        self.template, self.optimizer, self._form = template.train(), optimizer, form
        self.layout = Layout(template, apart)
        self.treatments = [special.get(name, USUAL) for name in self.layout.trained]
        device = next(template.parameters()).device
        self.weights = torch.zeros(lanes, self.layout.width, device=device)
        self.averages, self.half = averages, half
        self.views = self.layout.views(self.weights)
        self.state = {name: tensor.new_zeros(lanes, *tensor.shape) for name, tensor in self._initial_state(0).items()}
        self._made: tuple[int, Step] | None = None
        self._shared = {name: each for name, each in template.named_parameters() if name not in self.views}
        self._compared = ref(template)
        """The latest model whose frozen parameters were found to be the shared ones, and which is like the template."""
        self._beside = snapshots.beside_parameters(template)

    @property
    def bytes(self) -> int:
        """Bytes of weights, gradients and state together."""
        return 2 * self.weights.nbytes + sum(tensor.nbytes for tensor in self.state.values())

    @property
    def predicts_alone(self) -> bool:
        """Whether outputs are computed one model after another, so that no other row can change a model's bits."""
        return self._form.predicts_alone(self.weights.device)

    def predict_as_on(self, device: torch.device) -> None:
        """Compute outputs as on another device: one model after another, or all at once."""
        alone = self._form.predicts_alone(device)
        if alone != self.predicts_alone:
            form: Any = type(self._form.__name__, (self._form,), {"predicts_alone": staticmethod(lambda _: alone)})
            self._form = form

    def load(self, row: int, model: nn.Module) -> None:
        """Set a row to this model, with the initial optimizer state.

        Raises:
            Failed: what all models share, such as a frozen parameter, differs in this model.
        """
        named = tensors(model)
        for name, view in self.views.items():
            view[row].copy_(named[name].detach())
        if self._compared() is not model:
            self._refuse_unlike(model, named)
        self._compared = ref(model)
        for name, tensor in self._initial_state(row).items():
            self.state[name][row].copy_(tensor)

    def _refuse_unlike(self, model: nn.Module, named: Mapping[str, Tensor]) -> None:
        frozen = [name for name, shared in self._shared.items() if not torch.equal(named[name], shared)]
        unlike = [f"frozen parameter {name}" for name in frozen]
        unlike += snapshots.changed(self._beside, snapshots.beside_parameters(model))
        if unlike:
            raise Failed(
                f"the {unlike[0]} is equal in the models of the first two trials, but not in that of a later one, and "
                "trials side by side share it; make it the same for every seed, or choose engine=serial and another "
                "results=DIR."
            )

    def begin_from(self, row: int, weights: Mapping[str, Tensor], state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Set a row that was just loaded to the weights and the optimizer state of a plain run.

        Arguments:
            weights: name -> parameter or buffer; averages have the prefix `ema.`.
            state: parameter name -> name in the state of the rule -> tensor. What is missing stays as it is.
        """
        for name, view in self.views.items():
            view[row].copy_(weights[name])
        for name, columns in zip(self.layout.trained, self.layout.columns, strict=True):
            for key, tensor in state.get(name, {}).items():
                if self.optimizer.elementwise:
                    self.state[key][row, columns].copy_(tensor.flatten())
                else:
                    self.state[f"{name}.{key}"][row].copy_(tensor)
        for name, view in self.layout.views(self.state["ema"]).items() if self.averages else ():
            view[row].copy_(weights[f"ema.{name}"])

    def _initial_state(self, row: int) -> dict[str, Tensor]:
        weights, init = self.weights[row], self.optimizer.init
        if self.optimizer.elementwise:
            state = dict(init(weights[: self.layout.trained_width]))
        else:
            each = {name: init(self.views[name][row]) for name in self.layout.trained}
            state = {f"{name}.{key}": tensor for name, held in each.items() for key, tensor in held.items()}
        return state | {"ema": weights} if self.averages else state

    def row(self, row: int) -> dict[str, Tensor]:
        """The content of a row as views: `weights` [P], and optimizer state by name."""
        return {"weights": self.weights[row], **{name: tensor[row] for name, tensor in self.state.items()}}

    def fill(self, row: int, held: Mapping[str, Tensor]) -> None:
        """Copy the content of a row, in the form of `row`, into this row."""
        for name, tensor in self.row(row).items():
            tensor.copy_(held[name])

    def move(self, source: int, target: int) -> None:
        """Copy one row over another."""
        self.fill(target, self.row(source))

    def pending(self, row: int) -> int:
        """The number of steps made that the content of a row does not include yet."""
        return 0

    def settle(self, row: int) -> None:
        """Include the pending steps in a row, to read it; later steps then have other last bits."""

    def inputs(self, rows: int, lanes: int, now: Callable[[], Tree], ahead: Callable[[int, int], Tree]) -> Tree:
        """The inputs of the first `rows` rows for the next step [rows, B, ...]: examples, or products of examples.

        Arguments:
            lanes: number of rows with trials; the rows after them are padding.
            now: () -> the examples of the next step [rows, B, ...].
            ahead: (row, most) -> the examples of the next m <= most steps of a row [m * B, ...].
        """
        return now()

    def step(self, rows: int) -> Update:
        """The update of the first `rows` rows, whose slices are made once and not at every step.

        Only the latest is kept: its layers hold their latest inputs, on a GPU in memory of the recording.
        """
        if self._made is None or self._made[0] != rows:
            self._made = rows, Step(self, *self.first(rows))
        return self._made[1]

    def first(self, rows: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Views of the first `rows` rows: weights [l, P], and optimizer state by name."""
        return self.weights[:rows], {name: tensor[:rows] for name, tensor in self.state.items()}

    def refresh(self, row: int, hyperparameters: Values, step: int) -> None:
        """Run the optimizer's `refresh` on a row after its update number `step` (from 1), if it is due."""
        assert self.optimizer.refresh is not None
        if not self.optimizer.due(hyperparameters, step):
            return
        for name in self.layout.trained:
            held = {key: tensor[row] for key, tensor in _of_parameter(name, self.state).items()}
            for key, tensor in self.optimizer.refresh(held, hyperparameters, step).items():
                if tensor is not held[key]:
                    held[key].copy_(tensor)

    def outputs(self, rows: Sequence[int], averaged: bool = False) -> Callable[[Tree], Tree]:
        """A function from inputs [N, ...] to the outputs of the models in these rows [len(rows), N, ...], dropout off.
        `averaged`: use averaged weights."""
        return self.form(self.chosen(rows, averaged)).outputs

    def chosen(self, rows: Sequence[int], averaged: bool = False) -> Tensor:
        """A copy of these rows [len(rows), P]; `averaged`: with averaged weights."""
        chosen = sent(torch.tensor(rows), self.weights.device)
        weights = self.weights.index_select(0, chosen)
        if averaged:  # not the running averages: they have their own
            trained = slice(0, self.layout.trained_width)
            weights[:, trained] = self.state["ema"].index_select(0, chosen)[:, trained]
        return weights

    def form(self, weights: Tensor) -> Form:
        """The models with the weights in these rows [l, P]."""
        return self._form(self.template, weights, self.layout, self.half)


class Part(NamedTuple):
    """The parameters that one call of the rule updates.

    Attributes:
        number, columns: their gradients are `columns` of gradient `number`.
        rows: their weights, side by side [l, p].
        weights: the same numbers, for a rule that is not elementwise [l, *shape].
        state: their optimizer state [l, ...].
    """

    number: int
    columns: slice
    rows: Tensor
    weights: Tensor
    state: Mapping[str, Tensor]
    treatment: Treatment


class Step:
    """One update of the first l rows of a stack, in place.

    Arguments:
        weights, state: of those rows, or copies [l, ...].
        compiled: as a compiler wants it (see `Form.separate`).
    """

    def __init__(self, stack: Stack, weights: Tensor, state: Mapping[str, Tensor], compiled: bool = False) -> None:
        self.form, self.optimizer, self.update_ = stack.form(weights), stack.optimizer, in_place(stack.optimizer)
        if compiled:
            self.form.separate()
        self.average = (state["ema"], weights) if stack.averages else None
        self.parts: list[Part] = []
        elementwise, alone = self.optimizer.elementwise, self.form.columns is stack.layout.columns
        treated = list(zip(stack.layout.columns, stack.treatments, strict=True))
        if elementwise and not alone:
            treated = _alike(treated, stack.layout.trained_width)
        names, views = stack.layout.trained, stack.layout.views(weights)
        for number, (columns, treatment) in enumerate(treated):
            if elementwise:
                shaped = weights[:, columns]
                own = {name: tensor[:, columns] for name, tensor in state.items() if name != "ema"}
            else:
                shaped, own = views[names[number]], _of_parameter(names[number], state)
            gradient, within = (number, slice(None)) if alone else (0, columns)
            self.parts.append(Part(gradient, within, weights[:, columns], shaped, own, treatment))

    def __call__(self, inputs: Tree, loss: Loss, keys: Tensor, hyperparameters: Scalars, steps: Tensor) -> Tensor:
        """Make the update; returns the loss of every example before it [l * B].

        Arguments:
            inputs: [l, B, ...], from `Stack.inputs`.
            keys: keys of the keyed layers [l, layers].
            hyperparameters: name -> [l, 1]; `learning_rate` holds the rate of this update.
            steps: number of this update for each lane, from 1 [l, 1].
        """
        losses, gradients = self.form.backward(inputs, loss, keys)
        if "clip_norm" in hyperparameters:
            gradients = clipped(gradients, hyperparameters["clip_norm"])
        for number, columns, rows, weights, state, treatment in self.parts:
            gradient, h = gradients[number][:, columns], treatment.of(hyperparameters)
            decay_(self.optimizer, [(rows, gradient)], h["learning_rate"], h)
            self.update_(weights, gradient.view(weights.shape), state, h, steps)
        if self.average is not None:
            average, row = self.average
            average.lerp_(row, 1 - hyperparameters["ema_decay"])
        return losses


def _of_parameter(parameter: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part of a state that belongs to one parameter, for a rule that is not elementwise."""
    prefix = f"{parameter}."
    return {key.removeprefix(prefix): tensor for key, tensor in state.items() if key.startswith(prefix)}


def _alike(treated: Sequence[tuple[slice, Treatment]], width: int) -> list[tuple[slice, Treatment]]:
    """The parts of a row [p] whose parameters are treated alike. `treated`: the columns of each parameter, and its
    treatment."""
    firsts = [(next(group)[0].start, treatment) for treatment, group in groupby(treated, key=lambda each: each[1])]
    ends = [*(start for start, _ in firsts[1:]), width]
    return [(slice(start, end), treatment) for (start, treatment), end in zip(firsts, ends, strict=True)]


class Predicting:
    """Predicts with rows of a stack on a GPU, in groups of EVALUATED_TOGETHER models, so that each can be replayed."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._recorded: dict[Any, Callable[..., Tree]] = {}
        """Number of models and shapes of inputs -> their outputs, replayed from a recording."""

    def of(self, rows: Sequence[int], averaged: bool) -> Predict:
        """Predict with the models in these rows, dropout off. `averaged`: with averaged weights."""
        return self._predict(self._chosen(rows, averaged))

    def copied(self, rows: Sequence[int], kinds: Collection[bool]) -> Callable[[Sequence[int], bool], Predict]:
        """(positions in `rows`, averaged) -> as `of`, with the weights that these rows have now.

        Arguments:
            kinds: of weights that will be asked for: True for averaged ones.
        """
        held = {averaged: self._chosen(rows, averaged) for averaged in kinds}

        def predictor(chosen: Sequence[int], averaged: bool) -> Predict:
            groups = held[averaged]
            if len(chosen) < len(rows):
                some = torch.cat(groups)
                groups = [some.index_select(0, sent(torch.tensor(group), some.device)) for group in in_groups(chosen)]
            return self._predict(groups)

        return predictor

    def _chosen(self, rows: Sequence[int], averaged: bool) -> list[Tensor]:
        return [self._stack.chosen(group, averaged) for group in in_groups(rows)]

    def _predict(self, groups: Sequence[Tensor]) -> Predict:
        """As `of`, with the models in groups of rows [k, P]."""

        def predict(inputs: Tree) -> Tree:
            leaves = trees.leaves(inputs)
            made = []
            for weights in groups:
                key = len(weights), *(leaf.shape for leaf in leaves)
                if key not in self._recorded:
                    self._recorded[key] = replayed(
                        _outputs(self._stack.form, inputs), weights.device, "evaluations", self._recorded.values()
                    )
                made.append(self._recorded[key](weights, *leaves))
            return trees.mapped(lambda tensor: tensor.flatten(0, 1), trees.cat(made))

        return predict


def in_groups(rows: Sequence[int]) -> Iterator[Sequence[int]]:
    """The rows in groups of EVALUATED_TOGETHER.

    >>> [len(group) for group in in_groups(range(41))]
    [32, 4, 4, 1]
    """
    for size in EVALUATED_TOGETHER:
        while len(rows) >= size:
            yield rows[:size]
            rows = rows[size:]


def _outputs(form: Callable[[Tensor], Form], like: Tree) -> Callable[..., Tree]:
    """A function from rows of a stack [l, P] and the leaves of inputs [N, ...] to outputs [l, N, ...], dropout off.

    Models may write into their copy of the inputs: a replay may find the latest ones in place.
    """
    return lambda weights, *leaves: form(weights).outputs(trees.like(like, [leaf.clone() for leaf in leaves]))
