"""Image classification on a data set of `workloads.data.datasets`: the loss and the errors.

Shapes: B examples in a batch, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads import base
from workloads.base import PerExample, Splits, classification_error, cross_entropy_error
from workloads.data import datasets
from workloads.data.datasets import DATASETS
from workloads.suggest import suggest

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


@dataclass(frozen=True, kw_only=True)
class Classification:
    """A data set with classification error, cross entropy and label smoothing; subclasses add the model.

    Arguments:
        train_examples: number of training examples, taken after the validation examples of a fixed permutation.
        validation_examples: number of examples held out of the training set, the first of that permutation.
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
        if self.dataset not in DATASETS:
            raise ValueError(f"unknown data set {self.dataset!r}{suggest(self.dataset, DATASETS)}")
        for field, least in (("train_examples", 1), ("validation_examples", 1), ("split_seed", 0)):
            base.require_whole(f"workload.{field}", getattr(self, field), least)
        base.require_fraction("workload.label_smoothing", self.label_smoothing)
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
