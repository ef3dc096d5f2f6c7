"""A small language model on tokens of a Markov chain, with inputs and targets [N, T]."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from workloads.base import Splits

VOCABULARY = 16


def cross_entropy_error(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy over the tokens of each sequence [B]; logits [B, T, C], targets [B, T]."""
    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(1)


@dataclass(frozen=True)
class Markov:
    """Each token is, more often than not, the one after its predecessor."""

    name: str
    train_examples: int
    tokens_per_example: int
    errors: ClassVar[dict[str, Any]] = {"cross_entropy_error": cross_entropy_error}
    hyperparameters: ClassVar[tuple[str, ...]] = ()

    def splits(self, device: torch.device) -> Splits:
        generator = torch.Generator().manual_seed(0)
        counts = [self.train_examples, 32, 32]
        jumps = torch.randint(0, 3, (sum(counts), self.tokens_per_example + 1), generator=generator) // 2 + 1
        tokens = jumps.cumsum(1) % VOCABULARY
        parts = tokens.split(counts)
        train, val, test = ((part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in parts)
        return Splits(train, val, test)

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY))

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy_error(outputs, targets)


YAML = """\
# @package _global_
workload: {_target_: helpers.users.markov.Markov, name: markov, train_examples: 512, tokens_per_example: 64}
goal: val/cross_entropy_error < 1.0
batch_sizes: [4, 2k tokens]
budget: {epochs: 0, steps: 8, tokens: 8192}
search: {trials: 2}
"""
