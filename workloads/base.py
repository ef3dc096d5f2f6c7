"""What a workload is: data, a model, and the loss and errors that judge it. The training algorithm is chosen beside it.

Shapes: B examples in a batch, N examples in a split, C classes.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from workloads.suggest import suggest

PerExample = Callable[[Tensor, Tensor], Tensor]
"""(outputs [B, ...], targets [B, ...]) -> one float per example [B]; lower is better."""


Split = tuple[Tensor, Tensor] | Dataset
"""(inputs [N, ...], targets [N, ...]), or a map-style data set of (input, target): the same one for a number always."""


class Splits(NamedTuple):
    """The training, validation and test set: on one device, or on the host where they would not fit there."""

    train: Split
    val: Split
    test: Split


class Workload(Protocol):
    """What the engines ask of a workload. Any class with these members is one; nothing needs to be inherited.

    Every argument of the constructor comes from the workload's YAML file and is part of the question that a
    study records, so two objects built from equal arguments must behave alike.
    """

    name: str
    train_examples: int

    @property
    def errors(self) -> Mapping[str, PerExample]:
        """Error name -> per-example function; `classification_error` is measured as `val/classification_error`."""
        ...

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """Names of the loss's own tuned parameters, passed to `loss` by keyword; usually none."""
        ...

    def splits(self, device: torch.device) -> Splits:
        """The data, as tensors on `device` or as data sets; called once per process.

        Engines ask for the CPU, and move tensors from there to where they train if they fit.
        """
        ...

    def model(self) -> nn.Module:
        """A freshly initialised model on the CPU, drawn from torch's global generator (the engine seeds it)."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor, **hyperparameters: Any) -> Tensor:
        """The training loss of each example [B]; a step descends its mean."""
        ...


def classification_error(logits: Tensor, targets: Tensor) -> Tensor:
    """1 for each example whose largest logit is not its label's, else 0 [B]."""
    return (logits.argmax(-1) != targets).float()


def cross_entropy_error(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of each example in nats [B], without label smoothing."""
    return F.cross_entropy(logits, targets, reduction="none")


def require_whole(name: str, value: Any, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, but got {value!r}.")


def require_fraction(name: str, value: Any) -> None:
    """Refuse what is not a number in [0, 1)."""
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"{name} must be a number in [0, 1), but got {value!r}.")


def importable(folder: Path | None) -> None:
    """Let workloads and optimizers be imported from a folder of the user's, if there is one."""
    if folder is not None and str(folder.resolve()) not in sys.path:
        sys.path.insert(0, str(folder.resolve()))


def build(config: Mapping[str, Any]) -> Workload:
    """The workload that a study records: `_target_` is an import path, the other keys its constructor's arguments.

    Raises:
        ValueError: the path leads nowhere, or the constructor refuses an argument.
    """
    arguments: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in config.items()
    }
    path = str(arguments.pop("_target_", None))
    module, _, attribute = path.rpartition(".")
    try:
        constructor = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever a module of somebody else's raises
        raise ValueError(
            f"workload._target_ must be an importable class, but got {path!r}: {error}. The folder of your own is "
            "given by --config-dir."
        ) from error
    known = inspect.signature(constructor).parameters
    for key in arguments:
        if key not in known and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
            raise ValueError(f"{path} takes no argument {key!r}{suggest(key, known)}")
    try:
        return constructor(**arguments)
    except TypeError as error:
        raise ValueError(f"{path} refused its arguments: {error}") from error
