"""The global random generators that user code may draw from: those of torch, NumPy and `random`.

Trials in a process share them. So they are seeded before every call of user code that may draw, and put back after.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch


def seed(key: int, device: torch.device | None = None) -> None:
    """Seed all global generators of the CPU, and that of a GPU if it is the device.

    `torch.manual_seed` would seed every kind of device, which takes 70 microseconds.
    """
    torch.default_generator.manual_seed(key)
    if device is not None and device.type == "cuda":
        with torch.cuda.device(device):  # `manual_seed` seeds the current GPU
            torch.cuda.manual_seed(key)
    np.random.seed(key % 2**32)  # noqa: NPY002 (user code may draw from the global generator)
    random.seed(key)


def states() -> list[Any]:
    """The states of the CPU's global generators, to compare: they differ after a draw."""
    name, keys, *rest = np.random.get_state()  # noqa: NPY002
    return [torch.get_rng_state().tolist(), (name, np.asarray(keys).tolist(), *rest), random.getstate()]


def of_torch_restored(device: torch.device | None = None) -> AbstractContextManager[None]:
    """A block after which torch's global generators are in the states that they had before it."""
    return torch.random.fork_rng([device] if device is not None and device.type == "cuda" else [])


@contextmanager
def restored(device: torch.device | None = None) -> Iterator[None]:
    """A block after which the global generators are in the states that they had before it."""
    legacy, own = np.random.get_state(), random.getstate()  # noqa: NPY002
    with of_torch_restored(device):
        try:
            yield
        finally:
            np.random.set_state(legacy)  # noqa: NPY002
            random.setstate(own)


@contextmanager
def seeded(key: int, device: torch.device | None = None) -> Iterator[None]:
    """A block in which the global generators start from `key`; afterwards they are put back."""
    with restored(device):
        seed(key, device)
        yield


def key_of(*parts: int | str | None) -> int:
    """A 63-bit seed: a pure function of the parts."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
