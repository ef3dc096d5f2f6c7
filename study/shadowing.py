"""Keep the user's modules from hiding ours: a folder may hold `analysis.py`, `workloads/` or `random.py` of its own.

Imports nothing that Python has not already imported at its start, because the current folder may hide the rest.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder of our packages."""


def look_in_current_folder_last() -> None:
    """Move the current folder, which `python -m` and PYTHONPATH=. put first, behind everything installed.

    This program's own folder goes before it, also where an import hook or the current folder led to it, and before any
    other copy: of a clone run by `python -m` where another version is installed, workers would import the latter.
    Processes that start later get the same order, and `workloads.user_code.importing` appends the folder of
    --config-dir.
    """
    first = [sys.path.pop(0)] if _is_current(sys.path[0]) else []
    first += [folder for folder in sys.path if _is_current(folder) and not _is_ours(folder)]
    sys.path[:] = [folder for folder in sys.path if _is_ours(folder) or not _is_current(folder)]
    place = min(map(sys.path.index, _other_copies()), default=len(sys.path))
    if OURS not in sys.path[:place]:
        sys.path.insert(place, OURS)
    sys.path += [folder for folder in first[:1] if folder not in sys.path]


def import_ours() -> None:
    """Import our other packages from our folder, whatever sys.path puts before it; their modules then follow.

    Raises:
        ImportError: another module of such a name is already imported.
    """
    for name in ("analysis", "workloads"):
        ours = PathFinder.find_spec(name, [OURS])
        if ours is None or ours.loader is None:
            continue  # a partial copy; the import that needs the package says so
        if name in sys.modules:
            if (place := getattr(sys.modules[name], "__file__", None)) != ours.origin:
                raise ImportError(f"{place} has the name of {ours.origin}: rename it, or import study before it.")
            continue
        sys.modules[name] = module_from_spec(ours)
        ours.loader.exec_module(sys.modules[name])


def environment() -> dict[str, str]:
    """Variables for new processes of Python: they too look in the current folder last, and import this copy of the
    package, from their first import on."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [folder for folder in folders if folder and (_is_ours(folder) or not _is_current(folder))]
    kept = [OURS, *kept] if _other_copies() else kept
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(kept)}


def hidden_modules() -> list[str]:
    """Files and folders of the user's own that have the name of a module of Python, in folders that Python searches."""
    folders = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    paths = [os.path.join(folder, name) for folder in dict.fromkeys(folders) for name in _names(folder)]
    return [path for path in paths if os.path.basename(path).removesuffix(".py") in sys.stdlib_module_names]


def _names(folder: str) -> list[str]:
    """The modules and packages in a folder."""
    if not os.path.isdir(folder):
        return []
    return sorted(
        name
        for name in os.listdir(folder)
        if name.endswith(".py") or os.path.isfile(os.path.join(folder, name, "__init__.py"))
    )


def _other_copies() -> list[str]:
    """The entries of sys.path with another package of our name, such as an installed version beside a clone."""
    return [path for path in sys.path if not _is_ours(path) and os.path.isfile(os.path.join(path, "study/__init__.py"))]


def _is_ours(folder: str) -> bool:
    return os.path.realpath(folder) == os.path.realpath(OURS)


def _is_current(folder: str) -> bool:
    """Whether an entry of sys.path is the current folder."""
    return folder == "" or os.path.realpath(folder) == os.path.realpath(os.getcwd())
