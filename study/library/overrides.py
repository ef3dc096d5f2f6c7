"""Keyword arguments of Python as overrides of the command line, so that both ask for the same by the same schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from study.config.composed.choices import GROUPS
from study.config.composed.kinds import BRANCHES, told
from study.config.composed.overrides import quoted
from study.config.composed.paths import expanded
from study.config.composed.schema import every_key
from study.errors import UsageError

LISTS = {"track", *(name for name, _, kind in every_key() if "list" in str(kind))}
"""Keys whose value may be a list."""
OPEN = ("workload", "search.space", "optimizer.arguments")
"""Branches whose entries are the user's own: each entry is one value, which may be a list or a mapping."""
PLAIN = re.compile(r"[A-Za-z_][\w./-]*")
WORDS = {"true", "false", "null", "nan", "inf"}
"""Words that are no text in Hydra's grammar, in small or capital letters."""


def overrides(settings: Mapping[str, Any], further: str | Sequence[str] = ()) -> list[str]:
    """One override `key=value` for each setting.

    A list sweeps a key that takes one value; for other keys, such as `batch_sizes`, it is the value, and a value by
    itself stands for a list of one. A mapping stands for the keys below its own: `{"search": {"trials": 20}}` is
    `{"search.trials": 20}`.

    Arguments:
        settings: keys may have dots.
        further: overrides as on the command line; a text is one.

    Raises:
        UsageError: a value is of a kind that no setting has, or an override is no text.

    >>> overrides({"optimizer": ["sgd", "momentum"], "batch_sizes": [8, 64], "search": {"trials": 20}})
    ['optimizer=sgd,momentum', 'batch_sizes=[8,64]', 'search.trials=20']
    >>> overrides({"goal": "val/loss < 1", "search.space.learning_rate": {"low": 0.01}, "engine.workers": None})
    ["goal='val/loss < 1'", 'search.space.learning_rate={low: 0.01}', 'engine.workers=null']
    """
    further = [further] if isinstance(further, str) else further
    if not isinstance(further, list | tuple) or not all(isinstance(each, str) for each in further):
        raise UsageError(f"overrides must be a list of texts, such as ['search.trials=20'], but got {further!r}.")
    found = (pair for key, value in settings.items() for pair in _flat(key, value))
    return [*(f"{key}={_text(key, value)}" for key, value in found), *further]


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of a setting, one for each key below it if it is a mapping."""
    if isinstance(value, Mapping) and (key in BRANCHES or key in OPEN or key in GROUPS or key.startswith("hydra")):
        for name, below in value.items():
            yield from _flat(f"{key}.{name}", below)
    else:
        yield key, value


def _text(key: str, value: Any) -> str:
    """The value of a key in Hydra's grammar."""
    value = _without_arrays(value)
    sweeps = key not in LISTS and not key.startswith(tuple(f"{branch}." for branch in (*OPEN, "hydra")))
    if sweeps and isinstance(value, list | tuple | range):
        if not value:
            raise UsageError(f"{key} must have at least one value, but got {value!r}.")
        return ",".join(_value(key, each) for each in value)
    if key in LISTS and isinstance(value, Mapping):
        raise UsageError(str(told(key, value)))
    single = key in LISTS - {"track"} and not isinstance(value, list | tuple | range | Mapping | None)
    return _value(key, [value] if single else value)


def _value(key: str, value: Any) -> str:
    value = _without_arrays(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | PurePath):
        text = expanded(str(value))
        return text if PLAIN.fullmatch(text) and text.lower() not in WORDS else quoted(text)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_value(key, str(name))}: {_value(key, each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple | range):
        return "[" + ",".join(_value(key, each) for each in value) + "]"
    if key == "optimizer" and isinstance(value, type):
        target = f"{value.__module__}.{value.__qualname__}"
        raise UsageError(
            f"optimizer must be a name, but got the class {value.__name__}; give optimizer='torch' and "
            f"overrides=['optimizer.target={target}'] (docs/guide/own-optimizer.md)."
        )
    raise UsageError(
        f"{key} must be a number, a text, true or false, None, a list or a dictionary of these, but got {value!r}."
    )


def _without_arrays(value: Any) -> Any:
    """Numbers and lists in place of those of NumPy, torch and pandas."""
    return value.tolist() if hasattr(value, "tolist") else value
