"""Where the searches of a results folder are, found while sweeps write to it.

`Path.glob` and `Path.rglob` of Python 3.11 raise FileNotFoundError if a folder is removed between two looks: as when a
sweep gathers the records of its runs, or when a script cleans its folder up.
"""

import glob
import os
from pathlib import Path

from analysis.errors import Refused, unreadable
from analysis.labels import listed

OWN = ("trials", "runs", "commands", "checkpoints", "rounds", "noise", "one_step")
"""Folders of a search that hold no other search, however a script names its files."""


def holding(top: Path, name: str) -> list[Path]:
    """The folders of searches at or below `top` that hold a file of this name; none if `top` is not there.

    Raises:
        Refused: a folder cannot be read, as where it is of another user: numbers would lack its searches.

    >>> top = Path(published) / "studies/mlp_digits/sgd"
    >>> [str(folder.relative_to(top)) for folder in holding(top, "study.json")][:2]
    ['1', '1/rerun-8']
    """
    found = []
    for place, folders, files in os.walk(top, onerror=_refuse):
        if name in files:
            found.append(Path(place))
        if "study.json" in files:
            folders[:] = [each for each in folders if each not in OWN]
    return sorted(found)


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise Refused(unreadable(Path(error.filename), error)) from error


def matching(folder: Path, pattern: str) -> list[Path]:
    """`Path.glob`, sorted, without the folders that are removed meanwhile.

    >>> [path.name for path in matching(Path(published) / "studies/mlp_digits/sgd", "6*/*.json")]
    ['study.json']
    """
    return sorted(folder / each for each in glob.glob(pattern, root_dir=folder, include_hidden=True))


def results_in(folder: Path, *patterns: str) -> list[Path]:
    """The results folders whose paths below a folder match one of these patterns.

    >>> [path.name for path in results_in(Path(published).parent, "mlp_*")]
    ['mlp_digits']
    """
    return [path.parent for pattern in patterns for path in matching(folder, f"{pattern}/studies")]


def nothing_in(folder: Path) -> str:
    """Why a folder cannot be read as results, and the cure.

    >>> nothing_in(Path("none"))
    'there is no folder none; give the folder that `study sweep` wrote to.'
    """
    below = results_in(folder, "*", "*/*", "*/*/*")
    cure = (
        f"a results folder below it: {listed(below, 'or', most=3)}"
        if below
        else "the folder that `study sweep` wrote to"
    )
    if not folder.exists():
        return f"there is no folder {folder}; give {cure}."
    return f"{f'no studies in {folder}' if folder.is_dir() else f'{folder} is no folder'}; give {cure}."
