"""Weights of examples in the mean loss of a batch (the optional member `weights` of a workload).

Shapes: B examples in a batch, l lanes.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode

from study.data import trees
from study.data.trees import Tree
from workloads.base import IGNORED, Workload, optional

OF_CLASSES, OF_ELEMENTS = (F.cross_entropy, F.nll_loss), (F.mse_loss, F.l1_loss)
"""Losses of torch whose own mean is a weighted one: by the class of each target, and without ignored targets; or by the
weight of each element."""
SAME = 1e-4
"""Largest relative difference of equal weights."""


def weigher(workload: Workload) -> Callable[[Tree], Tensor] | None:
    """Targets [B, ...] -> the weights of their examples [B]; None if all examples count alike."""
    weigh = optional(workload, "weights")
    return None if weigh is None else lambda targets: weigh(trees.cloned(targets))


def inverse(total: Tensor) -> Tensor:
    """1 / total, but 0 where the total weight is 0: such a batch has gradient 0."""
    return torch.where(total > 0, 1 / torch.where(total > 0, total, 1), 0)


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean of losses [B]."""
    return (losses * weights).sum() * inverse(weights.sum())


def shares(weights: Tensor, lanes: int) -> Tensor:
    """Factors [l * B] on the losses of l lanes, whose plain mean over a lane is then its weighted mean.

    Arguments:
        weights: [l * B].
    """
    each = weights.view(lanes, -1)
    return (each * inverse(each.sum(1, keepdim=True)) * each.shape[1]).flatten()


class OwnMeans(TorchFunctionMode):
    """A block that records by which weights torch's losses would take the mean of some examples themselves.

    Attributes:
        weighted: some call got weights that differ.
        uneven: in some call more targets count of some examples than of others.
        factors: weights of examples [B] that are in their losses.
    """

    def __init__(self, examples: int) -> None:
        super().__init__()
        self.examples, self.weighted, self.uneven = examples, False, False
        self.factors: list[Tensor] = []

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if function in (*OF_CLASSES, *OF_ELEMENTS):
            bound = inspect.signature(function).bind(*arguments, **(named or {})).arguments
            weight, target = bound.get("weight"), bound["target"]
            if not is_functorch_wrapped_tensor(target):
                if function in OF_ELEMENTS:
                    self._weigh(weight, weight)
                elif not target.is_floating_point():  # of probabilities, torch takes the plain mean
                    counted = target != bound.get("ignore_index", IGNORED)
                    self._weigh(weight, None if weight is None else weight[target.where(counted, 0)] * counted)
                    self._count(counted)
        return function(*arguments, **(named or {}))

    def _weigh(self, weight: Tensor | None, each: Tensor | None) -> None:
        if weight is not None and each is not None and (weight != weight.flatten()[0]).any():
            self.weighted = True
            if each.shape == (self.examples,) and (each != each[0]).any():
                self.factors.append(each)

    def _count(self, counted: Tensor) -> None:
        if counted.numel() % self.examples == 0:
            ways = counted.reshape(self.examples, -1).sum(1), counted.reshape(-1, self.examples).sum(0)
            self.uneven |= all(bool((way != way[0]).any()) for way in ways)

    def twice(self, weights: Tensor) -> bool:
        """Whether losses have factors that are these weights of the examples [B], times a constant."""
        pairs = ((weights.double(), each.double()) for each in self.factors)
        return any(torch.allclose(one * other.sum(), other * one.sum(), rtol=SAME) for one, other in pairs)
