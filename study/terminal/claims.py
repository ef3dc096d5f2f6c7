"""Shows the verdicts on claims, the numbers behind them, and what would settle those that are open."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analysis.labels import about

STYLES = {"shown": "green", "contradicted": "red", "not shown": "yellow", "not tested": "dim"}


def claims(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Show a table of the verdicts, then the parts of each claim, then what would settle the open ones.

    Arguments:
        rows: of `study claims --json`.
    """
    table = Table("", "claim", "verdict", "statements shown", box=box.SIMPLE)
    for row in rows:
        verdict = f"[{STYLES[row['verdict']]}]{row['verdict']}[/]"
        table.add_row(f"({row['claim']})", escape(row["text"]), verdict, f"{row['shown']} of {row['statements']}")
    console.print(table)
    for row in rows:
        for part in row["parts"]:
            console.print(f"({row['claim']}) {part}", markup=False)
    console.print()
    for row in rows:
        if row["settle"]:
            cost = f" ({about(row['seconds'])})" if row["seconds"] is not None else ""
            console.print(
                f"({row['claim']}) To settle it: {row['settle']}{cost}{':' if row['command'] else '.'}", markup=False
            )
            for line in row["command"].splitlines():
                console.print(f"  {line}", markup=False, soft_wrap=True)
