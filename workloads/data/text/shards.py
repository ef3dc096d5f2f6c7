"""Token shards: all tokens of a corpus in one memory-mapped file, written once and verified.

A shard is a folder in the cache: `tokens.bin` (uint16 or uint32; after each document the token that ends it),
`offsets.npy` (int64 [D + 1], where each of D documents begins) and `manifest.json` with their checksums. Writing and
reading hold a few documents in memory, and two or three 8-byte numbers for each document, but never a whole shard.
"""

import hashlib
import io
import logging
import time
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.data import fetching
from workloads.data.fetching import DataError
from workloads.data.prepared import prepare
from workloads.data.text.corpora import Corpus
from workloads.data.text.tokenizing import Tokenizer

SETTLED_NANOSECONDS = 2 * 10**9
"""A file that changed later than this ago may change once more within the resolution of its time."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Survey:
    """Attributes:
    sha256: of the documents in UTF-8, each followed by the byte FF, which UTF-8 never contains.
    lengths: bytes of each document, int64 [D].
    """

    sha256: str
    lengths: NDArray[np.int64]


@dataclass(frozen=True)
class Shard:
    """Attributes:
    tokens: of all documents, memory-mapped [n].
    offsets: where each document begins, and the end of the last one, int64 [D + 1].
    """

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]


def survey(corpus: Corpus) -> Survey:
    """The checksum and the sizes of a corpus, which is read only if its files changed since the last time.

    Raises:
        DataError: the documents are not those of the built-in corpus, or there are none.
    """
    place = fetching.cache_folder("surveys") / f"{corpus.stamp()}.npz"
    if place.is_file():
        with np.load(place) as held:
            found = Survey(str(held["sha256"]), held["lengths"])
    else:
        found = _surveyed(corpus, place)
    if not len(found.lengths):
        raise DataError(f"{corpus.name} has no text in {len(corpus.files)} files, such as {corpus.files[0]}.")
    if corpus.sha256 not in (None, found.sha256):
        raise DataError(f"{corpus.files[0]} must hold the text with the SHA-256 {corpus.sha256}, not {found.sha256}.")
    return found


def _surveyed(corpus: Corpus, place: Path) -> Survey:
    """Read the corpus, and keep its survey."""
    started = time.time_ns()
    log.info("reading %s", corpus.name)
    checksum, lengths = Checksum(), array("q")
    for document in checksum.of(corpus.documents()):
        lengths.append(len(document.encode()))
    found = Survey(checksum.hexdigest(), np.array(lengths, dtype=np.int64))
    if started - max(file.stat().st_mtime_ns for file in corpus.files) > SETTLED_NANOSECONDS:
        content = io.BytesIO()
        np.savez(content, sha256=found.sha256, lengths=found.lengths)
        fetching.write(place, content.getvalue())
    return found


def shard(corpus: Corpus, surveyed: Survey, tokenizer: Tokenizer) -> Shard:
    """The tokens of a corpus; written into the cache if they are not there, or no longer as they were written.

    Raises:
        DataError: the corpus changed since it was surveyed.
    """
    key = hashlib.sha256(f"{surveyed.sha256} {tokenizer.key}".encode()).hexdigest()
    place = fetching.cache_folder("tokens") / key
    prepare(place, partial(_write, corpus=corpus, surveyed=surveyed, tokenizer=tokenizer))
    offsets = np.load(place / "offsets.npy", mmap_mode="r")
    return Shard(np.asarray(np.memmap(place / "tokens.bin", tokenizer.dtype, mode="r")), np.asarray(offsets))


class Checksum:
    """The SHA-256 of documents that pass through."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()

    def of(self, documents: Iterable[str]) -> Iterator[str]:
        for document in documents:
            self._sha256.update(document.encode())
            self._sha256.update(b"\xff")
            yield document

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()


def _write(folder: Path, corpus: Corpus, surveyed: Survey, tokenizer: Tokenizer) -> dict[str, Any]:
    """Write the files of a shard; returns what its manifest records."""
    log.info("tokenizing %s into %s", corpus.name, folder.parent.parent)
    checksum, lengths = Checksum(), array("q")
    end = np.array([tokenizer.end], dtype=tokenizer.dtype).tobytes()
    with open(folder / "tokens.bin", "wb") as file:
        for tokens in tokenizer.encode(checksum.of(corpus.documents())):
            file.write(tokens.astype(tokenizer.dtype, copy=False).tobytes())
            file.write(end)
            lengths.append(len(tokens) + 1)
    if checksum.hexdigest() != surveyed.sha256:
        raise DataError(f"{corpus.name} changed while it was read: start once more when its files are complete.")
    np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
    return {
        "source": {"name": corpus.name, "sha256": surveyed.sha256},
        "tokenizer": {"key": tokenizer.key, "vocabulary": tokenizer.vocabulary, "dtype": str(tokenizer.dtype)},
        "documents": len(lengths),
    }
