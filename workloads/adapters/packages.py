"""Packages that not every installation has, and files that must be on this machine."""

import importlib
from pathlib import Path
from typing import Any

from workloads.data.fetching import DataError


def package(name: str, cure: str = "pip install 'batch-size-study[adapters]'") -> Any:
    """The package. Raises DataError if it is not installed, with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(f"the workload needs the package {name}, which is not here ({error}): {cure}.") from error


def require_local(key: str, path: str, file: str | None = None) -> None:
    """Raise DataError unless this path is here, and holds `file` if it is given."""
    if not (Path(path) / (file or "")).exists():
        what = f"a folder with a {file}" if file else "a file or folder"
        raise DataError(
            f"{key} must be {what} on this machine, but got {path!r}, seen from {Path.cwd()}; nothing is downloaded. "
            "Download it once with the library that it is for, save it, and give its path."
        )
