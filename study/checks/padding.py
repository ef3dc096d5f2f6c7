"""Checks that the loss, the errors and the weights of an example do not depend on how far its batch is padded.

`collate` pads a batch to its longest example, so the examples beside it are others in each batch and in each part of
an evaluation. Shapes: B examples in a batch, T tokens of the longest one.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from study.checks.calling import FEW, loss_of
from study.checks.model import built, mixture
from study.data import trees
from study.data.examples import Examples
from study.data.trees import Tree
from study.devices import generators
from study.errors import UsageError
from study.records import Study
from workloads.base import Workload, optional

NEAR = 1e-3
"""Largest difference by rounding, relative to the largest number."""


def check_padding(study: Study, workload: Workload, examples: Examples) -> None:
    """Raise UsageError if a number of a training example differs between a batch of its own and one that is padded.

    Only examples whose inputs, targets and outputs are the same in both, but for the padding, are compared: then the
    function alone makes the difference.
    """
    if isinstance(examples.splits["train"], tuple) or examples.collate is default_collate:
        return
    chosen = sorted({*mixture(examples.reach("train"))})
    together = examples.read("train", chosen)
    apart = {place: examples.read("train", [index]) for place, index in enumerate(chosen)}
    padded = [place for place, each in apart.items() if _shapes(each) != _shapes(together)]
    shortest = sorted(padded, key=lambda place: trees.nbytes(apart[place]))[:FEW]
    if not shortest:
        return
    with torch.no_grad(), generators.seeded(0):
        model = built(study, workload).eval()
        whole = _outputs(model, together[0])
        for place in shortest:
            inputs, targets = apart[place]
            if not (_same(together[0], inputs, place) and _same(together[1], targets, place)):
                continue  # left out: other random numbers, or a form that is unknown
            own = _outputs(model, inputs)
            pairs = list(_of_targets(workload, together[1], targets))
            if whole is not None and own is not None and _same(whole, own, place):
                pairs += _of_outputs(study, workload, (whole, together[1]), (own, targets))
            for name, many, one in pairs:
                beside, alone = float(many[place]), float(one[0])
                if not torch.isclose(torch.tensor(beside), torch.tensor(alone), rtol=NEAR, atol=0, equal_nan=True):
                    raise UsageError(
                        f"{study.name}'s {name} of an example must not depend on how far its batch is padded, but for "
                        f"example {chosen[place]} of the train split it is {alone:.4g} alone and {beside:.4g} beside "
                        "longer ones; divide by the number of its own tokens, not by the padded length: "
                        "workloads.base.cross_entropy_error does so if padded targets are -100, and "
                        "workloads.base.token_weights counts them."
                    )


def _shapes(batch: tuple[Tree, Tree]) -> list[torch.Size]:
    return [leaf.shape[1:] for leaf in trees.leaves(batch)]


def _outputs(model: torch.nn.Module, inputs: Tree) -> Any:
    """None if the model fails: other checks tell why."""
    try:
        return trees.call(model, trees.cloned(inputs))
    except Exception:
        return None


def _same(together: Tree, alone: Tree, place: int) -> bool:
    """Whether an example is the same in a batch and alone, but for padding at its end or its beginning."""
    pairs = [*zip(trees.leaves(together), trees.leaves(alone), strict=False)]
    moving = [(many[place], one[0]) for many, one in pairs if one.dim() and len(one) == 1 and many.dim() == one.dim()]
    return bool(moving) and all(any(map(_close, _cuts(many, one), [one, one])) for many, one in moving)


def _cuts(many: Tensor, one: Tensor) -> list[Tensor]:
    """The beginning and the end of a padded tensor, of the other one's shape."""
    first = tuple(slice(0, size) for size in one.shape)
    last = tuple(slice(max(0, whole - size), whole) for whole, size in zip(many.shape, one.shape, strict=True))
    return [many[first], many[last]]


def _close(cut: Tensor, one: Tensor) -> bool:
    if cut.shape != one.shape or not one.numel():
        return cut.shape == one.shape
    if not one.is_floating_point():
        return torch.equal(cut, one)
    return torch.allclose(cut, one, rtol=0, atol=NEAR / 10 * float(one.abs().max()))


Numbers = tuple[str, Tensor, Tensor]
"""The name of a function, its numbers of the examples of the batch, and its number of the one that is alone."""


def _of_targets(workload: Workload, together: Tree, alone: Tree) -> Iterator[Numbers]:
    for name in ("weights", "error_weights"):
        if (weights := optional(workload, name)) is not None:
            yield name, weights(trees.cloned(together)), weights(trees.cloned(alone))


def _of_outputs(
    study: Study, workload: Workload, together: tuple[Any, Tree], alone: tuple[Any, Tree]
) -> Iterator[Numbers]:
    functions = {"loss": loss_of(study, workload), **{f"errors[{name!r}]": e for name, e in workload.errors.items()}}
    for name, function in functions.items():
        before = generators.states()
        try:
            beside, own = (function(*map(trees.cloned, each)) for each in (together, alone))
        except Exception:  # such as a loss of outputs that the model has in training alone
            continue
        if generators.states() == before:  # random numbers are others in other shapes
            yield name, beside, own
