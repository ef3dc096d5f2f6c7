"""Weights of examples in the mean loss of a batch (the optional member `weights` of a workload).

Shapes: B examples in a batch, l lanes, N targets of a call of a loss, C classes.
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

OF_CLASSES = (F.cross_entropy, F.nll_loss)
"""Losses of torch whose own mean is weighted by the class of each target, and leaves out ignored targets."""


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
        weighted: some call got class weights that differ.
        uneven: in some call more targets count of some examples than of others.
    """

    def __init__(self, examples: int) -> None:
        super().__init__()
        self.examples, self.weighted, self.uneven = examples, False, False

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if function in OF_CLASSES:
            self._record(**inspect.signature(function).bind(*arguments, **(named or {})).arguments)
        return function(*arguments, **(named or {}))

    def _record(self, target: Tensor, weight: Tensor | None = None, ignore_index: int = IGNORED, **_: Any) -> None:
        if target.is_floating_point() or is_functorch_wrapped_tensor(target):
            return  # of targets that are probabilities, torch takes the plain mean
        self.weighted |= weight is not None and bool((weight != weight.flatten()[0]).any())
        counted = (target != ignore_index).flatten().float()
        if len(counted) % self.examples:
            return
        ways = counted.view(self.examples, -1).sum(1), counted.view(-1, self.examples).sum(0)
        self.uneven |= all(bool((way != way[0]).any()) for way in ways)
