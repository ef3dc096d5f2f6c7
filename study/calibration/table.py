"""Shows a calibration on the terminal: each curve beside the exact solution, then the known facts."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table

from study.calibration.compare import FALSE_ALARM, Comparison, Interval
from study.calibration.facts import Fact
from study.terminal.show import columns


def calibration(console: Console, comparisons: Sequence[Comparison], facts: Sequence[Fact], intervals: int) -> None:
    """Show the tables and the conclusion; `intervals`: how many are judged."""
    for name, group in groupby(comparisons, key=lambda one: f"{one.workload}, {one.optimizer}"):
        rows = list(group)
        console.print(f"\n[bold]{name}: tuned configurations, trained again[/]")
        console.print(_reruns(rows))
        console.print(f"\n[bold]{name}: the search[/]")
        console.print(_searches(rows))
    console.print(
        "\nSteps to the goal. exact: the first evaluation with an expected loss below the goal, for the tuned "
        "configuration or the best point of the search; never: only noise brings it below the goal. measured: "
        "the median of the reruns, or S(B). expected: the interval of the measured steps. A correct instrument misses "
        f"at least one of the {intervals} intervals in {FALSE_ALARM:.0%} of calibrations. Noise makes first "
        "crossings early. best: the fewest exact steps in the search space, the ratio of S(B) to them, and their "
        "hyperparameters; a search of few points misses them. over best: the exact steps of the tuned configuration "
        "over these.\n"
    )
    console.print(_facts(facts))
    outside = ", ".join(f"{one.workload} {one.optimizer} at {one.batch_size}" for one in comparisons if not one.agrees)
    agree = sum(one.agrees for one in comparisons)
    console.print(
        f"\n[bold]{agree} of {len(comparisons)} batch sizes are as expected{f'; not {outside}' if outside else ''}.[/]"
    )


def _reruns(rows: Sequence[Comparison]) -> Table:
    tuned = list(rows[0].tuned)
    table = columns("batch size", *tuned, "reruns", "exact", "measured", "expected", "over best")
    for one in rows:
        measured, _, expected = _held(one.median, one.tuned_exact, one.tuned_expected)
        table.add_row(
            f"{one.batch_size:,}",
            *(f"{one.tuned[name]:.3g}" for name in tuned),
            _range(one.reruns[0], one.reruns[-1]),
            _steps(one.tuned_exact),
            measured,
            expected,
            f"{one.tuned_exact / one.optimum:.2f}" if math.isfinite(one.tuned_exact) else "",
        )
    return table


def _searches(rows: Sequence[Comparison]) -> Table:
    tuned = list(rows[0].optimum_at)
    headings = ("batch size", "exact", "measured", "ratio", "expected", "best", "ratio", "at rate")
    table = columns(*headings, *tuned[1:])
    for one in rows:
        table.add_row(
            f"{one.batch_size:,}",
            _steps(one.fewest_exact),
            *_held(one.fewest, one.fewest_exact, one.fewest_expected),
            f"{one.optimum:,.0f}",
            f"{one.fewest / one.optimum:.2f}",
            *(f"{one.optimum_at[name]:.3g}" for name in tuned),
        )
    return table


def _facts(facts: Sequence[Fact]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for fact in facts:
        word = {None: "[yellow]not judged[/]", True: "[green]met[/]", False: "[red]NOT MET[/]"}[fact.met]
        table.add_row(word, f"{fact.claim}: {fact.numbers}")
    return table


def _held(measured: float, exact: float, expected: Interval) -> tuple[str, str, str]:
    """The measured steps, their ratio to the exact steps if these are finite, and the expected interval."""
    shown = f"{measured:,.0f}" if measured in expected else f"[red]{measured:,.0f}[/]"
    ratio = f"{measured / exact:.3f}" if math.isfinite(exact) else ""
    return shown, ratio, _range(expected.low, expected.high)


def _range(low: float, high: float) -> str:
    return f"{low:.0f}-{high:.0f}" if math.isfinite(high) else f"{low:.0f} on" if low else ""


def _steps(exact: float) -> str:
    return f"{exact:,.0f}" if math.isfinite(exact) else "never"


def plain(comparisons: Sequence[Comparison], facts: Sequence[Fact]) -> dict[str, Any]:
    """The calibration as plain data for JSON; infinite numbers, which JSON lacks, become None."""
    rows = [asdict(one) | {"median": one.median, "agrees": one.agrees} for one in comparisons]
    return {"batch_sizes": _finite(rows), "facts": [fact._asdict() for fact in facts]}


def _finite(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _finite(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
