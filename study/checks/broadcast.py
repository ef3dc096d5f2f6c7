"""Finds outputs [N, 1] that are compared with targets [N], or the other way round: torch broadcasts them to all pairs
of examples. Refuses metrics that do so."""

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from study.data import trees
from study.data.trees import Tree
from study.devices import generators
from study.errors import UsageError
from study.records import Study

SQUEEZE, UNSQUEEZE = "squeeze", "unsqueeze"
"""Members of a tensor that leave out its last axis, and add one."""
SAME = 1e-5
"""Largest relative difference of a metric of the same numbers in another shape. Outputs of an untrained model are
hardly correlated with the targets, so that a metric of all pairs may be near the one that was meant."""


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


def check_paired(study: Study, name: str, measured: Callable[..., Any], outputs: Any, targets: Tree) -> None:
    """Raise UsageError if a metric compares all pairs of examples by broadcasting: it stays the same if the targets are
    exchanged, but not if both have one shape."""
    for *same_shapes, cure in mended(outputs, targets):
        rolled = trees.mapped(lambda leaf: leaf.roll(1, 0), targets)
        cases = (outputs, targets), (outputs, rolled), same_shapes
        number, exchanged, other = (_tried(measured, *case) for case in cases)
        if number is None or exchanged is None or other is None:
            continue
        if math.isclose(number, exchanged, rel_tol=SAME) and not math.isclose(number, other, rel_tol=SAME):
            raise UsageError(
                f"{study.name}'s {name} must compare each example with its own target, but it is {number:.4g}, and "
                f"{other:.4g} with both of one shape; {cure}"
            )


def _tried(call: Callable[..., Any], *given: Any) -> float | None:
    """The finite number that the call returns, if it does: a metric may need the shapes that the model gives."""
    try:
        with warnings.catch_warnings(), generators.seeded(0):
            warnings.simplefilter("ignore")
            number = float(call(*given))
    except Exception:
        return None
    return number if math.isfinite(number) else None
