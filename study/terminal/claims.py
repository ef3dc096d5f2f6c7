"""Shows the verdicts on claims, the numbers behind them, and what would settle those that are open."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from analysis.labels import about
from study.terminal.show import narrowed

STYLES = {"shown": "green", "contradicted": "red", "not shown": "yellow", "not tested": "dim"}


def claims(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Show a table of the verdicts, then the parts of each claim, then what would settle the open ones.

    Arguments:
        rows: of `study claims --json`, a row for each claim.
    """
    shown = [
        {
            "": f"({row['claim']})",
            "claim": Text(row["text"]),
            "verdict": Text(row["verdict"], STYLES[row["verdict"]]),
            "statements shown": f"{row['shown']} of {row['statements']}",
        }
        for row in rows
    ]
    console.print(narrowed(console, shown, ["statements shown"], left=[*shown[0]]))
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
