"""Language modelling on a text of `workloads.data.text`: the loss and the errors.

Shapes: B examples in a batch, N examples in a split, T tokens of an example, V tokens of the vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

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
from workloads.suggest import suggest

BYTES = 256
TOKENIZERS = {"byte": "every byte of the text in UTF-8 is a token", "bpe": "byte pair encoding, `vocabulary` tokens"}


@dataclass(frozen=True, kw_only=True)
class LanguageModelling:
    """Windows of a text, each token of which is predicted from those before it; subclasses add the model.

    An example is a window of T = `context` tokens; its targets are the same tokens, one place further on. The loss and
    the errors of an example are means over its counted tokens: nats per token, and the share of wrong predictions.

    Arguments:
        dataset: the text.
        tokenizer: one of TOKENIZERS.
        vocabulary: number of tokens, for `bpe`; `byte` has 256.
        context: T.
        train_examples: number of training windows.
        validation_examples: number of validation windows.
        split_seed: seed of the choice of the documents that are held out.
        label_smoothing: eps in [0, 1); a tuned parameter of the same name overrides it.
        label_smoothing_convention: `paper` or `uniform`, see `workloads.classification.smoothed_cross_entropy`.

    Attributes:
        padded: whether targets may hold the ignored token `workloads.base.IGNORED`. Every counted token then has the
            same weight, however many its example has. Subclasses whose `splits` pad windows set it.
    """

    padded: ClassVar[bool] = False

    name: str
    dataset: str
    tokenizer: str = "byte"
    vocabulary: int | None = None
    context: int
    train_examples: int
    validation_examples: int
    split_seed: int = 0
    label_smoothing: float = 0.0
    label_smoothing_convention: str = "paper"

    def __post_init__(self) -> None:
        if self.tokenizer not in TOKENIZERS:
            raise ValueError(f"unknown workload.tokenizer {self.tokenizer!r}{suggest(self.tokenizer, TOKENIZERS)}")
        if self.tokenizer == "bpe":
            require_whole("workload.vocabulary", self.vocabulary, BYTES + 1)
        elif self.vocabulary not in (None, BYTES):
            raise ValueError(
                f"workload.vocabulary belongs to workload.tokenizer=bpe; byte has {BYTES}, but got {self.vocabulary!r}."
            )
        for field, least in (("context", 1), ("train_examples", 1), ("validation_examples", 1), ("split_seed", 0)):
            require_whole(f"workload.{field}", getattr(self, field), least)
        require_smoothing(self.label_smoothing, self.label_smoothing_convention)

    @property
    def tokens(self) -> int:
        """V."""
        return self.vocabulary or BYTES

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
        return token_weights if self.padded else None

    @property
    def error_weights(self) -> Weights | None:
        """As `weights`."""
        return self.weights

    def splits(self, device: torch.device) -> Splits:
        """Inputs and targets int64 [N, T] of each split."""
        from workloads.data import text  # needs a tokenizer, which other workloads do not

        held: Any = text.splits(
            self.dataset,
            tokenizer=self.tokenizer,
            vocabulary=self.vocabulary,
            context=self.context,
            train_examples=self.train_examples,
            validation_examples=self.validation_examples,
            split_seed=self.split_seed,
            device=device,
        )
        return held

    def loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float | Tensor | None = None) -> Tensor:
        return smoothed_loss(outputs, targets, label_smoothing, self.label_smoothing, self.label_smoothing_convention)
