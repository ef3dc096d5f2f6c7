"""Checks known facts about the noisy quadratic model (Zhang et al. 2019) on the measurements of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from study.calibration.compare import Comparison

SAME = 1.35
"""Ratio of steps, or examples, that counts as equal: a search of few points misses the optimum by up to 20 %."""
SLOPE = 0.25
"""Tolerance of the exponent of the batch size around 1: optima are flat, so the best learning rate varies."""
FAR = 3.0
"""A critical batch size above this multiple of another counts as far larger."""

Curve = Sequence[Comparison]


class Fact(NamedTuple):
    """A known fact, whether the measurements show it (None: they are too few), and the numbers that decide."""

    claim: str
    met: bool | None
    numbers: str


class Critical(NamedTuple):
    """E_min / S_min, the batch size at which the fewest examples meet the fewest steps: measured, and exact."""

    measured: float
    exact: float

    @classmethod
    def of(cls, curve: Curve) -> Critical:
        """The value for one curve; its batch sizes should extend far below and above the critical one."""
        steps = np.array([[one.fewest, one.optimum] for one in curve])
        examples = steps * np.array([[one.batch_size] for one in curve])
        return cls(*(examples.min(0) / steps.min(0)).tolist())

    def __str__(self) -> str:
        return f"{self.measured:,.0f} (exactly {self.exact:,.0f})"


def judged(comparisons: Sequence[Comparison]) -> list[Fact]:
    """Every fact, in the order of the paper; numbers in brackets belong to the exact optimum."""
    curves: dict[tuple[str, str], list[Comparison]] = {}
    for one in sorted(comparisons, key=lambda one: one.batch_size):
        curves.setdefault((one.workload, one.optimizer), []).append(one)
    found = [judge(name, curve) for judge in (scaling, learning_rate) for name, curve in curves.items()]
    for (workload, optimizer), curve in curves.items():
        if optimizer == "sgd" and (workload, "momentum") in curves:
            found.append(momentum_below(workload, curve, curves[workload, "momentum"]))
    chain = [curves[name] for name in (("nqm", "sgd"), ("nqm", "momentum")) if name in curves]
    pairs = [(chain, FAR, "momentum's critical batch size is far larger than SGD's")]
    for optimizer in ("sgd", "momentum"):
        names = (("nqm", optimizer), ("nqm_preconditioned", optimizer))
        with_it = f"preconditioning makes the critical batch size of {optimizer} larger"
        pairs.append(([curves[name] for name in names if name in curves], 1.0, with_it))
    return [*found, *(larger(claim, factor, *pair) for pair, factor, claim in pairs if len(pair) == 2)]


def scaling(name: tuple[str, str], curve: Curve) -> Fact:
    """Perfect scaling up to half the critical batch size, and a plateau beyond twice it."""
    critical = Critical.of(curve)
    low = [one for one in curve if one.batch_size <= critical.exact / 2]
    high = [one for one in curve if one.batch_size >= 2 * critical.exact]
    claim = f"{', '.join(name)}: perfect scaling, then a plateau"
    if min(len(low), len(high)) < 2:
        return Fact(claim, None, f"critical batch size {critical}; too few batch sizes on both sides of it")
    examples = [[one.batch_size * getattr(one, steps) for one in low] for steps in ("fewest", "optimum")]
    waste = [max(column) / min(column) for column in examples]
    steps = [[getattr(one, steps) for one in high] for steps in ("fewest", "optimum")]
    gain = [max(column) / min(column) for column in steps]
    numbers = (
        f"examples vary by a factor of {waste[0]:.2f} ({waste[1]:.2f}) up to B = {low[-1].batch_size:,}, "
        f"steps by {gain[0]:.2f} ({gain[1]:.2f}) from B = {high[0].batch_size:,} on; critical batch size {critical}"
    )
    return Fact(claim, max(waste[0], gain[0]) < SAME, numbers)


def learning_rate(name: tuple[str, str], curve: Curve) -> Fact:
    """The best learning rate / (1 - momentum) is proportional to the batch size, up to half the critical batch size."""
    low = [one for one in curve if one.batch_size <= Critical.of(curve).exact / 2]
    claim = f"{', '.join(name)}: best learning rate proportional to the batch size below the critical one"
    if len(low) < 3:
        return Fact(claim, None, f"{len(low)} batch sizes below half of it")
    sizes = np.log([one.batch_size for one in low])
    measured, exact = (
        np.polyfit(sizes, np.log([at["learning_rate"] / (1 - at.get("momentum", 0.0)) for at in best]), 1)[0]
        for best in ([one.tuned for one in low], [one.optimum_at for one in low])
    )
    numbers = f"its power {measured:.2f} ({exact:.2f}) up to B = {low[-1].batch_size:,}"
    return Fact(claim, bool(abs(measured - 1) < SLOPE), numbers)


def momentum_below(workload: str, sgd: Curve, momentum: Curve) -> Fact:
    """Momentum needs as many steps as SGD up to a quarter of SGD's critical batch size."""
    limit = Critical.of(sgd).exact / 4
    steps = {one.batch_size: one for one in momentum if one.batch_size <= limit}
    pairs = [(one, steps[one.batch_size]) for one in sgd if one.batch_size in steps]
    claim = f"{workload}: momentum does not help well below SGD's critical batch size"
    if not pairs:
        return Fact(claim, None, f"no batch size of both up to {limit:,.0f}")
    ratios = [plain.fewest / other.fewest for plain, other in pairs]
    exact = [plain.optimum / other.optimum for plain, other in pairs]
    numbers = f"it divides the steps by {_range(ratios)} ({_range(exact)}) up to B = {pairs[-1][0].batch_size:,}"
    return Fact(claim, min(ratios) > 1 / SAME and max(ratios) < SAME, numbers)


def larger(claim: str, factor: float, curve: Curve, other: Curve) -> Fact:
    """The critical batch size of `other` is more than `factor` times that of `curve`."""
    small, large = Critical.of(curve), Critical.of(other)
    if min(len(curve), len(other)) < 3:
        return Fact(claim, None, "too few batch sizes")
    return Fact(claim, large.measured > factor * small.measured, f"{small} and {large}")


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"
