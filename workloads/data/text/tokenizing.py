"""Tokenizers: bytes, and byte pair encoding trained on the training documents.

The last token of every vocabulary ends a document; no text contains it.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.base import require_one_of, require_whole
from workloads.data import fetching
from workloads.data.fetching import DataError

TOKENIZERS = ("byte", "bpe")
PIECE = 4096
"""Least characters of a piece of a document that is encoded at once, to bound memory."""
BATCH = 512
"""Pieces that are encoded in parallel."""

_WORD_END = re.compile(r"(?<=\S)[ \n]")  # where the pre-tokenizer always cuts, so pieces have the tokens of the whole

Tokens = NDArray[Any]
"""The tokens of a document [n], uint16 or uint32."""


@dataclass(frozen=True)
class Tokenizer:
    """Attributes:
    key: differs between tokenizers that give different tokens.
    vocabulary: number of tokens, with the one that ends a document.
    encode: documents -> the tokens of each, without the end of the document.
    """

    key: str
    vocabulary: int
    encode: Callable[[Iterable[str]], Iterator[Tokens]]

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.uint16 if self.vocabulary <= 2**16 else np.uint32)

    @property
    def end(self) -> int:
        """The token that ends a document."""
        return self.vocabulary - 1


def vocabulary_size(tokenizer: str, vocabulary: int | None) -> int:
    """Number of tokens, with the one that ends a document: 257 for `byte`, `vocabulary` for `bpe`.

    Raises:
        ValueError: an unknown tokenizer, or a vocabulary that it cannot have.
    """
    require_one_of("workload.tokenizer", tokenizer, TOKENIZERS)
    if tokenizer == "bpe":
        require_whole("workload.vocabulary (256 bytes, the end of a document, and merges)", vocabulary, 257)
        return int(vocabulary or 0)
    if vocabulary not in (None, 257):
        raise ValueError(
            f"workload.vocabulary belongs to workload.tokenizer=bpe; bytes have 257 tokens, but got {vocabulary}."
        )
    return 257


def bytes_tokenizer() -> Tokenizer:
    """The bytes of UTF-8 are the tokens."""

    def encode(documents: Iterable[str]) -> Iterator[Tokens]:
        return (np.frombuffer(document.encode(), dtype=np.uint8).astype(np.uint16) for document in documents)

    return Tokenizer("byte", 257, encode)


def bpe_tokenizer(vocabulary: int, trained_on: str, documents: Callable[[], Iterable[str]]) -> Tokenizer:
    """Byte pair encoding with the pre-tokenizer of GPT-2 (Radford et al. 2019), trained once and kept in the cache.

    Arguments:
        trained_on: the checksum of the documents.
        documents: gives the training documents; called only if the vocabulary is not in the cache.
    """
    library = _library()
    key = hashlib.sha256(f"byte-level bpe {vocabulary} {trained_on}".encode()).hexdigest()
    place = fetching.cache_folder("vocabularies") / f"{key}.json"
    if not place.is_file():
        fetching.write(place, _trained(library, vocabulary, documents()).encode())
    content = place.read_text()
    held = library.Tokenizer.from_str(content)

    def encode(documents: Iterable[str]) -> Iterator[Tokens]:
        return _in_batches(held, documents)

    return Tokenizer(f"bpe {hashlib.sha256(content.encode()).hexdigest()}", vocabulary, encode)


def pieces(document: str) -> Iterator[str]:
    """The document in pieces, cut before spaces and line ends that end a word."""
    start = 0
    while cut := _WORD_END.search(document, start + PIECE):
        yield document[start : cut.start()]
        start = cut.start()
    yield document[start:]


def _trained(library: Any, vocabulary: int, documents: Iterable[str]) -> str:
    """The trained tokenizer as JSON."""
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary - 1,  # one more ends a document
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(chain.from_iterable(map(pieces, documents)), trainer)
    _no_more_threads()
    return json.dumps(json.loads(tokenizer.to_str()), sort_keys=True)


def _in_batches(tokenizer: Any, documents: Iterable[str]) -> Iterator[Tokens]:
    numbered = ((number, piece) for number, document in enumerate(documents) for piece in pieces(document))
    held: list[Tokens] = []
    place = 0
    while batch := list(islice(numbered, BATCH)):
        encoded = tokenizer.encode_batch([piece for _, piece in batch], add_special_tokens=False)
        for (number, _), each in zip(batch, encoded, strict=True):
            if number != place:
                yield np.concatenate(held)
                held, place = [], number
            held.append(np.array(each.ids, dtype=np.uint32))
    _no_more_threads()
    if held:
        yield np.concatenate(held)


def _no_more_threads() -> None:
    """Otherwise the library warns at every fork, such as that of a data loader, that its threads do not survive it."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise DataError(
            "workload.tokenizer=bpe needs a package that is not installed: pip install 'batch-size-study[text]'; or "
            "take workload.tokenizer=byte."
        ) from error
    return tokenizers
