"""The arithmetic `linear_blocks`: `linear_chain`, except that the first layer is written once per block of steps.

At small batch sizes memory traffic dominates a step: it reads and writes every weight, gradient and velocity of the
first layer. Yet the gradient is a sum of only B outer products with inputs that are known in advance. Therefore a block
of several steps, with n inputs X [n, D] in total, holds the weight W [H, D] and each tensor of its optimizer state as

    W = mix_0 W_0 + mix_1 V_0 + A X

where W_0 and V_0 are the weight and the optimizer state at the start of the block. If an optimizer is linear in
weights, gradients and state, it updates the coordinates (mix, A) exactly as it would update W. The gradient of A is the
gradient of the layer's outputs, in the columns of the step's inputs; the gradient of mix is 0. The layer's outputs
follow from X X^T, X W_0^T and X V_0^T, a few products per block instead of passes over memory in each step. The results
equal those of `linear_chain` except for rounding.

Shapes: L rows of the stack, l of them in a step, B examples in a batch, n = BLOCK inputs of a block, D features of an
input, H outputs of the first layer, S combined tensors (the weight and its optimizer state).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from study.engine.fused import linear_chain
from study.engine.fused.layout import CACHE_LINE
from study.engine.fused.linear_chain import Combination, LinearChain, first_linear, is_linear_chain
from study.engine.fused.stack import Stack, Update
from study.optimizers.base import Optimizer
from study.optimizers.per_parameter import ALL_USUAL, USUAL, Treatments
from study.records import Study

BLOCK = 64
"""Inputs in a block. With fewer, memory traffic takes most of the time; with more, the products do."""

SMALL_BATCH = 8
"""Largest batch size that gains on a CPU; above it the products take longer than the memory traffic that they save."""
LEAST_WEIGHTS = 2**14
"""Weights of the first layer per example of a batch; smaller layers do not gain."""


def can(model: nn.Module, study: Study) -> bool:
    """Whether the model is a linear chain, its first layer reads the examples directly, and the optimizer is linear.

    Clipping needs the norm of the gradient, which is never written out.
    """
    linear = study.algorithm.linear and not study.averages and "clip_norm" not in study.search.space
    linear = linear and not study.batch_schedule  # blocks have one size
    linear = linear and study.precision != "bf16"  # sums of products by parts would be rounded in other places
    return linear and study.batch_size <= BLOCK and is_linear_chain(model) and first_linear(model) is not None


def pays(model: nn.Module, study: Study, device: str) -> bool:
    """Whether memory traffic of the first layer is most of the cost of a step."""
    first = first_linear(model)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    great = first is not None and first.weight.numel() >= max(LEAST_WEIGHTS * study.batch_size, parameters / 2)
    return great and study.batch_size <= SMALL_BATCH and torch.device(device).type == "cpu"


def stack(template: nn.Module, study: Study, rows: int, special: Treatments, apart: Collection[str]) -> Stack:
    """A stack with room for `rows` trials.

    A GPU that goes on with a study of a CPU computes it as `linear_chain`, which equals it except for rounding: blocks
    are computed row by row, and the host waits for each.
    """
    if next(template.parameters()).device.type != "cpu":
        return linear_chain.stack(template, study, rows, special, apart)
    return LinearBlocks(template, study.algorithm, rows, study.batch_size, special)


class Parts(NamedTuple):
    """Views of the weights, or of one tensor of the optimizer state, at the start of each row's block and now.

    Attributes:
        matrix: the part of the first layer's weight at the start [L, H, D].
        rest: the part of all other parameters at the start [L, p].
        mix, coordinates: the matrix now as a combination: mix [L, S], A [L, H, n].
        rest_now: the part of all other parameters now [L, p].
    """

    matrix: Tensor
    rest: Tensor
    mix: Tensor
    coordinates: Tensor
    rest_now: Tensor


class LinearBlocks(Stack):
    """A stack of linear chains whose rows hold the values at the start of their current blocks.

    Each row has its own blocks, computed one row at a time, so that no other row can change its bits.
    """

    replayable = False
    form_of = LinearChain
    """How the layers are computed."""

    def __init__(
        self,
        template: nn.Module,
        optimizer: Optimizer,
        lanes: int,
        batch_size: int,
        special: Treatments = ALL_USUAL,
    ) -> None:
        super().__init__(template, optimizer, lanes, self.form_of)
        self.batch_size, self.period = batch_size, BLOCK // batch_size
        first, tensors = first_linear(template), 1 + len(self.state)
        assert first is not None
        layers = list(template.children())
        stand_in = Combination(BLOCK, tensors, first.bias)
        combined = nn.Sequential(stand_in, *layers[layers.index(first) + 1 :])
        each = [special.get(name, USUAL) for name, _ in template.named_parameters()]
        treated = zip(dict(combined.named_parameters()), [each[0], *each], strict=True)  # mix as the first weight
        self.combined = Stack(combined, optimizer, lanes, self.form_of, special=dict(treated))
        """The stack that steps update, with a `Combination` in place of the first layer."""
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
        # Whole cache lines: kernels handle an unaligned start separately, so bits would depend on the row.
        self.known = self.weights.new_zeros(lanes, BLOCK, -(-sum(self.widths) // CACHE_LINE) * CACHE_LINE)
        """For each input of a row's block: its one-hot index, its products with all n, its outputs by each matrix."""
        self.known[:, :, :BLOCK] = torch.eye(BLOCK)
        self.place, self.length = [0] * lanes, [0] * lanes
        """For each row, the steps made in its block, and the length of the block in steps; 0: no block has begun."""
        device = self.weights.device
        self._rows, self._batch = torch.arange(lanes, device=device)[:, None], torch.arange(batch_size, device=device)

    @property
    def bytes(self) -> int:
        own = (self.weights, *self.state.values(), self.examples, self.known)  # `combined` counts the gradients
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
        """Begin a block of m steps, at most `period`, with these inputs [m * B, ...]."""
        self.length[row] = len(inputs) // self.batch_size
        x = self.examples[row]
        x[: len(inputs)] = inputs.flatten(1)
        x[len(inputs) :] = 0  # products have a fixed size; zeros add nothing
        _, products, *made = self.known[row, :, : sum(self.widths)].split(self.widths, dim=1)
        self._multiply(x, x, products)
        for number, (part, outputs) in enumerate(zip(self.parts, made, strict=True)):
            self._multiply(x, part.matrix[row], outputs)
            part.mix[row] = 0
            part.mix[row, number] = 1
            part.coordinates[row] = 0
            part.rest_now[row] = part.rest[row]

    def settle(self, row: int) -> None:
        if not self.pending(row):
            return
        self._combine(row, [part.mix[row].tolist() for part in self.parts])
        for part in self.parts:
            part.rest[row] = part.rest_now[row]
        self.place[row] = self.length[row] = 0

    def _multiply(self, x: Tensor, y: Tensor, out: Tensor) -> None:
        """Write x y^T into `out`."""
        torch.mm(x, y.mT, out=out)

    def _combine(self, row: int, mixes: Sequence[Sequence[float]]) -> None:
        """Replace each matrix of a row by its mix of all plus A X."""
        others = [self._others(row, number, mix) for number, mix in enumerate(mixes)]  # before any is overwritten
        for number, part in enumerate(self.parts):
            matrix = part.matrix[row].addmm_(part.coordinates[row], self.examples[row], beta=mixes[number][number])
            for other in others[number]:
                matrix += other

    def _others(self, row: int, number: int, mix: Sequence[float]) -> list[Tensor]:
        """The terms mix_i * matrix_i that matrix `number` takes from the others, where not zero."""
        shares = [(part.matrix[row], share) for part, share in zip(self.parts, mix, strict=True)]
        return [matrix * share for matrix, share in shares[:number] + shares[number + 1 :] if share]

    def inputs(self, rows: int, lanes: int, now: Callable[[], Tensor], ahead: Callable[[int, int], Tensor]) -> Tensor:
        """Inputs of the `Combination` [l, B, 2 n + S H]. A new block's length depends on the row's own steps alone."""
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
