"""Measure a checkout: `python tests/house/measure.py [DIR]` prints import arrows, floors and sizes.

A box is a folder with Python files, or a file at the top of a room (`study/warn.py`). An arrow says that a file of one
box imports a file of another. A box stands one floor above the highest box that it imports; boxes in a circle have no
floor. Arrows and floors are given between files and between boxes.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

ROOMS = ("study", "workloads", "analysis")
MOST_FILES, MOST_LINES, MOST_FUNCTION = 12, 400, 45


def python_files(root: Path, folders: Iterable[str] = ROOMS) -> list[str]:
    """Paths relative to `root`, sorted."""
    return sorted(str(path.relative_to(root)) for folder in folders for path in (root / folder).rglob("*.py"))


@cache
def statements(path: Path) -> list[tuple[str, str | None]]:
    """(module, name) of every import anywhere in a file; the name is None for `import module`.

    Raises ValueError for a relative import.
    """
    found: list[tuple[str, str | None]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                raise ValueError(f"{path}:{node.lineno} has a relative import; import from the root instead")
            found += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("__import__", "importlib.import_module"):
            found += [(arg.value, None) for arg in node.args if isinstance(arg, ast.Constant)]
    return found


def imports(path: Path) -> set[str]:
    """Every module that a file imports; `from a import b` gives both a and a.b."""
    return {each for module, name in statements(path) for each in (module, f"{module}.{name}" if name else module)}


def file_arrows(root: Path) -> set[tuple[str, str]]:
    """Pairs (importing file, imported file); `from study.engine import lanes` imports the file `lanes`."""
    files = set(python_files(root))

    def file_of(module: str) -> str | None:
        path = module.replace(".", "/")
        return next((name for name in (f"{path}.py", f"{path}/__init__.py") if name in files), None)

    imported = ((file, *each) for file in files for each in statements(root / file))
    arrows = {(file, file_of(f"{module}.{name}") or file_of(module)) for file, module, name in imported}
    return {(a, b) for a, b in arrows if b and a != b}


def box(file: str) -> str:
    """The folder of a file; a file at the top of `study`, `workloads` or `analysis` is a box of its own."""
    folder = file.rsplit("/", 1)[0]
    return file.removesuffix(".py") if folder in ROOMS else folder


def box_arrows(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    return {(box(a), box(b)) for a, b in arrows if box(a) != box(b)}


def floors(boxes: Iterable[str], arrows: set[tuple[str, str]]) -> tuple[dict[str, int], set[str]]:
    """Box -> floor, from 0 for a box that imports no other; and the boxes in or above a circle, which have none."""
    left, floor = set(boxes), dict[str, int]()
    below = {name: {b for a, b in arrows if a == name} for name in left}
    while ready := {name for name in left if not below[name] & left}:
        floor |= {name: max((floor[other] + 1 for other in below[name]), default=0) for name in ready}
        left -= ready
    return floor, left


def long_functions(root: Path, file: str, most: int = MOST_FUNCTION) -> list[tuple[str, int]]:
    """Functions of more than `most` lines, from `def` to the last line, with their docstrings."""
    functions = [
        (node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(ast.parse((root / file).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [(name, lines) for name, lines in functions if lines > most]


def lines(root: Path, file: str) -> int:
    return len((root / file).read_text().splitlines())


def folders(root: Path, top: Iterable[str]) -> dict[str, int]:
    """Folder -> the Python files directly in it, `__init__.py` not counted when it is empty."""
    return Counter(file.rsplit("/", 1)[0] for file in python_files(root, top) if (root / file).stat().st_size)


def by_folder(files: Iterable[str]) -> dict[str, list[str]]:
    """Folder -> its files. A test for each folder is quick to collect, where one for each file would not be."""
    found: dict[str, list[str]] = {}
    for file in files:
        found.setdefault(str(Path(file).parent), []).append(file)
    return found


def main(root: Path, say: Callable[[str], None] = print) -> None:
    files, arrows = python_files(root), file_arrows(root)
    for kind, names, drawn in (("files", {*files}, arrows), ("boxes", {*map(box, files)}, box_arrows(arrows))):
        for room in (*ROOMS, "all"):
            inside = {name for name in names if room in ("all", name.split("/")[0])}
            among = {(a, b) for a, b in drawn if {a, b} <= inside}
            floor, circles = floors(inside, among)
            height = max(floor.values(), default=-1) + 1
            more = f"; in or above a circle: {len(circles)}" if circles else ""
            say(f"{kind:6} {room:10} {len(inside):4} with {len(among):4} arrows on {height:3} floors{more}")
    everything = (*ROOMS, "benchmarks", "tests")
    for folder, count in sorted(folders(root, everything).items()):
        say(f"folder {folder:32} {count:3} files{'  TOO MANY' if count > MOST_FILES else ''}")
    sizes = {file: lines(root, file) for file in python_files(root, everything)}
    for file, size in sizes.items():
        if size > MOST_LINES:
            say(f"file {file} has {size} lines")
        for name, long in long_functions(root, file):
            say(f"function {name} of {file} has {long} lines")
    source = sorted(size for file, size in sizes.items() if file.split("/")[0] in ROOMS)
    mean = sum(source) / len(source)
    say(f"lines a source file: median {source[len(source) // 2]}, mean {mean:.0f}, most {source[-1]}")
    for name, tops in (("source", ROOMS), ("benchmarks", ("benchmarks",)), ("tests", ("tests",))):
        say(f"lines of {name}: {sum(size for file, size in sizes.items() if file.split('/')[0] in tops)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
