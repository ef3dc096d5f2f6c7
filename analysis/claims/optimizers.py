"""Claims about optimizers: (c) momentum against SGD; (i) preconditioning, half-lives, small batches, tuned betas."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.claims.evidence import Curve, Evidence
from analysis.claims.numbers import EQUAL, Line, critical_ratio, has_critical, line
from analysis.claims.statement import Statement, Tree, every, same, some
from analysis.estimates import pairs, tuned
from analysis.load import CURVE
from analysis.tables.scaling import CRITICAL

MOMENTUM = ("momentum", "nesterov")
ADAM_LIKE = ("adam", "adamw", "nadam", "rmsprop", "lamb")
SECOND_ORDER = ("kfac", "soap", "muon")
"""Optimizers that precondition with matrices."""
BETAS = ("beta1", "beta2")
HALF = 0.5
"""A half-life whose slope is closer to 0 than this is constant rather than proportional to the batch size."""


def momentum(evidence: Evidence) -> Tree:
    """(c) Momentum and Nesterov scale further than SGD, and need the same steps up to SGD's critical batch size.

    The first part is shown by a larger critical batch size, or by fewer steps beyond SGD's; both compare the same
    seeds where there are fresh seeds.

    >>> from analysis.gallery import gather
    >>> evidence = gather.one(published)
    >>> tree = momentum(evidence)
    >>> [(name[:20], verdict) for name, _, verdict in tree.judged()]
    [('scales further', 'shown'), ('scales further', 'shown'), ('equal at small batch', 'shown')]
    """
    critical: list[Statement] = []
    compared: dict[str, list[Statement]] = {pairs.BEYOND: [], pairs.UP_TO: []}
    for group in evidence.groups("workload", "goal"):
        for sgd in (curve for curve in group if curve.optimizer == "sgd"):
            for curve in (curve for curve in group if curve.optimizer in MOMENTUM):
                if has_critical(curve) and has_critical(sgd):
                    critical.append(critical_ratio(curve, sgd, _over(curve, sgd), floor=1.0))
                for kind, statement in _compared(evidence, curve, sgd):
                    compared[kind].append(statement)
    ways = [same(each) for each in (critical, compared[pairs.BEYOND]) if each]
    return every([some(ways, "scales further"), same(compared[pairs.UP_TO], "equal at small batch sizes")])


def _over(one: Curve, other: Curve) -> str:
    return f"{one.workload}, {one.optimizer} over {other.optimizer}"


def _compared(evidence: Evidence, curve: Curve, sgd: Curve) -> Iterator[tuple[str, Statement]]:
    """How many times the steps of a curve SGD needs, up to and beyond SGD's critical batch size."""
    runs = evidence.table("rerun_steps")
    if runs.empty:
        return
    of_curve, of_sgd = (
        pairs.seeded_curve(
            dict(zip(CURVE, each.key, strict=True)), evidence.table("steps_to_result"), evidence.table("scaling"), runs
        )
        for each in (curve, sgd)
    )
    for found in pairs.statements(of_curve._replace(critical=np.nan, smaller_up_to=np.inf), of_sgd):
        if found.kind in (pairs.UP_TO, pairs.BEYOND):
            there = {*of_curve.seeds} & {*of_sgd.seeds}
            sizes = [size for size in there if found.smallest_batch_size <= size <= found.largest_batch_size]
            subject = f"{_over(sgd, curve)} at {found.smallest_batch_size:,} to {found.largest_batch_size:,}"
            floor, ceiling = (1 / EQUAL, EQUAL) if found.kind == pairs.UP_TO else (1.0, np.inf)
            ends = (found.ratio, found.low, found.high)
            yield (
                found.kind,
                Statement.of(subject, "ratio of steps", ends, floor=floor, ceiling=ceiling, free=len(sizes) - 1),
            )


def beyond(evidence: Evidence) -> Tree:
    """(i) Adam and its relatives and optimizers with matrix preconditioners scale further than momentum; half-lives
    transfer rather than betas; small batches are as good per token once the betas are tuned.

    >>> from analysis.gallery import gather
    >>> evidence = gather.one(published)
    >>> tree = beyond(evidence)
    >>> [(name, statement.subject, verdict) for name, statement, verdict in tree.judged()]
    []
    """
    kinds = {"Adam-like optimizers scale further": ADAM_LIKE, "second-order optimizers scale further": SECOND_ORDER}
    further = {name: list(_further(evidence, kind)) for name, kind in kinds.items()}
    lives = [statement for curve in evidence.curves for statement in _half_lives(curve)]
    small = [found for curve in evidence.curves if (found := _small_batches(curve)) is not None]
    return every(
        [
            *(same(found, name) for name, found in further.items()),
            same(lives, "half-lives transfer"),
            same(small, "small batches are as good per example"),
        ]
    )


def _further(evidence: Evidence, kind: tuple[str, ...]) -> Iterator[Statement]:
    """The critical batch sizes of optimizers of a kind, over that of momentum or, without it, Nesterov."""
    for group in evidence.groups("workload", "goal"):
        curves = {curve.optimizer: curve for curve in filter(has_critical, group)}
        base = next((curves[name] for name in MOMENTUM if name in curves), None)
        for name in kind:
            if base is not None and name in curves:
                yield critical_ratio(curves[name], base, _over(curves[name], base), floor=1.0)


def _tuned_betas(curve: Curve) -> Iterator[tuple[str, pd.Series]]:
    """(name, tuned value at each batch size) of each beta that was searched."""
    reached = curve.steps[curve.steps["reached"].astype(bool)]
    for name in BETAS:
        if name in reached and (values := reached.set_index("batch_size")[name].dropna().astype(float)).nunique() > 2:
            yield name, values


def _half_lives(curve: Curve) -> Iterator[Statement]:
    """The slope of the log of each tuned half-life [examples] on the log of the batch size.

    0 if the half-life transfers, 1 if the beta does.
    """
    for name, betas in _tuned_betas(curve):
        if name != "beta2" or curve.optimizer not in ADAM_LIKE:
            continue  # Marek et al. keep the half-life of beta2
        betas = betas[(betas > 0) & (betas < 1)]
        lives = betas.index.to_numpy(dtype=float) * np.log(0.5) / np.log(betas.to_numpy())
        found: Line | None = line(np.log(betas.index.to_numpy(dtype=float)), np.log(lives))
        if found is not None:
            yield found.statement(curve.name, f"slope of the half-life of {name} in examples", -HALF, HALF)


def _small_batches(curve: Curve) -> Statement | None:
    """The examples to the goal at the smallest batch size over those of the others up to the critical batch size."""
    if curve.optimizer not in ADAM_LIKE or not [*_tuned_betas(curve)] or not has_critical(curve):
        return None
    steps, errors = tuned.points(curve.steps), tuned.log_errors(curve.steps)
    first, *larger = [size for size in sorted(steps) if size in errors and np.isfinite(steps[size])] or [0]
    others = [size for size in larger if size <= curve.limits.loc[CRITICAL, "estimate"]] or larger[:1]
    if not others:
        return None
    logs = {size: float(np.log(size * steps[size])) for size in (first, *others)}
    ratio = logs[first] - float(np.mean([logs[size] for size in others]))
    error = np.hypot(errors[first], np.sqrt(sum(errors[size] ** 2 for size in others)) / len(others))
    ends = np.exp([ratio, *(ratio + way * tuned.half_width(error, tuned.NORMAL) for way in (-1, 1))]).tolist()
    subject = f"{curve.name} at {first:,} over {others[0]:,} to {others[-1]:,}"
    return Statement.of(subject, "ratio of examples to the goal", ends, floor=0.0, ceiling=EQUAL)
