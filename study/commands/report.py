"""`study report`, `compare` and `claims`: what results folders show. They import no torch."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from study.command_line import as_json, settings
from study.config.composed.paths import path
from study.devices.imports import uncollected

if TYPE_CHECKING:
    from analysis.figures import Files
    from analysis.report.build import Asked
    from analysis.report.page import ReportData

REPORT = Path("results/report")
"""Default folder for a report on several results folders."""
EACH_PAIR = "`study compare RESULTS --notes` prints each pair at each batch size; the report has it, too."
NARROWEST = 2.5
"""Inches: a narrower figure has no room for its labels."""
STUDIES = "studies/*/*/*/study.json"
TOLD = ("scaling", "compare", "compare_workloads", "rules", "at_budget", "cost")
"""Tables that `--json` prints beside the steps. All others are in the folder `tables` beside the report."""


def report_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("results", nargs="+", type=path)
    verb.add_argument(
        "--goal",
        action="append",
        default=[],
        metavar="GOAL",
        help="'val/classification_error < 0.1', in RESULTS/goals/; repeatable",
    )
    verb.add_argument("--output", type=path, metavar="DIR", help=f"default: RESULTS, or {REPORT} for several")
    verb.add_argument("--base-batch-size", type=float, metavar="B", help="of perfect scaling and Zhang et al.")
    verb.add_argument(
        "--tolerance",
        type=float,
        default=0.01,
        metavar="SHARE",
        help="of the best error that a larger batch size may cost at a fixed number of examples; default: 0.01",
    )
    verb.add_argument(
        "--notes", action="store_true", help="print the warnings in full; default: only how many there are"
    )
    verb.add_argument(
        "--figures",
        metavar="FORMATS",
        help="of the figures' files: svg, png and pdf (fonts embedded as TrueType); default: all, without pdf if there "
        "are many figures",
    )
    verb.add_argument("--width", type=float, metavar="INCHES", help="of the pages of a PDF; default: a column's 3.25")
    verb.add_argument("--normalise-at", type=int, metavar="B", help="where compared workloads have relative steps 1")
    verb.add_argument("--static", action="store_true", help="without the explorer: a page with no script but sorting")
    settings.json_argument(verb)


def write_report(
    results: Sequence[Path],
    output: Path,
    console: Console,
    asked: Asked | None = None,
    notes: bool = False,
    pairs: bool = False,
) -> tuple[ReportData, Path]:
    """Rebuild tables, figures and page from the files alone; show the steps, the findings and what to run next.

    Arguments:
        notes: show the warnings in full.
        pairs: show what is found about each pair of optimizers or workloads.

    Returns:
        The content of the report, and its page.
    """
    with uncollected():
        from analysis.batch_schedules import table as batch_schedules
        from analysis.report.build import Asked, build, place
        from study.terminal import show
        from study.terminal.steps import show_steps

    output = place(results, output, asked or Asked())
    data = build(results, output, asked or Asked())
    several = len(data.answers) > 1
    said = [f"{answer.subject}: {line}" if several else line for answer in data.answers for line in answer.lines]
    said += batch_schedules.sentences(data.tables.get("batch_schedules"))
    said += _compared(data, notes) if pairs else []
    show_steps(console, data.tables["steps_to_result"], said, data.warnings, notes)
    for answer in data.answers:
        if answer.next.advice:
            about = f" for {answer.subject}" if several else ""
            console.print(f"Next{about}: {answer.next.summary}", markup=False)
        if answer.next.command:
            console.print(f"  {answer.next.command}", markup=False, soft_wrap=True)
    page = output / "report.html"
    show.link(console, page)
    return data, page


def _compared(data: ReportData, notes: bool) -> list[str]:
    """The findings about pairs that no answer leads with; of several optimizers a ranking, unless all is asked for."""
    from analysis.load import TASK, rows_with
    from analysis.report.answer.headed import headed
    from analysis.report.answer.ranking import ranking

    found = headed(data.compared, data.answers)
    said = []
    for answer, parts in zip(data.answers, found.of_answers, strict=True):
        about = f"{answer.subject}: " if len(data.answers) > 1 else ""
        pairs, limits = (rows_with(data.tables[name], TASK, answer.group) for name in ("compare", "scaling"))
        ranked = [] if notes else ranking(pairs, limits)
        ranked += [EACH_PAIR] if ranked else []
        texts = ranked or [text for part in parts for text in part.sentences if text not in answer.lead]
        said += [f"{about}{text}" for text in texts]
    return [*said, *found.others]


def report(options: argparse.Namespace, console: Console) -> None:
    """`study report`: rebuild the report of one or several results folders."""
    from analysis.report.build import Asked
    from analysis.report.other_goals import folder
    from study.errors import UsageError

    goals = [settings.goal(text) for text in options.goal]
    output = options.output or (options.results[0] if len(options.results) == 1 else REPORT)
    if goals and not options.output:
        output = folder(output, goals)
    if not 0 <= options.tolerance < math.inf:
        raise UsageError(f"--tolerance must be at least 0, such as 0.01, but got {options.tolerance:g}.")
    read_as = tuple(goals), options.base_batch_size, options.normalise_at, options.tolerance
    asked = Asked(*read_as, _files(options), options.static)
    shown = Console(quiet=True) if options.json else console
    data, page = write_report(options.results, output, shown, asked, options.notes, options.verb == "compare")
    if options.json:
        tables = {name: data.tables[name] for name in TOLD if name in data.tables}
        rows = data.tables["steps_to_result"]
        as_json.show(options.verb, rows, data.sentences, data.warnings, tables, {"report": page})


def _files(options: argparse.Namespace) -> Files | None:
    """The formats and the width of figures; None: as usual. Raises UsageError."""
    from analysis.figures import COLUMN, FORMATS, Files
    from study.errors import UsageError

    formats = FORMATS if options.figures is None else tuple(dict.fromkeys(options.figures.split(",")))
    if unknown := [form for form in formats if form not in FORMATS]:
        raise UsageError(f"--figures takes some of {','.join(FORMATS)}, but got {unknown[0]!r}.")
    if options.width is not None and not NARROWEST <= options.width < math.inf:
        raise UsageError(f"--width must be at least {NARROWEST:g} inches, such as 3.25, but got {options.width:g}.")
    if options.width is not None and "pdf" not in formats:
        raise UsageError("--width is of the pages of a PDF; leave it out, or add pdf to --figures.")
    if options.figures is None and options.width is None:
        return None
    return Files(formats, options.width or COLUMN)


def claims_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("results", nargs="+", type=path)
    settings.json_argument(verb)


def claims(options: argparse.Namespace, console: Console) -> None:
    """`study claims`: the verdict of results folders on each claim, and what would settle the open ones."""
    with uncollected():
        from analysis.claims import registry
        from analysis.claims.settle import settle
        from analysis.gallery.gather import gather
        from study.terminal import claims as shown

        found = gather(options.results)
        judged = registry.judge(found.evidence)
        rows = []
        for each in judged:
            settles = settle(each, found.evidence, found.searches)
            seconds = settles.seconds if math.isfinite(settles.seconds) else None
            open_one = {"settle": settles.advice, "command": settles.command, "seconds": seconds}
            rows.append({**each.row(), "parts": each.parts, **open_one})
    if options.json:
        as_json.show(options.verb, rows, tables={"statements": registry.statements(judged)})
    else:
        shown.claims(console, rows)


def compare(options: argparse.Namespace, console: Console) -> None:
    """`study compare`: report on curves that share a workload or an optimizer."""
    from analysis.labels import batch_sizes
    from analysis.load import LoadError, folders

    found = sorted(folder.relative_to(results).parts[1:4] for results in options.results for folder in folders(results))
    curves: dict[tuple[str, str], set[int]] = {}
    for workload, optimizer, size in found:
        curves.setdefault((workload, optimizer), set()).add(int(size))
    pairs = [pair for pair in combinations(curves, 2) if pair[0][0] == pair[1][0] or pair[0][1] == pair[1][1]]
    there = "; ".join(f"{w} with {o} at {batch_sizes(sorted(sizes))}" for (w, o), sizes in curves.items())
    if curves and not pairs:
        raise LoadError(
            "nothing to compare: give results of one workload with two optimizers, or of two workloads with one "
            f"optimizer, but got {there}."
        )
    if pairs and not any(curves[one] & curves[other] for one, other in pairs) and not options.json:
        console.print(f"No batch size in common, so no steps are compared: {there}.", style="yellow", markup=False)
    report(options, console)
