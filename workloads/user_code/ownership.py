"""Which source files the user wrote: those that are neither Python's, nor of an installed package, nor ours."""

import csv
import site
import sysconfig
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = [ROOT / name for name in ("study", "workloads", "analysis", "conf")]
INSTALLED = {"site-packages", "dist-packages"}
"""Names of folders with installed packages. `pip install --target` makes such folders of any name."""


@lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Whether the user wrote this source file.

    >>> import torch
    >>> is_users("mine/moons.py"), is_users(torch.__file__), is_users(__file__)
    (True, False, False)
    """
    if file.startswith("<"):  # code without a file
        return False
    path = Path(file).resolve()
    if INSTALLED & set(path.parts) or any(map(path.is_relative_to, (*OURS, *_python()))):
        return False
    return not any(path.relative_to(folder).as_posix() in _installed(folder) for folder in path.parents)


@lru_cache(maxsize=1024)
def _installed(folder: Path) -> frozenset[str]:
    """The files below a folder that packages installed there have listed, relative to it."""
    found: set[str] = set()
    for record in folder.glob("*.dist-info/RECORD"):
        with record.open(newline="", encoding="utf-8", errors="replace") as lines:
            found.update(row[0] for row in csv.reader(lines) if row)
    return frozenset(found)


@lru_cache(maxsize=1)
def _python() -> list[Path]:
    """The folders of Python's own modules and of installed packages."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += [*site.getsitepackages(), site.getusersitepackages()]
    return [Path(path).resolve() for path in paths if path]
