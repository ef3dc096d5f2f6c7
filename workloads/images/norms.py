"""Normalisation of feature maps, the same at every split of a batch: plain batch norm is not among them.

Shapes: B examples in a batch, C channels, H x W pixels.
"""

from collections.abc import Callable
from functools import partial

from torch import nn

from workloads.base import require_one_of, require_whole
from workloads.layers import GhostBatchNorm

NORMS = ("ghost", "group", "layer", "none")

NormLayer = Callable[[int], nn.Module]
"""C -> a layer for feature maps [B, C, H, W]; each channel has a scale, which starts at 1, and a shift, at 0."""


def norm_layer(norm: str, ghost_batch: int = 32, groups: int = 32) -> NormLayer:
    """The norm layers of a network.

    Arguments:
        norm: one of NORMS. `ghost`: batch norm of `ghost_batch` consecutive examples each (Hoffer et al. 2017), see
            `workloads.layers.GhostBatchNorm`; a smaller batch is one ghost batch, and evaluations use running averages.
            `group`: the pixels of C / groups channels of an example (Wu and He 2018). `layer`: all pixels of an
            example. `none`: no norm, and no scale or shift.
        ghost_batch: examples in a ghost batch.
        groups: number of groups of `group`; it must divide every C.

    Raises:
        ValueError: an argument is refused; the layers refuse a C that `groups` does not divide.
    """
    require_one_of("workload.norm", norm, NORMS)
    require_whole("workload.ghost_batch", ghost_batch, 1)
    require_whole("workload.norm_groups", groups, 1)
    layers: dict[str, NormLayer] = {
        "ghost": partial(GhostBatchNorm, group=ghost_batch),
        "group": partial(_group_norm, groups),
        "layer": partial(nn.GroupNorm, 1),
        "none": lambda channels: nn.Identity(),
    }
    return layers[norm]


def _group_norm(groups: int, channels: int) -> nn.GroupNorm:
    if channels % groups:
        raise ValueError(
            f"workload.norm_groups must divide the {channels} channels of every layer with a norm, but got {groups}; "
            f"the largest one below it is {max(n for n in range(1, groups) if channels % n == 0)}."
        )
    return nn.GroupNorm(groups, channels)
