"""Checks that model, loss, errors and weights of an example do not depend on how far its batch is padded.

`collate` pads a batch to its longest example, so the examples beside it are others in each batch and in each part of
an evaluation. Shapes: B examples in a batch, T tokens of the longest one.
"""

from collections.abc import Iterator, Sequence
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
ROUNDING = 5e-6
"""The same for a function that ignores all outputs that differ."""
OF_FUNCTION = (
    "divide by the number of its own tokens, not by the padded length: workloads.base.cross_entropy_error does so if "
    "padded targets are -100, and workloads.base.token_weights counts them."
)
OF_MODEL = (
    "the model's outputs change with the padding: give it a mask (such as attention_mask) or the lengths with its "
    "inputs and leave padded tokens out of attention, means and recurrences, or let `collate` pad every batch to one "
    "length."
)


def check_padding(study: Study, workload: Workload, examples: Examples) -> None:
    """Raise UsageError if a number of a training example differs between a batch of its own and one that is padded.

    The padded example is computed alone, too, in evaluation mode: then no batch norm mixes it with others, and the
    padding alone makes the difference, in the outputs of the model or in the function.
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
        for place in shortest:
            alone, beside = apart[place], trees.part(together, slice(place, place + 1))
            if not all(map(_same, beside, alone)):
                continue  # left out: other random numbers, or a form that is unknown
            for name, *numbers in _of_targets(workload, beside[1], alone[1]):
                _compare(f"{study.name}'s {name}", chosen[place], numbers, NEAR, OF_FUNCTION)
            outputs = [_outputs(model, inputs) for inputs, _ in (beside, alone)]
            if any(each is None for each in outputs):
                continue
            # Outputs may differ at the padding alone: then no function that leaves the padding out differs.
            tolerance, cure = (NEAR, OF_FUNCTION) if _same(*outputs) else (ROUNDING, OF_MODEL)
            for name, *numbers in _of_outputs(study, workload, (outputs[0], beside[1]), (outputs[1], alone[1])):
                _compare(f"{study.name}'s {name}", chosen[place], numbers, tolerance, cure)


def _compare(name: str, example: int, numbers: Sequence[Tensor], tolerance: float, cure: str) -> None:
    """Raise UsageError if the number of an example, padded and alone, differs by more than this share of it."""
    beside, alone = (each.detach().double() for each in numbers)
    if not torch.isclose(beside, alone, rtol=tolerance, atol=0, equal_nan=True).all():
        raise UsageError(
            f"{name} of an example must not depend on how far its batch is padded, but for example {example} of the "
            f"train split it is {alone.item():.6g} alone and {beside.item():.6g} padded to the length of others; {cure}"
        )


def _shapes(batch: tuple[Tree, Tree]) -> list[torch.Size]:
    return [leaf.shape[1:] for leaf in trees.leaves(batch)]


def _outputs(model: torch.nn.Module, inputs: Tree) -> Any:
    """None if the model fails, other checks tell why; or if it draws random numbers, which are others in other
    shapes."""
    before = generators.states()
    try:
        outputs = trees.call(model, trees.cloned(inputs))
    except Exception:
        return None
    return outputs if generators.states() == before else None


def _same(beside: Tree, alone: Tree) -> bool:
    """Whether an example is the same padded and alone, but for padding at its end or its beginning."""
    pairs = [*zip(trees.leaves(beside), trees.leaves(alone), strict=False)]
    moving = [(many, one) for many, one in pairs if one.dim() and len(one) == 1 and many.dim() == one.dim()]
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
"""The name of a function, its number of the padded example [1], and of the one that is alone [1]."""


def _of_targets(workload: Workload, beside: Tree, alone: Tree) -> Iterator[Numbers]:
    for name in ("weights", "error_weights"):
        if (weights := optional(workload, name)) is not None:
            yield name, weights(trees.cloned(beside)), weights(trees.cloned(alone))


def _of_outputs(
    study: Study, workload: Workload, padded: tuple[Any, Tree], alone: tuple[Any, Tree]
) -> Iterator[Numbers]:
    functions = {"loss": loss_of(study, workload), **{f"errors[{name!r}]": e for name, e in workload.errors.items()}}
    for name, function in functions.items():
        before = generators.states()
        try:
            beside, own = (function(*map(trees.cloned, each)) for each in (padded, alone))
        except Exception:  # such as a loss of outputs that the model has in training alone
            continue
        if generators.states() == before:  # random numbers are others in other shapes
            yield name, beside, own
