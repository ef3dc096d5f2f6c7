"""Losses, errors and weights that count the padding of a batch are refused: other batches are padded further."""

import pytest
import torch
import torch.nn.functional as F
from helpers.users.checked import Made, refused
from torch import nn

from study.checks.padding import check_padding
from study.data.examples import Examples
from workloads.base import Splits

TOKENS = 7
CE = "s loss of an example must not depend on how far its batch is padded, but for example 1 .* alone and .*"


def lines(shortest=3):
    """Tokens from 1 on; line k has `shortest` + 2 (k mod 11) of them, but for line 1, the shortest one."""
    generator = torch.Generator().manual_seed(0)
    sizes = [shortest if k == 1 else shortest + 1 + 2 * (k % 11) for k in range(60)]
    return [torch.randint(1, TOKENS, (size,), generator=generator) for size in sizes]


def padded(side="right"):
    def joined(rows):
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side=side)

    return lambda rows: (joined([row[:-1] for row in rows]), joined([row[1:] for row in rows]))


def each(outputs, targets):
    return F.cross_entropy(outputs.mT, targets, ignore_index=0, reduction="none")


def counted(_, targets):
    return (targets != 0).sum(1)


def over_all(outputs, targets):
    return each(outputs, targets).mean(1)


def over_own(outputs, targets):
    return each(outputs, targets).sum(1) / counted(outputs, targets)


def embedding():
    return nn.Sequential(nn.Embedding(TOKENS, 4), nn.Linear(4, TOKENS))


class Mean(nn.Module):
    """A model that depends on the padding itself: it is not the fault of the loss."""

    def __init__(self):
        super().__init__()
        self.inner = embedding()

    def forward(self, x):
        return self.inner(x) + self.inner(x).mean(1, keepdim=True)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"loss": over_own}, None),
        ({"loss": over_all}, CE),
        ({"loss": lambda o, t: each(o, t).sum(1)}, None),
        ({"loss": over_own, "errors": {"mine": over_all}}, r"errors\['mine'\] of an example .* padded"),
        ({"loss": over_own, "weights": lambda t: counted(None, t)}, None),
        ({"loss": over_own, "weights": lambda t: torch.full((len(t),), t.shape[1])}, "weights of an example .* padded"),
        ({"loss": over_own, "error_weights": lambda t: torch.full((len(t),), t.shape[1])}, "error_weights of an"),
        ({"loss": over_all, "model": Mean}, None),
        ({"loss": lambda o, t: over_own(o + torch.rand_like(o), t)}, None),
    ],
)
def test_padding(make_study, side, members, said):
    workload = Made(**{"model": embedding, "errors": {}, "collate": padded(side)} | members)
    examples = Examples(Splits(lines(), lines(), lines()), workload.collate)
    with refused(said):
        check_padding(make_study(), workload, examples)


def test_lines_without_a_target_are_no_matter(make_study):
    """Their loss is 0 / 0, alone and beside others."""
    workload = Made(embedding, loss=over_own, errors={}, collate=padded())
    check_padding(make_study(), workload, Examples(Splits(*[lines(shortest=1)] * 3), workload.collate))
