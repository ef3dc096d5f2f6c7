"""What is measured of the gradient noise at one point of a run.

Shapes: P trained numbers of the model, K blocks of m examples, n gradients at once.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from study.engine.run import Run
from study.noise.gradients import Gradients
from study.noise.preconditioner import preconditioner

BLOCKS = 32
"""K. The interval is Student's with K - 1 degrees of freedom; each block keeps one gradient [P] in memory."""
Form = tuple[str, Tensor | None]
"""The name of a form of the gradient, and the factors [P] on it; None: as it is."""


class Point(NamedTuple):
    """The measurements at one point.

    Attributes:
        sums: for each estimator and form, `analysis.noise_scale.estimate.Blocks` as plain data.
        looped: `torch.vmap` could not differentiate the model.
    """

    sums: list[dict[str, Any]]
    looped: bool


def measured(run: Run, examples: int, blocks: int = BLOCKS) -> Point:
    """Measure the gradients of `blocks` batches of m = `examples` examples, and of each of these examples alone.

    Single examples are left out if the model couples those of a batch.
    """
    gradients = Gradients(run, examples)
    factors = preconditioner(run)
    forms: list[Form] = [("plain", None)]
    if factors is not None:
        forms += [("preconditioned", factors), ("half_preconditioned", factors.sqrt())]
    batches, means, weights = [], [], []
    squares: list[list[float]] = [[] for _ in forms]
    for number in range(blocks):
        inputs, targets = gradients.block(number)
        weights.append(gradients.weights(targets).mean())
        batches.append(gradients.of_batch(number, inputs, targets))
        if gradients.separable:
            total, norms = torch.zeros_like(batches[0]), [0.0] * len(forms)
            for each in gradients.of_each(number, inputs, targets):
                total += each.sum(0)
                norms = [norm + _squares(each, form) for norm, form in zip(norms, forms, strict=True)]
            means.append(total / examples)
            for held, norm in zip(squares, norms, strict=True):
                held.append(norm / examples)
    weight = float(torch.stack(weights).mean())  # a step descends the weighted mean
    found = [_sums("two_batch_sizes", batches, form, weight, examples) for form in forms]
    if gradients.separable:
        pairs = zip(forms, squares, strict=True)
        found += [_sums("per_example", means, form, weight, examples, held) for form, held in pairs]
    return Point(found, gradients.looped)


def _squares(each: Tensor, form: Form) -> float:
    """The sum of the squared norms of gradients [n, P]."""
    scaled = each if form[1] is None else each * form[1]
    return float(torch.linalg.vector_norm(scaled, dtype=torch.float64) ** 2)


def _sums(
    estimator: str,
    means: Sequence[Tensor],
    form: Form,
    weight: float,
    examples: int,
    squares: Sequence[float] | None = None,
) -> dict[str, Any]:
    """The sums over blocks as plain data.

    Arguments:
        means: the mean gradient [P] of each block.
        weight: the mean weight of the examples, by which gradients are divided.
        squares: the mean squared norm of the gradients of each block's single examples; None: batches were measured.
    """
    scale = (1.0 if form[1] is None else form[1].double()) / weight
    centre = scale * torch.stack(list(means)).mean(0, dtype=torch.float64)
    own, total = [], []
    for mean in means:
        scaled = scale * mean.double()
        own.append(float(scaled @ scaled))
        total.append(float(scaled @ centre))
    sums = {"own": own, "total": total, "units": own if squares is None else [square / weight**2 for square in squares]}
    unit, each = (examples, 1) if squares is None else (1, examples)
    return {"estimator": estimator, "form": form[0], "unit": unit, "per_block": each, **sums}
