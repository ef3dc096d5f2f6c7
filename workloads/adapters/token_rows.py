"""Data sets of Hugging Face on disk, whose rows hold tokens, as windows of language modelling.

Shapes: N windows in a split, T tokens of context.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.adapters.packages import package, require_local
from workloads.base import Splits
from workloads.data.fetching import DataError

COLUMN = "input_ids"
PARTS = ("train", "validation", "test")
HELD_OUT = 20
"""Of a data set without parts, one row in 20 is a validation row, and another one a test row."""


def splits(path: str, context: int, train_examples: int, validation_examples: int, split_seed: int) -> Splits:
    """Inputs int64 [N, T] and targets int64 [N, T], the next tokens.

    The rows of a part follow each other and are cut into windows of T + 1 tokens that do not overlap. Tokens whose
    `attention_mask` is 0 are left out. A data set without parts is divided by rows, with a permutation drawn with
    `split_seed`; smaller training sets are the beginning of larger ones.

    Raises:
        DataError: no such data set is at `path`, or it has too few tokens.
    """
    asked = dict(zip(PARTS, (train_examples, validation_examples, validation_examples), strict=True))
    parts = _parts(path, split_seed)
    found = (_windows(parts[name], context, count, f"the part {name} of {path}") for name, count in asked.items())
    return Splits(*found)


def _parts(path: str, split_seed: int) -> Mapping[str, Any]:
    """The rows of each part."""
    require_local("workload.path", path)
    try:
        held = package("datasets").load_from_disk(path)
    except FileNotFoundError as error:
        raise DataError(f"{path} holds no data set that Hugging Face's save_to_disk wrote: {error}") from error
    if isinstance(held, Mapping):
        if absent := [part for part in PARTS if part not in held]:
            raise DataError(
                f"the data set at {path} has the parts {', '.join(held)}, but no {' and no '.join(absent)}; make them "
                "with train_test_split, or save one part alone, which is then divided."
            )
        return held
    rows, some = np.random.default_rng(split_seed).permutation(len(held)), len(held) // HELD_OUT
    if not some:
        raise DataError(f"the data set at {path} has {len(held)} rows; {HELD_OUT} are the fewest that can be divided.")
    cut = {"validation": rows[:some], "test": rows[some : 2 * some], "train": rows[2 * some :]}
    return {part: held.select(numbers) for part, numbers in cut.items()}


def _windows(rows: Any, context: int, count: int, where: str) -> tuple[Tensor, Tensor]:
    """The first `count` windows of these rows: inputs [N, T] and targets [N, T]."""
    if COLUMN not in rows.column_names:
        raise DataError(
            f"{where} must have a column {COLUMN}, but has {', '.join(rows.column_names)}; tokenize it first, with "
            "rows.map(lambda row: tokenizer(row['text'])). For a column `text` and bytes as tokens, take dataset=text."
        )
    needed, found, pieces = count * (context + 1), 0, []
    for tokens in _tokens(rows):
        pieces.append(tokens)
        found += len(tokens)
        if found >= needed:
            break
    if found < needed:
        raise DataError(
            f"{where} has {found // (context + 1):,} windows of {context} tokens and the next one, but {count:,} are "
            "asked for; lower workload.train_examples, workload.validation_examples or workload.context."
        )
    windows = torch.from_numpy(np.concatenate(pieces)[:needed].reshape(count, context + 1))
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def _tokens(rows: Any) -> Iterator[NDArray[np.int64]]:
    """The tokens of each row."""
    masked = "attention_mask" in rows.column_names
    for row in rows.select_columns([COLUMN, "attention_mask"] if masked else [COLUMN]).with_format("numpy"):
        tokens = np.asarray(row[COLUMN], dtype=np.int64)
        yield tokens[np.asarray(row["attention_mask"]) != 0] if masked else tokens
