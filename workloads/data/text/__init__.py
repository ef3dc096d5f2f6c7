"""Text as examples of language modelling: documents, tokens, windows, splits.

Shapes: N windows in a split, T tokens of context.
"""

import hashlib
import math
from collections.abc import Mapping
from itertools import compress

import numpy as np
import torch

from workloads.base import Splits, require_whole
from workloads.data.datasets import check_count
from workloads.data.text import corpora
from workloads.data.text.corpora import OWN, TEXTS, Corpus, require_known
from workloads.data.text.shards import Shard, Survey, shard, survey
from workloads.data.text.tokenizing import TOKENIZERS, Tokenizer, bpe_tokenizer, bytes_tokenizer, vocabulary_size
from workloads.data.text.windows import Parts, Windows, part

__all__ = ["OWN", "TEXTS", "TOKENIZERS", "require_known", "splits", "vocabulary_size"]

RESIDENT_BYTES = 2**30
"""Splits whose tensors would be larger are read from the shard, window by window."""
HELD_OUT = 0.05
"""Least share of the text for validation, and for the test set, so that a few long documents do not make them up."""
BYTES_PER_TOKEN = 6
"""Bytes of held-out documents for each token that is asked for: more than byte pair encoding puts into a token."""


def splits(
    dataset: str,
    *,
    tokenizer: str = "byte",
    vocabulary: int | None = None,
    context: int,
    train_examples: int,
    validation_examples: int,
    split_seed: int = 0,
    device: torch.device | str = "cpu",
    path: str | None = None,
    packed: bool = True,
) -> Splits:
    """The windows of a corpus: inputs int64 [N, T] and targets int64 [N, T], the next tokens.

    Documents are divided, not windows: one permutation of the documents, drawn with `split_seed`, gives first those for
    validation, then those for the test set, then those for training. Validation and test have 5 % of the text each, or
    as much as `validation_examples` windows take; the windows are taken from it at even distances. Smaller training
    sets are the beginning of larger ones, and share the validation set and the tokenizer.

    Tensors of at most 1 GiB are made whole, on `device`; larger splits are data sets that read their windows from a
    memory-mapped file.

    Arguments:
        dataset: one of TEXTS, or `text` for the files at `path`.
        tokenizer: `byte`, or `bpe` with a `vocabulary` trained on the training documents.
        context: T.
        packed: windows are cut from the training documents one after the other; False: one document in each window,
            cut off or padded, with targets -100 for padding.

    Raises:
        ValueError: an argument is out of range, or the corpus is too small.
        DataError: the corpus is not on this machine and cannot be fetched.
    """
    size = vocabulary_size(tokenizer, vocabulary)
    _require_positive(context=context, train_examples=train_examples, validation_examples=validation_examples)
    corpus = corpora.corpus(dataset, path)
    surveyed = survey(corpus)
    parts = _parts(corpus, surveyed, tokenizer, context, validation_examples, split_seed, packed)
    tokens = bytes_tokenizer() if tokenizer == "byte" else _trained(corpus, surveyed, parts, size)
    asked = {"train": train_examples, "val": validation_examples, "test": validation_examples}
    found = _windows(shard(corpus, surveyed, tokens), parts, asked, context, packed, tokens.end)
    if sum(map(len, found)) * context * 16 > RESIDENT_BYTES:
        return Splits(*found)
    return Splits(*(windows.tensors(device) for windows in found))


def _require_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        require_whole(f"workload.{name}", number, 1)


def _windows(
    held: Shard, parts: Parts, asked: Mapping[str, int], context: int, packed: bool, end: int
) -> list[Windows]:
    """The windows of each split."""
    found = []
    for name, examples in asked.items():
        train = name == "train"
        windows = Windows(held, getattr(parts, name), context, packed, examples, spread=not train, padding=end)
        what = f"workload.{'train' if train else 'validation'}_examples"
        check_count(what, examples, windows.total, f"windows of {context} tokens in the {name} documents")
        found.append(windows)
    return found


def _parts(
    corpus: Corpus, found: Survey, tokenizer: str, context: int, windows: int, split_seed: int, packed: bool
) -> Parts:
    """The documents of each split, before the tokenizer exists, which is trained on a part of them."""
    if packed:
        sizes, least = found.lengths + 1, windows * (context + 1) * (1 if tokenizer == "byte" else BYTES_PER_TOKEN)
    else:
        sizes, least = np.ones_like(found.lengths), windows
    least = max(least, math.ceil(HELD_OUT * int(sizes.sum())))
    try:
        return part(sizes, least, split_seed)
    except ValueError as error:
        unit = "bytes" if packed else "documents"
        raise ValueError(
            f"{corpus.name} is too small: {windows} validation and {windows} test windows of {context} tokens take "
            f"{error} ({unit}), and leave none for training; lower workload.validation_examples, or add documents."
        ) from None


def _trained(corpus: Corpus, found: Survey, parts: Parts, vocabulary: int) -> Tokenizer:
    """The tokenizer of the training documents."""
    training = np.zeros(len(found.lengths), dtype=bool)
    training[parts.train] = True
    trained_on = hashlib.sha256(found.sha256.encode() + training.tobytes()).hexdigest()

    return bpe_tokenizer(vocabulary, trained_on, lambda: compress(corpus.documents(), training))
