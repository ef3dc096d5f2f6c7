"""Workloads and other objects of users by their import paths."""

import importlib
import inspect
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from workloads.base import Workload
from workloads.suggest import suggest
from workloads.user_code.errors import summary, text_of, user_line

OWN: list[str] = []
"""The folders that users gave for their modules."""


def importable(folder: Path | None) -> None:
    """Put the user's folder last on sys.path, so that their workloads and optimizers can be imported.

    Last, because modules in it may have the names of ours or of installed ones.
    """
    if folder is not None:
        OWN.append(str(folder.resolve()))
        if OWN[-1] not in sys.path:
            sys.path.append(OWN[-1])


def imported(path: str, rule: str) -> Any:
    """The object at an import path. Raises ValueError if it cannot be imported; the message begins with `rule`."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # a user's module may raise anything
        raise ValueError(f"{rule}, but got {path!r}: {_told(error)}. {_import_cure(module)}") from error


def _told(error: Exception) -> str:
    """The error; if a line of the user's module led to it, with its kind and that line."""
    where = "" if isinstance(error, SyntaxError) else user_line(error)
    return f"{summary(error)}{where}" if where else text_of(error)


def _import_cure(module: str) -> str:
    """The advice after a failed import: rename a module that another one hides, look into its file, or give its
    folder."""
    name = module.partition(".")[0]
    imported, file = sys.modules.get(name), None
    places = {getattr(imported, "__file__", None), *getattr(imported, "__path__", [])}
    for folder in reversed(sys.path):  # the last are the user's: --config-dir, the current one, then PYTHONPATH
        spec = PathFinder.find_spec(name, [folder])
        own = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
        if imported and own and own not in places:
            return f"{own} has the name of {getattr(imported, '__file__', None) or 'a module of Python'}: rename it."
        file = own or file
    if file := getattr(imported, "__file__", None) or file:
        return f"The module {name} is {file}."
    if OWN:
        return f"There is no module {name} in {OWN[-1]}."
    return "If the class is in your own folder, pass that folder with --config-dir."


def build(config: Mapping[str, Any]) -> Workload:
    """The workload of a recorded configuration: `_target_` is an import path, the other keys are its arguments.

    Raises:
        ValueError: the path cannot be imported, or the constructor refuses an argument.
    """
    arguments: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in config.items()
    }
    path = str(arguments.pop("_target_", None))
    rule = "workload._target_ must be an importable class"
    constructor = imported(path, rule)
    try:
        known = inspect.signature(constructor).parameters
    except (TypeError, ValueError) as error:  # not callable, or of compiled code
        raise ValueError(f"{rule}, but {path} is {constructor!r:.80}.") from error
    for key in arguments:
        if key not in known and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
            there = suggest(key, known) if known else ", and no other; is it a class without @dataclass or __init__?"
            raise ValueError(f"{path} takes no argument {key!r}{there}")
    try:
        return constructor(**arguments)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{path} refused its arguments: {_told(error)}") from error
