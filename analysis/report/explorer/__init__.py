"""The explorer of a report: charts and a table of trials that answer the mouse and the keyboard.

`data` rounds and thins tables, `templates/explorer.js` draws them with uPlot (`vendored/uplot`, MIT licence). Without
JavaScript the section stays hidden.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pandas as pd
from markupsafe import Markup

from analysis.report.explorer.data import payload
from analysis.report.templates import environment

HERE = Path(__file__).parent
TEMPLATES = environment(HERE / "templates")
TEXTS = {
    "styles": ["vendored/uplot/uPlot.min.css", "templates/explorer.css"],
    "library": ["vendored/uplot/uPlot.iife.min.js"],
    "script": ["templates/charts.js", "templates/explorer.js"],
}
"""Parts of the section that are files as they are: part -> files."""


def block(tables: Mapping[str, pd.DataFrame]) -> Markup:
    """The section of a page as HTML, with its data, styles and scripts; empty if no trial has a known error.

    Arguments:
        tables: by name (`analysis.report.derived.tables`): steps_to_result, trials, learning_curves and axes.

    >>> block({})
    Markup('')
    """
    data = payload(tables)
    if not data["panels"]:
        return Markup("")
    texts = {name: Markup("\n".join(map(_text, files))) for name, files in TEXTS.items()}
    template = TEMPLATES.get_template("explorer.html.jinja")
    return Markup(template.render(data=embedded(data), counts=data["counts"], **texts))


def embedded(data: object) -> Markup:
    r"""Data as compact JSON that cannot end the script element around it.

    >>> embedded({"name": "</script>", "errors": [0.5, None]})
    Markup('{"name":"\\u003c/script>","errors":[0.5,null]}')
    """
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


@cache
def _text(file: str) -> str:
    return (HERE / file).read_text(encoding="utf-8").strip()
