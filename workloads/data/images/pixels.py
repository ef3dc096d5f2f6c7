"""Where images come from when they are read one by one: files, the cache of decoded files, or a tensor.

Shapes: N images, C channels, H x W pixels.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from workloads.data import fetching
from workloads.data.fetching import DataError
from workloads.data.images.decoding import decode
from workloads.data.images.layouts import Images
from workloads.data.images.transforms import resize_shorter
from workloads.data.prepared import prepare

VERSION = 2
"""Changes with the decoding, so that folders in the cache are written once more."""
ALONE = 1000
"""Fewer files are decoded without processes of their own."""
NAMED = 10
"""Damaged files that one message names."""

log = logging.getLogger(__name__)


class Pixels(Protocol):
    """Index -> an image [C, H, W], bytes of three channels or normalised floats."""

    def __getitem__(self, index: int) -> Tensor: ...


@dataclass(frozen=True)
class Decoded:
    """Images that are decoded each time they are read."""

    images: Images

    def __getitem__(self, index: int) -> Tensor:
        return decode(self.images.path(index))


@dataclass(frozen=True)
class Stored:
    """Images of the cache.

    Attributes:
        bytes: of all images, [H, W, 3] each, memory-mapped.
        sizes: height and width of each, int64 [N, 2].
        starts: where each begins, int64 [N].
    """

    bytes: NDArray[np.uint8]
    sizes: NDArray[np.int64]
    starts: NDArray[np.int64]

    def __getitem__(self, index: int) -> Tensor:
        height, width = map(int, self.sizes[index])
        start = int(self.starts[index])
        held = self.bytes[start : start + height * width * 3].reshape(height, width, 3)
        return torch.from_numpy(held.copy()).permute(2, 0, 1)


def stored(images: Images, shorter: int) -> Stored:
    """The images of the cache, which decodes all files once.

    The folder in the cache is that of these paths, sizes and times of change, and of `shorter`; it is verified by the
    checksums that were written with it (see `workloads.data.prepared`).

    Arguments:
        shorter: images whose shorter side is longer than this are reduced to it.

    Raises:
        DataError: files cannot be decoded; the message names them.
    """
    place = fetching.cache_folder("images") / _key(images, shorter)
    prepare(place, partial(_write, images=images, shorter=shorter))
    sizes = np.load(place / "sizes.npy")
    ends = np.cumsum(sizes.prod(1) * 3)
    held = np.asarray(np.memmap(place / "pixels.bin", np.uint8, mode="r"))
    return Stored(held, sizes, np.concatenate([[0], ends[:-1]]))


def _key(images: Images, shorter: int) -> str:
    found = hashlib.sha256(json.dumps([VERSION, shorter]).encode())
    for file in images.files.tolist():
        stat = os.stat(os.path.join(os.fsencode(images.root), file))
        found.update(b"%s\0%d\0%d\0" % (file, stat.st_size, stat.st_mtime_ns))
    return found.hexdigest()


class _Reduced(Dataset):
    """Arrays [H, W, 3] of decoded images; the message for a file that cannot be decoded."""

    def __init__(self, images: Images, shorter: int) -> None:
        self.images, self.shorter = images, shorter

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        try:
            image = decode(self.images.path(index))
        except DataError as error:
            return str(error)
        return reduced(image, self.shorter).permute(1, 2, 0).contiguous().numpy()


def reduced(image: Tensor, shorter: int) -> Tensor:
    """An image [C, H, W] as the cache holds it: its shorter side is at most `shorter`."""
    return resize_shorter(image, shorter) if min(image.shape[1:]) > shorter else image


def _write(folder: Path, images: Images, shorter: int) -> dict[str, Any]:
    """Decode all files; returns what the manifest records."""
    log.info("decoding %d images of %s into %s", len(images), images.root, folder.parent.parent)
    sizes, damaged = np.zeros((len(images), 2), dtype=np.int64), []
    with open(folder / "pixels.bin", "wb") as file:
        for number, image in enumerate(_decoded(_Reduced(images, shorter))):
            if isinstance(image, str):
                damaged.append(image)
                continue
            sizes[number] = image.shape[:2]
            if not damaged:
                file.write(image.tobytes())
    if damaged:
        more = f"\n  and {len(damaged) - NAMED} more" if len(damaged) > NAMED else ""
        raise DataError(
            f"{len(damaged)} of {len(images)} images are damaged:\n  " + "\n  ".join(damaged[:NAMED]) + more
        )
    np.save(folder / "sizes.npy", sizes)
    return {"source": str(images.root), "images": len(images), "shorter side": shorter}


def _decoded(images: _Reduced) -> Iterator[Any]:
    """The images in order, decoded by a process for each core if there are many."""
    processes = len(os.sched_getaffinity(0)) if len(images) >= ALONE else 0
    start = "fork" if processes else None
    loader = DataLoader(
        images,
        batch_size=None,
        collate_fn=_as_it_is,
        num_workers=processes,
        multiprocessing_context=start,
        generator=torch.Generator(),  # otherwise the loader draws from torch's global generator
    )
    return iter(loader)


def _as_it_is(image: Any) -> Any:
    return image
