"""Text as examples of language modelling: documents, tokens, windows, splits.

Shapes: N windows in a split, T tokens of context.
"""

import hashlib
from itertools import compress

import numpy as np
import torch

from workloads.base import Split, Splits, require_whole
from workloads.data.datasets import check_count
from workloads.data.text import corpora
from workloads.data.text.corpora import OWN, TEXTS, Corpus, require_known
from workloads.data.text.shards import Survey, shard, survey
from workloads.data.text.tokenizing import TOKENIZERS, Tokenizer, bpe_tokenizer, bytes_tokenizer, vocabulary_size
from workloads.data.text.windows import Parts, Windows, part

__all__ = ["OWN", "TEXTS", "TOKENIZERS", "require_known", "splits", "vocabulary_size"]

RESIDENT_BYTES = 2**30
"""Splits whose tensors would be larger are read from the shard, window by window."""
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

    Documents are divided, not windows: one permutation of the documents, drawn with `split_seed`, gives as many
    documents as `validation_examples` windows take, then as many for the test set, then those for training. Smaller
    training sets are therefore the beginning of larger ones, and share the validation set and the tokenizer.

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
    asked = {"context": context, "train_examples": train_examples, "validation_examples": validation_examples}
    for name, value in asked.items():
        require_whole(f"workload.{name}", value, 1)
    corpus = corpora.corpus(dataset, path)
    found = survey(corpus)
    parts = _parts(corpus, found, tokenizer, context, validation_examples, split_seed, packed)
    tokens = bytes_tokenizer() if tokenizer == "byte" else _trained(corpus, found, parts, size)
    held = shard(corpus, found, tokens)
    cut = {
        name: Windows(held, getattr(parts, name), context, packed, most, tokens.end)
        for name, most in (("train", train_examples), ("val", validation_examples), ("test", validation_examples))
    }
    for name, what in (("val", "validation_examples"), ("test", "validation_examples"), ("train", "train_examples")):
        most = len(Windows(held, getattr(parts, name), context, packed))
        check_count(f"workload.{what}", asked[what], most, f"windows of {context} tokens in the {name} documents")
    resident = sum(map(len, cut.values())) * context * 16 <= RESIDENT_BYTES
    return Splits(**{name: _resident(windows, device) if resident else windows for name, windows in cut.items()})


def _parts(
    corpus: Corpus, found: Survey, tokenizer: str, context: int, windows: int, split_seed: int, packed: bool
) -> Parts:
    """The documents of each split, before the tokenizer exists, which is trained on a part of them."""
    if packed:
        sizes, least = found.lengths + 1, windows * (context + 1) * (1 if tokenizer == "byte" else BYTES_PER_TOKEN)
    else:
        sizes, least = np.ones_like(found.lengths), windows
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


def _resident(windows: Windows, device: torch.device | str) -> Split:
    inputs, targets = windows.tensors()
    return inputs.to(device), targets.to(device)
