"""Claim (h): the best error does not rise with the batch size at equal steps; regularisation helps large ones more."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.claims.evidence import Evidence
from analysis.claims.numbers import FEWEST, line
from analysis.claims.statement import Statement, Tree, every, same
from analysis.load import STUDY
from analysis.tables import best_errors

RISE = 0.01
"""A rise of the error of at most 1 % for each doubling of the batch size is none."""
SMOOTHING = "label_smoothing"


def errors(evidence: Evidence) -> Tree:
    """(h) At equal steps larger batch sizes reach no worse errors; label smoothing helps them more than small ones.

    >>> from analysis.gallery import gather
    >>> evidence = gather.one(published)
    >>> tree = errors(evidence)
    >>> [name for name, _, _ in tree.judged()]
    ['no worse error at equal steps', 'no worse error at equal steps']
    """
    return every(
        [
            same(list(_at_equal_steps(evidence)), "no worse error at equal steps"),
            same(list(_smoothing(evidence)), "label smoothing helps more at large batch sizes"),
        ]
    )


def _at_equal_steps(evidence: Evidence) -> Iterator[Statement]:
    """The slope of the log of the best error on log2 of the batch size, over the larger half of the batch sizes.

    Among the smaller ones the error falls, because they see few examples in so few steps; where it has levelled off, a
    cost of large batches would show.
    """
    table = evidence.table("best_errors")
    if table.empty:
        return
    known_curves = set(evidence.about[STUDY[:2]].itertuples(index=False, name=None))
    found = best_errors.by_budget(table)
    for (workload, optimizer, _), rows in found[found["unit"] == "steps"].groupby(best_errors.MEASURED):
        if (workload, optimizer) not in known_curves:
            continue  # its batch size grows
        budget = rows["budget"].max()
        known = rows[(rows["budget"] == budget) & (rows["error"] > 0)].sort_values("batch_size")
        larger = known.iloc[min(len(known) // 2, max(0, len(known) - FEWEST)) :]
        slope = line(np.log2(larger["batch_size"].to_numpy(dtype=float)), np.log(larger["error"].to_numpy()))
        if slope is not None:
            first, last = (int(end) for end in larger["batch_size"].iloc[[0, -1]])
            subject = f"{workload} with {optimizer} within {budget:,} steps at {first:,} to {last:,}"
            yield slope.statement(subject, "slope of the log of the best error", ceiling=RISE)


def _smoothing(evidence: Evidence) -> Iterator[Statement]:
    """The slope of log(error without / best error with label smoothing) on log2 of the batch size."""
    for subject, table in _by_smoothing(evidence):
        none = table[table[SMOOTHING] == 0].groupby("batch_size")["error"].min()
        some = table[table[SMOOTHING] > 0].groupby("batch_size")["error"].min()
        gain = np.log(none / some).dropna()
        slope = line(np.log2(gain.index.to_numpy(dtype=float)), gain.to_numpy())
        if slope is not None:
            yield slope.statement(subject, "slope of the gain by label smoothing", floor=0.0)


def _by_smoothing(evidence: Evidence) -> Iterator[tuple[str, pd.DataFrame]]:
    """(name, batch_size, label_smoothing, error) where smoothing was tuned, or where workloads differ in it alone.

    Errors are within equal steps at each batch size.
    """
    trials = evidence.table("trials")
    if SMOOTHING in trials:
        tuned = best_errors.by_label_smoothing(trials)
        for (workload, optimizer), rows in tuned.groupby(["workload", "optimizer"]):
            yield f"{workload} with {optimizer}", rows
    found = evidence.table("best_errors")
    if found.empty:
        return
    made = evidence.about[[*STUDY[:2], "dataset", "part", "model", SMOOTHING]]
    alike = ["dataset", "part", "model", "optimizer", "goal_metric"]
    for key, rows in found.merge(made, on=STUDY[:2]).groupby(alike):
        if rows[SMOOTHING].nunique() > 1:
            yield f"{' and '.join(sorted(set(rows['workload'])))} with {key[3]}", _at_common_steps(rows)


def _at_common_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """(workload, batch_size, label_smoothing, error): the best error within the steps that all workloads were trained
    for at a batch size. Budgets may differ, and a longer training alone reaches a lower error."""
    ends = rows.groupby(["batch_size", "workload"])["step"].max().groupby("batch_size").min()
    within = rows[rows["step"] <= rows["batch_size"].map(ends)]
    return within.groupby(["workload", "batch_size", SMOOTHING], as_index=False)["error"].min()
