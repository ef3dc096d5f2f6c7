"""Which tables hold trainings that another table holds, too."""

from collections.abc import Sequence
from numbers import Real

import pandas as pd

SHARED = 0.5
"""Above this share of common rows the smaller of two tables is a copy. Sweeps of their own share no trials, or few."""


def copies(tables: Sequence[pd.DataFrame]) -> list[int]:
    """The indices of the tables that copy others: the larger of two alike stays, of two equal ones the first.

    Arguments:
        tables: one row for each training, of one workload and optimizer.

    >>> trials = pd.DataFrame({"batch_size": [8, 8, 16], "learning_rate": [0.1, 0.2, 0.1], "steps": [90, 80, 50]})
    >>> copies([trials.iloc[:2], trials, trials.assign(steps=70)])
    [0]
    """
    rows = [_rows(table) for table in tables]
    kept: list[int] = []
    for index in sorted(range(len(rows)), key=lambda index: -len(rows[index])):  # stable: the first of equal ones
        if not any(len(rows[index] & rows[other]) > SHARED * len(rows[index]) for other in kept):
            kept.append(index)
    return sorted(set(range(len(rows))) - set(kept))


def _rows(table: pd.DataFrame) -> frozenset[tuple[tuple[str, str], ...]]:
    """Each row as text, without empty cells.

    A table of several curves has columns that are empty for one of them, and floats in place of whole numbers.
    """
    named = table[sorted(table.columns)].to_dict("records")
    return frozenset(tuple((name, _text(value)) for name, value in row.items() if not pd.isna(value)) for row in named)


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, Real) else str(value)
