"""The bytes of figures as SVG, PNG and PDF; several panels in one file. The same bytes on every run.

>>> figure = canvas.draw(lambda ax: None)
>>> svg(figure)[:5], svg_side_by_side([svg(figure)] * 2).count(b"<svg"), png_side_by_side([figure, figure])[1:4]
(b'<?xml', 3, b'PNG')
"""

import io
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from fontTools import subset
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from analysis.figures import canvas
from analysis.figures.atomic import write_atomically

DOTS = 192
"""Dots per inch of a PNG: two for each pixel of a page at 96."""
WHOLE, SMALL = "DejaVu Sans", "Batch Size Study Sans"
"""The font of figures, and its name without the scripts that they rarely need."""
OF_SMALL = ((0x20, 0x250), (0x370, 0x400), (0x2000, 0x2300), (0x25A0, 0x2600))
"""Ranges of the small font: Latin, Greek, punctuation, signs of mathematics and shapes."""


def svg(figure: Figure) -> bytes:
    """A figure as SVG; the same bytes on every run: no date, no version, no random id."""
    buffer = io.BytesIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with canvas.style():
        figure.savefig(buffer, format="svg", dpi=72, metadata=nothing)
    # The layout uses DejaVu Sans. The SVG names fonts that every system has; they are narrower, so nothing overlaps.
    fonts = (rb"(style=\"[^\"]*font[^\"]*?)'DejaVu Sans'[^;\"]*", rb"\1Helvetica, Arial, sans-serif")
    return re.sub(*fonts, buffer.getvalue())


def pdf(figures: Sequence[Figure]) -> bytes:
    """Figures as the pages of a PDF; the same bytes on every run.

    >>> figure = canvas.draw(lambda ax: None, total=3.25)
    >>> float(figure.get_size_inches()[0]), pdf([figure])[:5]
    (3.25, b'%PDF-')
    """
    buffer = io.BytesIO()
    nothing: Any = dict.fromkeys(("CreationDate", "Creator", "Producer"))
    names = _small_first()
    with canvas.style(), PdfPages(buffer, metadata=nothing) as pages:
        matplotlib.rcParams["font.family"] = names  # of ticks that are made while drawing
        for figure in figures:
            for text in figure.findobj(Text):
                text.set_fontfamily(names)
            figure.set_dpi(72)
            pages.savefig(figure)
    return buffer.getvalue()


def _small_first() -> list[str]:
    """Families for the texts of a PDF: the small font, then the whole one for what the small one lacks.

    A PDF holds the glyphs that it shows. To cut them out of the whole font takes longer than to draw a figure; out of
    the small one it takes a quarter of that. The small font is made once and kept with the caches of matplotlib, where
    they can be written.
    """
    folder = Path(matplotlib.get_cachedir())
    try:
        for weight in ("normal", "bold"):
            kept = folder / f"{SMALL}-{weight}-{matplotlib.__version__}.ttf".replace(" ", "-")
            if not kept.exists():
                whole = font_manager.findfont(font_manager.FontProperties(family=WHOLE, weight=weight))
                write_atomically(kept, _cut(whole))
            _add(kept)
    except OSError:  # a cache saves time; a report needs none
        return [WHOLE]
    return [SMALL, WHOLE]


@cache
def _add(font: Path) -> None:
    """Tell matplotlib of a font file, once."""
    font_manager.fontManager.addfont(font)


def _cut(font: str) -> bytes:
    """A font file with the characters of OF_SMALL alone, under the name SMALL."""
    options = subset.Options(glyph_names=True, name_IDs=["*"], drop_tables=["FFTM"])
    cutter, buffer = subset.Subsetter(options), io.BytesIO()
    cutter.populate(unicodes=[code for ends in OF_SMALL for code in range(*ends)])
    with subset.load_font(font, options) as made:
        cutter.subset(made)
        for record in made["name"].names:
            if record.nameID in (1, 16):  # the family, in its two forms
                record.string = SMALL
        made.save(buffer)
    return buffer.getvalue()


def svg_side_by_side(panels: Sequence[bytes]) -> bytes:
    """Join several SVGs into one, in rows of at most three."""
    boxes = [tuple(map(float, re.findall(rb'viewBox="0 0 ([\d.]+) ([\d.]+)"', panel)[0])) for panel in panels]
    places, (width, height) = _places(boxes)
    nested = [
        f'<svg x="{x:g}" y="{y:g}" width="{box[0]:g}" height="{box[1]:g}" {element(panel.decode(), f"panel-{i}-")}'
        for i, (panel, box, (x, y)) in enumerate(zip(panels, boxes, places, strict=True))
    ]
    size = f'width="{width:g}pt" height="{height:g}pt" viewBox="0 0 {width:g} {height:g}"'
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    text = f'<svg {size} {names}>\n<rect width="100%" height="100%" fill="{canvas.PAPER}"/>\n{"".join(nested)}</svg>\n'
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + text.encode()


def element(svg: str, prefix: str) -> str:
    """The text of an SVG after `<svg`, to embed it: from `viewBox` on, without size and style, with every id prefixed.

    >>> element('<svg width="9pt" viewBox="0 0 9 9"><g id="line"/></svg>', "panel-0-").strip()
    'viewBox="0 0 9 9"><g id="panel-0-line"/></svg>'
    """
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    svg = svg[svg.index("<svg") :]
    body = re.sub(r"<style.*?</style>", "", svg[svg.index(">") + 1 :], count=1, flags=re.DOTALL)
    body = re.sub(r'(\bid="|xlink:href="#|url\(#)', lambda match: match[1] + prefix, body)
    return f"{box[0]}>{body.strip()}\n"


def png_side_by_side(panels: Sequence[Figure]) -> bytes:
    """Join several figures into one PNG, in rows of at most three; the same bytes on every run."""
    images = [_image(figure) for figure in panels]
    places, size = _places([image.size for image in images])
    sheet = Image.new("RGB", (round(size[0]), round(size[1])), canvas.PAPER)
    for image, (x, y) in zip(images, places, strict=True):
        sheet.paste(image, (round(x), round(y)))
    buffer = io.BytesIO()
    sheet.save(buffer, "png", dpi=(DOTS, DOTS), compress_level=1)
    return buffer.getvalue()


def _image(figure: Figure) -> Image.Image:
    figure.set_dpi(DOTS)
    with canvas.style():
        agg = FigureCanvasAgg(figure)
        agg.draw()
    return Image.fromarray(np.asarray(agg.buffer_rgba())).convert("RGB")


def _places(sizes: Sequence[tuple[float, ...]]) -> tuple[list[tuple[float, float]], tuple[float, float]]:
    """(the upper left corners of boxes of these sizes in rows of at most three, the total size)."""
    columns = {1: 1, 2: 2, 4: 2}.get(len(sizes), 3)
    width, y = max(box[0] for box in sizes), 0.0
    places = []
    for first in range(0, len(sizes), columns):
        row = sizes[first : first + columns]
        places += [(i * width, y) for i in range(len(row))]
        y += max(box[1] for box in row)
    return places, (width * min(columns, len(sizes)), y)
