"""The arithmetic `linear_blocks`: `linear_chain` whose first layer is written to memory once in a block of steps.

At small batch sizes a step is all memory: it reads and writes every weight, gradient and velocity of a first layer,
though the gradient is a sum of no more than B outer products with inputs that are known beforehand. So for a block of
steps, with n inputs X [n, D] between them, the weight [H, D] and each tensor of the optimizer's memory are held as

    W = mix_0 W_0 + mix_1 V_0 + A X

combinations of what they were when the block began, and of its inputs. An optimizer that is linear in weights,
gradients and memory does to the coordinates (mix, A) what it would do to W, and a gradient's coordinates are those of
the outputs, in the columns of the step's inputs. What a step needs of W are its outputs, and those follow from X X^T,
X W_0^T and X V_0^T: a few products for the whole block instead of passes over memory in each step. It equals
`linear_chain` but for rounding.

Shapes: L rows of the stack, l of them in a step, B examples in a batch, n = BLOCK inputs of a block, D features of
one, H outputs of the first layer, S tensors that are combined: the weight and the optimizer's memory of it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from study.engine.fused.layout import CACHE_LINE
from study.engine.fused.linear_chain import Combination, LinearChain, first_linear, is_linear_chain
from study.engine.fused.stack import Stack, Update
from study.optimizers.base import Optimizer
from study.records import Study

BLOCK = 64
"""Examples of a block: with fewer, memory still takes most of the time, and with more the products do."""

SMALL_BATCH = 8
"""First layers gain up to this batch size on a CPU; beyond it the products take longer than the passes over memory that
they save."""
LEAST_WEIGHTS = 2**14
"""For each example of a batch: smaller first layers do not gain."""


def can(model: nn.Module, study: Study) -> bool:
    """Whether the first layer of a chain sees the examples as they are, and the optimizer is linear."""
    linear = study.algorithm.linear and not study.averages
    return linear and study.batch_size <= BLOCK and is_linear_chain(model) and first_linear(model) is not None


def pays(model: nn.Module, study: Study, device: str) -> bool:
    """Whether moving the first layer through memory is most of what a step costs."""
    first = first_linear(model)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    great = first is not None and first.weight.numel() >= max(LEAST_WEIGHTS * study.batch_size, parameters / 2)
    return great and study.batch_size <= SMALL_BATCH and torch.device(device).type == "cpu"


def stack(template: nn.Module, study: Study, rows: int) -> Stack:
    """A stack with room for `rows` trials."""
    return LinearBlocks(template, study.algorithm, rows, study.batch_size)


class Parts(NamedTuple):
    """A tensor of rows, the weights or a memory of the optimizer: as it was when the block began, and as it goes on.

    Attributes:
        matrix, rest: what belongs to the first layer's weight [L, H, D], and to the other parameters [L, p], then.
        mix, coordinates: the combination [L, S], [L, H, n] that the matrix is now.
        rest_now: what belongs to the others [L, p] now.
    """

    matrix: Tensor
    rest: Tensor
    mix: Tensor
    coordinates: Tensor
    rest_now: Tensor


class LinearBlocks(Stack):
    """A stack of linear chains in which each row is true as of the beginning of its block.

    Rows begin and end their blocks each for itself, one row at a time, so that nothing beside a row can touch its bits.
    """

    replayable = False

    def __init__(self, template: nn.Module, optimizer: Optimizer, lanes: int, batch_size: int) -> None:
        super().__init__(template, optimizer, lanes, LinearChain)
        self.batch_size, self.period = batch_size, BLOCK // batch_size
        first, tensors = first_linear(template), 1 + len(self.state)
        assert first is not None
        layers = list(template.children())
        stand_in = Combination(BLOCK, tensors, first.bias)
        combined = nn.Sequential(stand_in, *layers[layers.index(first) + 1 :])
        self.combined = Stack(combined, optimizer, lanes, LinearChain)
        """What a step sees and updates: a combination in place of the first layer."""
        weight, bias, *_ = self.layout.columns
        coordinates, mix, bias_now, *_ = self.combined.layout.columns
        self.parts = [
            Parts(
                then[:, weight].unflatten(1, first.weight.shape),
                then[:, bias.start :],
                now[:, mix],
                now[:, coordinates].unflatten(1, (-1, BLOCK)),
                now[:, bias_now.start :],
            )
            for then, now in [
                (self.weights, self.combined.weights),
                *((tensor, self.combined.state[name]) for name, tensor in self.state.items()),
            ]
        ]
        self.examples = self.weights.new_zeros(lanes, BLOCK, first.in_features)
        self.widths = [BLOCK, BLOCK, *[first.out_features] * tensors]
        # Whole cache lines: kernels peel unaligned heads, which would make bits depend on the row.
        self.known = self.weights.new_zeros(lanes, BLOCK, -(-sum(self.widths) // CACHE_LINE) * CACHE_LINE)
        """Of each input of a row's block: which it is, its products with the others, what each matrix makes of it."""
        self.known[:, :, :BLOCK] = torch.eye(BLOCK)
        self.place, self.length = [0] * lanes, [0] * lanes
        """Steps made of each row's block, and steps that it has; 0: none is under way."""
        device = self.weights.device
        self._rows, self._batch = torch.arange(lanes, device=device)[:, None], torch.arange(batch_size, device=device)

    @property
    def bytes(self) -> int:
        own = (self.weights, *self.state.values(), self.examples, self.known)  # gradients are those of coordinates
        return sum(tensor.nbytes for tensor in own) + self.combined.bytes

    def pending(self, row: int) -> int:
        return self.place[row]

    def load(self, row: int, model: nn.Module) -> None:
        super().load(row, model)
        self.place[row] = self.length[row] = 0

    def fill(self, row: int, held: Mapping[str, Tensor]) -> None:
        super().fill(row, held)
        self.place[row] = self.length[row] = 0

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self.combined.move(source, target)
        for tensor in (self.examples, self.known):
            tensor[target] = tensor[source]
        self.place[target], self.length[target] = self.place[source], self.length[source]

    def begin(self, row: int, inputs: Tensor) -> None:
        """Begin a block of as many steps as these inputs [m * B, ...] are for, at most `period`."""
        self.length[row] = len(inputs) // self.batch_size
        x = self.examples[row]
        x[: len(inputs)] = inputs.flatten(1)
        x[len(inputs) :] = 0  # products are of one size, and what is not there adds nothing to them
        _, products, *made = self.known[row, :, : sum(self.widths)].split(self.widths, dim=1)
        torch.mm(x, x.mT, out=products)
        for number, (part, outputs) in enumerate(zip(self.parts, made, strict=True)):
            torch.mm(x, part.matrix[row].mT, out=outputs)
            part.mix[row] = 0
            part.mix[row, number] = 1
            part.coordinates[row] = 0
            part.rest_now[row] = part.rest[row]

    def settle(self, row: int) -> None:
        if not self.pending(row):
            return
        mixes = [part.mix[row].tolist() for part in self.parts]
        others = [self._others(row, number, mix) for number, mix in enumerate(mixes)]  # before any is written
        for number, part in enumerate(self.parts):
            matrix = part.matrix[row].addmm_(part.coordinates[row], self.examples[row], beta=mixes[number][number])
            for other in others[number]:
                matrix += other
            part.rest[row] = part.rest_now[row]
        self.place[row] = self.length[row] = 0

    def _others(self, row: int, number: int, mix: Sequence[float]) -> list[Tensor]:
        """The shares of the other matrices in this one."""
        shares = [(part.matrix[row], share) for part, share in zip(self.parts, mix, strict=True)]
        return [matrix * share for matrix, share in shares[:number] + shares[number + 1 :] if share]

    def inputs(self, rows: int, lanes: int, now: Callable[[], Tensor], ahead: Callable[[int, int], Tensor]) -> Tensor:
        """[l, B, 2 n + S H]; where a row begins a block, its own steps alone settle how long that is."""
        for row in range(lanes):
            if not self.pending(row):
                self.begin(row, ahead(row, self.period))
        first = torch.tensor(self.place[:rows], device=self._batch.device)[:, None] * self.batch_size
        return self.known[self._rows[:rows], first + self._batch][:, :, : sum(self.widths)]

    def step(self, rows: int) -> Update:
        return partial(self._step, rows)

    def _step(self, rows: int, *arguments: Any) -> Tensor:
        losses = self.combined.step(rows)(*arguments)
        for row in range(rows):
            if self.length[row]:
                self.place[row] += 1
                if self.place[row] == self.length[row]:
                    self.settle(row)
        return losses
