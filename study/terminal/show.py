"""Shows frames of `analysis` as tables on the terminal, with their sentences. Imports no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from analysis.labels import about, column_text, counted, number, rough

WIDE = 1000
"""Characters: wider than any table."""
OF_CURVES = ("workload", "optimizer", "goal", "definition")
"""Columns of measurements that a title can say."""
OF_SWEEPS = ("results", "workload", "optimizer")
"""Columns that name a curve of several results folders."""
LEFT_OUT_OF_SWEEPS = ("infeasible", "searches")
LEFT_OUT_OF_SEARCHES = ("infeasible", "best so far")
LEFT_OUT_OF_ADVICE = ("up to", "tokens", "a step", "steps", "cost", "device time")
"""Columns that narrow terminals have no room for, the least important first."""


def link(console: Console, page: Path) -> None:
    """Show where a page is, as a link that terminals open."""
    console.print(f"Report: {page.resolve().as_uri()}", markup=False, soft_wrap=True)


def rules(console: Console, moved: pd.DataFrame, sentences: Sequence[str]) -> None:
    """Show the steps that transfers lose, one table per base, and the findings; `moved`: of `tables.transfer.table`."""
    for key, part in moved.groupby(["workload", "optimizer", "base_batch_size"], sort=False):
        workload, optimizer, base = key
        console.print(
            f"\n[bold]{workload}, {optimizer}, tuned at batch size {base:,}[/]: steps divided by those after retuning"
        )
        names = list(dict.fromkeys(part["rule"]))
        table = columns("batch size", "tuned steps", *names)
        for size, rows in part.groupby("batch_size"):
            by_rule = rows.set_index("rule")
            steps = by_rule["tuned_steps"].iloc[0]
            cells = [_lost(by_rule.loc[name]) if name in by_rule.index else "" for name in names]
            table.add_row(f"{size:,}", "" if pd.isna(steps) else f"{steps:,.0f}", *cells)
        console.print(table)
    if moved["missed"].any():
        console.print("\n(n): n seeds missed the goal; >: more than half of the seeds missed it.")
    console.print()
    for sentence in sentences:
        console.print(sentence, style="bold")


def along_runs(
    console: Console, runs: Mapping[str, pd.DataFrame], what: str, sentences: Sequence[str], notes: Sequence[str]
) -> None:
    """Show what was measured along runs, which `what` names; `runs`: title -> frame of text."""
    titles = {f"[bold]{title}[/]: {what} (95 % interval)": frame for title, frame in runs.items()}
    measured(console, titles, sentences, notes)


def measured(
    console: Console, tables: Mapping[str, pd.DataFrame], sentences: Sequence[str], notes: Sequence[str]
) -> None:
    """Show measurements beside those of a sweep. `tables`: title, with markup -> text of each cell. What all rows share
    goes into the title."""
    for title, frame in tables.items():
        shared = [name for name in OF_CURVES if name in frame and frame[name].nunique() == 1 and len(frame)]
        console.print(", ".join([f"\n{title}", *(frame[name].iloc[0] for name in shared if frame[name].iloc[0])]))
        frame = frame.drop(columns=shared)
        table = columns(*frame.columns)
        for row in frame.itertuples(index=False):
            table.add_row(*row)
        console.print(table)
    console.print()
    for sentence in sentences:
        console.print(sentence, style="bold", markup=False)
    for note in notes:
        console.print(f"Note: {note}", style="yellow", markup=False)


def advice(
    console: Console, overview: pd.DataFrame, alternatives: pd.DataFrame, sentences: Sequence[str], notes: Sequence[str]
) -> None:
    """Show which batch size to train with on which devices; the frames of text are from `analysis.advice.tables`."""
    slower = [name for name in alternatives.columns[1:] if not alternatives[name].str.endswith("*").any()]
    for frame, left_out in ((overview, LEFT_OUT_OF_ADVICE), (alternatives, slower)):
        console.print(f"\n[bold]{frame.attrs['title']}[/]")
        console.print(narrowed(console, frame.to_dict("records"), left_out, [""], bold=("fastest", "cheapest")))
    console.print()
    for sentence in sentences:
        console.print(sentence, style="bold")
    console.print()
    for note in notes:
        console.print(note, style="dim", markup=False)


def _lost(row: pd.Series) -> str:
    lost = (
        "" if pd.isna(row["steps_lost"]) else ">" if row["steps_lost"] == float("inf") else f"{row['steps_lost']:.2f}"
    )
    return f"{lost} ({row['missed']})" if row["missed"] else lost


def status(console: Console, progress: pd.DataFrame) -> None:
    """Show the progress of every study; `progress`: from `analysis.tables.status.table`."""
    for (workload, optimizer), curve in progress.groupby(["workload", "optimizer"]):
        console.print(f"[bold]{workload}, {optimizer}[/]")
        rows = curve.to_dict("records")
        _fitting(console, [_search(row) for row in rows], ("search",), LEFT_OUT_OF_SEARCHES)
        for row in rows:
            _commands(console, row)
        console.print()
    _closing(console, progress)


def _search(row: Mapping[str, Any]) -> dict[str, str]:
    """The columns that say how far a search is."""
    left = row["seconds_left"]
    return {
        "batch size": f"{row['batch_size']:,}",
        "search": row["search"],
        "state": row["state"] + (f" in {row['processes']} processes" if row["processes"] > 1 else ""),
        "complete": f"{row['complete']} of {row['wanted']}",
        "infeasible": str(row["infeasible"]),
        "best so far": "" if pd.isna(row["best"]) else f"{row['best']:,} steps",
        "time left": "" if row["state"] == "done" else "unknown" if pd.isna(left) else rough(left, short=True),
    }


def _commands(console: Console, row: Mapping[str, Any]) -> None:
    """A line for each command under way: a hanging one is silent."""
    for each in row["running"]:
        error = "no error yet" if each["error"] is None else f"error {number(each['error'])}"
        search = f", {row['search']}" if row["search"] else ""
        console.print(
            f"Batch size {row['batch_size']:,}{search}: trial {each['trial']} is at step {each['step']:,} of "
            f"{each['steps']:,} after {rough(each['seconds'])}, {error}, last metrics {rough(each['silent'])} ago.",
            markup=False,
            soft_wrap=True,
        )


def sweeps(console: Console, progress: pd.DataFrame) -> None:
    """Show a row for each curve of several results folders; `progress` has the column `results`."""
    found = [
        dict(zip(OF_SWEEPS, key, strict=True)) | _sweep(curve)
        for key, curve in progress.groupby([*OF_SWEEPS], sort=False)
    ]
    _fitting(console, found, OF_SWEEPS, LEFT_OUT_OF_SWEEPS)
    console.print()
    _closing(console, progress)


def _sweep(curve: pd.DataFrame) -> dict[str, str]:
    """The columns that say how far the searches of a curve are."""
    states = set(curve["state"])
    state = next(each for each in ("running", "stopped", "waiting", "done") if each in states)
    return {
        "state": state,
        "searches": f"{(curve['state'] == 'done').sum()} of {len(curve)}",
        "complete": f"{curve['complete'].sum():,} of {curve['wanted'].sum():,}",
        "infeasible": f"{curve['infeasible'].sum():,}",
        "time left": "" if state == "done" else _left(curve, short=True),
    }


def _left(progress: pd.DataFrame, short: bool = False) -> str:
    """The time left of some searches; at least that of the others, where that of some is unknown."""
    known, unknown = progress["seconds_left"].sum(), progress["seconds_left"].isna().any()
    if unknown:
        return f"at least {rough(known, short)}" if known >= 1 else "unknown"
    return rough(known, short) if short else about(known)


def _closing(console: Console, progress: pd.DataFrame) -> None:
    """Discarded trials and the time left."""
    if doubled := progress["doubled"].sum():
        console.print(
            f"Discarded: {counted(doubled, 'trial')} that were trained twice: their process was taken for dead."
        )
    if (progress["state"] == "done").all():
        console.print("Done.")
        return
    left, unknown = _left(progress), int(progress["seconds_left"].isna().sum())
    searches = (
        f"{counted(unknown, 'search', 'searches')} that {'has' if unknown == 1 else 'have'} no complete trial yet"
    )
    if left == "unknown":
        console.print(f"Time left: unknown, because of {searches}.")
    else:
        console.print(f"{left[0].upper()}{left[1:]} left{f', plus the time of {searches}' if unknown else ''}.")


def width(console: Console, table: Table) -> int:
    """The width of a table in which nothing is cut or wrapped."""
    return console.measure(table, options=console.options.update_width(WIDE)).maximum


def narrowed(
    console: Console,
    rows: Sequence[Mapping[Any, Any]],
    left_out: Sequence[str],
    left: Sequence[str] = (),
    bold: tuple[str, ...] = (),
) -> Table:
    """A table without its empty columns and, so that no word or number is broken, without those that have no room.

    Arguments:
        rows: heading -> text, the same headings in each.
        left_out: columns to leave out where there is no room, the least important first.
        left: columns that are aligned to the left.
        bold: how the last cell of a row in bold begins.
    """
    there = [name for name in rows[0] if any(row[name] for row in rows)]
    for count in range(len(left_out) + 1):
        shown = [name for name in there if name not in left_out[:count]]
        table = columns(*shown, left=left)
        for row in rows:
            cells = [row[name] for name in shown]
            table.add_row(*cells, style="bold" if bold and str(cells[-1]).startswith(bold) else None)
        if console.measure(table, options=console.options.update_width(WIDE)).minimum <= console.width:
            break
    return table


def _fitting(
    console: Console, rows: Sequence[Mapping[str, str]], names: Sequence[str], left_out: Sequence[str]
) -> None:
    """Print a table. On a terminal, leave out what it has no room for; elsewhere, print it as wide as it is.

    Arguments:
        names: columns that may be folded; empty ones are left out.
        left_out: columns to leave out where there is no room, the least important first.
    """
    there = [name for name in rows[0] if name not in names or any(row[name] for row in rows)]
    for count in range(len(left_out) + 1):
        shown = [name for name in there if name not in left_out[:count]]
        table = columns(*shown, left=(*names, "state"))
        for column, name in zip(table.columns, shown, strict=True):
            column.no_wrap = name not in names
        for row in rows:
            table.add_row(*(row[name] for name in shown))
        if not console.is_terminal or width(console, table) <= console.width:
            break
    _in_full(console, table)


def _in_full(console: Console, table: Table) -> None:
    """Print a table; where there is no terminal, as wide as it is."""
    if console.is_terminal:
        console.print(table)
        return
    usual, console.width = console.width, max(console.width, width(console, table))
    console.print(table)
    console.width = usual


class WholeWords(Table):
    """A table that folds its cells between words, if the words fit the terminal."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        least, lacks = [], []  # width of the longest word of each column, and by how much its longest cell is wider
        for column in self.columns:
            cells = [str(column.header), *map(str, column.cells)]
            words = cells if column.no_wrap else " ".join(cells).split()
            least.append(max(map(cell_len, words), default=0))
            lacks.append(max(map(cell_len, cells)) - least[-1])
        gaps = 2 * (len(self.columns) - 1)
        spare = options.max_width - gaps - sum(least)
        if 0 <= spare < sum(lacks):
            order = sorted(range(len(lacks)), key=lacks.__getitem__)
            for number, place in enumerate(order):  # each column gets an even share of what is left, or all it lacks
                more = min(lacks[place], spare // (len(order) - number))
                self.columns[place].width = least[place] + more
                spare -= more
        yield from super().__rich_console__(console, options)


def columns(*headings: str, left: Sequence[str] = ()) -> Table:
    """An empty table without lines; columns are right-aligned, except those in `left`. Too long words are folded: two
    names that are cut may look alike."""
    table = WholeWords(box=None, pad_edge=False)
    for name in headings:
        table.add_column(column_text(name), justify="left" if name in left else "right", overflow="fold")
    return table
