"""Folders, files and functions stay small enough to read at one sitting."""

from pathlib import Path

import pytest
from house.measure import (
    MOST_FILES,
    MOST_FUNCTION,
    MOST_LINES,
    ROOMS,
    by_folder,
    folders,
    lines,
    long_functions,
    python_files,
)

ROOT = Path(__file__).parents[2]
TOPS = (*ROOMS, "benchmarks", "tests")
FILES = python_files(ROOT, TOPS)


@pytest.mark.parametrize(("folder", "count"), folders(ROOT, TOPS).items())
def test_folders(folder, count):
    assert count <= MOST_FILES, f"{folder} has {count} Python files; split it into folders of at most {MOST_FILES}"


@pytest.mark.parametrize("files", by_folder(FILES).values(), ids=by_folder(FILES))
def test_files_and_functions(files):
    long = {file: size for file in files if (size := lines(ROOT, file)) > MOST_LINES}
    assert not long, f"split files of more than {MOST_LINES} lines: {long}"
    functions = [(file, *function) for file in files for function in long_functions(ROOT, file)]
    assert not functions, f"split functions of more than {MOST_FUNCTION} lines"


def test_the_readme_is_one_page():
    size = lines(ROOT, "README.md")
    assert size <= 130, f"README.md has {size} lines; move what is above 130 into docs/"
