"""A workload object as workers build it: the import path of its class, and the arguments of its constructor."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.labels import listed
from study.errors import UsageError

REQUIRED = ("name", "train_examples")
MEMBERS = ("errors", "hyperparameters", "splits", "model", "loss")
"""What every workload has (`workloads.base.Workload`), which is not imported here: it takes torch."""


@dataclass(frozen=True)
class OwnWorkload:
    """An object of a user's class as studies record it.

    Attributes:
        arguments: `_target_` and the arguments of the constructor, as a YAML file would give them.
        folder: from which worker processes import the class.
    """

    arguments: Mapping[str, Any]
    folder: Path | None

    @classmethod
    def of(cls, workload: Any) -> OwnWorkload:
        """The record of a workload, from which other processes build an equal one.

        The class must be one of a module, because worker processes import it from there, and its code is fingerprinted
        there. Each argument of its constructor is read from the attribute of the same name, as those of dataclasses
        are.

        Raises:
            UsageError: it is no workload, its class cannot be imported, or an argument is unknown or cannot be
                recorded.
        """
        kind = type(workload)
        if isinstance(workload, type):
            name = workload.__name__
            raise UsageError(
                f"workload must be an object, such as {name}(name=..., train_examples=...), but got the class {name}."
            )
        _check_members(workload)
        _check_importable(kind)
        arguments = {name: _argument(workload, name) for name in _parameters(kind)}
        if missing := [name for name in REQUIRED if name not in arguments]:
            raise UsageError(f"the constructor of {kind.__name__} must take {' and '.join(missing)}.")
        _check_rebuilt(workload, arguments)
        return cls({"_target_": f"{kind.__module__}.{kind.__qualname__}", **arguments}, _folder(kind))

    @property
    def name(self) -> str:
        """The name by which `workload=` chooses it."""
        return re.sub(r"\W", "_", str(self.arguments["name"]))

    @property
    def call(self) -> str:
        """The object as Python code.

        >>> OwnWorkload({"_target_": "moons.Moons", "name": "moons", "train_examples": 2000}, None).call
        "moons.Moons(name='moons', train_examples=2000)"
        """
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items() if name != "_target_")
        return f"{self.arguments['_target_']}({given})"


def _folder(kind: type) -> Path | None:
    """The folder from which a class is imported; None if its module has no file."""
    module = sys.modules[kind.__module__]
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    return Path(file).resolve().parents[module.__name__.count(".") + (Path(file).name == "__init__.py")]


def _check_members(workload: Any) -> None:
    """Raise UsageError for what is no workload at all, such as a number, and for an object without its members."""
    kind = type(workload)
    missing = [name for name in MEMBERS if not hasattr(kind, name) and not hasattr(workload, name)]
    plain = kind.__module__ == "builtins"
    if len(missing) == len(MEMBERS) or plain:
        got = repr(workload) if plain else f"an object of {kind.__name__}"
        raise UsageError(
            "workload must be a name, such as 'mlp_digits', an object that has the members of a workload "
            f"({', '.join(MEMBERS)}), or a list of these, but got {got}."
        )
    if not missing:
        return
    from workloads.command import Command  # takes torch

    if not isinstance(workload, Command):
        raise UsageError(f"a workload must have {listed(MEMBERS)}, but {kind.__name__} has no {listed(missing, 'or')}.")


def _check_importable(kind: type) -> None:
    name = kind.__name__
    if kind.__module__ == "__main__":
        notebook = not hasattr(sys.modules["__main__"], "__file__")
        file = f"{name.lower()}.py"
        cure = f"move it, with its imports, into a file of its own, such as {file}, and write"
        if notebook:
            cure = f"put %%writefile {file} on the first line of its cell, with its imports below, run the cell, then"
        raise UsageError(
            f"{name} is defined in {'this notebook' if notebook else 'the program itself'}, which worker processes "
            f"cannot import: {cure} `from {name.lower()} import {name}`."
        )
    if "." in kind.__qualname__:
        where = "a function" if "<locals>" in kind.__qualname__ else "another class"
        raise UsageError(
            f"{name} is defined inside {where}, where worker processes cannot import it: move it to the top of "
            f"its module {kind.__module__}."
        )


def _parameters(kind: type) -> list[str]:
    """The names of the arguments of a constructor. Raises UsageError for arguments without a name."""
    found = inspect.signature(kind).parameters.values()
    for each in found:
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD, each.POSITIONAL_ONLY):
            raise UsageError(
                f"the constructor of {kind.__name__} takes {each}, but a study records each argument by its name: list "
                "them, or make the class a dataclass."
            )
    return [each.name for each in found]


def _argument(workload: Any, name: str) -> Any:
    kind = type(workload).__name__
    if not hasattr(workload, name):
        raise UsageError(
            f"a {kind} has no attribute {name!r}, so that its argument {name} is unknown: make the class a dataclass, "
            f"or let its constructor set self.{name}."
        )
    return _plain(getattr(workload, name), f"{kind}.{name}")


def _check_rebuilt(workload: Any, arguments: Mapping[str, Any]) -> None:
    """Raise UsageError if workers, which build the object again from its arguments, would build another one: its
    constructor changes an argument, or a setting was given to it later."""
    kind = type(workload)
    try:
        again = kind(**arguments)
    except Exception as error:
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        raise UsageError(
            f"worker processes build the workload as {kind.__name__}({given}), from its attributes, but that raises "
            f"{type(error).__name__}: {error}; let the constructor keep each argument as it was given."
        ) from error
    for name, value in arguments.items():
        if not _same(now := _argument(again, name), value):
            raise UsageError(
                f"{kind.__name__}.{name} must be the argument as it was given, from which worker processes build the "
                f"workload again, but {kind.__name__}({name}={value!r}) has {name} = {now!r}; keep what the "
                "constructor makes of it under another name."
            )
    for name, value in vars(workload).items():
        now = getattr(again, name, None)
        if name not in arguments and _is_setting(value) and _is_setting(now) and not _same(now, value):
            raise UsageError(
                f"{kind.__name__}.{name} is {value!r}, but worker processes build the workload again, and its "
                f"constructor sets {name} = {now!r}; make {name} an argument of the constructor."
            )


def _same(a: Any, b: Any) -> bool:
    return bool(a == b or (a != a and b != b))  # NaN


def _is_setting(value: Any) -> bool:
    """Whether a value is a number, a text, true or false; other attributes may be made again each time."""
    return isinstance(value, bool | int | float | str)


def _plain(value: Any, name: str) -> Any:
    """A value as a YAML file holds it. Raises UsageError if a file cannot hold it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each, name) for each in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(each, name) for key, each in value.items()}
    raise UsageError(
        f"{name} must be a number, a text, true or false, None, a list or a dictionary of these, which studies record, "
        f"but got {value!r}; give the class such arguments, and let it make the rest of them."
    )
