"""What is said of a value of another kind than its key takes: the key, the kind, the value, and an example."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING as NO_DEFAULT
from types import NoneType
from typing import Any, get_args, get_origin

from yaml import MarkedYAMLError, YAMLError

from study.config.composed.schema import MISSING, every_key
from study.errors import UsageError

KEYS = {name: (field, kind) for name, field, kind in every_key()}
"""Key -> its field and type."""
BRANCHES = {name[: dot.start()] for name in KEYS for dot in re.finditer(r"\.", name)}
"""Names of groups of keys, such as `search`."""
UNKNOWN = object()
NAMES = {int: "whole number", float: "number", str: "text"}
EXAMPLES = {int: "4", float: "2.5", str: "NAME", dict: "{learning_rate: 0.1}"}
"""Type -> a value that shows how it is given, where the schema has none."""
PLAIN = {int: r"[+-]?\d+", float: r"[+-]?[\d.]+(e[+-]?\d+)?"}
"""Type -> how a value of it is typed."""
HYDRAS = {"Integer": int, "Float": float, "bool": bool}
"""Type in Hydra's messages -> type."""
OF_ANOTHER_KIND = re.compile(
    rf"Value '(.*)' (?:of type '\w+' could not be converted to|is not a valid) ({'|'.join(HYDRAS)})\b"
)


def told(key: str, value: Any = UNKNOWN) -> str | None:
    """What to say of a value that the schema refuses at this key; None if the schema does not have the key.

    Arguments:
        value: UNKNOWN where Hydra does not tell it.

    >>> told("search.trials", "abc")
    'search.trials must be a whole number, but got abc; for example search.trials=100.'
    >>> told("search.refine[1]", "x")
    'each value of search.refine must be a whole number, but got x; for example search.refine=[4,4,4,4,3].'
    >>> told("budget", 5)
    'budget is a group of keys, but got 5; give one of them, such as budget.epochs=2.5.'
    """
    name, _, place = key.partition("[")
    got = "" if value is UNKNOWN else f", but got {as_typed(value)}"
    if name in BRANCHES:
        first = next(each for each in KEYS if each.startswith(f"{name}."))
        return f"{name} is a group of keys{got}; give one of them, such as {_example(first)}."
    if name not in KEYS:
        return None
    kind = KEYS[name][1]
    wanted = f"each value of {name} must be {_kind(get_args(kind)[0])}" if place else f"{name} must be {_kind(kind)}"
    return f"{wanted}{got}; for example {_example(name)}."


def told_of_launcher(key: str, message: str) -> str | None:
    """What to say of a value that the schema of a launcher refuses, by Hydra's message; None for other messages.

    >>> told_of_launcher("hydra.launcher.n_jobs", "Value 'x' of type 'str' could not be converted to Integer")
    'hydra.launcher.n_jobs must be a whole number, but got x.'
    """
    found = OF_ANOTHER_KIND.match(message)
    return found and f"{key} must be {_kind(HYDRAS[found[2]])}, but got {found[1]}."


def check_kinds(name: str, typed: str, values: Sequence[Any]) -> None:
    """Raise UsageError for a key of lists, or of names with values, that is given a value of another kind, and for one
    that is true or false and is given another number, which Hydra takes as true.

    Arguments:
        typed: the value as it was typed.
        values: the value, or those that are swept.

    >>> check_kinds("search.refine", "4,3", [4, 3])
    Traceback (most recent call last):
    ...
    study.errors.UsageError: search.refine must be a list of whole numbers, but got 4,3; give search.refine=[4,3].
    """
    kind = KEYS[name][1] if name in KEYS else None
    if get_origin(kind) in (list, dict) and name != "workload" and not all(_fits(each, kind) for each in values):
        raise UsageError(_said(name, typed, kind, values))
    if kind is bool and (numbers := [each for each in values if isinstance(each, int | float) and each not in (0, 1)]):
        raise UsageError(str(told(name, numbers[0])))


def check_ranges(given: Collection[str], space: Mapping[str, Any]) -> None:
    """Raise UsageError for a side of a range that choices hide.

    Arguments:
        given: the keys on the command line.
        space: `search.space` with all that was given.

    >>> check_ranges(["search.space.momentum.high"], {"momentum": {"high": 0.99, "choices": [0.0, 0.9]}})
    Traceback (most recent call last):
    ...
    study.errors.UsageError: search.space.momentum has the choices [0.0,0.9], so its high is not used; give either the \
choices or a whole range, such as search.space.momentum='{low: 0.1, high: 0.9}'.
    """
    for key in given:
        name, _, side = key.removeprefix("search.space.").partition(".")
        found = space.get(name) if key.startswith("search.space.") else None
        if side not in ("", "choices") and isinstance(found, Mapping) and found.get("choices") is not None:
            raise UsageError(
                f"search.space.{name} has the choices {as_typed(list(found['choices']))}, so its {side} is not used; "
                f"give either the choices or a whole range, such as search.space.{name}='{{low: 0.1, high: 0.9}}'."
            )


def _fits(value: Any, kind: Any) -> bool:
    """True if a value is a list or a mapping as the type is; whether its elements convert is checked by the schema."""
    if get_origin(kind) is dict:
        return isinstance(value, dict)
    nested = get_args(kind) != (Any,) and isinstance(value, list) and any(isinstance(each, list) for each in value)
    return isinstance(value, list) and not nested


def _said(name: str, typed: str, kind: Any, values: Sequence[Any]) -> str:
    """What to say of a comma list or a single value in place of a list: the same in brackets."""
    plain = PLAIN.get(get_args(kind)[0], r"[\w.-]+( tokens)?")
    if get_origin(kind) is dict or not all(re.fullmatch(plain, each) for each in typed.split(",")) or None in values:
        return str(told(name, typed))
    other = f" or batch_size={typed}" if name == "batch_sizes" else ""
    return f"{name} must be {_kind(kind)}, but got {typed}; give {name}=[{typed}]{other}."


def _kind(kind: Any) -> str:
    """A type in plain English.

    >>> _kind(list[int]), _kind(int | None), _kind(bool), _kind(list[Any])
    ('a list of whole numbers', 'a whole number or null', 'true or false', 'a list')
    """
    if get_origin(kind) is list:
        element = NAMES.get(get_args(kind)[0])
        return f"a list of {element}s" if element else "a list"
    if get_origin(kind) is dict:
        return "a set of names with values"
    if NoneType in get_args(kind):
        return f"{_kind(get_args(kind)[0])} or null"
    return "true or false" if kind is bool else f"a {NAMES[kind]}"


def _example(name: str) -> str:
    """A key with a value: the first of what its documentation suggests, its default, and what its documentation has."""
    field, kind = KEYS[name]
    default: Any = None if field.default_factory is NO_DEFAULT else field.default_factory()
    default = True if kind is bool else default if field.default is NO_DEFAULT else field.default
    suggested = re.search(r"such as `([^`]+)`", field.metadata["values"])
    legal = re.match(r"`([^`]+)`", field.metadata["values"])
    if not suggested and default not in (MISSING, None, {}):
        return f"{name}={as_typed(default)}"
    if found := suggested or legal:
        return found[1] if "." in found[1].partition("=")[0] and "=" in found[1] else f"{name}={found[1]}"
    return f"{name}={next(EXAMPLES[each] for each in (get_origin(kind), kind, *get_args(kind)) if each in EXAMPLES)}"


def as_typed(value: Any) -> str:
    """A value as a command line has it.

    >>> as_typed(None), as_typed(True), as_typed(""), as_typed([1, None])
    ('null', 'true', "''", '[1,null]')
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {as_typed(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(as_typed, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value) or "''"


def told_of_file(error: YAMLError) -> str:
    """What is wrong in a YAML file, with its place and the cure."""
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    mark = error.problem_mark
    cure = "" if "duplicate" in str(error.problem) else " Indent with spaces only, and keys of one level alike."
    return f"cannot read {mark.name}, line {mark.line + 1}, column {mark.column + 1}: {error.problem}.{cure}"
