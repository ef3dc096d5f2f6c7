"""Data that cannot be trained on are refused before anything trains, with the place of the fault and its cure."""

import itertools
import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.fused import partly
from helpers.users.checked import Does, refused, settled
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from study.checks import data, values
from study.data import digest
from study.data.examples import Examples, splits_of
from study.errors import Refused, UsageError
from workloads.base import Splits, cross_entropy_error
from workloads.fully_connected import FullyConnected


def as_arrays(splits):
    return Splits(*(tuple(part.numpy() for part in split) for split in splits))


def spoilt(splits, name, value):
    """The splits with two inputs of one of them spoilt."""
    inputs, targets = getattr(splits, name)
    inputs = inputs.clone()
    inputs.view(len(inputs), -1)[50:52, 3] = value
    return splits._replace(**{name: (inputs, targets)})


def mislabelled(splits, name, index, label):
    inputs, targets = getattr(splits, name)
    return splits._replace(**{name: (inputs, targets.index_fill(0, torch.tensor([index]), label))})


@pytest.mark.parametrize(
    ("change", "said"),
    partly(
        [
            (list, r"must return workloads.base.Splits\(train, val, test\), but got a list; write `return Splits\("),
            (
                lambda s: s._replace(val=(s.val[0], s.val[1][:50])),
                "the val split of .* has 300 inputs and 50 targets; cut",
            ),
            (lambda s: s._replace(test=(s.test[0][:0], s.test[1][:0])), "the test split of .* must not be empty; give"),
            (as_arrays, "the train split of mlp_digits has a ndarray; torch.as_tensor makes one"),
            (
                lambda s: s._replace(train=(s.train[0][:9], s.train[1][:9])),
                "is 1197, but .* returns 9; set workload.train",
            ),
            (
                lambda s: s.nope,
                r"mlp_digits's splits\(\) cannot be computed: AttributeError: .*_check.py, line \d+: .*\)",
            ),
            *(
                (
                    partial(spoilt, name=name, value=value),
                    f"the {name} split of .* not finite, in 2 .* first at index 50",
                )
                for name in Splits._fields
                for value in (math.nan, math.inf)
            ),
            *(
                (
                    partial(mislabelled, name=name, index=100, label=17),
                    f"^mlp_digits: the {name} split's example 100 has target 17, for which {what} fails: IndexError: "
                    "Target 17 is out of bounds; correct this example, or leave it out",
                )
                for name, what in (("train", "loss"), ("val", r"errors\['cross_entropy_error'\]"))
            ),
            (
                partial(mislabelled, name="train", index=100, label=-1),
                "example 100 has target -1, for which loss fails",
            ),
        ],
        2,
    ),
)
def test_splits_that_are_none(tmp_path, monkeypatch, change, said):
    splits = FullyConnected.splits
    monkeypatch.setattr(FullyConnected, "splits", lambda self, device: change(splits(self, device)))
    with pytest.raises(UsageError, match=said):
        settled(tmp_path)


def test_numbers_that_are_not_finite_are_the_models_business(tmp_path, monkeypatch):
    """A model may know what to do with values that are missing."""
    splits = FullyConnected.splits
    monkeypatch.setattr(FullyConnected, "splits", lambda self, device: spoilt(splits(self, device), "train", math.nan))
    monkeypatch.setattr(FullyConnected, "model", lambda self: Does(before=lambda x: x.nan_to_num()))
    assert settled(tmp_path)[0]


class Asked:
    """As much of a study as these checks read."""

    name = "mine"
    search = type("Search", (), {"space": {}})


class Made:
    """A workload with given splits."""

    name = "mine"
    hyperparameters = ()
    errors = {"error": cross_entropy_error}  # noqa: RUF012

    def __init__(self, split=None, **members):
        self.split = split
        vars(self).update(members)

    def splits(self, device):
        return Splits(self.split, self.split, self.split)

    def model(self):
        return nn.Linear(5, 3)

    def loss(self, outputs, targets):
        return cross_entropy_error(outputs, targets)


class Listed(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Endless(IterableDataset):
    def __iter__(self):
        return iter([])


class Unsized:
    def __getitem__(self, index):
        return index


X, Y = torch.randn(40, 5), torch.arange(40) % 3
RAGGED = [torch.zeros(5 + (number == 39)) for number in range(40)]
PAIRS = [*zip(X, Y.tolist(), strict=True)]


def padded(examples):
    inputs, targets = zip(*examples, strict=True)
    return pad_sequence(list(inputs), batch_first=True), torch.tensor(targets)


@pytest.mark.parametrize(
    ("split", "said"),
    [
        (Endless(), "split of mine, a Endless, has an order of its own, which only the training split may have"),
        (DataLoader(TensorDataset(X, Y)), "its `dataset`. A collate_fn .*`collate`; .* sampler .*`weights`"),
        (Unsized(), "a Unsized, has no __len__; add the method"),
        ([X, Y], r"is a list; write \(inputs, targets\)"),
        ({"x": X, "y": Y}, r"is a dict; write \(inputs, targets\)"),
        (X, r"is a Tensor; write \(inputs, targets\)"),
        (None, r"is a NoneType; write \(inputs, targets\)"),
        ((X, X, Y), r"has 3 parts; .* as in \(\(images, masks\), labels\)"),
        ((X, None), "has a NoneType; leave it out, or return a data set and give the workload a member `collate`"),
        ((X.tolist(), Y), "has a float; torch.as_tensor makes one"),
        ((pd.DataFrame(X), Y), r"has a DataFrame; torch.tensor\(columns.to_numpy\(\)\) makes a tensor"),
        ((X, pd.Series(Y)), r"has a Series; torch.tensor\(columns.to_numpy\(\)\) makes a tensor"),
        (pd.DataFrame(X), r"is a DataFrame; write \(inputs, targets\): torch.tensor\(columns.to_numpy\(\)\)"),
        ((X, ()), "the targets of the train split of mine hold no tensor; give them one"),
        ((X, torch.tensor(1)), r"targets of .* need an axis of examples, but are a tensor of shape \[\]"),
        ((X.requires_grad_(False).clone().requires_grad_(), Y), r"must not require gradients, .*; detach\(\) them"),
        ((X.to_sparse(), Y), r"must be dense, .*; to_dense\(\) makes them so"),
        ((RAGGED, Y), "inputs of .* are a list of 40 tensors, one for each example; .*torch.stack .* `collate`"),
        (({"a": X, "b": X[:7]}, Y), r"the examples as their first axis, but \{a: .*\} have 7 and 40 of them; give"),
        (Listed([]), "the train split of mine must not be empty"),
        (Listed([{"x": x} for x in X]), r"be \(input, target\) pairs, but example 0 is \{x: float32.*`collate`"),
        (Listed([*zip(RAGGED, Y, strict=True)]), r"examples 0 and 39 of .* cannot .* \[6\].*equal size.*`collate`"),
        (Listed([(object(), 1)] * 3), r"no tensors of example 0 .*, \(a object, a int\) .*; return tensors"),
        (Listed([("a", 1)] * 3), "default_collate must make tensors .* inputs of the train split of mine become"),
        (Listed({0: PAIRS[0], 1: PAIRS[1]} | {3: PAIRS[2]}), "train split's example 2 cannot be computed: KeyError"),
    ],
)  # fmt: skip
def test_each_wrong_form_has_a_cure(split, said):
    workload = Made(split)
    with pytest.raises(UsageError, match=said):
        data.check_splits(Asked, workload, workload.splits(None))


OWN, GENERATOR, COUNT = np.random.default_rng(0), torch.Generator(), itertools.count()


class Noisy(Listed):
    """Changes the inputs, or adds noise to them from a generator of its own or from a global one."""

    def __init__(self, examples, change):
        super().__init__([(x.clone(), y) for x, y in examples])
        self.change = change

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return self.change(x), y


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x + OWN.normal(), "must give the same example at each reading, .* Draw from the global"),
        (lambda x: x + torch.rand((), generator=GENERATOR), "must give the same example at each reading"),
        (lambda x: x + next(COUNT), "counts readings"),
        (lambda x: x.mul_(2), r"writes into what it holds, as x.mul_\(2\)"),
        (lambda x: x + np.random.normal() + torch.rand(()), None),  # noqa: NPY002
    ],
)
def test_a_data_set_whose_examples_change_by_reading_is_refused(change, said):
    workload = Made(Noisy(PAIRS, change))
    with refused(said):
        data.check_splits(Asked, workload, workload.splits(None))


@pytest.mark.parametrize(
    ("collate", "said"),
    [
        (lambda examples: padded(examples)[0][:2], None),
        (lambda examples: 1 / 0, "collate cannot be computed of 16 examples of its train split: ZeroDivisionError"),
        (lambda examples: {"inputs": X}, r"collate must return \(inputs, targets\) of a list of examples, but got \{"),
        (lambda examples: (X[:3], Y[:16]), "collate must make tensors with a row for each of 16 .* inputs .* become"),
    ],
)
def test_a_collate_member_is_called(collate, said):
    workload = Made(Listed([*zip(RAGGED, Y, strict=True)]), collate=padded if said is None else collate)
    with refused(said):
        data.check_splits(Asked, workload, workload.splits(None))


@pytest.mark.parametrize(
    ("draw", "own"),
    [
        (lambda: OWN.random(), True),
        (itertools.count().__next__, True),
        (lambda: torch.rand(()), False),
        (lambda: np.random.default_rng(0).random(), False),
    ],
)
def test_a_collate_member_makes_the_same_batch_of_the_same_examples(draw, own):
    """As the collators of transformers with a seed do not: a trial would depend on the trials before it."""
    workload = Made(Listed([*zip(X, Y, strict=True)]), collate=lambda rows: (X[: len(rows)] + draw(), Y[: len(rows)]))
    with refused(r"collate must make the same batch of the same .* transformers with `seed=`" if own else None):
        data.check_splits(Asked, workload, workload.splits(None))


class Row:
    """An example of a class of its own, which cannot be copied."""

    def __deepcopy__(self, memo):
        raise TypeError("cannot pickle")


@pytest.mark.parametrize(
    ("example", "change", "changes"),
    [
        (lambda: {"x": torch.ones(3), "y": 1}, lambda row: row.pop("y"), True),
        (lambda: {"x": torch.ones(3), "y": 1}, lambda row: row["x"].mul_(2), True),
        (lambda: {"x": torch.ones(3), "y": 1}, lambda row: row["x"] * 2, False),
        (lambda: ([1, 2, 3], 1), lambda row: row[0].append(0), True),
        (lambda: (np.ones(3), 1), lambda row: row[0].fill(0), True),
        (lambda: (np.full(3, np.nan), 1), lambda row: row[0].sum(), False),
        (lambda: Row(), lambda row: vars(row).update(x=1), False),
    ],
)
def test_a_collate_member_must_not_change_the_examples(example, change, changes):
    """Those in memory would be others at the next reading, so that trials depend on the trials before them."""

    def collate(examples):
        for each in examples:
            change(each)
        return X[: len(examples)], Y[: len(examples)]

    workload = Made(Listed([example() for _ in range(40)]), collate=collate)
    with refused("collate must not change the examples .*copy.deepcopy" if changes else None):
        data.check_splits(Asked, workload, workload.splits(None))


@pytest.mark.parametrize(
    "split",
    [
        (X, Y),
        ({"a": X, "b": (X, Y)}, [Y, Y]),
        TensorDataset(X, Y),
        Listed(PAIRS),
        PAIRS,
        Listed([({"a": x}, 1) for x in X]),
        Listed([(x.numpy(), np.int64(1)) for x in X]),
    ],
)
def test_tensors_trees_and_data_sets_pass(split):
    workload = Made(split)
    data.check_splits(Asked, workload, workload.splits(None))
    assert digest.digest(workload, workload.splits(None)) == digest.digest(workload, workload.splits(None))


def by_class(targets):
    return torch.tensor([1.0, 2.0])[targets]


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        (
            Made((X, Y.index_fill(0, torch.tensor([7]), 3))),
            "split's example 7 has target 3, for which loss fails",
        ),
        (Made((X, Y), weights=by_class), "train split's example 2 has target 2, for which weights fails: IndexError"),
        (Made((X, Y), error_weights=by_class), "example 2 has target 2, for which error_weights fails: IndexError"),
        (Made((X, Y), weights=lambda targets: 1 / (targets - 1)), "example 1 has target 1, for which weights is inf"),
        (Made(Listed([(x, 3 * (i == 39)) for i, x in enumerate(X)])), "example 39 has target 3, for which loss fails"),
        (
            Made((Y.index_fill(0, torch.tensor([30]), 9), Y), model=lambda: nn.Embedding(9, 3)),
            "train split's example 30 has input 9, for which the model fails: IndexError: .*; .* enlarge the",
        ),
        (Made((X, Y), loss=lambda o, t: (o[:, 0] * 0) / (t != 2)), "example 2 has target 2, for which loss is nan"),
    ],
)
def test_a_fault_in_the_data_is_located(workload, said):
    with pytest.raises(UsageError, match=said):
        values.check_values(Asked, workload, Examples(workload.splits(None), getattr(workload, "collate", None)))


def test_rare_labels_are_found_and_many_are_thinned(monkeypatch):
    assert values.labelled(torch.tensor([3, 3, 1, 3, 2, 1])) == [0, 2, 4]
    assert values.labelled([torch.tensor([[0, 1], [1, 7]]), torch.rand(2)]) == [0, 1]
    many = torch.arange(3000).flip(0)
    assert len(values.labelled(many)) == values.MOST_VALUES
    assert {0, 2999} <= set(values.labelled(many))
    monkeypatch.setattr(digest, "ELEMENTS", 100)
    assert values.labelled(many) == [0, 2999]


def changed(data):
    """Which of three equal splits differ from those of X and Y."""
    one, other = (digest.digest(Made(each), Made(each).splits(None)) for each in ((X, Y), data))
    return digest.changed(one, other)


EVERY = ["train", "val", "test"]
ORDER = torch.randperm(40, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ((X.clone(), Y.clone()), []),
        ((X * (1 + 1e-7), Y), []),
        ((X[ORDER], Y), EVERY),
        ((X, Y[ORDER]), EVERY),
        ((X[[1, 0, *range(2, 40)]], Y), EVERY),
        ((1.001 * X, Y), EVERY),
        ((-X, Y), EVERY),
        ((X[:39], Y[:39]), EVERY),
        ((X, Y.int()), EVERY),
        ((X, Y.index_fill(0, torch.tensor([39]), 2)), EVERY),
        ((X.index_fill(0, torch.tensor([5]), math.nan), Y), EVERY),
        (TensorDataset(X, Y), EVERY),
    ],
)
def test_the_digest_sees_numbers_order_and_counts(data, expected):
    assert changed(data) == expected


def test_a_digest_of_a_data_set_sees_its_items():
    one, other = (
        digest.digest(Made(Listed(PAIRS)), Splits(Listed(PAIRS), Listed(val), Listed(PAIRS)))
        for val in (PAIRS, [*PAIRS[:-1], PAIRS[0]])
    )
    assert digest.changed(one, other) == ["val"]
    assert digest.changed(one, {"parameters": 3.0}) == []  # recorded by a version without digests


class Drawn(Made):
    """Data from global generators and, if asked, from one that is not."""

    def splits(self, device):
        x = torch.randn(40, 5) + torch.as_tensor(np.random.normal(size=5)).float()  # noqa: NPY002
        val = torch.as_tensor(np.random.default_rng(self.split).normal(size=(40, 5)))
        return Splits((x, Y), (val, Y), (x, Y))


def test_unseeded_splits_are_equal_in_each_process_or_refused():
    seeded, unseeded = Drawn(0), Drawn(None)
    expected = digest.digest(seeded, splits_of(seeded))
    assert digest.checked(seeded, splits_of(seeded), expected)
    assert digest.checked(unseeded, splits_of(unseeded), {})
    expected = digest.digest(unseeded, splits_of(unseeded))
    with pytest.raises(Refused, match=r"^splits\(\) of mine gives other data in .* \(the val split differs\)"):
        digest.checked(unseeded, splits_of(unseeded), expected)
