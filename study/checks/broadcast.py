"""Finds outputs [N, 1] that are compared with targets [N], or the other way round: torch broadcasts them to all pairs
of examples."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from study.data import trees
from study.data.trees import Tree

SQUEEZE, UNSQUEEZE = "squeeze", "unsqueeze"
"""Members of a tensor that leave out its last axis, and add one."""


def _pair(outputs: Any, targets: Tree) -> tuple[Tensor, Tensor] | None:
    """A tensor of the outputs and one of the targets, if one has a last axis of length 1 that the other lacks."""
    for one, other in itertools.product(trees.leaves(outputs), trees.leaves(targets)):
        if one.dim() and len(one) > 1 and (one.shape == (*other.shape, 1) or other.shape == (*one.shape, 1)):
            return one, other
    return None


def mended(outputs: Any, targets: Tree) -> Iterator[tuple[Any, Tree, str]]:
    """The same outputs and targets without the last axis of length 1, then with it in both, each with its cure; nothing
    if there is no such pair."""
    if (pair := _pair(outputs, targets)) is None:
        return
    names = ("outputs", "targets") if pair[0].dim() > pair[1].dim() else ("targets", "outputs")
    longer, shorter = sorted((each.shape for each in pair), key=len, reverse=True)
    for name, shape, change in zip(names, (longer, shorter), (SQUEEZE, UNSQUEEZE), strict=True):

        def changed(leaf: Tensor, shape: torch.Size = shape, change: str = change) -> Tensor:
            return getattr(leaf, change)(-1) if leaf.shape == shape else leaf

        whole = outputs if name == "outputs" else targets
        cure = f"{name}.{change}(-1)" if isinstance(whole, Tensor) else f"{change}(-1) on these {name}"
        rule = (
            f"outputs {trees.described(pair[0])} and targets {trees.described(pair[1])} are broadcast to all pairs of "
            f"examples: use {cure}."
        )
        yield trees.mapped(changed, outputs), trees.mapped(changed, targets), rule
