"""Image classification on a data set of `workloads.data.datasets`: the loss and the errors.

Shapes: B examples in a batch, T tokens of an example, C classes.
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

LABEL_SMOOTHING_CONVENTIONS = ("paper", "uniform")


def smoothed_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    label_smoothing: float | Tensor,
    convention: str,
    ignore_index: int = base.IGNORED,
) -> Tensor:
    """Cross entropy of each example [B] against smoothed labels; eps = `label_smoothing`, K classes.

    `paper` puts 1 - eps on the label and eps / (K - 1) on every other class (Shallue et al. 2019);
    `uniform` puts 1 - eps + eps / K on the label and eps / K on every other class (Szegedy et al. 2016).

    Of logits [B, T, C] and targets [B, T]: the mean over the counted tokens of each example. 0 for an ignored target.

    Arguments:
        label_smoothing: a number, or one for each example [B].
    """
    counted = targets != ignore_index
    if targets.dim() > 1 and isinstance(label_smoothing, Tensor) and label_smoothing.dim():
        label_smoothing = label_smoothing.unsqueeze(1)
    log_probabilities = F.log_softmax(logits, dim=-1)
    on_label = log_probabilities.gather(-1, targets.where(counted, 0).unsqueeze(-1)).squeeze(-1)
    on_all = log_probabilities.sum(-1)
    classes = logits.shape[-1]
    if convention == "paper":
        each = -(1 - label_smoothing) * on_label - label_smoothing / (classes - 1) * (on_all - on_label)
    else:
        each = -(1 - label_smoothing) * on_label - label_smoothing / classes * on_all
    return base.mean_over_tokens(each, targets, ignore_index) if targets.dim() > 1 else each.where(counted, 0)


def smoothed_loss(
    outputs: Tensor, targets: Tensor, tuned: float | Tensor | None, fixed: float, convention: str
) -> Tensor:
    """The loss of each example [B] with the tuned label smoothing or, if it is None, the fixed one."""
    smoothing = fixed if tuned is None else tuned
    if isinstance(smoothing, float | int) and smoothing == 0:
        return cross_entropy_error(outputs, targets)
    return smoothed_cross_entropy(outputs, targets, smoothing, convention)


def require_smoothing(label_smoothing: float, convention: str) -> None:
    """Raise ValueError unless these are a fixed label smoothing and one of LABEL_SMOOTHING_CONVENTIONS."""
    base.require_fraction("workload.label_smoothing", label_smoothing)
    if convention not in LABEL_SMOOTHING_CONVENTIONS:
        raise ValueError(
            f"workload.label_smoothing_convention must be one of {', '.join(LABEL_SMOOTHING_CONVENTIONS)}, "
            f"but got {convention!r}."
        )


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
        self.require_dataset()
        for field, least in (("train_examples", 1), ("validation_examples", 1), ("split_seed", 0)):
            base.require_whole(f"workload.{field}", getattr(self, field), least)
        require_smoothing(self.label_smoothing, self.label_smoothing_convention)

    def require_dataset(self) -> None:
        """Raise ValueError for an unknown data set."""
        base.require_one_of("data set", self.dataset, DATASETS)

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
        return smoothed_loss(outputs, targets, label_smoothing, self.label_smoothing, self.label_smoothing_convention)
