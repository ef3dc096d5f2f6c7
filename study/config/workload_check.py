"""What a few examples tell of a workload before anything is trained: that it is one, in the words of its author."""

from __future__ import annotations

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

FOREIGN = {Path(__file__).parent, Path(torch.__file__).parent}
"""Folders whose code is not the author's of a workload."""
FEW = 8
"""Examples that are tried."""


def in_the_loss(study: Study, workload: Workload) -> dict[str, float]:
    """What the study tunes of the workload's loss, in the middle of its space."""
    return {name: value for name, value in middle(study.search.space).items() if name in workload.hyperparameters}


def check_splits(study: Study, splits: object) -> None:
    """There are three splits, none of them empty, and of tensors as many inputs as targets.

    Raises:
        UsageError: there are others.
    """
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
            raise UsageError(f"no split may be empty, but the {name} split of {study.name} is; give it examples.")


def check_model(study: Study, workload: Workload, inputs: Tensor, targets: Tensor) -> None:
    """The model can be trained; loss and errors are a number for each example [B], which engines weight and add up.

    Raises:
        UsageError: it cannot, or one is not.
    """
    examples = f"{len(targets)} example{'s' if len(targets) > 1 else ''}"
    few = f"{examples}, inputs {_in_words(inputs)} and targets {_in_words(targets)}"
    with asked_of(study, "model()"):
        model = workload.model()
    if not isinstance(model, nn.Module):
        raise UsageError(f"{study.name}.model() must return a torch.nn.Module, but got a {type(model).__name__}.")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(f"the model of {study.name} has no parameter to train; look for requires_grad=False.")
    if any(map(nn.parameter.is_lazy, model.parameters())):
        raise UsageError(
            f"the model of {study.name} has lazy layers, whose weights would be drawn with the first batch, and "
            "not from its trial's seed; give them their sizes."
        )
    if not workload.errors:
        raise UsageError(f"{study.name} measures nothing: its `errors` are empty; name at least one.")
    given = inputs.clone()
    with torch.random.fork_rng(devices=[]):
        with asked_of(study, "model", f"of {few}"):
            outputs = model.train()(inputs)
        if not torch.equal(inputs.nan_to_num(), given.nan_to_num()):
            raise UsageError(
                f"the model of {study.name} overwrites its inputs, which are the data themselves; make its first "
                "operation one that is not in place."
            )
        loss = _loss_of(study, workload)
        found = {"loss": _called(study, "loss", few, outputs, partial(loss, outputs, targets))}
        with torch.no_grad():
            for name, error in workload.errors.items():
                name = f"errors[{name!r}]"
                found[name] = _called(study, name, few, outputs, partial(error, outputs, targets))
    for name, each in found.items():
        if not isinstance(each, Tensor) or each.shape != (len(targets),):
            got = _in_words(each) if isinstance(each, Tensor) else f"a {type(each).__name__}"
            raise UsageError(
                f"{study.name}'s {name} must be a number for each example, of shape [{len(targets)}] for as many, but "
                f"got {got}; take the mean over outputs yourself and none over examples."
            )
        if not each.isfinite().all():
            raise UsageError(f"{study.name}'s {name} is not finite before anything is trained, of {few}.")
    if not found["loss"].requires_grad:
        raise UsageError(
            f"{study.name}'s loss depends on no parameter that is trained; look for detach(), argmax and no_grad."
        )


def fingerprint(study: Study, workload: Workload, inputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Numbers that change when a workload's code or data change: means of its first examples, the count of parameters,
    and the errors of an untrained model."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = workload.model().train()
        outputs = model(inputs)
        # A loss that is tuned is another in every search.
        judged = dict(workload.errors) if in_the_loss(study, workload) else {**workload.errors, "loss": workload.loss}
        untrained = {f"untrained {name}": judge(outputs, targets).double().mean() for name, judge in judged.items()}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    means = {"mean input": inputs.double().mean(), "mean target": targets.double().mean(), **untrained}
    return {"parameters": float(parameters), **{name: float(mean) for name, mean in means.items()}}


def check_numbers(study: Study, workload: Workload, splits: Splits) -> None:
    """Where the data hold NaN or infinite numbers, loss and errors must be finite all the same.

    Raises:
        UsageError: they are not.
    """
    model = workload.model().eval()
    judges = {"loss": _loss_of(study, workload), **workload.errors}
    for name, split in splits._asdict().items():
        odd = _odd(split) if isinstance(split, tuple) else []
        if not odd:
            continue
        inputs, targets = (part[odd[:FEW]] for part in split)
        with torch.no_grad(), asked_of(study, "loss", f"of numbers that are not finite, in its {name} split"):
            outputs = model(inputs.clone())
            spoilt = [each for each, judge in judges.items() if not judge(outputs, targets).isfinite().all()]
        if spoilt:
            raise UsageError(
                f"the {name} split of {study.name} holds numbers that are not finite, in {len(odd):,} of "
                f"{len(split[0]):,} examples, the first at index {odd[0]}, where its {spoilt[0]} is not either; leave "
                "them out."
            )


def _loss_of(study: Study, workload: Workload) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss, with what is tuned of it."""
    tuned = in_the_loss(study, workload)
    return lambda outputs, targets: workload.loss(outputs, targets, **tuned)


def _odd(split: tuple[Tensor, Tensor]) -> list[int]:
    """Which examples hold numbers that are not finite."""
    bad = torch.zeros(len(split[0]), dtype=torch.bool)
    for part in split:
        if part.is_floating_point():
            bad |= part.isfinite().logical_not().flatten(1).any(1) if part.dim() > 1 else part.isfinite().logical_not()
    return bad.nonzero().flatten().tolist()


def _called(study: Study, name: str, few: str, outputs: Any, call: Callable[[], Any]) -> Any:
    got = _in_words(outputs) if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
    with asked_of(study, name, f"of outputs {got} and {few}"):
        try:
            return call()
        except TypeError as error:
            if "argument" not in str(error) or not isinstance(outputs, Tensor):
                raise
            raise UsageError(
                f"{study.name}: {error}; what is tuned of a loss is named in `hyperparameters`, and has a default "
                "where it is not searched."
            ) from error


@contextmanager
def asked_of(study: Study, name: str, of: str = "") -> Iterator[None]:
    """Ask something of somebody's code, whose errors may be any, and say where it stands."""
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
    """The last line of the author's own that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if FOREIGN.isdisjoint(Path(f.filename).parents)]
    return f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""


def _in_words(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
