"""Which source files the user wrote: those that are neither Python's, nor of an installed package, nor ours."""

import site
import sysconfig
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = [ROOT / name for name in ("study", "workloads", "analysis", "conf")]
INSTALLED = {"site-packages", "dist-packages"}
"""Names of folders with installed packages."""


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
    return not INSTALLED & set(path.parts) and not any(map(path.is_relative_to, (*OURS, *_python())))


@lru_cache(maxsize=1)
def _python() -> list[Path]:
    """The folders of Python's own modules and of installed packages."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += [*site.getsitepackages(), site.getusersitepackages()]
    return [Path(path).resolve() for path in paths if path]
