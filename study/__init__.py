"""The measuring instrument: studies propose trials, workers turn trials into curves, the store keeps them on disk.

From Python (docs/guide/python.md): `sweep`, `plan` and `results`; they raise `Refused` and `Failed`. They are imported
when they are first used, so that `import study` takes no time.
"""

import importlib
from typing import Any

from study.shadowing import import_ours

import_ours()

_FACE = {
    "sweep": "study.library.calls",
    "plan": "study.library.calls",
    "results": "study.library.calls",
    "Refused": "study.errors",
    "Failed": "study.errors",
}
"""Name of the library -> its module."""


def __getattr__(name: str) -> Any:
    if name not in _FACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_FACE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_FACE])
