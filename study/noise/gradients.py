"""Gradients of the training loss at the present weights of a run, of batches and of single examples.

Shapes: P trained numbers of the model, K blocks of m examples, n gradients at once.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from study.data import trees
from study.data.order import Batches
from study.data.resident import augmentation
from study.data.trees import Tree
from study.devices import generators
from study.devices.memory import out_of_memory
from study.engine.run import Run
from study.engine.trial.evaluation import forward, initial_model
from study.user_code.autocast import computed
from workloads.layers import keyed_layers, layer_key, set_keys, together

AT_ONCE = 2**25
"""Numbers in the gradients of single examples that are held at once: 128 MiB."""
NOISE = "noise"
"""The purpose of gradients whose noise is measured."""


class Gradients:
    """Gradients of a run's training loss. The run is left as it is.

    They are those of the loss alone: without clipping, L2 penalty and weight decay, which examples share. The examples
    of the blocks are a random part of the training set, each once, augmented as in training. Dropout draws other masks
    for each of them than training does.

    Arguments:
        run: a run at the step to look at; its model is copied.
        examples: m, in each block.
        purpose: another one draws other examples, dropout and noise.

    Attributes:
        separable: the loss of an example does not depend on the others of its batch, as it does with batch norm.
        looped: `torch.vmap` cannot differentiate the model, so that single examples are taken one by one.
    """

    def __init__(self, run: Run, examples: int, purpose: str = NOISE) -> None:
        kind = -4 if purpose == NOISE else generators.key_of(purpose) % 2**31
        self.run, self.key = run, layer_key(run.trial.seed, run.step, kind)
        self.model = initial_model(run.workload, run.trial, run.data.device, run.data.layout)
        self.model.load_state_dict(run.model.state_dict())
        self.keyed = keyed_layers(self.model)
        ours = {id(layer.key) for layer in self.keyed}
        self._keys = [name for name, buffer in self.model.named_buffers() if id(buffer) in ours]
        self.trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        order, device = generators.key_of(purpose, run.trial.order_seed, run.step), run.data.device
        batches, whole = Batches(order, run.data.examples, examples, device), [slice(0, examples)]
        self._read = run.data.reader(batches, whole, augmentation(run.workload, order, device))
        self.separable = together(self.model, 2) == 1
        self.looped = False

    def block(self, number: int) -> tuple[Tree, Tree]:
        """The inputs and targets [m, ...] of a block."""
        return self._read(number, 0)

    def weights(self, targets: Tree) -> Tensor:
        """The weight of each example in the loss [m]."""
        if self.run.weigh is None:
            return torch.ones(trees.count(targets), device=self.run.data.device)
        return self.run.weigh(targets)

    def losses(self, inputs: Tree, targets: Tree) -> Tensor:
        """The loss of each example [m], without its weight."""
        outputs = forward(self.run.study, self.model, trees.cloned(inputs))
        return self.run.workload.loss(outputs, trees.cloned(targets), **self.run.loss_hyperparameters)

    def of_batch(self, number: int, inputs: Tree, targets: Tree) -> Tensor:
        """The gradient [P] of the mean of the weighted losses of some examples; `number` seeds their dropout."""
        set_keys(self.keyed, self.key, number)
        generators.seed(layer_key(self.key, number, -2), self.run.data.device)
        loss = (self.weights(targets) * self.losses(inputs, targets)).mean()
        found = torch.autograd.grad(loss, list(self.trained.values()), allow_unused=True)
        return _flat(found, self.trained, ())

    def of_each(self, number: int, inputs: Tree, targets: Tree) -> Iterator[Tensor]:
        """The gradients of the weighted losses of the single examples of a block, in parts [n, P]."""
        examples, width = trees.count(targets), sum(p.numel() for p in self.trained.values())
        size = max(1, min(examples, AT_ONCE // width))
        for first in range(0, examples, size):
            place, some = number * examples + first, slice(first, first + size)
            yield self._some(place, trees.part(inputs, some), trees.part(targets, some))

    def _some(self, place: int, inputs: Tree, targets: Tree) -> Tensor:
        """The gradients [n, P] of single examples; the first of them is number `place` of all."""
        if not self.looped:
            try:
                return self._vmapped(place, inputs, targets)
            except RuntimeError as error:
                if out_of_memory(error):
                    raise
                self.looped = True
        numbers = range(trees.count(targets))
        alone = ((place + i, *(trees.part(tree, slice(i, i + 1)) for tree in (inputs, targets))) for i in numbers)
        return torch.stack([self.of_batch(-1 - number, x, y) for number, x, y in alone])

    def _vmapped(self, place: int, inputs: Tree, targets: Tree) -> Tensor:
        device, count = self.run.data.device, trees.count(targets)
        numbers = torch.arange(place, place + count, device=device)
        keys = {name: _keys(self.key, -1 - numbers, layer) for layer, name in enumerate(self._keys)}
        x, y = trees.leaves(inputs), trees.leaves(targets)

        def loss(trained: dict[str, Tensor], keys: dict[str, Tensor], weight: Tensor, *leaves: Tensor) -> Tensor:
            alone = [leaf.unsqueeze(0) for leaf in leaves]
            given, wanted = trees.like(inputs, alone[: len(x)]), trees.like(targets, alone[len(x) :])
            arguments = trees.arguments(self.model, given)
            outputs: Any = computed(
                self.run.study.precision, device, lambda: functional_call(self.model, (trained, keys), *arguments)
            )
            return weight * self.run.workload.loss(outputs, wanted, **self.run.loss_hyperparameters).squeeze(0)

        for layer in self.keyed:
            layer.first = 0
        generators.seed(layer_key(self.key, place, -3), device)
        trained = {name: p.detach() for name, p in self.trained.items()}
        each = vmap(grad(loss), in_dims=(None, *[0] * (2 + len(x) + len(y))), randomness="different")
        with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of operations that vmap runs one by one
            found = each(trained, keys, self.weights(targets), *map(torch.clone, (*x, *y)))
        return _flat(found.values(), self.trained, (count,))


def _keys(seed: int, steps: Tensor, layer: int) -> Tensor:
    """The key of a layer at each of these steps, as `set_keys` would write it."""
    return layer_key(torch.full_like(steps, seed), steps, torch.full_like(steps, layer)).int()


def _flat(gradients: Iterable[Tensor | None], trained: Mapping[str, Tensor], lead: tuple[int, ...]) -> Tensor:
    """Gradients [*lead, ...] of all trained parameters side by side [*lead, P]; 0 for one that the loss leaves out."""
    pairs = zip(gradients, trained.values(), strict=True)
    return torch.cat([torch.zeros_like(p).flatten() if g is None else g.reshape(*lead, -1) for g, p in pairs], -1)
