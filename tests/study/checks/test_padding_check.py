"""Models, losses, errors and weights that count padding are refused: other batches are padded further."""

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


class Reads(nn.Module):
    """A model that reads embedded tokens [B, T, 4], with or without a look at their neighbours; token 0 is padding."""

    def __init__(self, layer, act=lambda layer, e, real: layer(e)):
        super().__init__()
        self.embedding, self.layer, self.last, self.act = nn.Embedding(TOKENS, 4), layer, nn.Linear(4, TOKENS), act

    def forward(self, x):
        return self.last(self.act(self.layer, self.embedding(x), x != 0))


def packed(layer, e, real):
    lengths = real.sum(1)
    together = nn.utils.rnn.pack_padded_sequence(e, lengths, batch_first=True, enforce_sorted=False)
    return nn.utils.rnn.pad_packed_sequence(layer(together)[0], batch_first=True, total_length=e.shape[1])[0]


def attended(masked, causal=False):
    def act(layer, e, real):
        size = e.shape[1]
        ahead = torch.ones(size, size, dtype=torch.bool).triu(1) if causal else None
        return layer(e, e, e, attn_mask=ahead, key_padding_mask=~real if masked else None, need_weights=False)[0]

    return act


def averaged(masked):
    def act(layer, e, real):
        kept = (real if masked else torch.ones_like(real)).unsqueeze(-1)
        return layer(e) + (kept * e).sum(1, keepdim=True) / kept.sum(1, keepdim=True)

    return act


def attention():
    return nn.MultiheadAttention(4, 2, batch_first=True)


def small(model):
    """The model with small weights, as those of BERT, whose first outputs hardly differ."""
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.05)
    return model


NO_MASK = "s loss of an example must not depend on how far .* alone and .*; the model's outputs change with the padding"
MODELS = {
    "mean": (lambda: Reads(nn.Linear(4, 4), averaged(masked=False)), NO_MASK, NO_MASK),
    "mean of own tokens": (lambda: Reads(nn.Linear(4, 4), averaged(masked=True)), None, None),
    "attention": (lambda: Reads(attention(), attended(masked=False)), NO_MASK, NO_MASK),
    "small attention": (lambda: small(Reads(attention(), attended(masked=False))), NO_MASK, NO_MASK),
    "attention with a mask": (lambda: Reads(attention(), attended(masked=True)), None, None),
    "causal attention": (lambda: Reads(attention(), attended(masked=False, causal=True)), None, NO_MASK),
    "one way": (lambda: Reads(nn.GRU(4, 4, batch_first=True), lambda gru, e, _: gru(e)[0]), None, NO_MASK),
    "both ways": (
        lambda: Reads(nn.GRU(4, 2, batch_first=True, bidirectional=True), lambda gru, e, _: gru(e)[0]),
        NO_MASK,
        NO_MASK,
    ),
    "packed": (lambda: Reads(nn.GRU(4, 2, batch_first=True, bidirectional=True), packed), None, NO_MASK),
    "batch norm": (lambda: Reads(nn.BatchNorm1d(4), lambda norm, e, _: norm(e.mT).mT), None, None),
    "position": (lambda: Reads(nn.Embedding(99, 4), lambda at, e, _: e + at.weight[: e.shape[1]]), None, NO_MASK),
    "only padding": (
        lambda: Reads(nn.Linear(4, 4), lambda _, e, real: e + (~real).sum(1)[:, None, None] * ~real[..., None]),
        None,
        None,
    ),
    "noise": (lambda: Reads(nn.Linear(4, 4), lambda layer, e, _: layer(e) + torch.rand_like(e)), None, None),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_read_the_padding(make_study, name):
    model, *said = MODELS[name]
    for side, why in zip(("right", "left"), said, strict=True):
        workload = Made(model, loss=over_own, errors={}, collate=padded(side))
        with refused(why):
            check_padding(make_study(), workload, Examples(Splits(*[lines()] * 3), workload.collate))


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


@pytest.mark.parametrize(("masked", "said"), [(False, NO_MASK), (True, None)])
def test_one_output_for_a_line(make_study, masked, said):
    class Pooled(Reads):
        def forward(self, x):
            return super().forward(x)[:, 0]

    def joined(rows):
        return nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.stack([row[0] for row in rows])

    workload = Made(lambda: Pooled(attention(), attended(masked)), collate=joined)
    with refused(said):
        check_padding(make_study(), workload, Examples(Splits(*[lines()] * 3), joined))
