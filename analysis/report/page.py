"""Writes tables, figures and warnings as one HTML page that needs no other file, no network and no server.

The HTML is in `templates/`; this file builds the records that it shows.
"""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from analysis.estimates.tuned import COLUMNS as ESTIMATES
from analysis.figures import FIGURES, Chart, canvas, formats
from analysis.figures.atomic import write_atomically
from analysis.labels import duration
from analysis.report.answer import Answer
from analysis.report.answer.headed import Findings, headed, short
from analysis.report.html_tables import KINDS, sections
from analysis.report.methods import defined, pieces, rendered
from analysis.report.other_goals import BEGIN, END, Link
from analysis.report.table import DASH, Table, header, shown, with_goal
from analysis.report.take.citation import Citation
from analysis.report.take.latex import MOST_ROWS, latex
from analysis.report.templates import environment
from analysis.report.unfinished import marked

TEMPLATES = environment(Path(__file__).with_name("templates"), pieces=pieces)
KEYS = ["workload", "optimizer", "batch_size", "goal_metric", "goal_threshold", "definition"]
KEYS += ["repeat", "budget_multiple", "stage", "base_batch_size", "rule", "run"]
# Colours of the figures, by the names under which report.css gives each a light and a dark value.
VARIABLES = {canvas.INK: "ink", canvas.MUTED: "muted", canvas.GRID: "grid", canvas.PAPER: "card"}
VARIABLES |= {colour: f"curve-{number}" for number, colour in enumerate(canvas.COLOURS)}
VARIABLES |= {colour: f"ramp-{number}" for number, colour in enumerate(canvas.RAMP)}
MOST_FIGURES, MOST_BYTES = 60, 12_000_000
"""The most figures, and bytes of figures, on a page: keeps it below 15 MB. Further figures are linked."""
DERIVED = ["scaling", "fits", "critical_by_goal", "compare", "compare_workloads", "split", "tunability", "relative"]
DERIVED += ["rules", "noise_scale", "branched", "branched_losses"]
STEPS = "steps_to_result"
"""The tables whose numbers come from fits and models; in the table STEPS, those of the columns ESTIMATES do."""
DIGITS = 8
FIRST = "steps_to_result"
"""The kind of figure 1, which stands beside the answer."""


class Files(NamedTuple):
    """The files beside the page, which it links.

    Attributes:
        formats: of the figures, such as `svg`.
        more: the command that writes the figures as PDF, too; empty if they are there.
    """

    formats: Sequence[str]
    more: str = ""


@dataclass(frozen=True)
class ReportData:
    """The content of a report.

    Attributes:
        sentences: the findings, the conclusion first.
        warnings: the most serious first.
        tables: by name (`analysis.report.derived.tables`).
        studies: provenance, one record for each study; nested records are shown as `versions torch`.
        command: reproduces the studies.
        links: to reports on other goals, or back to the main one.
        answers: the first screen: one for each workload and goal, in the order of the panels of figure 1.
        compared: those of the findings that compare optimizers or workloads.
        citation, files: None without results folders.
        explorer: its section as HTML (Markup of `analysis.report.explorer.block`); empty without it.
        refresh: of `analysis.report.derived.Asked`.
    """

    title: str
    sentences: list[str]
    warnings: list[str]
    tables: Mapping[str, pd.DataFrame]
    studies: list[dict[str, Any]]
    command: str
    links: Sequence[Link] = ()
    answers: Sequence[Answer] = ()
    compared: Sequence[str] = ()
    citation: Citation | None = None
    files: Files | None = None
    explorer: str = ""
    refresh: int | None = None

    @property
    def heading(self) -> str:
        """The finding if there is one answer, else the title."""
        return self.answers[0].title if len(self.answers) == 1 else self.title


Drawn = Sequence[tuple[Chart, list[bytes]]]
"""Figures, each with an SVG for each of its panels."""


def write_report(folder: Path, data: ReportData, drawn: Drawn = (), tables: Sequence[Table] | None = None) -> Path:
    """Write `folder/report.html`, whole or not at all. The same data give the same bytes; arguments as for `page`.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_report(Path(folder), ReportData("Digits", ["Scaling ends."], [], {}, [], "")).name
    'report.html'
    """
    folder.mkdir(parents=True, exist_ok=True)
    return write_atomically(folder / "report.html", marked(page(data, drawn, tables), data.refresh).encode())


def write_tables(folder: Path, tables: Mapping[str, pd.DataFrame]) -> list[Path]:
    """Write each table as `folder/tables/NAME.csv`, rows sorted by the columns in KEYS.

    Measured numbers have full precision. Those of fits and models have DIGITS digits: the last bits differ between
    kinds of processors.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     (path,) = write_tables(Path(folder), {"cost": pd.DataFrame({"batch_size": [64, 8], "steps": [18, 106]})})
    ...     print(path.name, path.read_text().split())
    cost.csv ['batch_size,steps', '8,106', '64,18']
    """
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    written = []
    for name, table in tables.items():
        rows = table.sort_values([key for key in KEYS if key in table]) if len(table) else table
        rows = _rounded(name, rows)
        text = rows.to_csv(index=False, lineterminator="\n")
        written.append(write_atomically(folder / "tables" / f"{name}.csv", text.encode()))
    return written


def _rounded(name: str, table: pd.DataFrame) -> pd.DataFrame:
    estimates = ESTIMATES if name == STEPS else []
    columns = table.columns if name in DERIVED else table.columns.intersection(estimates)
    rounded = {column: [_in_digits(value) for value in table[column]] for column in columns}
    return table.assign(
        **{column: pd.Series(values, table.index, table[column].dtype) for column, values in rounded.items()}
    )


def _in_digits(value: Any) -> Any:
    """A float with DIGITS digits; other values as they are."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def write_latex(folder: Path, tables: Sequence[Table]) -> list[Path]:
    """Write each table of the page as `folder/tables/NAME.tex`; removes those of earlier reports that are gone.

    Arguments:
        tables: from `analysis.report.html_tables.sections`; longer ones than MOST_ROWS are left out.

    >>> from tempfile import TemporaryDirectory
    >>> table = shown(pd.DataFrame({"batch_size": [8]}), "Table 1. Cost.")._replace(name="cost")
    >>> with TemporaryDirectory() as folder:
    ...     [path.name for path in write_latex(Path(folder), [table])]
    ['cost.tex']
    """
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    written = []
    for table in (table for table in tables if len(table.rows) <= MOST_ROWS):
        caption = " ".join([table.title.partition(". ")[2], *([f"{'; '.join(table.facts)}."] if table.facts else [])])
        text = latex(caption, table.columns, [[cell.text for cell in row] for row in table.rows])
        written.append(write_atomically(folder / "tables" / f"{table.name}.tex", text.encode()))
    stems = {kind.stem for kind in KINDS}
    for path in {*(folder / "tables").glob("*.tex")} - {*written}:
        if path.stem.partition("-")[0] in stems:
            path.unlink()
    return written


def page(data: ReportData, drawn: Drawn = (), tables: Sequence[Table] | None = None) -> str:
    """The report as HTML; every name and sentence is escaped.

    Arguments:
        tables: `sections(data.tables)` if they are known.

    >>> data = ReportData("Digits", ["Scaling ends at 64 < 128."], [], {}, [], "")
    >>> "Scaling ends at 64 &lt; 128." in page(data)
    True
    """
    text = TEMPLATES.get_template("page.html.jinja").render(
        data=data,
        drawn=_figures(drawn, data),
        said=headed(data.sentences, data.answers),
        shown_notes=[short(warning, data.answers) for warning in data.warnings],
        tables=sections(data.tables) if tables is None else tables,
        provenance=_provenance(data.studies),
        most_rows=MOST_ROWS,
        methods=Markup(rendered()),  # not escaped: this project wrote the text
        begin=Markup(BEGIN),
        end=Markup(END),
    )
    return _only_own_scripts(text)


def _only_own_scripts(page: str) -> str:
    """Name the hash of each script of a page in its content security policy, so that no other one runs."""
    scripts = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    hashes = (b64encode(sha256(script.encode()).digest()).decode() for script in scripts)
    own = " ".join(dict.fromkeys(f"'sha256-{each}'" for each in hashes))
    return page.replace("script-src 'none'", f"script-src {own}", 1)


def link_section(links: Sequence[Link]) -> str:
    """The links between reports as HTML.

    >>> link_section([Link("goals/x/report.html", "loss < 1")])
    '<p class="links">Reports at other goals: <a href="goals/x/report.html">loss &lt; 1</a>.</p>\\n'
    """
    template = TEMPLATES.get_template("goals.html.jinja")
    return str(template.module.goal_links(links))  # type: ignore[attr-defined]


def notebook(said: Findings, answers: Sequence[Answer], steps: pd.DataFrame, warnings: str, report: Path | None) -> str:
    """Results as a notebook shows them, as HTML.

    Arguments:
        warnings: how many there are, as text.

    >>> notebook(Findings([], ["2 < 3"]), [], pd.DataFrame({"steps": [7]}), "", None).splitlines()[0]
    '<p>2 &lt; 3</p>'
    """
    table = Markup(steps.to_html(index=False, border=0))  # pandas escapes the cells
    template = TEMPLATES.get_template("notebook.html.jinja")
    return template.render(said=said, answers=answers, steps=table, warnings=warnings, report=report)


class Figure(NamedTuple):
    """A figure of the page.

    Attributes:
        target: the id of the definition of its title; None if there is none.
        panels: (label, SVG) of each panel; the SVG text starts at its `viewBox`.
        small: True to put three panels in a row, because they are many and simple.
        files: (format, path) of each of its files, relative to the page.
    """

    number: int
    title: str
    target: str | None
    about: str
    caption: str
    panels: list[tuple[str, Markup]]
    small: bool
    files: list[tuple[str, str]]

    @property
    def alone(self) -> bool:
        """True for one panel: two such figures share a row."""
        return len(self.panels) == 1


class Figures(NamedTuple):
    """The figures on the page, (file name, title) of each linked figure, and (title, needs) of each kind not drawn.

    Attributes:
        first: figure 1 if it stands beside the answers.
    """

    first: Figure | None
    shown: list[Figure]
    further: list[tuple[str, str]]
    missing: list[tuple[str, str]]


def _figures(drawn: Drawn, data: ReportData) -> Figures:
    figures: list[Figure] = []
    further: list[tuple[str, str]] = []
    size = 0
    for chart, svgs in drawn:
        if len(figures) < MOST_FIGURES and size + sum(map(len, svgs)) < MOST_BYTES:
            size += sum(map(len, svgs))
            figures.append(_figure(len(figures) + 1, chart, svgs, data.files))
        else:
            further.append((chart.name, chart.drawing.title + (f": {chart.about}" if chart.about else "")))
    there = {chart.drawing.title for chart, _ in drawn}
    kinds = FIGURES.values() if drawn else ()
    missing = [(kind.title, kind.needs) for kind in kinds if kind.title not in there]
    beside = bool(figures and data.answers and figures[0].title == FIGURES[FIRST].title)
    return Figures(figures[0] if beside else None, figures[beside:], further, missing)


def _figure(number: int, chart: Chart, svgs: list[bytes], files: Files | None) -> Figure:
    drawing, panels = chart.drawing, []
    for position, (panel, svg) in enumerate(zip(chart.panels, svgs, strict=True)):
        (first,) = with_goal(panel[drawing.table].iloc[:1][list(drawing.panel)]).to_dict("records")
        about = ", ".join(map(str, first.values()))
        panels.append((f"{drawing.title}: {about}", inline_svg(svg.decode(), f"{chart.name}-{position}-")))
    paths = [(form.upper(), f"figures/{chart.name}.{form}") for form in (files.formats if files else ())]
    target = defined(drawing.title)
    return Figure(number, drawing.title, target, chart.about, drawing.caption, panels, drawing.small, paths)


def inline_svg(svg: str, prefix: str) -> Markup:
    """An SVG file from its `viewBox` on, for use inside a page: ids prefixed, colours by the page's names, no size.

    Not escaped again: Matplotlib wrote and escaped the file.

    >>> svg = '<svg width="9pt" viewBox="0 0 9 9"><g id="line" style="stroke: #1b1b1f"/></svg>'
    >>> inline_svg(svg, "figure-1-").strip()
    Markup('viewBox="0 0 9 9"><g id="figure-1-line" style="stroke: var(--ink)"/></svg>')
    """
    body = formats.element(svg, prefix).replace("xlink:href", "href")
    for colour, variable in VARIABLES.items():
        body = body.replace(f": {colour}", f": var(--{variable})")
    return Markup(body)


class Provenance(NamedTuple):
    """How the studies were made: (name, value) of each entry that all share, and a table of the others."""

    same: list[tuple[str, str]]
    differing: Table | None


def _provenance(studies: list[dict[str, Any]]) -> Provenance:
    read = pd.json_normalize(studies, sep=" ")
    times = read.filter(regex="^seconds_")
    records = read.map(_plain).assign(**times.map(lambda seconds: DASH if pd.isna(seconds) else duration(seconds)))
    same = [name for name in records if len(records) and records[name].nunique() == 1]
    rest = records.assign(**times).drop(columns=same)  # times as numbers, to be sorted
    table = shown(rest, "What differs between runs.") if len(rest.columns) else None
    return Provenance([(header(name), records[name].iloc[0]) for name in same], table)


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return DASH if value == "" or pd.isna(value) else str(value)
