"""Tables, figures and warnings -> one HTML page that needs nothing beside it: no network, no server."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.atomic import write_atomically
from analysis.figures import FIGURES, Chart, canvas
from analysis.report.html_tables import DASH, header, sections, table_html
from analysis.report.methods import linked, rendered, title

KEYS = ["workload", "optimizer", "batch_size", "goal_metric", "goal_threshold", "definition"]
KEYS += ["repeat", "budget_multiple", "stage", "base_batch_size", "rule", "run"]
# Colours of the figures, by the names under which report.css gives each a light and a dark value.
VARIABLES = {canvas.INK: "ink", canvas.MUTED: "muted", canvas.GRID: "grid", canvas.PAPER: "card"}
VARIABLES |= {colour: f"curve-{number}" for number, colour in enumerate(canvas.COLOURS)}
VARIABLES |= {colour: f"ramp-{number}" for number, colour in enumerate(canvas.RAMP)}
MOST_FIGURES, MOST_BYTES = 60, 12_000_000
"""What a page holds; further figures are linked files. With tables and all, it stays below 15 MB."""
SCRIPT = """
for (const head of document.querySelectorAll("thead button")) head.onclick = () => {
  const cell = head.parentElement, body = cell.closest("table").tBodies[0];
  const down = cell.getAttribute("aria-sort") === "ascending";
  for (const other of cell.parentElement.cells) other.removeAttribute("aria-sort");
  cell.setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = row => row.cells[cell.cellIndex].dataset.key ?? row.cells[cell.cellIndex].textContent;
  body.append(...[...body.rows].sort((a, b) => {
    const x = key(a), y = key(b);
    if (x === "" || y === "") return (x === "") - (y === "");
    return (down ? -1 : 1) * (isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y);
  }));
};
onhashchange = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1)), fold = target?.closest("details");
  if (fold && !fold.open) { fold.open = true; target.scrollIntoView(); }
};
onbeforeprint = () => { for (const part of document.querySelectorAll("details")) part.open = true; };
"""


@dataclass(frozen=True)
class ReportData:
    """What a report says.

    Attributes:
        sentences: the findings in plain words, the conclusion first.
        warnings: the heaviest first.
        tables: by name (`analysis.report.build.tables`).
        studies: provenance, one record for each study; nested records are shown as `versions torch`.
        command: what reproduces all this.
    """

    title: str
    sentences: list[str]
    warnings: list[str]
    tables: Mapping[str, pd.DataFrame]
    studies: list[dict[str, Any]]
    command: str


Drawn = Sequence[tuple[Chart, list[bytes]]]
"""Figures, each with an SVG for each of its panels."""


def write_report(folder: Path, data: ReportData, drawn: Drawn = ()) -> Path:
    """Write `folder/report.html`, whole or not at all. The same data give the same bytes.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_report(Path(folder), ReportData("Digits", ["Scaling ends."], [], {}, [], "")).name
    'report.html'
    """
    folder.mkdir(parents=True, exist_ok=True)
    return write_atomically(folder / "report.html", page(data, drawn).encode())


def write_tables(folder: Path, tables: Mapping[str, pd.DataFrame]) -> list[Path]:
    """Write each as `folder/tables/NAME.csv`: full precision, rows sorted by names.

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
        text = rows.to_csv(index=False, lineterminator="\n")
        written.append(write_atomically(folder / "tables" / f"{name}.csv", text.encode()))
    return written


def page(data: ReportData, drawn: Drawn = ()) -> str:
    """The report as HTML; all that comes from outside is escaped.

    >>> data = ReportData("Digits", ["Scaling ends at 64 < 128."], [], {}, [], "")
    >>> "Scaling ends at 64 &lt; 128." in page(data)
    True
    """
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    lead, *others = data.sentences or ["Nothing has been measured yet."]
    parts = [
        f"<header><h1>{html.escape(data.title)}</h1><p class=lead>{linked(html.escape(lead))}</p>",
        *(f"<p>{linked(html.escape(sentence))}</p>" for sentence in others),
        "</header>",
        _warnings(data.warnings),
        _section("Figures", _figures(drawn)),
        _section("Tables", sections(data.tables)),
        _section("Provenance", _provenance(data.studies, data.command)),
        _section("Methods", f"<details><summary>What each number means</summary>{rendered()}</details>"),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # The browser itself is told to fetch nothing.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
        f"<title>{html.escape(data.title)}</title>\n<style>\n{style}</style></head>\n"
        f"<body><main>\n{''.join(parts)}\n</main><script>{SCRIPT}</script></body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f'<section id="{title.lower()}"><h2>{title}</h2>\n{content}</section>\n' if content else ""


def _warnings(warnings: list[str]) -> str:
    items = "".join(f"<li>{html.escape(warning)}</li>" for warning in warnings)
    return f'<section class="warnings"><h2>Warnings</h2><ol>{items}</ol></section>\n' if items else ""


def _figures(drawn: Drawn) -> str:
    """The figures, a panel an SVG so that narrow pages can stack them; those that are too many; what is missing."""
    shown: list[str] = []
    linked: list[Chart] = []
    for chart, svgs in drawn:
        figure = _figure(chart, svgs, len(shown) + 1) if len(shown) < MOST_FIGURES else ""
        if figure and sum(map(len, shown)) + len(figure) < MOST_BYTES:
            shown.append(figure)
        else:
            linked.append(chart)
    items = [f"<li>{title}: needs {html.escape(needs)}.</li>" for title, needs in _missing(drawn)] if drawn else []
    missing = f"<p>Not drawn from these results:</p><ul>{''.join(items)}</ul>" if items else ""
    return f'<div class="figures">{"".join(shown)}</div>{_links(linked)}<div class="missing">{missing}</div>'


def _missing(drawn: Drawn) -> list[tuple[str, str]]:
    """(title, what it needs) of every kind of figure that is not there."""
    there = {chart.drawing.title for chart, _ in drawn}
    return [(drawing.title, drawing.needs) for drawing in FIGURES.values() if drawing.title not in there]


def _links(charts: list[Chart]) -> str:
    items = "".join(f'<li><a href="figures/{chart.name}.svg">{_title(chart)}</a></li>' for chart in charts)
    return f"<p>Further figures, in files of their own:</p><ul>{items}</ul>" if items else ""


def _title(chart: Chart) -> str:
    return html.escape(chart.drawing.title + (f": {chart.about}" if chart.about else ""))


def _figure(chart: Chart, svgs: list[bytes], number: int) -> str:
    panels = []
    for position, (panel, svg) in enumerate(zip(chart.panels, svgs, strict=True)):
        first = panel[chart.drawing.table].iloc[0]
        about = ", ".join(str(first[name]) for name in chart.drawing.panel)
        panels.append(inline_svg(svg.decode(), f"{chart.name}-{position}-", f"{chart.drawing.title}: {about}"))
    heading = title(html.escape(chart.drawing.title)) + html.escape(f": {chart.about}" if chart.about else "")
    caption = f"<b>Figure {number}. {heading}.</b> {linked(html.escape(chart.drawing.caption))}"
    return (
        f"<figure{' class=wide' if len(panels) > 1 else ''}>"
        f'<div class="panels{" small" if chart.drawing.small else ""}">{"".join(panels)}</div>'
        f"<figcaption>{caption}</figcaption></figure>\n"
    )


def inline_svg(svg: str, prefix: str, label: str) -> str:
    """An SVG file as an element of a page: ids prefixed, colours by name to follow the page's, no size.

    >>> svg = '<svg width="9pt" viewBox="0 0 9 9"><g id="line" style="stroke: #1b1b1f"/></svg>'
    >>> inline_svg(svg, "figure-1-", "Steps").strip()
    '<svg role="img" aria-label="Steps" viewBox="0 0 9 9"><g id="figure-1-line" style="stroke: var(--ink)"/></svg>'
    """
    body = canvas.element(svg, prefix).replace("xlink:href", "href")
    for colour, variable in VARIABLES.items():
        body = body.replace(f": {colour}", f": var(--{variable})")
    return f'<svg role="img" aria-label="{html.escape(label)}" {body}'


def _provenance(studies: list[dict[str, Any]], command: str) -> str:
    """The command, and in a fold what was recorded: once where it is the same in all runs, else as a table."""
    records = pd.json_normalize(studies, sep=" ").map(_plain)
    same = [name for name in records if len(records) and records[name].nunique() == 1]
    facts = "".join(f"<dt>{header(name)}</dt><dd>{html.escape(records[name].iloc[0])}</dd>" for name in same)
    rest = records.drop(columns=same)
    run = f"<p>To reproduce this report:</p><pre><code>{html.escape(command)}</code></pre>\n"
    table = table_html(rest, "What differs between runs.") if len(rest.columns) else ""
    summary = "<summary>Versions, devices, seeds and times</summary>"
    fold = f"<details>{summary}\n<dl>{facts}</dl>{table}</details>"
    return (run if command else "") + (fold if studies else "")


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return DASH if value == "" or pd.isna(value) else str(value)
