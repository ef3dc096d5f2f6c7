"""What a workload is: data, a model, and the loss and errors that judge it. The training algorithm is chosen beside it.

Shapes: B examples in a batch, N examples in a split, C classes.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


LABEL_SMOOTHING_CONVENTIONS = ("paper", "uniform")


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float | Tensor, convention: str) -> Tensor:
    """Cross entropy of each example [B] against smoothed labels; eps = `label_smoothing`, K classes.

    `paper` puts 1 - eps on the label and eps / (K - 1) on every other class (Shallue et al. 2019);
    `uniform` puts 1 - eps + eps / K on the label and eps / K on every other class (Szegedy et al. 2016).
    """
    log_probabilities = F.log_softmax(logits, dim=-1)
    on_label = log_probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    on_all = log_probabilities.sum(-1)
    classes = logits.shape[-1]
    if convention == "paper":
        return -(1 - label_smoothing) * on_label - label_smoothing / (classes - 1) * (on_all - on_label)
    return -(1 - label_smoothing) * on_label - label_smoothing / classes * on_all


def classification_error(logits: Tensor, targets: Tensor) -> Tensor:
    """1 for each example whose largest logit is not its label's, else 0 [B]."""
    return (logits.argmax(-1) != targets).float()


def cross_entropy_error(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of each example in nats [B], without label smoothing."""
    return F.cross_entropy(logits, targets, reduction="none")


@dataclass(frozen=True, kw_only=True)
class Classification:
    """A data set of `workloads.datasets` judged by classification error; subclasses add the model.

    Arguments:
        train_examples: training examples used, the first of a fixed permutation; at most what the split leaves.
        validation_examples: examples held out of the training set by that permutation.
        split_seed: seed of the permutation.
        label_smoothing: eps in [0, 1); a tuned parameter of the same name overrides it.
        label_smoothing_convention: `paper` or `uniform`, see `smoothed_cross_entropy`.
    """

    name: str
    dataset: str
    train_examples: int
    validation_examples: int
    split_seed: int = 0
    label_smoothing: float = 0.0
    label_smoothing_convention: str = "paper"

    def __post_init__(self) -> None:
        from workloads.datasets import DATASETS

        if self.dataset not in DATASETS:
            raise ValueError(f"unknown data set {self.dataset!r}{suggest(self.dataset, DATASETS)}")
        for field, least in (("train_examples", 1), ("validation_examples", 1), ("split_seed", 0)):
            require_whole(f"workload.{field}", getattr(self, field), least)
        require_fraction("workload.label_smoothing", self.label_smoothing)
        if self.label_smoothing_convention not in LABEL_SMOOTHING_CONVENTIONS:
            raise ValueError(
                f"workload.label_smoothing_convention must be one of {', '.join(LABEL_SMOOTHING_CONVENTIONS)}, "
                f"but got {self.label_smoothing_convention!r}."
            )

    @property
    def errors(self) -> Mapping[str, PerExample]:
        return {"classification_error": classification_error, "cross_entropy_error": cross_entropy_error}

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        return ("label_smoothing",)

    def splits(self, device: torch.device) -> Splits:
        from workloads import datasets

        return datasets.splits(
            self.dataset,
            train_examples=self.train_examples,
            validation_examples=self.validation_examples,
            split_seed=self.split_seed,
            device=device,
        )

    def loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float | Tensor | None = None) -> Tensor:
        smoothing = self.label_smoothing if label_smoothing is None else label_smoothing
        if isinstance(smoothing, float | int) and smoothing == 0:
            return cross_entropy_error(outputs, targets)
        return smoothed_cross_entropy(outputs, targets, smoothing, self.label_smoothing_convention)


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
