"""Tiny language models on made tokens, with padded windows or without."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from helpers.users.made import Made
from workloads.base import IGNORED
from workloads.language.lstm import LstmLm
from workloads.language.transformer import TransformerLm

CONTEXT = 8
COMMON: dict[str, Any] = {
    "name": "tiny",
    "dataset": "shakespeare",
    "context": CONTEXT,
    "train_examples": 64,
    "validation_examples": 40,
}
SHAPE: dict[str, Any] = {"width": 16, "depth": 2, "heads": 2, "mlp_width": 24}


def windows(count: int, generator: torch.Generator, padded: bool) -> tuple[Tensor, Tensor]:
    """Inputs and targets [count, CONTEXT]: bytes that count up in steps of 1 to 3; padded ones end in ignored tokens,
    the first of them with one counted token."""
    starts = torch.randint(200, (count, 1), generator=generator)
    strides = torch.randint(1, 4, (count, 1), generator=generator)
    tokens = starts + strides * torch.arange(CONTEXT + 1)
    targets = tokens[:, 1:].clone()
    if padded:
        lengths = torch.randint(1, CONTEXT + 1, (count, 1), generator=generator)
        lengths[0] = 1
        targets[torch.arange(CONTEXT) >= lengths] = IGNORED
    return tokens[:, :-1].contiguous(), targets


class Windows(Made):
    packed: bool

    def examples(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return windows(count, generator, not self.packed)


@dataclass(frozen=True, kw_only=True)
class MadeTransformer(Windows, TransformerLm):
    pass


@dataclass(frozen=True, kw_only=True)
class MadeLstm(Windows, LstmLm):
    pass


LANGUAGE_MODELS = {
    "transformer": MadeTransformer(**COMMON, **SHAPE, dropout=0.1),
    "rotary": MadeTransformer(**COMMON, **SHAPE, positions="rotary", norm_place="post", norm="rms"),
    "untied": MadeTransformer(**COMMON, **SHAPE, positions="sinusoidal", tied=False, activation="relu"),
    "padded": MadeTransformer(**COMMON, **SHAPE, packed=False),
    "lstm": MadeLstm(**COMMON, width=12, depth=2, dropout=0.1),
    "padded lstm": MadeLstm(**COMMON, width=12, tied=True, packed=False),
}
