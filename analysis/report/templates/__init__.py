"""The templates of the page, and how any folder of templates is read."""

from collections.abc import Callable
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def environment(folder: Path, autoescape: bool = True, **functions: Callable[..., object]) -> Environment:
    """The templates of a folder, with these functions by name; an unknown name in a template is an error.

    >>> environment(Path(), shout=str.upper).from_string("{{ shout('a < b') }}").render()
    'A &lt; B'
    """
    made = Environment(loader=FileSystemLoader(folder), autoescape=autoescape, undefined=StrictUndefined)
    made.trim_blocks = made.lstrip_blocks = True
    made.globals.update(functions)
    return made
