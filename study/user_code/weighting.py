"""Weights of examples in the mean loss of a batch (the optional member `weights` of a workload).

Shapes: B examples in a batch, l lanes.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from study.data import trees
from study.data.trees import Tree
from workloads.base import Workload, optional


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
