"""Checks a workload on a few examples before anything trains; refusals name the line of its author's code."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from study.errors import Refused, UsageError
from study.records import Study
from study.space import middle
from workloads.base import Splits, Workload
from workloads.data.fetching import DataError

OURS = {Path(__file__).parents[1], Path(torch.__file__).parent}
"""Folders with code that the author of a workload did not write."""
FEW = 8
"""Number of examples in a check."""

Metric = Callable[[Any, Tensor], Tensor]
"""(outputs, targets) -> a number per example [B]."""


def in_the_loss(study: Study, workload: Workload) -> dict[str, float]:
    """The tuned arguments of the workload's loss, in the middle of the search space."""
    return {name: value for name, value in middle(study.search.space).items() if name in workload.hyperparameters}


def loss_of(study: Study, workload: Workload) -> Metric:
    """The loss with its tuned arguments."""
    return partial(workload.loss, **in_the_loss(study, workload))


def check_splits(study: Study, splits: object) -> None:
    """Raise UsageError unless there are three splits, none is empty, and each has as many inputs as targets."""
    if not isinstance(splits, Splits):
        raise UsageError(
            f"{study.name}.splits() must return workloads.base.Splits(train, val, test), but got a "
            f"{type(splits).__name__}."
        )
    for name, split in splits._asdict().items():
        parts = split if isinstance(split, tuple) else ()
        if strange := [type(part).__name__ for part in parts if not isinstance(part, Tensor)]:
            raise UsageError(
                f"a split is two tensors or a torch.utils.data.Dataset, but the {name} split of {study.name} has a "
                f"{strange[0]}; torch.as_tensor makes one."
            )
        counts = [len(part) for part in parts] or [len(split)]
        if len(set(counts)) > 1:
            raise UsageError(
                f"each input needs a target, but the {name} split of {study.name} has {counts[0]:,} inputs and "
                f"{counts[1]:,} targets."
            )
        if not counts[0]:
            raise UsageError(f"the {name} split of {study.name} must not be empty; give it examples.")


def fingerprint(study: Study, workload: Workload, inputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Numbers that change when the code or the data of a workload change.

    They are means of the first examples, the number of parameters, and the errors of an untrained model.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = workload.model().train()
        outputs = model(inputs)
        # The loss is left out if it is tuned: it then depends on the search space.
        judged = dict(workload.errors) if in_the_loss(study, workload) else {**workload.errors, "loss": workload.loss}
        untrained = {f"untrained {name}": judge(outputs, targets).double().mean() for name, judge in judged.items()}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    means = {"mean input": inputs.double().mean(), "mean target": targets.double().mean(), **untrained}
    return {"parameters": float(parameters), **{name: float(mean) for name, mean in means.items()}}


def check_numbers(study: Study, workload: Workload, splits: Splits) -> None:
    """Raise UsageError if loss or errors are not finite on examples that hold NaN or infinite numbers."""
    model = workload.model().eval()
    metrics = {"loss": loss_of(study, workload), **workload.errors}
    for name, split in splits._asdict().items():
        odd = _not_finite(split) if isinstance(split, tuple) else []
        if not odd:
            continue
        inputs, targets = (part[odd[:FEW]] for part in split)
        with torch.no_grad(), calling(study, "loss", f"of numbers that are not finite, in its {name} split"):
            outputs = model(inputs.clone())
            spoilt = [metric for metric, call in metrics.items() if not call(outputs, targets).isfinite().all()]
        if spoilt:
            raise UsageError(
                f"the {name} split of {study.name} holds numbers that are not finite, in {len(odd):,} of "
                f"{len(split[0]):,} examples, the first at index {odd[0]}, and its {spoilt[0]} is not finite there; "
                "leave these examples out."
            )


def _not_finite(split: tuple[Tensor, Tensor]) -> list[int]:
    """The indices of examples that hold numbers that are not finite."""
    bad = torch.zeros(len(split[0]), dtype=torch.bool)
    for part in split:
        if part.is_floating_point():
            bad |= part.isfinite().logical_not().flatten(1).any(1) if part.dim() > 1 else part.isfinite().logical_not()
    return bad.nonzero().flatten().tolist()


@contextmanager
def calling(study: Study, name: str, of: str = "") -> Iterator[None]:
    """A block that calls a user's code, which may raise any error.

    Raises:
        Refused: for any error in the block; the message names the line of the user's files where it arose.
    """
    try:
        yield
    except Refused:
        raise
    except DataError as error:
        raise Refused(str(error)) from error
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(". ")
        what = f"{study.name}'s {name} cannot be computed {of}".rstrip()
        raise UsageError(f"{what}: {said}{_place(error)}.") from error


def _place(error: Exception) -> str:
    """The last line of the user's own code that led to the error."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if OURS.isdisjoint(Path(f.filename).parents)]
    return f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""
