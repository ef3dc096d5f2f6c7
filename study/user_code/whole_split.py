"""The metrics of a workload: they see the outputs of a whole split, which are computed in chunks.

Shapes: N examples in a chunk, l models side by side.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from study.data import trees
from study.data.trees import Tree
from study.errors import Failed
from workloads.base import Metric
from workloads.user_code.errors import summary, user_line


class NoSingleTensor:
    """In place of a tensor that the chunks of a split do not make one tensor of; it has no other use than its name."""

    def __init__(self, why: str) -> None:
        self.why = why

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise TypeError("the parts of the split make no single tensor")


class WholeSplit:
    """The metrics of one model on a split."""

    def __init__(self, workload: str, metrics: Mapping[str, Metric], device: torch.device) -> None:
        self.workload = workload
        self.metrics: dict[str, Any] = {name: copy.deepcopy(each) for name, each in metrics.items()}
        self.updated = {name for name, each in self.metrics.items() if hasattr(each, "update")}
        for name in self.updated:
            if hasattr(self.metrics[name], "to"):  # those of torchmetrics hold tensors
                self.metrics[name].to(device)
            self.metrics[name].reset()
        self.outputs: list[Tree] = []
        self.targets: list[Tree] = []

    def add(self, outputs: Tree, targets: Tree, model: int, models: int) -> None:
        """Add a chunk: the outputs of all models [models * N, ...]; this model is number `model`."""
        if not self.metrics:
            return
        size = trees.count(targets)
        own = outputs if models == 1 else trees.part(outputs, slice(model * size, (model + 1) * size))
        for name in self.updated:
            self.metrics[name].update(trees.cloned(own), trees.cloned(targets))
        if len(self.updated) < len(self.metrics):
            self.outputs.append(trees.cloned(own))
            self.targets.append(trees.cloned(targets))

    def values(self) -> dict[str, float]:
        """Metric name -> its value on all examples added. Raises Failed if a function needs a tensor that the chunks do
        not make."""
        whole: tuple[Tree, ...] = ()
        if self.outputs:
            sizes = [trees.count(each) for each in self.targets]
            whole = tuple(_joined(each, sizes) for each in (self.outputs, self.targets))
        return {
            name: float(each.compute() if name in self.updated else self._called(name, whole))
            for name, each in self.metrics.items()
        }

    def _called(self, name: str, whole: tuple[Tree, ...]) -> Any:
        lacking = [each for each in trees.ends(whole) if isinstance(each, NoSingleTensor)]
        try:
            return self.metrics[name](*map(trees.cloned, whole))
        except Exception as error:
            if not lacking:
                raise
            raise Failed(
                f"{self.workload}'s metrics[{name!r}] gets the outputs and targets of a whole split, but its parts "
                f"hold tensors that make no single one, {lacking[0].why}: {summary(error)}{user_line(error)}; "
                "leave them out, pad them to one shape, or write the metric as an object with update, compute and "
                "reset, which sees one part after the other."
            ) from error


def _joined(chunks: Sequence[Tree], sizes: Sequence[int]) -> Tree:
    """Chunks of these numbers of examples as one tree. A tensor that is the same in all chunks, such as a norm of
    weights, is kept; one that has no axis of examples, or other shapes in other chunks, becomes NoSingleTensor."""
    if len(chunks) == 1:
        return chunks[0]
    parts = zip(*map(trees.leaves, chunks), strict=True)
    return trees.like(chunks[0], [_one(each, sizes) for each in parts])


def _one(parts: Sequence[Tensor], sizes: Sequence[int]) -> Any:
    one = parts[0]
    rows = [each.dim() and len(each) for each in parts]
    if rows == [*sizes] and all(each.shape[1:] == one.shape[1:] for each in parts):
        return torch.cat([*parts])
    if all(each.shape == one.shape and torch.equal(each, one) for each in parts):
        return one
    other = next((each for each in parts if each.shape != one.shape), one)
    return NoSingleTensor(f"such as {trees.described(one)} beside {trees.described(other)}")
