"""The memory that the activations of a user's model take, in training and in evaluation.

Shapes: B examples in a batch.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from study.data import trees
from study.data.trees import Tree
from study.devices import generators
from workloads.base import Workload

PROBE_EXAMPLES = 4
AT_ONCE = 2
"""Tensors of the largest size that an evaluation keeps: outputs, and a copy for the errors. What operations need beside
them is in `study.devices.memory.WORKING_SET`."""


def saved_bytes(
    workload: Workload, inputs: Tree, targets: Tree, hyperparameters: Mapping[str, float] | None = None
) -> float:
    """Bytes that autograd saves for each additional example, without parameters.

    This is the slope between 4 and 8 examples. Bytes that do not grow with the batch do not count, because
    micro-batches would not reduce them.

    Arguments:
        hyperparameters: tuned arguments of the loss.
    """
    tuned = hyperparameters or {}
    examples = min(PROBE_EXAMPLES, trees.count(targets))
    # Clone: a slice would count the storage of the whole data set.
    few = [trees.mapped(lambda tensor: tensor[:examples].clone(), tree) for tree in (inputs, targets)]
    more = [trees.cat([tree, tree]) for tree in few]
    return (_saved(workload, more, tuned) - _saved(workload, few, tuned)) / examples


def _saved(workload: Workload, batch: list[Tree], hyperparameters: Mapping[str, float]) -> int:
    saved: dict[int, int] = {}
    kept: list[Tensor] = []
    with generators.seeded(0):
        model = workload.model().train()
        parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in parameters:
                saved[storage.data_ptr()] = storage.nbytes()
                kept.append(tensor)  # keep it alive: no other tensor may take its address
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            workload.loss(trees.call(model, batch[0]), batch[1], **hyperparameters).mean()
    return sum(saved.values())


class _Largest(TorchDispatchMode):
    """Notes the largest tensor that an operation returns, in bytes, apart from views of these storages."""

    def __init__(self, ignored: set[int]) -> None:
        super().__init__()
        self.ignored, self.found = ignored, 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch hides this mode from its compiler, whose import takes a second."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = (each for each in trees.leaves(result) if each.untyped_storage().data_ptr() not in self.ignored)
        self.found = max([self.found, *(tensor.nbytes for tensor in made)])
        return result


def evaluation_bytes(workload: Workload, inputs: Tree, targets: Tree) -> float:
    """Bytes that an evaluation keeps for each example: AT_ONCE times the largest tensor of forward pass and errors."""
    examples = min(PROBE_EXAMPLES, trees.count(targets))
    few = [trees.mapped(lambda tensor: tensor[:examples].clone(), tree) for tree in (inputs, targets)]
    with generators.seeded(0), torch.no_grad():
        model = workload.model().eval()
        with _Largest({parameter.untyped_storage().data_ptr() for parameter in model.parameters()}) as largest:
            outputs = trees.call(model, few[0])
            for error in workload.errors.values():
                error(trees.cloned(outputs), trees.cloned(few[1]))
    return AT_ONCE * largest.found / examples
