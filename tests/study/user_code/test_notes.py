"""What the author of a workload may not have meant is said, and nothing is said of what is usual."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.made_workload import own_folder
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset, default_collate

from study.data.examples import Examples
from study.user_code.notes import notes
from workloads.base import Splits, cross_entropy_error

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(300, 6, generator=GENERATOR), torch.randint(2, (300,), generator=GENERATOR)
BITS = torch.randint(2, (300, 6), generator=GENERATOR)
TENSORS = TensorDataset(X, Y)
X_Y = (X, Y)
ROWS = list(zip(X, Y, strict=True))
OTHERS = TensorDataset(torch.randn(99, 6), torch.zeros(99))


def mean_square(outputs, targets):
    return outputs.square().mean(1)


def said(
    train=X_Y, val=OTHERS, test=OTHERS, model=lambda: nn.Linear(6, 2), loss=mean_square, collate=None, precision="fp32"
):
    mine = SimpleNamespace(name="mine", model=model, loss=loss)
    return notes(mine, Examples(Splits(train, val, test), collate), (X[:8], Y[:8]), {}, precision)


def linear(weight=None):
    """A layer with this weight, of numbers that are drawn or not."""
    layer = nn.Linear(6, 2)
    nn.init.zeros_(layer.bias)
    if weight is not None:
        layer.weight.data = torch.as_tensor(weight(), dtype=torch.float32)
    return layer


def reseeded():
    np.random.seed(0)  # noqa: NPY002
    return linear(lambda: np.random.normal(size=(2, 6)))  # noqa: NPY002


@pytest.mark.parametrize(
    ("model", "fixed"),
    [
        (linear, False),
        (lambda: linear(lambda: np.random.normal(size=(2, 6))), False),  # noqa: NPY002
        (lambda: linear(lambda: np.random.RandomState(0).normal(size=(2, 6))), True),
        (lambda: linear(lambda: np.random.default_rng(0).normal(size=(2, 6))), True),
        (lambda: linear(lambda: torch.randn(2, 6, generator=torch.Generator().manual_seed(0))), True),
        (reseeded, True),
        (lambda: nn.Sequential(reseeded(), nn.Linear(2, 2)), False),  # as a loaded backbone with a new head
        (lambda: nn.Sequential(nn.Linear(6, 6).requires_grad_(False), reseeded()), True),
        (lambda: linear(lambda: np.zeros((2, 6))), False),  # drawn from nothing, as a convex problem begins
        (lambda: linear(lambda: np.ones((2, 6))), False),
        (lambda: nn.Sequential(*(nn.Linear(6, 6) for _ in range(1 + int(torch.initial_seed() % 2)))), False),
    ],
)
def test_the_same_weights_for_every_seed_are_noted(model, fixed):
    found = said(model=model)
    assert len(found) == fixed
    assert all("mine.model() gives the same weights for every seed" in note for note in found)


class Parts(nn.Module):
    """Two layers, and what connects them."""

    def __init__(self, act, frozen=False):
        super().__init__()
        self.first, self.second, self.unused, self.act = nn.Linear(6, 6), nn.Linear(6, 2), nn.Linear(6, 2), act
        self.first.requires_grad_(not frozen)

    def forward(self, x):
        return self.act(self, x)


class Alone(nn.Linear):
    """A model that is one layer, with a parameter that nothing uses."""

    def __init__(self):
        super().__init__(6, 2)
        self.unused = nn.Parameter(torch.randn(3))


def without_gradient(self, x):
    with torch.no_grad():
        features = self.first(x)
    return self.second(features)


@pytest.mark.parametrize(
    ("model", "which"),
    [
        (lambda: Parts(lambda self, x: self.second(self.first(x))), None),
        (lambda: Parts(without_gradient), "first"),
        (lambda: Parts(without_gradient, frozen=True), None),
        (lambda: Parts(lambda self, x: self.second(self.first(x).detach())), "first"),
        (lambda: Parts(lambda self, x: self.second(x) + 0 * self.first(x).argmax()), "first"),
        (lambda: Parts(lambda self, x: checkpoint(self.second, self.first(x), use_reentrant=True)), None),
        (lambda: Parts(lambda self, x: self.second(checkpoint(self.first, x, use_reentrant=False))), None),
        (lambda: Parts(lambda self, x: torch.cat([self.second(x), self.unused(x[:0])])), None),  # an idle expert
        (Alone, "Alone"),
        (lambda: spectral_norm(nn.Linear(6, 2)), None),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.1), nn.PReLU(), nn.Linear(6, 2)), None),
    ],
)
def test_layers_without_a_gradient_are_noted(model, which):
    found = said(model=model)
    assert len(found) == (which is not None)
    assert all(f"parameters of {which} in the model of mine get no gradient" in note for note in found)


class Halved(nn.Linear):
    """A layer that only takes what bf16 gives it."""

    def forward(self, x):
        y = super().forward(x)
        assert y.dtype == torch.bfloat16
        return y


class Empty(nn.Module):
    """A layer with a parameter of no numbers."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(6, 2)), nn.Parameter(torch.empty(0, 2))

    def forward(self, x):
        return torch.cat([x @ self.weight, self.bias])


@pytest.mark.filterwarnings("ignore:.*jit.trace:DeprecationWarning")
@pytest.mark.parametrize(
    "usual",
    [
        {"train": (X.to_sparse(), Y), "val": (X.to_sparse(), Y)},
        {"model": lambda: Halved(6, 2), "precision": "bf16"},
        {"model": Empty},
        {"model": lambda: torch.jit.trace(nn.Linear(6, 2), X[:8])},
    ],
    ids=["sparse", "bf16", "empty", "traced"],
)
def test_notes_fail_at_nothing_that_the_checks_accept(usual):
    assert said(**usual) == ()


CLASSES, SAME = torch.tensor([1.0, 3.0]), torch.ones(2)
TOKENS = torch.randint(2, (300, 5), generator=GENERATOR)
PADDED = TOKENS.where(torch.arange(5) < torch.randint(1, 6, (300, 1), generator=GENERATOR), -100)
PROMPTED = TOKENS.where(torch.arange(5) > 1, -100)  # two targets of each example are ignored
SOME = Y.where(torch.arange(300) % 3 > 0, 255)


def of_tokens(outputs, targets, **named):
    logits = outputs[:, None].expand(-1, targets.shape[1], -1)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", **named).view_as(targets).mean(1)


def first_axis_of_tokens(outputs, targets):
    """As for a recurrent model, whose first axis is that of tokens."""
    logits = outputs[None].expand(targets.shape[1], -1, -1).flatten(0, 1)
    return F.cross_entropy(logits, targets.T.flatten(), reduction="none").view(targets.shape[1], -1).mean(0)


def one_hot(outputs, targets):
    return F.cross_entropy(outputs, F.one_hot(targets, 2).float(), CLASSES, reduction="none")


def weighted_square(outputs, targets):
    return F.mse_loss(outputs[:, 0], targets.float(), weight=CLASSES[targets], reduction="none")


def of_bits(outputs, targets):
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0), weight=CLASSES, reduction="none")
    return loss(outputs, F.one_hot(targets, 2).float()).mean(1)


@pytest.mark.parametrize(
    ("loss", "targets", "why"),
    [
        (nn.CrossEntropyLoss(reduction="none"), Y, None),
        (nn.CrossEntropyLoss(SAME, reduction="none", label_smoothing=0.1), Y, None),
        (nn.CrossEntropyLoss(CLASSES, reduction="none"), Y, "has weights"),
        (lambda o, y: F.nll_loss(o.log_softmax(-1), y, CLASSES, reduction="none"), Y, "has weights"),
        (lambda o, y: torch.stack([F.cross_entropy(*each, CLASSES) for each in zip(o, y)]), Y, "has weights"),  # noqa: B905
        (lambda o, y: CLASSES[y] * F.cross_entropy(o, y, reduction="none"), Y, None),  # as it is meant
        (lambda o, y: torch.vmap(F.cross_entropy)(o, y), Y, None),
        (one_hot, Y, None),  # torch takes the plain mean
        (of_bits, Y, None),  # here, too
        (weighted_square, Y, "has weights"),
        (nn.CrossEntropyLoss(ignore_index=255, reduction="none"), SOME, "ignores targets"),
        (of_tokens, TOKENS, None),
        (of_tokens, PADDED, "ignores targets"),
        (of_tokens, PROMPTED, None),
        (lambda o, y: of_tokens(o, y, weight=CLASSES), TOKENS, "has weights"),
        (first_axis_of_tokens, PADDED, "ignores targets"),
        (first_axis_of_tokens, PROMPTED, None),
        (lambda outputs, y: cross_entropy_error(outputs[:, None].expand(-1, 5, -1), y), PADDED, "ignores targets"),
    ],
)
def test_a_loss_of_which_torch_takes_another_mean_is_noted(loss, targets, why):
    mine = SimpleNamespace(name="mine", model=lambda: nn.Linear(6, 2), loss=loss)
    asked = Examples(Splits((X[:200], targets[:200]), OTHERS, OTHERS)), (X[:8], targets[:8]), {}, "fp32"
    found = notes(mine, *asked)
    assert len(found) == (why is not None)
    assert all(f"the loss of mine {why}, but a step descends the plain mean" in note for note in found)
    mine.weights = lambda targets: torch.ones(len(targets))
    assert notes(mine, *asked) == ()


@pytest.mark.parametrize(
    ("loss", "weights", "twice"),
    [
        (nn.CrossEntropyLoss(CLASSES, reduction="none"), lambda y: CLASSES[y], True),
        (nn.CrossEntropyLoss(CLASSES, reduction="none"), lambda y: 5 * CLASSES[y], True),
        (nn.CrossEntropyLoss(CLASSES, reduction="none"), lambda y: 1 / CLASSES[y], False),
        (nn.CrossEntropyLoss(CLASSES, reduction="none"), lambda y: torch.ones(len(y)), False),
        (nn.CrossEntropyLoss(SAME, reduction="none"), lambda y: torch.ones(len(y)), False),
        (nn.CrossEntropyLoss(reduction="none"), lambda y: CLASSES[y], False),
        (weighted_square, lambda y: CLASSES[y], True),
    ],
)
def test_weights_that_count_twice_are_noted(loss, weights, twice):
    mine = SimpleNamespace(name="mine", model=lambda: nn.Linear(6, 2), loss=loss, weights=weights)
    found = notes(mine, Examples(Splits(X_Y, OTHERS, OTHERS)), (X[:8], Y[:8]), {}, "fp32")
    assert len(found) == twice
    assert all("the loss of mine has the weights that its `weights` gives, too" in note for note in found)


class Criterion(nn.Module):
    """A loss with weights of its own, trained or not."""

    def __init__(self, trained):
        super().__init__()
        self.centre = nn.Parameter(torch.randn(2), requires_grad=trained)

    def forward(self, outputs, targets):
        return (outputs - self.centre).square().mean(1)


@pytest.mark.parametrize("trained", [True, False])
def test_a_loss_with_parameters_that_are_not_trained_is_noted(trained):
    found = said(loss=Criterion(trained))
    assert len(found) == trained
    assert all("the loss of mine depends on parameters outside of the model" in note for note in found)


def attended(share):
    def act(self, x):
        heads = self.first(x).view(len(x), 1, 3, 2)
        always = share if self.training or share < 0.2 else 0.0
        return self.second(F.scaled_dot_product_attention(heads, heads, heads, dropout_p=always).flatten(1))

    return lambda: Parts(act)


@pytest.mark.parametrize(
    ("model", "noted"),
    [
        (lambda: Parts(lambda self, x: self.second(F.dropout(self.first(x), 0.1))), True),
        (lambda: Parts(lambda self, x: self.second(F.dropout(self.first(x), 0.1, self.training))), False),
        (lambda: Parts(lambda self, x: self.second(F.dropout(self.first(x), 0.0))), False),
        (lambda: Parts(lambda self, x: self.second(F.alpha_dropout(self.first(x), 0.1, training=True))), True),
        (lambda: Parts(lambda self, x: self.second(F.alpha_dropout(self.first(x), 0.1))), False),
        (attended(0.1), True),
        (attended(0.3), False),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.1), nn.Linear(6, 2)), False),
        (lambda: Parts(lambda self, x: self.second(self.first(x) + torch.randn(6))), False),  # samples, as a VAE does
    ],
)
def test_dropout_in_evaluations_is_noted(model, noted):
    found = said(model=model)
    assert len(found) == noted
    assert all("the model of mine drops out in evaluations, too" in note for note in found)


def mixup(items):
    x, y = default_collate(items)
    share, order = np.random.beta(0.2, 0.2), torch.randperm(len(x))  # noqa: NPY002
    return share * x + (1 - share) * x[order], y


def seldom(items):
    return mixup(items) if np.random.rand() < 0.5 else default_collate(items)  # noqa: NPY002


def noisy(items):
    x, y = default_collate(items)
    return x + torch.randn_like(x), y


def masked(items):
    x, y = default_collate(items)
    return torch.where(torch.rand_like(x) < 0.3, 0.0, x), y


def sorted_by_target(items):
    return default_collate(sorted(items, key=lambda item: float(item[1])))


def of_lengths(items):
    """Padded rows of other lengths, with noise."""
    rows = [torch.from_numpy(x[: 3 + int(abs(x[0]) * 2)]) for x, _ in items]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    lengths = [torch.rand(len(row)).sum() for row in rows]
    return padded + torch.rand(padded.shape), torch.stack(lengths)


ARRAYS = [(x.numpy(), 0) for x in torch.randn(99, 6, generator=GENERATOR)]


@pytest.mark.parametrize(
    ("collate", "mixes"),
    [
        (mixup, True),
        (seldom, True),
        (noisy, False),
        (masked, False),
        (sorted_by_target, False),  # draws nothing
        (of_lengths, False),
        (None, False),
    ],
)
def test_a_collate_that_mixes_validation_examples_is_noted(collate, mixes):
    others = ARRAYS if collate is of_lengths else OTHERS
    found = said(val=others, test=others, collate=collate)
    assert len(found) == mixes
    assert all("mine.collate mixes examples at random, those of evaluations, too" in note for note in found)


DOUBTFUL = """
from made_images import *


class Doubtful(Images):
    def splits(self, device):
        train, val, test = super().splits(device)
        return Splits(train, tuple(part[:40] for part in train), test)
"""


@pytest.mark.slow
def test_notes_stand_before_training_and_in_the_report(tmp_path, says):
    mine = own_folder(tmp_path / "mine", "doubtful", DOUBTFUL, "doubtful.Doubtful")
    words = ("sweep", "--config-dir", mine, "workload=doubtful", f"results={tmp_path / 'results'}", "batch_sizes=[8]")
    asked = (*words, "search.trials=1", "search.reruns=0", "engine.workers=1")
    note = "40 of 40 examples in the val split of doubtful are in its training split, too, so val/ errors"
    printed = says(*asked)
    assert note in printed[: printed.index("1 done")]
    assert note in " ".join((tmp_path / "results/report.html").read_text().split())
