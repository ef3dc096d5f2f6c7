"""What a sweep can know: today's searches and refine on surfaces whose tuned optimum is known.

    python -m benchmarks.power [--full] [--curves 30] [--json FILE] [--table FILE]

Surfaces: the exact noisy quadratic model, and an emulator of 6,248 real trainings of the digits MLP. For each
surface and protocol: bias and rmse of log S(B) against the tuned optimum, coverage and width of its 95 % interval, and
cost in units of the optimum's steps and as a share of a hundred Sobol trials with today's race. Then the limits of
scaling on planted curves, and the power to show that one optimizer needs fewer steps than another over five batch
sizes. All seeds are fixed. Under ten minutes on one core; `--full` takes an hour and adds protocols, goals and curves.

Exit status 1 if a target is missed by more than two standard errors.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.power.digits import Digits
from benchmarks.power.digits_table import FILE, GOALS, OPTIMIZERS
from benchmarks.power.measures import Accuracy, Curves, accuracy, limits_found, power
from benchmarks.power.protocols import Protocol, Refine, Sobol
from benchmarks.power.quadratic import Quadratic
from benchmarks.power.surfaces import At, Surface, planted

TODAY, REFINE = Sobol(100), Refine()
PROTOCOLS: tuple[Protocol, ...] = (Sobol(20), TODAY, Sobol(100, 5), REFINE)
FURTHER: tuple[Protocol, ...] = (Sobol(100, stage_race=True), Refine(6, (4, 4, 3)))
RMSE = {
    "digits, momentum": 0.25,
    "digits, adam": 0.22,
    "digits, sgd": 0.20,
    "quadratic model, momentum": 0.42,
}
"""Surface -> the largest rmse of log S(B) with REFINE."""
COST, COVERAGE, FALSE_ALARMS = 0.28, 0.90, 0.07
"""The largest share of TODAY's steps and the smallest coverage, both on digits; the largest share of false alarms."""
FIVE = (4, 16, 64, 256, 1024)
"""The batch sizes of a comparison of two optimizers."""
ERRORS = 2.0
"""Standard errors by which a target may be exceeded."""


@dataclass(frozen=True)
class Target:
    """One number that is judged; `error` is its standard error."""

    what: str
    value: float
    error: float
    limit: float
    at_most: bool = True

    @property
    def missed(self) -> bool:
        """Whether the number lies beyond the limit by more than ERRORS standard errors."""
        beyond = self.value - self.limit if self.at_most else self.limit - self.value
        return not beyond <= ERRORS * self.error

    def __str__(self) -> str:
        beyond = self.value > self.limit if self.at_most else self.value < self.limit
        verdict = "missed" if self.missed else "met" if not beyond else "met within its standard error"
        asked = f"{'at most' if self.at_most else 'at least'} {self.limit:g}"
        return f"{self.what:58} {self.value:7.3f} +- {self.error:.3f}, {asked}: {verdict}"


class Report:
    """Collects and prints the rows of all tables."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, object]]] = {"accuracy": [], "limits": [], "power": []}
        self.targets: list[Target] = []

    def accuracy(self, surface: Surface, protocols: Sequence[Protocol], curves: int) -> None:
        """Search a surface with each protocol and judge REFINE."""
        made = {each.name: accuracy(Curves.of(surface, each, range(curves))) for each in protocols}
        for name, row in made.items():
            share = row.cost / made[TODAY.name].cost
            self.rows["accuracy"].append({"surface": surface.name, "protocol": name, **asdict(row), "share": share})
            print(
                f"{surface.name:30} {name:28} {row.bias:+6.2f} {row.rmse:6.3f} +- {row.rmse_error:.3f} "
                f"{100 * row.coverage:6.0f} % {row.width:6.2f} {row.cost:7.0f} {100 * share:6.0f} % {row.missed:6}",
                flush=True,
            )
        if surface.name in RMSE:
            share = made[REFINE.name].cost / made[TODAY.name].cost
            self.targets += judged(surface.name, made[REFINE.name], share)

    def limits(self, surface: Surface, protocols: Sequence[Protocol], curves: int) -> None:
        """Search a planted surface with each protocol."""
        for protocol in protocols:
            for row in limits_found(Curves.of(surface, protocol, range(curves))):
                self.rows["limits"].append({"surface": surface.name, "protocol": protocol.name, **asdict(row)})
                truth = f"{ {'=': '', '<': 'below ', '>': 'above '}[row.bound] }{row.truth:,.3g}"
                print(
                    f"{surface.name:16} {protocol.name:28} {row.definition:31} {truth:>12} {row.median:9,.3g} "
                    f"{row.error:6.2f} {100 * row.coverage:6.0f} % {row.width:8.3g} {100 * row.wrong_kind:6.0f} %",
                    flush=True,
                )

    def power(self, a: Surface, b: Surface, protocols: Sequence[Protocol], curves: int) -> None:
        """Compare two optimizers at each factor, by each protocol."""
        a, b = (At(surface, tuple(size for size in FIVE if size in surface.batch_sizes)) for surface in (a, b))
        for protocol in protocols:
            first = Curves.of(a, protocol, range(curves))
            second = first if a == b else Curves.of(b, protocol, range(curves))
            made = power(first, second)
            name = f"{a.name} / {b.name}"
            for row in made:
                self.rows["power"].append({"surfaces": name, "protocol": protocol.name, **asdict(row)})
            shares = " ".join(f"{100 * row.over_range:5.0f} %" for row in made)
            print(f"{name:38} {protocol.name:28} {shares}", flush=True)
            if protocol == REFINE:
                what = f"{name}: false alarms over five batch sizes"
                self.targets.append(Target(what, made[0].over_range, made[0].range_error, FALSE_ALARMS))


def judged(name: str, row: Accuracy, share: float) -> Iterator[Target]:
    """The targets of refine on one surface."""
    yield Target(f"{name}: rmse of log S(B)", row.rmse, row.rmse_error, RMSE[name])
    if name.startswith("digits"):
        yield Target(f"{name}: steps, as a share of {TODAY.name}", share, 0.0, COST)
        yield Target(f"{name}: coverage of the tuned optimum", row.coverage, row.coverage_error, COVERAGE, False)


def main(words: Sequence[str] | None = None) -> int:
    """Print the tables, and a line for each target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="further protocols and goals, and three times the curves")
    parser.add_argument("--curves", type=int, default=0, help="curves of each row; default: 30, with --full 100")
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    parser.add_argument("--table", type=Path, default=FILE, help="the table of digits trainings")
    options = parser.parse_args(words)
    curves = options.curves or (100 if options.full else 30)
    protocols = (*PROTOCOLS, *FURTHER) if options.full else PROTOCOLS
    digits = {optimizer: Digits(optimizer, file=options.table) for optimizer in OPTIMIZERS}
    surfaces: list[Surface] = [*digits.values(), Quadratic("momentum"), Quadratic("sgd")]
    if options.full:
        surfaces += [Digits(optimizer, [*GOALS][1], options.table) for optimizer in OPTIMIZERS]
    report = Report()
    print(f"S(B) against the tuned optimum, {curves} curves a row\n{'surface':30} {'protocol':28}   bias   rmse"
          "           coverage  width    cost    share missed")  # fmt: skip
    for surface in surfaces:
        report.accuracy(surface, protocols, curves)
    few = protocols if options.full else (TODAY, REFINE)
    print(f"\nLimits on planted curves\n{'curve':16} {'protocol':28} {'limit':31} {'truth':>12}    median  error"
          "  coverage    width  wrong kind")  # fmt: skip
    for surface in planted(digits["momentum"]):
        report.limits(surface, few, curves if options.full else -(-curves // 2))
    print("\nDifferences shown at true factors 1, 1.25, 1.5, 2 and 3 over five batch sizes")
    for a, b in (("momentum", "adam"), ("momentum", "momentum")):
        report.power(digits[a], digits[b], protocols, curves)
    print("\nTargets")
    print(*report.targets, sep="\n")
    if options.json:
        options.json.write_text(
            json.dumps(report.rows | {"targets": [asdict(each) for each in report.targets]}, indent=1)
        )
    return int(any(target.missed for target in report.targets))


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(main())
