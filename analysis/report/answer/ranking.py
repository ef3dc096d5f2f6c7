"""Several optimizers in a few lines, the verdict first: which need fewer steps over all batch sizes, and which tie."""

import numpy as np
import pandas as pd

from analysis.estimates import verdicts
from analysis.estimates.pairs import ALL
from analysis.labels import listed, optimizer_text
from analysis.report.answer.finding import SEVERAL, begun, named, without_subject


def ranking(pairs: pd.DataFrame, limits: pd.DataFrame) -> list[str]:
    """A line for each optimizer that is shown to need fewer steps than others, the one that beats most first; a line
    for the ties; then what is said of pairs that no statement over all batch sizes covers. Empty with fewer than three
    optimizers, or without such a statement.

    Arguments:
        pairs, limits: the rows of one workload and goal, from `analysis.estimates.pairs.table` and
            `analysis.estimates.limits.table`.

    >>> tables = [pd.read_csv(f"{published}/../digits_optimizers/tables/{name}.csv") for name in ("compare", "scaling")]
    >>> ranking(*tables)[2]
    'Momentum needs fewer steps than SGD (1.35 times, 1.04 to 1.75).'
    """
    over_all = pairs[pairs["kind"] == ALL]
    names = {*pairs["a"], *pairs["b"]}
    if len(names) < SEVERAL or over_all.empty:
        return []
    shared = len(over_all[["smallest_batch_size", "largest_batch_size"]].drop_duplicates()) == 1
    ahead: dict[str, list[tuple[float, str]]] = {}
    ties, tied = [], []
    for row in over_all.itertuples():
        sizes = f"batch sizes {row.smallest_batch_size:,} to {row.largest_batch_size:,}"
        where = "" if shared else f" over {sizes}"
        if row.shown:
            faster, slower, ratio, low, high = verdicts.turned(row)
            said = f"{slower} ({verdicts.range_text(ratio, low, high)})" if np.isfinite(ratio) else slower
            ahead.setdefault(faster, []).append((-ratio, f"{said}{where}"))
        else:
            ties.append(row)
            tied.append(f"{optimizer_text(row.a)} and {optimizer_text(row.b)}{where}")
    wins = sorted(ahead, key=lambda name: (-len(ahead[name]), name))
    lines = [f"{name} needs fewer steps than {listed(said for _, said in sorted(ahead[name]))}." for name in wins]
    if lines and shared:
        lines[0] = f"Over {sizes}, {lines[0]}"
    if ties:  # crossing, tied or without an interval
        tied = [f"Not shown to differ over all batch sizes: {'; '.join(tied)} ({verdicts.visible(ties)})."]
    return [*(named(line, names) for line in lines), *tied, *_others(pairs, limits, names)]


def _others(pairs: pd.DataFrame, limits: pd.DataFrame, names: set[str]) -> list[str]:
    """The sentences on pairs without a statement over all batch sizes, and on critical batch sizes."""
    without = pairs.groupby(["a", "b"]).filter(lambda pair: not (pair["kind"] == ALL).any())
    of_pairs = [] if without.empty else map(without_subject, verdicts.sentences(without, limits[:0], cure=False))
    return [named(each, names) for each in (*of_pairs, *map(begun, verdicts.critical(sorted(names), limits)))]
