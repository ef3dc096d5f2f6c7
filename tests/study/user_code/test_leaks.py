"""Validation examples that are training examples, or overlap with them, are noted; others are not."""

from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from study.data.examples import Examples
from study.user_code import leaks
from workloads.base import Splits

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(300, 6, generator=GENERATOR), torch.randint(2, (300,), generator=GENERATOR)
BITS = torch.randint(2, (300, 6), generator=GENERATOR)
TENSORS = TensorDataset(X, Y)
X_Y = (X, Y)
ROWS = list(zip(X, Y, strict=True))
OTHERS = TensorDataset(torch.randn(99, 6), torch.zeros(99))


class Files(Dataset):
    """A data set of a folder's files, as torchvision has them, with a transform."""

    def __init__(self, root, labels=False, transform=None):
        self.root, self.transform = root, transform
        self.samples = [(f"{number}.jpg", number % 2) for number in range(300)]
        if labels:
            self.samples = [number % 2 for number in range(300)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return torch.full((6,), float(index)), index % 2


class Drawn(Files):
    """Examples that are drawn at each reading."""

    def __getitem__(self, index):
        return torch.randn(6), index % 2


def pair(first, last, x=X):
    return x[first:last].clone(), Y[first:last].clone()


def said(train, val):
    return leaks.of_split("mine", Examples(Splits(train, val, val)), "val")


@pytest.mark.parametrize(
    ("train", "val", "count"),
    [
        (pair(0, 200), pair(200, 300), 0),
        (pair(0, 200), pair(150, 250), 50),
        (pair(0, 200), pair(0, 100), 100),
        (pair(0, 200), TensorDataset(*pair(150, 250)), 50),
        (({"a": X[:200]}, (Y[:200], Y[:200])), ({"a": X[150:250]}, (Y[150:250], Y[150:250])), 50),
        (pair(0, 200, BITS), pair(200, 300, BITS), 0),  # 64 rows and two labels: equal by chance
        (pair(0, 200, BITS.float()), pair(100, 300, BITS.float()), 0),
        (pair(0, 200), (X[150:250], 1 - Y[150:250]), 0),  # another target
        (Subset(TENSORS, range(200)), Subset(TENSORS, range(200, 300)), 0),
        (Subset(TENSORS, range(200)), Subset(TENSORS, range(199, 299)), 1),
        (Subset(TENSORS, range(200)), Subset(Subset(TENSORS, range(100, 300)), range(50, 150)), 50),
        (TENSORS, TENSORS, 300),
        (Subset(TENSORS, range(200)), Subset(TensorDataset(X.clone(), Y.clone()), range(150, 250)), 50),
        (ROWS[:200], ROWS[200:], 0),
        (ROWS[:200], ROWS[150:250], 50),
        (Subset(Files("a"), range(200)), Subset(Files("a", transform=abs), range(150, 300)), 50),
        (Subset(Files("a"), range(200)), Subset(Files("a", transform=abs), range(200, 300)), 0),
        (Files("a"), Files("b"), 0),
        (Files(Path("a")), Files(Path("b")), 0),
        (Files("a", labels=True), Files("a", labels=True), 0),  # labels alone tell no files apart
        (Drawn("a"), Drawn("a"), 0),
    ],
)
def test_validation_examples_that_are_training_examples_are_noted(train, val, count):
    found = said(train, val)
    assert (found is not None) == (count > 0)
    if count:
        assert f"{count} of " in found
        assert "in the val split of mine are in its training split, too, so val/ errors" in found


class Windows(Dataset):
    """Windows of a series, each with the next value."""

    def __init__(self, series, size, stride=1):
        self.series, self.size, self.stride = series, size, stride

    def __len__(self):
        return (len(self.series) - self.size) // self.stride

    def __getitem__(self, index):
        first = index * self.stride
        return self.series[first : first + self.size], self.series[first + self.size]


WALK = torch.randn(2000, generator=GENERATOR).cumsum(0)
TEXT = torch.randint(50, (2000,), generator=GENERATOR)
HOURS = torch.stack([WALK, torch.arange(2000) % 24], 1)


def cut(windows, random=True, form=Subset):
    """Training and validation windows, cut at random or in time, as data sets or as tensors."""
    count = len(windows)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)) if random else torch.arange(count)
    edge = int(0.8 * count)
    found = Subset(windows, order[:edge].tolist()), Subset(windows, order[edge:].tolist())
    return found if form is Subset else tuple(form(default_collate([*part])) for part in found)


def mapping(pair):
    return {"x": pair[0]}, pair[1]


def channels_first(pair):
    return pair[0].movedim(1, 2), pair[1]


@pytest.mark.parametrize(
    ("splits", "overlap"),
    [
        (cut(Windows(WALK, 20)), True),
        (cut(Windows(WALK, 10)), True),
        (cut(Windows(WALK, 20), form=tuple), True),
        (cut(Windows(WALK, 20), form=mapping), True),
        (cut(Windows(WALK, 20), form=lambda pair: TensorDataset(*pair)), True),
        (cut(Windows(WALK, 20), form=lambda pair: list(zip(*pair, strict=True))), True),
        (cut(Windows(WALK, 40, 20)), True),  # each shares a half with the next one
        (cut(Windows(WALK, 40, 20), form=tuple), True),
        (cut(Windows(HOURS, 20), form=tuple), True),
        (cut(Windows(HOURS, 20), form=channels_first), True),
        (cut(Windows(TEXT, 64)), True),
        (cut(Windows(TEXT, 64), form=tuple), True),
        (cut(Windows(WALK, 20), random=False), False),
        (cut(Windows(WALK, 20), random=False, form=tuple), False),
        (cut(Windows(WALK, 20, 20)), False),
        (cut(Windows(WALK, 20, 20), form=tuple), False),
        (cut(Windows(TEXT, 64, 64), form=tuple), False),
        (cut(Windows(TEXT % 2, 64, 64), form=tuple), False),
        (cut(Windows(TEXT % 4 + 0.5, 64, 64), form=tuple), False),
        (((torch.randn(200, 40), Y[:200]), (torch.randn(99, 40), Y[:99])), False),
    ],
)
def test_validation_windows_that_overlap_with_training_windows_are_noted(splits, overlap):
    found = said(*splits)
    assert (found is not None) == overlap
    assert not found or "windows in the val split of mine overlap at both ends with training windows" in found


class Largest(TorchDispatchMode):
    """Records the bytes of the largest tensor that is computed."""

    most = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        found = function(*arguments, **(named or {}))
        self.most = max(self.most, found.nbytes if isinstance(found, torch.Tensor) else 0)
        return found


def test_examples_are_compared_a_few_at_once(monkeypatch):
    monkeypatch.setattr(leaks, "ROWS", 16)
    examples = Examples(Splits((X, Y), pair(150, 250), OTHERS))
    with Largest() as largest:
        assert leaks._shared(examples, "val") == 100
    assert largest.most <= len(X) * 8  # the hashes of all examples
