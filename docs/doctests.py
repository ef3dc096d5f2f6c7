"""Shows the examples of docstrings as code: an extension of griffe, which reads the docstrings for mkdocstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?! *$).+)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts each `>>>` example, up to the next blank line, into a fenced block."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(match: re.Match[str]) -> str:
    return f"{match[1]}```pycon\n{match[0]}\n{match[1]}```"
