"""Claims about tuning: (f) how the best learning rate grows, (g) how large the part of the space is that works."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from analysis.claims.evidence import Curve, Evidence
from analysis.claims.numbers import line
from analysis.claims.statement import Statement, Tree, every, same, some
from analysis.load import CURVE
from analysis.tables import trials

NEAR = 0.1
"""Slopes closer than this agree: over ten doublings of the batch size, they differ by a factor of two."""
RULES = {"linear rule": 1.0, "square-root rule": 0.5}
"""A rule -> the slope of log learning rate on log batch size."""


def learning_rates(evidence: Evidence) -> Tree:
    """(f) The best learning rate follows neither the linear nor the square-root rule everywhere; nor does the effective
    learning rate, learning_rate / (1 - momentum).

    >>> from analysis.gallery import gather
    >>> evidence = gather.one(published)
    >>> tree = learning_rates(evidence)
    >>> [name for name, statement, verdict in tree.judged() if "sgd" in statement.subject and verdict == "contradicted"]
    []
    """
    parts = []
    for kind in ("learning rate", "effective learning rate"):
        slopes = [found for curve in evidence.curves for found in _slopes(curve, kind)]
        for name, slope in RULES.items():
            agrees: dict[str, Any] = {"floor": slope - NEAR, "ceiling": slope + NEAR, "inside": False, "denied": slope}
            against = [each._replace(**agrees) for each in slopes]
            parts.append(some(against, f"{kind} against the {name}"))
    return every(parts)


def _slopes(curve: Curve, kind: str) -> Iterator[Statement]:
    reached = curve.steps[curve.steps["reached"].astype(bool)]
    if "learning_rate" not in reached or reached["learning_rate"].nunique() < 3:
        return
    rates = reached["learning_rate"].astype(float)
    if kind == "effective learning rate":
        if "momentum" not in reached or reached["momentum"].isna().all():
            return
        rates = rates / (1 - reached["momentum"].astype(float))
    found = line(np.log(reached["batch_size"].to_numpy(dtype=float)), np.log(rates.to_numpy()))
    if found is not None:
        yield found.statement(curve.name, f"slope of the best {kind}")


def regions(evidence: Evidence) -> Tree:
    """(g) The part of the search space that reaches the goal shrinks with the batch size at a fixed number of epochs,
    and grows at a fixed number of steps.

    The slope of log(reached / not reached) on log2 of the batch size, by weighted least squares on empirical logits
    (Agresti 2013, section 5.3.1). Only trials that were drawn independently and ran their whole budgets count.

    >>> from analysis.gallery import gather
    >>> evidence = gather.one(published)
    >>> tree = regions(evidence)
    >>> len([*tree.judged()])
    4
    """
    table = evidence.table("trials")
    drawn = {(row["workload"], row["optimizer"]) for row in evidence.about.to_dict("records") if row["independent"]}
    found: dict[str, list[Statement]] = {"examples": [], "steps": []}
    counts = trials.reaching(table) if len(table) else pd.DataFrame(columns=[*CURVE, "unit"])
    for (workload, optimizer, _, _, unit), rows in counts.groupby([*CURVE, "unit"]):
        if (workload, optimizer) in drawn and (slope := _logit_slope(rows)) is not None:
            range_: dict[str, Any] = {"ceiling": 0.0} if unit == "examples" else {"floor": 0.0}
            subject = f"{workload} with {optimizer} within {float(rows['budget'].iloc[0]):,.0f} {unit}"
            found[unit].append(slope._replace(subject=subject, **range_))
    return every([same(found["examples"], "shrinks at fixed epochs"), same(found["steps"], "grows at fixed steps")])


def _logit_slope(rows: pd.DataFrame) -> Statement | None:
    """The slope of the empirical logit of the share that reached the goal, per doubling of the batch size."""
    reached, missed = rows["reached"].astype(float) + 0.5, (rows["trials"] - rows["reached"]).astype(float) + 0.5
    sizes = np.log2(rows["batch_size"].to_numpy(dtype=float))
    found = line(sizes, np.log(reached / missed).to_numpy(), np.sqrt(1 / reached + 1 / missed).to_numpy())
    return None if found is None else found.statement("", "slope of the logit of the share that reaches the goal")
