"""Judges the values of a workload's data before anything trains: numbers that are not finite, and rare labels.

Loss, errors and weights are called on the examples that are most likely to be wrong, and a fault is located.
Shapes: N examples in a split.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from study.checks.calling import FEW, calling, in_the_loss
from study.data import digest, trees
from study.data.examples import Examples
from study.devices import generators
from study.errors import UsageError
from study.records import Study
from study.user_code.faults import succeeds
from workloads.base import PerExample, Workload, optional
from workloads.user_code.errors import summary

MOST_VALUES = 1024
"""Distinct labels that are judged; of more, evenly spaced ones, the smallest and the largest among them."""
MOST_OUTPUTS = 2**24
"""Numbers in the outputs that are judged at once."""


def check_values(study: Study, workload: Workload, examples: Examples) -> None:
    """Raise UsageError for an example whose loss, errors or weights fail, or are not finite.

    Judged are examples with numbers that are not finite, the first example of each label, and those with the smallest
    and largest whole numbers as inputs; of data sets, evenly spaced items.
    """
    with generators.seeded(0), torch.no_grad():
        model = workload.model()
        for name, split in examples.splits.items():
            if isinstance(split, tuple):
                _check_numbers(study, workload, model, name, examples)
                _check_inputs(study, model, name, examples)
            _check_labels(study, workload, model, name, examples)


def _judges(study: Study, workload: Workload, training: bool) -> dict[str, PerExample]:
    """The workload's functions of the outputs in training, or of those in evaluation."""
    weights = optional(workload, "weights" if training else "error_weights")
    weighing = {"weights" if training else "error_weights": lambda _, targets: weights(targets)} if weights else {}
    if not training:
        return {**{f"errors[{name!r}]": error for name, error in workload.errors.items()}, **weighing}
    tuned = in_the_loss(study, workload)
    return {"loss": lambda outputs, targets: workload.loss(outputs, targets, **tuned), **weighing}


def _modes(name: str) -> list[bool]:
    """Whether the model trains: only the training split trains."""
    return [True, False] if name == "train" else [False]


def _check_numbers(study: Study, workload: Workload, model: nn.Module, name: str, examples: Examples) -> None:
    odd = not_finite(examples.splits[name])
    if not odd:
        return
    inputs, targets = examples.read(name, odd[:FEW])
    for training in _modes(name):
        with calling(study, "model", f"of numbers that are not finite, in its {name} split"):
            outputs = trees.call(model.eval(), trees.cloned(inputs))
        for what, judge in _judges(study, workload, training).items():
            with calling(study, what, f"of numbers that are not finite, in its {name} split"):
                finite = bool(judge(outputs, targets).isfinite().all())
            if not finite:
                raise UsageError(
                    f"the {name} split of {study.name} holds numbers that are not finite, in {len(odd):,} of "
                    f"{examples.count(name):,} examples, the first at index {odd[0]}, and its {what} is not finite "
                    "there; leave these examples out."
                )


def not_finite(split: trees.Tree) -> list[int]:
    """The indices of examples that hold numbers that are not finite, in inputs or targets."""
    bad = torch.zeros(trees.count(split), dtype=torch.bool)
    for leaf in trees.leaves(split):
        values = torch.view_as_real(leaf) if leaf.is_complex() else leaf
        # The extremes are NaN if any number is, and take a tenth of the time of isfinite().
        real = values.is_floating_point() and values.numel()
        if real and not all(bool(extreme.isfinite()) for extreme in values.aminmax()):
            wrong = leaf.isfinite().logical_not()
            bad |= (wrong.flatten(1).any(1) if leaf.dim() > 1 else wrong).cpu()
    return bad.nonzero().flatten().tolist()


def _check_inputs(study: Study, model: nn.Module, name: str, examples: Examples) -> None:
    """Raise UsageError if the model fails on the smallest or largest whole numbers, such as numbers of words."""
    leaves = _whole(examples.splits[name][0])
    for index in sorted({first_with(leaf, value) for leaf in leaves for value in leaf.aminmax()}):
        inputs, _ = examples.read(name, [index])
        try:
            trees.call(model.eval(), trees.cloned(inputs))
        except Exception as error:
            other = examples.read(name, [0])[0]
            if not succeeds(partial(trees.call, model.eval(), trees.cloned(other))):
                continue  # not the fault of this example
            raise UsageError(
                f"{_example(study, name, index, 'input', inputs)}, for which the model fails: {summary(error)}; "
                "correct this example, or enlarge the model's embedding."
            ) from error


def _check_labels(study: Study, workload: Workload, model: nn.Module, name: str, examples: Examples) -> None:
    split, count = examples.splits[name], examples.reach(name)
    resident = isinstance(split, tuple)
    labels = labelled(split[1]) if resident else digest.spaced(count, digest.ITEMS)
    if not labels:
        return
    # The outputs of other examples do as well, if all have one shape.
    few = list(range(min(FEW, count))) if resident else labels
    inputs, targets = examples.read(name, few)
    for training in _modes(name):
        with calling(study, "model", f"of {len(few)} examples of its {name} split"):
            outputs = trees.call(model.train(training), trees.cloned(inputs))
        if resident:
            rows = sum(leaf[0].numel() for leaf in trees.leaves(outputs) if leaf.dim())
            most = max(FEW, MOST_OUTPUTS // max(1, rows))
            judged = [labels[index] for index in digest.spaced(len(labels), most)]
            _, targets = examples.read(name, judged)
            outputs = _rows(outputs, len(few), [number % len(few) for number in range(len(judged))])
        else:
            judged = labels
        for what, judge in _judges(study, workload, training).items():
            _judged(study, name, what, judge, outputs, targets, judged)


def _judged(
    study: Study, name: str, what: str, judge: PerExample, outputs: Any, targets: trees.Tree, indices: Sequence[int]
) -> None:
    """Raise UsageError if a function fails or is not finite for one of the examples with these indices."""

    def of(number: int) -> tuple[Any, trees.Tree]:
        return tuple(_rows(tree, len(indices), [number]) for tree in (outputs, targets))

    try:
        values = judge(outputs, targets)
    except Exception as batch_error:
        for number, index in enumerate(indices):
            try:
                judge(*of(number))
            except Exception as error:
                raise UsageError(
                    f"{_example(study, name, index, 'target', of(number)[1])}, for which {what} fails: "
                    f"{summary(error)}; correct this example, or leave it out."
                ) from error
        with calling(study, what, f"of {len(indices)} examples of its {name} split"):
            raise batch_error
    if isinstance(values, Tensor) and values.shape == (len(indices),) and not values.isfinite().all():
        number = int(values.isfinite().logical_not().nonzero()[0])
        raise UsageError(
            f"{_example(study, name, indices[number], 'target', of(number)[1])}, for which {what} is "
            f"{float(values[number])}; correct this example, or leave it out."
        )


def _rows(tree: trees.Tree, examples: int, rows: Sequence[int]) -> trees.Tree:
    """These rows of all tensors that have a row for each example."""
    index = torch.as_tensor(rows)
    return trees.mapped(lambda leaf: leaf[index] if leaf.dim() and len(leaf) == examples else leaf, tree)


def _example(study: Study, name: str, index: int, what: str, tree: trees.Tree) -> str:
    """The start of a sentence: `mine: the train split's example 400 has target 17`."""
    leaves = trees.leaves(tree)
    if len(leaves) == 1 and leaves[0].numel() == 1:
        value = f"{what} {leaves[0].item():g}"
    else:
        kinds = [f"{trees.described(leaf[0])} from {leaf.min():g} to {leaf.max():g}" for leaf in leaves if leaf.numel()]
        value = f"{what} {' and '.join(kinds)}"
    return f"{study.name}: the {name} split's example {index} has {value}"


def _whole(tree: trees.Tree) -> list[Tensor]:
    """The tensors of whole numbers in a tree."""
    leaves = [leaf for leaf in trees.leaves(tree) if not (leaf.is_floating_point() or leaf.is_complex())]
    return [leaf for leaf in leaves if leaf.dtype != torch.bool and leaf.numel()]


def labelled(targets: trees.Tree) -> list[int]:
    """The index of the first example with each distinct whole number among the targets, at most MOST_VALUES of them."""
    found: set[int] = set()
    for leaf in _whole(targets):
        if leaf.numel() > digest.ELEMENTS:
            found |= {first_with(leaf, value) for value in leaf.aminmax()}
            continue
        values, inverse = leaf.flatten().cpu().unique(return_inverse=True)
        places = torch.arange(len(inverse)) // leaf[0].numel()
        first = torch.full((len(values),), len(leaf)).scatter_reduce_(0, inverse, places, "amin")
        found |= {int(first[number]) for number in digest.spaced(len(values), MOST_VALUES)}
    return sorted(found)


def first_with(leaf: Tensor, value: Tensor) -> int:
    """The index of the first example that holds a value."""
    return int((leaf == value).flatten(1 if leaf.dim() > 1 else 0).nonzero()[0][0])
