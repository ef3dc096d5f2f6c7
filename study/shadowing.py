"""Keep the user's modules from hiding ours: a folder may hold `analysis.py`, `workloads/` or `random.py` of its own."""

import os
import sys
from pathlib import Path


def look_in_current_folder_last() -> None:
    """Move the current folder, which `python -m` puts first on sys.path, behind everything installed.

    This program's own folder goes before it, also where an import hook or the current folder led to it. Processes that
    start later get the same order, and `workloads.base.importable` appends the folder of --config-dir.
    """
    ours = str(Path(__file__).resolve().parents[1])
    first = [sys.path.pop(0)] if sys.path[0] in ("", os.getcwd()) else []
    sys.path += [folder for folder in (ours, *first) if folder not in sys.path]
