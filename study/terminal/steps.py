"""Shows the steps of a sweep on the terminal: a table for each workload and goal, and findings. Imports no torch."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from analysis.intervals import steps_text
from analysis.labels import column_text, counted, goal_text, number, value_text
from analysis.units import TOKENS
from study.schedules import OWN_OR_WARMUP, SCHEDULE
from study.terminal.show import columns, width


def show_steps(
    console: Console, steps: pd.DataFrame, sentences: Sequence[str], notes: Sequence[str], in_full: bool = False
) -> None:
    """Show a table of the steps for each workload and goal, the findings, and how many notes there are.

    Arguments:
        steps: from `analysis.tables.steps_to_result.table`; tuned values are between `tuned_trial` and `steps_n`.
        notes: the warnings, the most serious first.
        in_full: show the notes themselves.
    """
    printed = []
    for (workload, metric, threshold), part in steps.groupby(["workload", "goal_metric", "goal_threshold"], sort=False):
        optimizers = list(dict.fromkeys(part["optimizer"]))
        alone = f", {optimizers[0]}" if len(optimizers) == 1 else ""
        console.print(f"\n[bold]{workload}{alone}: steps to {goal_text(metric, threshold)}[/]")
        for table in _fewest_steps(part) if alone else _side_by_side(part):
            if width(console, table) <= console.width:
                break
        console.print(table)
        printed.append(table)
    if signs := _signs(printed):
        console.print(" ".join(signs), style="dim")
    console.print()
    for sentence in sentences:
        console.print(sentence, style="bold" if sentence == sentences[0] else None, markup=False)
    for note in notes if in_full else ():
        console.print(f"Note: {note}", style="yellow", markup=False)
    if notes and not in_full:
        console.print(
            f"{counted(len(notes), 'note')} in the report; `study report RESULTS --notes` prints them.", style="yellow"
        )


def _signs(tables: Sequence[Table]) -> list[str]:
    """What the signs in these tables mean."""
    cells = [str(cell) for table in tables for column in table.columns for cell in column.cells]
    meanings = {
        "(": "Brackets: 95 % intervals.",
        "≤": "≤ n: the goal was met at the first evaluation, at step n.",
        ">": "> n: the goal was not reached within the budget of n steps.",
    }
    return [meaning for sign, meaning in meanings.items() if any(sign in cell for cell in cells)]


def _side_by_side(part: pd.DataFrame) -> Iterator[Table]:
    """Tables from wide to narrow, with a row per batch size and a column per optimizer.

    Narrower ones have no intervals. Steps are medians of fresh seeds where there are some.
    """
    rows = {(row["optimizer"], row["batch_size"]): row for row in part.to_dict("records")}
    optimizers, sizes = list(dict.fromkeys(part["optimizer"])), sorted(set(part["batch_size"]))
    each = part[TOKENS].dropna().tolist() if TOKENS in part else []
    for interval, space in ((True, ""), (False, ""), (False, "\n")):
        table = columns("batch size", *(["tokens in it"] if each else []))
        for name in optimizers:  # as everywhere else, also if it contains "_"
            table.add_column(name.replace("_", f"_{space}"), justify="right")
        for size in sizes:
            cells = (rows.get((name, size)) for name in optimizers)
            tokens = [f"{size * int(each[0]):,}"] if each else []
            table.add_row(f"{size:,}", *tokens, *("" if row is None else _steps(row, interval) for row in cells))
        yield table


def _steps(row: Mapping[str, Any], interval: bool) -> str:
    if not row.get("seeds"):
        return _steps_or_why_not(row)
    if math.isfinite(row["tuned_steps"]) and not interval:
        return steps_text(row, "tuned_steps")
    return _with_fresh_seeds(row)


def _fewest_steps(curve: pd.DataFrame) -> Iterator[Table]:
    """Tables from wide to narrow, with a row per batch size.

    Narrower ones leave out that no trial was infeasible, and then tuned hyperparameters, the learning rate last.
    """
    searched = curve.loc[:, "tuned_trial":"steps_n"].columns[1:-1]
    # Hyperparameters of schedules are left to the report.
    tuned = [name for name in searched if name not in OWN_OR_WARMUP and curve[name].notna().any()]
    tuned.sort(key=lambda name: (name != "learning_rate", name != SCHEDULE))
    varied = [name for name in tuned if name in (*tuned[:2], SCHEDULE) or curve[name].nunique() > 1]
    again = "seeds" in curve and curve["seeds"].any()
    counts = ["complete", *(["incomplete"] if curve["incomplete"].any() else []), "infeasible"]
    fewer = counts if curve["infeasible"].any() else counts[:-1]
    shorter = ((varied[:count], fewer, "\n") for count in range(len(varied), -1, -1))
    for names, numbers, space in ((varied, counts, " "), (varied, counts, "\n"), *shorter):
        unit = "tokens" if "tokens_to_result" in curve and curve["tokens_to_result"].notna().any() else "examples"
        headings = ("batch size", "steps", *(["fresh seeds"] if again else []), unit, *names, *numbers)
        table = columns(*(column_text(name).replace(" ", space) for name in headings))
        for row in curve.to_dict("records"):
            table.add_row(
                f"{row['batch_size']:,}",
                _steps_or_why_not(row),
                *([_with_fresh_seeds(row)] if again else []),
                f"{row[f'{unit}_to_result']:,}" if row["reached"] else "",
                *(value_text(row[name]) if row["reached"] else "" for name in names),
                *(str(row[count]) for count in numbers),
            )
        yield table


def _steps_or_why_not(row: Mapping[str, Any]) -> str:
    if row["reached"]:
        return steps_text(row, "steps_to_result")
    return f"> {row['train_steps']:,}" if row["complete"] else "infeasible" if row["infeasible"] else "unknown"


def _with_fresh_seeds(row: Mapping[str, Any]) -> str:
    """The steps of the tuned configuration with fresh seeds, and their interval."""
    if not row.get("seeds"):
        return ""
    if math.isinf(row["tuned_steps"]):
        return f"{row['missed']} of {row['seeds']} missed"
    interval = "" if math.isnan(row["tuned_low"]) else f" ({number(row['tuned_low'])}-{number(row['tuned_high'])})"
    return f"{steps_text(row, 'tuned_steps')}{interval}"
