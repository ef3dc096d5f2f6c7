"""Checks a workload on a few examples before anything trains; refusals name the line of its author's code."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

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


def check_model(study: Study, workload: Workload, inputs: Tensor, targets: Tensor) -> None:
    """Raise UsageError if the model cannot be trained, or loss and errors are not a finite number per example [B]."""
    examples = f"{len(targets)} example{'s' if len(targets) > 1 else ''}"
    few = f"{examples}, inputs {_described(inputs)} and targets {_described(targets)}"
    model = _trainable(study, workload)
    if not workload.errors:
        raise UsageError(f"{study.name} measures nothing: its `errors` are empty; name at least one.")
    given = inputs.clone()
    with torch.random.fork_rng(devices=[]):
        with calling(study, "model", f"of {few}"):
            outputs = model.train()(inputs)
        if not torch.equal(inputs.nan_to_num(), given.nan_to_num()):
            raise UsageError(
                f"the model of {study.name} overwrites its inputs, and with them the data; make its first operation "
                "one that is not in place."
            )
        loss = _loss_of(study, workload)
        found = {"loss": _called(study, "loss", few, outputs, partial(loss, outputs, targets))}
        with torch.no_grad():
            for name, error in workload.errors.items():
                name = f"errors[{name!r}]"
                found[name] = _called(study, name, few, outputs, partial(error, outputs, targets))
    for name, values in found.items():
        _check_values(study, name, values, len(targets), few)
    if not found["loss"].requires_grad:
        raise UsageError(f"{study.name}'s loss depends on no trained parameter; look for detach(), argmax and no_grad.")


def _trainable(study: Study, workload: Workload) -> nn.Module:
    """The workload's model. Raises UsageError if it is no module, or cannot be trained from the seed of its trial."""
    with calling(study, "model()"):
        model = workload.model()
    if not isinstance(model, nn.Module):
        raise UsageError(f"{study.name}.model() must return a torch.nn.Module, but got a {type(model).__name__}.")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(f"the model of {study.name} has no parameter to train; look for requires_grad=False.")
    if any(map(nn.parameter.is_lazy, model.parameters())):
        raise UsageError(
            f"the model of {study.name} has lazy layers, which draw their weights at the first batch and not from the "
            "seed of their trial; give them their sizes."
        )
    return model


def _check_values(study: Study, name: str, values: Any, examples: int, few: str) -> None:
    """Raise UsageError unless a loss or an error is a finite number per example; engines weight and sum these."""
    if not isinstance(values, Tensor) or values.shape != (examples,):
        got = _described(values) if isinstance(values, Tensor) else f"a {type(values).__name__}"
        raise UsageError(
            f"{study.name}'s {name} must be a number per example, of shape [{examples}] for {examples} of them, but "
            f"got {got}; take the mean over outputs yourself, but not over examples."
        )
    if not values.isfinite().all():
        raise UsageError(f"{study.name}'s {name} is not finite before training, of {few}.")


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
    metrics = {"loss": _loss_of(study, workload), **workload.errors}
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


def _loss_of(study: Study, workload: Workload) -> Metric:
    """The loss with its tuned arguments."""
    tuned = in_the_loss(study, workload)
    return lambda outputs, targets: workload.loss(outputs, targets, **tuned)


def _not_finite(split: tuple[Tensor, Tensor]) -> list[int]:
    """The indices of examples that hold numbers that are not finite."""
    bad = torch.zeros(len(split[0]), dtype=torch.bool)
    for part in split:
        if part.is_floating_point():
            bad |= part.isfinite().logical_not().flatten(1).any(1) if part.dim() > 1 else part.isfinite().logical_not()
    return bad.nonzero().flatten().tolist()


def _called(study: Study, name: str, few: str, outputs: Any, call: Callable[[], Any]) -> Any:
    got = _described(outputs) if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
    with calling(study, name, f"of outputs {got} and {few}"):
        try:
            return call()
        except TypeError as error:
            if "argument" not in str(error) or not isinstance(outputs, Tensor):
                raise
            raise UsageError(
                f"{study.name}: {error}; `hyperparameters` must name each tuned argument of a loss, with a default in "
                "the loss for searches that do not tune it."
            ) from error


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


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
