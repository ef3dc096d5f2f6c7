"""Language modelling on a text of `workloads.data.text`: the loss and the errors.

Shapes: B examples in a batch, N examples in a split, T tokens of an example, V tokens of the vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from workloads.base import (
    PerExample,
    Splits,
    Weights,
    classification_error,
    cross_entropy_error,
    require_whole,
    token_weights,
)
from workloads.classification import require_smoothing, smoothed_loss
from workloads.data import text


@dataclass(frozen=True, kw_only=True)
class LanguageModelling:
    """Windows of a text: a model predicts each token from those before it. Subclasses add the model.

    An example is a window of T = `context` tokens; its targets are the same tokens, one place further on. The loss and
    the errors of an example are means over its counted tokens: nats per token, and the share of wrong predictions.

    Arguments:
        dataset: one of `workloads.data.text.TEXTS`, or `text` for the files at `path`.
        path: the files of `dataset=text`: a folder, a file, or a pattern.
        tokenizer: `byte`, or `bpe` with a `vocabulary`.
        vocabulary: V of `bpe`; that of `byte` is 257.
        context: T.
        packed: windows are cut from the documents one after the other; False: one document in each window, cut off or
            padded. Targets that are padding count nowhere, and every other token has the same weight, however many its
            example has.
        train_examples: number of training windows.
        validation_examples: number of validation windows.
        split_seed: seed of the choice of the documents that are held out.
        label_smoothing: eps in [0, 1); a tuned parameter of the same name overrides it.
        label_smoothing_convention: `paper` or `uniform`, see `workloads.classification.smoothed_cross_entropy`.
    """

    name: str
    dataset: str
    path: str | None = None
    tokenizer: str = "byte"
    vocabulary: int | None = None
    context: int
    packed: bool = True
    train_examples: int
    validation_examples: int
    split_seed: int = 0
    label_smoothing: float = 0.0
    label_smoothing_convention: str = "paper"

    def __post_init__(self) -> None:
        self.require_dataset()
        for field, least in (("context", 1), ("train_examples", 1), ("validation_examples", 1), ("split_seed", 0)):
            require_whole(f"workload.{field}", getattr(self, field), least)
        require_smoothing(self.label_smoothing, self.label_smoothing_convention)

    def require_dataset(self) -> None:
        """Raise ValueError for an unknown text or tokenizer."""
        text.require_known(self.dataset, self.path)
        text.vocabulary_size(self.tokenizer, self.vocabulary)

    @property
    def tokens(self) -> int:
        """V."""
        return text.vocabulary_size(self.tokenizer, self.vocabulary)

    @property
    def tokens_per_example(self) -> int:
        """T."""
        return self.context

    @property
    def errors(self) -> Mapping[str, PerExample]:
        return {"cross_entropy_error": cross_entropy_error, "classification_error": classification_error}

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        return ("label_smoothing",)

    @property
    def weights(self) -> Weights | None:
        """The number of counted tokens of each example; None if every example has T."""
        return None if self.packed else token_weights

    @property
    def error_weights(self) -> Weights | None:
        """As `weights`."""
        return self.weights

    def splits(self, device: torch.device) -> Splits:
        """Inputs and targets int64 [N, T] of each split."""
        return text.splits(
            self.dataset,
            path=self.path,
            tokenizer=self.tokenizer,
            vocabulary=self.vocabulary,
            context=self.context,
            packed=self.packed,
            train_examples=self.train_examples,
            validation_examples=self.validation_examples,
            split_seed=self.split_seed,
            device=device,
        )

    def loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float | Tensor | None = None) -> Tensor:
        return smoothed_loss(outputs, targets, label_smoothing, self.label_smoothing, self.label_smoothing_convention)
