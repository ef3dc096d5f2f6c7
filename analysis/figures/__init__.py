"""Draw tables: one function `(ax, table)` for each kind of figure, registered in `FIGURES`.

A drawing computes only positions. `charts` splits the tables into figures and their panels, `draw` draws each panel,
`save` writes the files for a paper.

`analysis.report.derived.tables` makes the tables and defines their names.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import canvas
from analysis.figures.atomic import write_atomically
from analysis.figures.formats import pdf, png_side_by_side, svg, svg_side_by_side
from analysis.figures.registry import FIGURES, Drawing
from analysis.labels import goal_text
from analysis.load import rows_with
from analysis.parallel import spread
from analysis.tables.steps_to_result import points

MANY_PANELS = 48
FORMATS = ("svg", "png", "pdf")
Tables = Mapping[str, pd.DataFrame]


class Files(NamedTuple):
    """The files of each figure.

    Attributes:
        formats: some of FORMATS. A PDF has a page for each panel, with its fonts embedded as TrueType (type 42).
        width: of each page of a PDF [inches], such as the column of a journal; None: as in the other formats.
    """

    formats: Sequence[str] = ("svg", "png")
    width: float | None = None


USUAL = Files()
COLUMN = 3.25
"""Width of a column of most journals [inches]."""


class Chart(NamedTuple):
    """One figure.

    Attributes:
        name: the unique name of its files, without suffix.
        drawing: its kind.
        about: its workload, optimizer and goal if its kind has one figure for each of them; else empty.
        panels: for each panel, its rows of each table by the name of the table: the drawn one and the overlays.
    """

    name: str
    drawing: Drawing
    about: str
    panels: list[dict[str, pd.DataFrame]]


def charts(tables: Tables, names: Sequence[str] = tuple(FIGURES)) -> list[Chart]:
    """Every figure that these tables allow, kind by kind; for a missing kind see `FIGURES[name].needs`.

    >>> steps = pd.read_csv(f"{published}/tables/steps_to_result.csv")
    >>> [chart.name for chart in charts({"steps_to_result": steps})][:3]
    ['steps_to_result', 'examples_to_result', 'time_and_examples']
    """
    return [chart for name in names for chart in _charts(name, FIGURES[name], tables)]


def _charts(name: str, drawing: Drawing, tables: Tables) -> Iterator[Chart]:
    table = tables.get(drawing.table)
    if table is None or (table := points(table)).empty or (table := drawing.rows(table)).empty:
        return
    names = table["optimizer"].astype(str)
    # Each optimizer keeps its colour in every panel.
    table = table.assign(optimizer=pd.Categorical(names, categories=list(dict.fromkeys(names))))
    for key, part in _groups(table, drawing.figure):
        about = f"{key[0]}, {key[1]}, {goal_text(key[2], key[3])}" if key else ""
        slug = "-".join(re.sub(r"[^\w.-]+", "_", str(part)) for part in key)
        yield Chart(f"{name}-{slug}" if key else name, drawing, about, list(_panels(drawing, part, tables)))


def _panels(drawing: Drawing, table: pd.DataFrame, tables: Tables) -> Iterator[dict[str, pd.DataFrame]]:
    overlays = {name: tables[name] for name in drawing.overlays if name in tables}
    for key, part in _groups(table, drawing.panel):
        cut = {name: rows_with(t, drawing.panel, key) for name, t in overlays.items()}
        yield {drawing.table: part, **cut}


def _groups(table: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[tuple, pd.DataFrame]]:
    return table.groupby(list(by), sort=False, observed=True).__iter__() if by else iter([((), table)])


def draw(chart: Chart, width: float | None = None) -> list[Figure]:
    """Draw each panel of a chart as a separate figure, of this width [inches] if it is given.

    >>> steps = pd.read_csv(f"{published}/tables/steps_to_result.csv")
    >>> (chart,) = charts({"steps_to_result": steps}, ["steps_to_result"])
    >>> draw(chart)[0].axes[0].get_xlabel()
    'batch size (examples)'
    """
    drawing = chart.drawing
    return [canvas.draw(partial(draw_panel, drawing, panel), drawing.small, width) for panel in chart.panels]


def draw_panel(drawing: Drawing, panel: Tables, ax: Axes) -> None:
    """Draw one panel of a chart on axes.

    >>> steps = pd.read_csv(f"{published}/tables/steps_to_result.csv")
    >>> draw_panel(FIGURES["steps_to_result"], {"steps_to_result": steps}, ax)
    >>> ax.get_xlabel()
    'batch size (examples)'
    """
    overlays = {name: panel[name] for name in drawing.overlays if name in panel}
    drawing.draw(ax, panel[drawing.table], **overlays)


def save_all(found: Sequence[Chart], folder: Path, files: Files = USUAL) -> list[tuple[Chart, list[bytes]]]:
    """`save` each chart, in several processes if there are many panels.

    Removes figures of earlier reports that are not among these charts, and those in formats that are not among `files`.

    Returns:
        (chart, an SVG for each panel) for each chart.

    >>> from tempfile import TemporaryDirectory
    >>> steps = pd.read_csv(f"{published}/tables/steps_to_result.csv")
    >>> with TemporaryDirectory() as folder:
    ...     drawn = save_all(charts({"steps_to_result": steps}, ["steps_to_result", "best_momentum"]), Path(folder))
    >>> [(chart.name, len(svgs)) for chart, svgs in drawn]
    [('steps_to_result', 1), ('best_momentum', 1)]
    """
    panels = sum(len(chart.panels) for chart in found)
    drawn = list(spread(partial(save, folder=folder, files=files), found, if_at_least=MANY_PANELS, size=panels))
    _remove_others(folder, {f"{chart.name}.{form}" for chart in found for form in files.formats})
    return list(zip(found, drawn, strict=True))


def usual(found: Sequence[Chart]) -> Files:
    """The files of a report on these charts: PDFs, which take as long as the others together, only if panels are few.

    >>> usual([]).formats
    ('svg', 'png', 'pdf')
    """
    few = sum(len(chart.panels) for chart in found) < MANY_PANELS
    return Files(FORMATS, COLUMN) if few else USUAL


def _remove_others(folder: Path, names: set[str]) -> None:
    """Remove figures of an earlier report that this report does not draw."""
    for path in folder.glob("*"):
        ours = path.suffix[1:] in FORMATS and path.stem.partition("-")[0] in FIGURES
        if ours and path.name not in names:
            path.unlink()


def save(chart: Chart, folder: Path, files: Files = USUAL) -> list[bytes]:
    """Write `folder/NAME.svg` and `.png` (192 dpi), panels side by side; returns an SVG for each panel.

    >>> from tempfile import TemporaryDirectory
    >>> steps = pd.read_csv(f"{published}/tables/steps_to_result.csv")
    >>> with TemporaryDirectory() as folder:
    ...     svgs = save(charts({"steps_to_result": steps}, ["steps_to_result"])[0], Path(folder))
    ...     print(len(svgs), *sorted(path.name for path in Path(folder).iterdir()))
    1 steps_to_result.png steps_to_result.svg
    """
    figures = draw(chart)
    svgs = [svg(figure) for figure in figures]
    folder.mkdir(parents=True, exist_ok=True)
    made = {
        "svg": lambda: svg_side_by_side(svgs),
        "png": lambda: png_side_by_side(figures),
        "pdf": lambda: pdf(draw(chart, files.width)),
    }
    for form in files.formats:
        write_atomically(folder / f"{chart.name}.{form}", made[form]())
    return svgs
