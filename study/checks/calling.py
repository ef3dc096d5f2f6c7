"""Checks a workload on a few examples before anything trains; refusals name the line of its author's code."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from study.data import trees
from study.devices import modes
from study.errors import Refused, UsageError
from study.records import Study
from study.space import middle
from workloads.base import PerExample, Workload
from workloads.data.fetching import DataError
from workloads.user_code.errors import summary, text_of, user_line

FEW = 8
"""Number of examples in a check."""
BEFORE_STEPS = ("splits()", "model()")
"""Calls after which a worker sets its number of threads and its precision (`study.devices.precision`)."""

CURES = {
    r"same dtype|Input type .* and (weight|bias) type": "the data must have the type of the model's parameters, such "
    "as inputs.float()",
    r"target dtype|scalar type Long": "class numbers must be int64, such as targets.long()",
    r"multi-target|1D target": "class numbers must have the shape [N], such as targets.squeeze(1)",
    r"class probabilities": "class numbers must be int64 of shape [N], such as targets.argmax(1), and probabilities "
    "must be floats",
    r"Target -?\d+ is out of bounds": "class numbers must go from 0 to one less than the number of the model's outputs",
    r"more than 1 value per channel": "batch norm has no statistics of one example: leave batch size 1 out of "
    "batch_sizes, or take a norm of each example, such as GroupNorm or LayerNorm",
    r"missing the required .forward. function": "give the model a method forward(inputs) that returns what the "
    "workload's loss takes; a method that computes a loss itself, such as training_step, is not called",
    r"forward\(\) (missing|takes) \d+": "inputs that are a tuple give the arguments of forward in order; those that "
    "are a mapping give them by name",
}
"""For messages of torch that name no cure: part of a message -> the rule and the cure."""


def in_the_loss(study: Study, workload: Workload) -> dict[str, float]:
    """The tuned arguments of the workload's loss, in the middle of the search space."""
    return {name: value for name, value in middle(study.search.space).items() if name in workload.hyperparameters}


def loss_of(study: Study, workload: Workload) -> PerExample:
    """The loss with its tuned arguments."""
    return partial(workload.loss, **in_the_loss(study, workload))


@contextmanager
def calling(study: Study, name: str, of: str = "") -> Iterator[None]:
    """A block that calls a user's code, which may raise any error.

    Raises:
        Refused: for any error in the block; the message names the line of the user's files where it arose. Also if the
            block leaves a setting of torch changed.
    """
    if name in BEFORE_STEPS:
        before = modes.read(but=[modes.THREADS, modes.PRECISION])
    else:
        torch.set_num_threads(1)  # as in a worker's steps: code that sets the number this process had is seen, too
        before = modes.read()
    try:
        yield
    except Refused:
        raise
    except DataError as error:
        raise Refused(str(error)) from error
    except Exception as error:
        what = f"{study.name}'s {name} cannot be computed {of}".rstrip()
        cure = next((f"; {cure}" for part, cure in CURES.items() if re.search(part, text_of(error))), "")
        raise UsageError(f"{what}: {summary(error)}{user_line(error)}{cure}.") from error
    if why := modes.left_changed(before):
        raise UsageError(f"{study.name}'s {name} {why}")


def cure_of_shape(values: Any, outputs: Any, examples: int) -> str:
    """The cure for values that are not one per example."""
    if not isinstance(values, Tensor):
        return "let it return a tensor."
    if examples > 1 and any(torch.equal(values, leaf) for leaf in trees.leaves(outputs)):
        return (
            "the loss that a model computes itself (outputs.loss) is a mean over examples: compute it from the logits, "
            "as workloads.base.cross_entropy_error(outputs.logits, targets) does (docs/guide/adapters.md)."
        )
    if examples > 1 and values.dim() == 0:
        return "do not take the mean: the losses of torch return each example with reduction='none'."
    return "take the mean over outputs yourself, but not over examples."


def cure_of_number(value: Any) -> str:
    """The cure for the value of a metric that is not one number."""
    if value is None:
        return "look for a missing `return`"
    if isinstance(value, Mapping):
        return (
            "give each number its own name, `metrics = {name: metric, ...}`; a MetricCollection of torchmetrics may "
            "itself be `metrics`"
        )
    if isinstance(value, tuple | list):
        return "give each number its own name, `metrics = {name: metric, ...}`"
    return "a number per example belongs to `errors`"
