"""Checks the model, the loss and the errors of a workload on a few examples: what they take and what they return."""

import math
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from study.checks import broadcast
from study.checks.calling import FEW, calling, cure_of_number, cure_of_shape, loss_of
from study.checks.optimizer import check_registered
from study.checks.values import not_finite
from study.data import trees
from study.data.resident import EVALUATION_CHUNK, placed
from study.data.streaming import layout_for
from study.data.trees import Tree
from study.devices import generators
from study.errors import UsageError
from study.records import Study
from study.user_code import autocast
from workloads.base import PerExample, Weights, Workload, metrics_of, optional
from workloads.layers import whole_batch_layers
from workloads.user_code.errors import user_line

SPREAD = 16
"""Examples of a check that are spread over the training set, which may be sorted by label."""
NEAR = 0.01
"""Largest relative difference of two outputs that are equal but for rounding, in bf16, too."""

ARGUMENTS = r"^TypeError.*(positional|keyword)"
"""In the text of an error that Python raises at a call with other arguments than a function takes."""


def mixture(examples: int) -> list[int]:
    """Indices of training examples for a check: the first FEW, then SPREAD from all of the set."""
    spread = [number * (examples - 1) // (SPREAD - 1) for number in range(SPREAD)]
    return [*range(min(FEW, examples)), *spread]


def built(study: Study, workload: Workload, seed: int = 0) -> nn.Module:
    """The workload's initial model of a seed.

    Raises:
        UsageError: it is no module that can be trained, or has the same weights for every seed.
    """
    with calling(study, "model()"), generators.seeded(seed):
        model = workload.model()
        reseeded = torch.initial_seed() != seed
    if not isinstance(model, nn.Module):
        raise UsageError(f"{study.name}.model() must return a torch.nn.Module, but got a {type(model).__name__}.")
    if reseeded:
        raise UsageError(
            f"{study.name}.model() must leave the seed to the study, but it seeds torch's generator "
            "(torch.manual_seed): all trials would start from the same weights, and fresh seeds differ in the order of "
            "the data alone; leave the call out, or put it and what it is for into `with torch.random.fork_rng():`."
        )
    return model


def computed(study: Study, model: nn.Module, inputs: Tree, layout: torch.memory_format) -> Any:
    """The model's outputs for a copy of the inputs, images and weights in this layout, in the study's precision.

    Raises:
        UsageError: there is nothing in the outputs.
    """

    def laid_out(tensor: Tensor) -> Tensor:
        return tensor.clone(memory_format=layout) if tensor.dim() == 4 else tensor.clone()

    placed(model, layout)
    with generators.seeded(0):
        copied = trees.mapped(laid_out, inputs)
        outputs = autocast.computed(study.precision, torch.device("cpu"), lambda: trees.call(model, copied))
    if all(end is None for end in trees.ends(outputs)):
        mode = "in training" if model.training else "in an evaluation"
        raise UsageError(
            f"the forward of {study.name}'s model must return what its loss and errors take, but {mode} it returned "
            f"{trees.described(outputs)}{'; look for a missing `return`' if outputs is None else ''}."
        )
    return outputs


def augmented(study: Study, workload: Workload, inputs: Tree) -> Tree:
    """The inputs as a training step sees them.

    Raises:
        UsageError: `augment` fails, changes the number of examples, or does not repeat its random numbers.
    """
    if (augment := optional(workload, "augment")) is None:
        return inputs
    repeated = []
    for _ in range(2):
        with calling(study, "augment", f"of inputs {trees.described(inputs)}"), generators.seeded(0):
            repeated.append(augment(trees.cloned(inputs), torch.Generator().manual_seed(0)))
    one, two = map(trees.leaves, repeated)
    if not one or len(one[0]) != trees.count(inputs):
        raise UsageError(
            f"{study.name}'s augment must return as many inputs as it takes, but got {trees.described(repeated[0])} of "
            f"{trees.described(inputs)}."
        )
    if len(one) != len(two) or not all(map(torch.equal, one, two)):
        raise UsageError(
            f"{study.name}'s augment must repeat its random numbers, but two calls with equal generators differ; draw "
            "from the generator that it takes, and keep no state."
        )
    return repeated[0]


def check_model(study: Study, workload: Workload, inputs: Tree, targets: Tree) -> torch.memory_format:
    """The layout in which the model trains and evaluates. Raises UsageError if it cannot be trained, or if the loss is
    not a finite number per example [B]."""
    inputs = augmented(study, workload, inputs)
    few, model = described(inputs, targets), built(study, workload).train()
    _check_trainable(study, model)
    trained = set(model.parameters())
    layout = layout_for(workload, inputs)
    with calling(study, "model", f"of {few}"):
        outputs = computed(study, model, inputs, layout)
    with generators.seeded(0):
        loss = values_of(study, "loss", loss_of(study, workload), outputs, targets, few, finite=False)
    if not loss.isfinite().all():
        odd = [example for example in not_finite((inputs, targets)) if not loss[example].isfinite()]
        where = f"; the train split's example {odd[0]} holds numbers that are not finite: leave it out" if odd else ""
        raise UsageError(f"{study.name}'s loss is not finite before training, of {few}{where}.")
    if not loss.requires_grad:
        raise UsageError(f"{study.name}'s loss depends on no trained parameter; look for detach(), argmax and no_grad.")
    check_registered(study, model, trained, outputs)
    _check_through_outputs(study, workload, inputs, outputs, targets, layout)
    with calling(study, "gradient", f"of {few}"):
        loss.mean().backward()
    sparse = [name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.is_sparse]
    if sparse and study.algorithm.update is not None:
        raise UsageError(
            f"{study.optimizer} needs dense gradients, but {study.name}'s parameter {sparse[0]} has sparse ones; leave "
            "out sparse=True."
        )
    return layout


def _check_through_outputs(
    study: Study, workload: Workload, inputs: Tree, outputs: Any, targets: Tree, layout: torch.memory_format
) -> None:
    """Raise UsageError if the loss depends on parameters of the model that it does not get with the outputs, such as a
    penalty on weights that `model()` kept: fused trials compute with other tensors."""

    def loss(outputs: Any) -> Tensor:
        detached = trees.mapped(lambda each: each.detach().clone(), outputs)
        with generators.seeded(0), calling(study, "loss", f"of {described(inputs, targets)}"):
            return loss_of(study, workload)(detached, trees.cloned(targets))

    if not loss(outputs).requires_grad:
        return
    model = built(study, workload).train()  # a workload that keeps its model now keeps this one
    losses = loss(computed(study, model, inputs, layout))
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    gradients = torch.autograd.grad(losses.sum(), [*trained.values()], allow_unused=True)
    if reached := [name for name, gradient in zip(trained, gradients, strict=True) if gradient is not None]:
        plain = (Tensor, int, float, str, type(None))
        for end in (end for end in trees.ends(outputs) if not isinstance(end, plain)):
            raise UsageError(
                f"{study.name}'s model must return a tensor, or a tuple, list, mapping or dataclass of tensors, but "
                f"there is a {type(end).__name__} in its outputs; let forward return the tensors that this holds."
            )
        raise UsageError(
            f"{study.name}'s loss must depend on the model through its outputs alone, but it reaches the parameter "
            f"{reached[0]} by another way, which fused trials would leave out; for a penalty on weights choose an "
            "optimizer with weight_decay, or let forward return it beside its outputs, once for each example."
        )


def check_evaluation(
    study: Study, workload: Workload, inputs: Tree, targets: Tree, layout: torch.memory_format, counts: Iterable[int]
) -> None:
    """Raise UsageError if the model cannot be evaluated, or if an error is not a finite number per example [B].

    Arguments:
        counts: evaluated examples of each split. The last part of a split may hold few, which models may refuse.
    """
    if not workload.errors and not metrics_of(workload):
        raise UsageError(f"{study.name} measures nothing: its `errors` are empty; name at least one.")
    if both := workload.errors.keys() & metrics_of(workload).keys():
        raise UsageError(
            f"{study.name} has {min(both)!r} both in `errors` and in `metrics`; give each its own name, because both "
            f"are measured as val/{min(both)}."
        )
    examples = trees.count(targets)
    last = {count % EVALUATION_CHUNK for count in counts}
    for size in sorted({examples, *(size for size in last if 0 < size < examples)}, reverse=True):
        some, labels = (first(each, size) for each in (inputs, targets))
        with torch.no_grad(), generators.seeded(0):
            with calling(study, "model", f"in an evaluation of {described(some, labels)}"):
                outputs = computed(study, built(study, workload).eval(), some, layout)
            for name, error in workload.errors.items():
                values_of(study, f"errors[{name!r}]", error, outputs, labels, described(some, labels))
    _check_unmixed(study, workload, inputs, layout)


def _check_unmixed(study: Study, workload: Workload, inputs: Tree, layout: torch.memory_format) -> None:
    """Raise UsageError if the outputs of an example in an evaluation change when others take the places beside it.

    Random numbers stay the same: they depend on the shapes. Batch norm without running statistics is allowed. Each pass
    has a new model: a second one of the same model may differ because the first changed its state.
    """
    count = trees.count(inputs)
    if any(layer.running_mean is None for layer in whole_batch_layers(built(study, workload))):
        return
    kept = (count + 1) // 2
    rows = torch.tensor([min(row, 2 * kept - 1 - row) for row in range(count)])
    with torch.no_grad(), calling(study, "model", "in an evaluation"):
        batches = (inputs, trees.part(inputs, rows), trees.part(inputs, count - 1 - rows.flip(0)))
        whole, *others = (
            trees.leaves(computed(study, built(study, workload).eval(), each, layout)) for each in batches
        )
    for other, same in zip(others, (slice(kept), slice(count - kept, None)), strict=True):
        if not all(_alike(a, b, count, same) for a, b in zip(whole, other, strict=True)):
            raise UsageError(
                f"the outputs of {study.name}'s model for an example must not depend on the other examples of an "
                "evaluation; look for an operation over the axis of examples, such as softmax(0) or mean(0), or a "
                "recurrent layer or attention without batch_first=True. A norm over a batch needs running statistics "
                "for evaluations, as nn.BatchNorm1d keeps them."
            )


def _alike(one: Tensor, other: Tensor, count: int, places: slice) -> bool:
    """Whether outputs of `count` examples are equal at these places, but for rounding; True of other tensors."""
    if not one.is_floating_point() or not one.dim() or one.shape != other.shape or len(one) != count:
        return True
    return torch.allclose(one[places], other[places], rtol=NEAR, atol=NEAR * float(one.abs().max()), equal_nan=True)


def check_apart(study: Study, workload: Workload, inputs: Tree, layout: torch.memory_format) -> None:
    """Raise UsageError if the outputs of an example depend on the other examples of an evaluation, beyond rounding.

    `evaluation.exact=false` measures the same examples in other chunks.
    """
    model = built(study, workload).eval()
    rows = torch.arange(trees.count(inputs)).flip(0)[::2]
    with torch.no_grad(), calling(study, "model", "in an evaluation"):
        whole, some = (
            trees.leaves(computed(study, model, each, layout))
            for each in (inputs, trees.mapped(lambda tensor: tensor[rows.to(tensor.device)], inputs))
        )
    for one, other in zip(whole, some, strict=True):
        if one.is_floating_point() and not torch.allclose(
            one[rows], other, rtol=NEAR, atol=NEAR * float(one.abs().max())
        ):
            raise UsageError(
                f"evaluation.exact=false measures the hardest examples first, but in an evaluation of {study.name} the "
                "outputs of an example depend on the other examples or on random numbers; choose evaluation.exact=true."
            )


def _check_trainable(study: Study, model: nn.Module) -> None:
    """Raise UsageError unless the model has parameters that can be trained from the seed of its trial."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(f"the model of {study.name} has no parameter to train; look for requires_grad=False.")
    if any(map(nn.parameter.is_lazy, model.parameters())):
        raise UsageError(
            f"the model of {study.name} has lazy layers, which draw their weights at the first batch and not from the "
            "seed of their trial; give them their sizes."
        )
    for name, each in model.named_parameters():
        if each.requires_grad and not each.isfinite().all():
            raise UsageError(
                f"the parameter {name} of {study.name}'s model is not finite before training; look for torch.empty "
                "without an initialisation, or for a division by zero in it."
            )


def values_of(
    study: Study, name: str, function: PerExample, outputs: Any, targets: Tree, few: str, finite: bool = True
) -> Tensor:
    """The loss, errors or weights [B] of copies of these outputs and targets; `finite`: they must be.

    Raises:
        UsageError: the function fails, or does not return a finite number per example; engines weight and sum these.
    """
    examples = trees.count(targets)
    values = _called(study, name, few, outputs, lambda: function(trees.cloned(outputs), trees.cloned(targets)))
    if not isinstance(values, Tensor) or values.shape != (examples,):
        pairs = isinstance(values, Tensor) and values.shape[:2] == (examples, examples)
        cures = [cure for *_, cure in broadcast.mended(outputs, targets)] if pairs else []
        raise UsageError(
            f"{study.name}'s {name} must be a number per example, of shape [{examples}] for {examples} of them, but "
            f"got {trees.described(values)}; " + (cures[0] if cures else cure_of_shape(values, outputs, examples))
        )
    if finite and not values.isfinite().all():
        raise UsageError(f"{study.name}'s {name} is not finite before training, of {few}.")
    return values


def of_targets(weights: Weights) -> PerExample:
    """Weights as a function of outputs and targets."""
    return lambda outputs, targets: weights(targets)


def check_weights(study: Study, workload: Workload, targets: Tree) -> None:
    """Raise UsageError unless weights are finite, not negative, and not all zero."""
    for name in ("weights", "error_weights"):
        if (weights := optional(workload, name)) is None:
            continue
        found = values_of(study, name, of_targets(weights), (), targets, trees.described(targets))
        if found.is_complex() or (found < 0).any():
            raise UsageError(
                f"{study.name}'s {name} must not be negative, but got {found.min():.4g} for example "
                f"{int(found.argmin())}; the loss may have a sign, weights have none."
            )


def check_metrics(study: Study, workload: Workload, samples: Iterable[tuple[Any, Tree]]) -> None:
    """Raise UsageError unless each metric is a finite number of one of these samples of (outputs, targets).

    A metric such as average precision may be undefined for a few examples, but not for all samples.
    """
    held = list(samples)
    for name, metric in metrics_of(workload).items():
        if not callable(metric) and not all(hasattr(metric, each) for each in ("update", "compute", "reset")):
            raise UsageError(
                f"{study.name}'s metrics[{name!r}] must be a function of (outputs, targets) or have update, compute "
                f"and reset, but got a {type(metric).__name__}."
            )
        if getattr(metric, "higher_is_better", False):  # as torchmetrics says
            raise UsageError(
                f"{study.name}'s metrics[{name!r}] must be lower when better, but a {type(metric).__name__} is better "
                "when it is higher; measure `1 - metric`, which is a metric of torchmetrics, too."
            )
        for number, (outputs, targets) in enumerate(held):
            try:
                with warnings.catch_warnings():
                    if number < len(held) - 1:
                        warnings.simplefilter("ignore")
                    _check_metric(study, f"metrics[{name!r}]", metric, outputs, targets)
                break
            except UsageError:
                if number == len(held) - 1:
                    raise


def _check_metric(study: Study, name: str, metric: Any, outputs: Any, targets: Tree) -> None:
    few = _counted(trees.count(targets))

    def measured(outputs: Any = outputs, targets: Tree = targets) -> Any:
        copies = trees.cloned(outputs), trees.cloned(targets)
        if not hasattr(metric, "compute"):
            return metric(*copies)
        metric.reset()
        metric.update(*copies)
        found = metric.compute()
        metric.reset()
        return found

    value = _called(study, name, few, outputs, measured)
    shape = getattr(value, "shape", ())
    try:
        number = float(value) if math.prod(shape) == 1 else None
    except (TypeError, ValueError):
        number = None
    if number is None:
        raise UsageError(
            f"{study.name}'s {name} must return one number for all examples, but got {trees.described(value)}; "
            f"{cure_of_number(value)}."
        )
    if not math.isfinite(number):
        raise UsageError(f"{study.name}'s {name} is {number} before training, of {few}; return a finite number.")
    broadcast.check_paired(study, name, measured, outputs, targets)


def described(inputs: Tree, targets: Tree) -> str:
    """Number and shapes of examples as text."""
    number = _counted(trees.count(targets))
    return f"{number}, inputs {trees.described(inputs)} and targets {trees.described(targets)}"


def _counted(examples: int) -> str:
    return f"{examples} example{'s' if examples > 1 else ''}"


def first(tree: Tree, examples: int) -> Tree:
    """The first examples of a tree."""
    return trees.part(tree, slice(examples))


def _called(study: Study, name: str, few: str, outputs: Any, call: Callable[[], Any]) -> Any:
    with calling(study, name, f"of outputs {trees.described(outputs)} and {few}"):
        try:
            return call()
        except Exception as error:
            if not isinstance(outputs, Tensor) and trees.leaves(outputs):
                error.add_note("(it gets the model's outputs as they are; take the part that it needs, as outputs[0])")
            elif name == "loss" and not user_line(error) and re.search(ARGUMENTS, repr(error)):
                raise UsageError(
                    f"{study.name}: {error}; `hyperparameters` must name each tuned argument of a loss, with a default "
                    "in the loss for searches that do not tune it."
                ) from error
            raise
