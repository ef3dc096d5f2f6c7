"""Hashes of the user's own source files: they differ if the code differs, whatever its comments and formatting.

A file counts if the user wrote it (`workloads.user_code.ownership`).
"""

import ast
import hashlib
import inspect
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from itertools import pairwise
from pathlib import Path
from typing import Any

from study.data.digest import whole
from workloads.user_code.ownership import is_users


def code(parts: Iterable[Any]) -> dict[str, float]:
    """`code` and `code <file>` -> a hash of the syntax trees: of all files, and of one.

    The files are the modules of the parts, of their base classes, and all modules that these import. The result is
    empty if none is the user's.

    Arguments:
        parts: classes, functions and names of modules.
    """
    return _joined(_hashes(_files(_modules(parts))))


def code_of_command(words: Iterable[str]) -> dict[str, float]:
    """`code` and `code <file>` -> a hash, as `code`, of the files that the words of a command name: Python files with
    all modules of the user's that they import, from their folder or from Python's path, other files by their bytes, and
    of shell scripts also what their words name. Programs of Python's own do not count.

    Arguments:
        words: such as `train.py`, `--config=small.yaml`, or a module after `-m`.
    """
    return _joined(_of_words(words))


def _of_words(words: Iterable[str], seen: Set[str] = frozenset()) -> dict[str, float]:
    """`code_of_command` as file -> hash. `seen`: the shell scripts in which these words stand."""
    found: dict[str, float] = {}
    for before, word in pairwise(["", *words]):
        path = Path(word.rpartition("=")[2])
        if before == "-c":  # of a shell, or of Python
            found |= _hashes(_files(_imported(word.encode(), ""), [str(Path.cwd()), *sys.path]))
            with suppress(ValueError):
                found |= _of_words(shlex.split(word))
        elif before == "-m":
            found |= _hashes(_files([word], [str(Path.cwd()), *sys.path]))
        elif path.suffix == ".py" and path.is_file():
            found[str(path)] = _hashed(path.read_bytes())
            found |= _hashes(_files(_imported(path.read_bytes(), ""), [str(path.parent.resolve()), *sys.path]))
        elif path.is_file() and not path.name.startswith("python") and is_users(str(path)):
            with path.open("rb") as file:
                found[str(path)] = whole(hashlib.file_digest(file, "sha256").digest())
            if str(path) not in seen and _is_shell(path):
                found |= _of_words(_of_lines(path.read_text(errors="replace")), {*seen, str(path)})
    return found


def _is_shell(path: Path) -> bool:
    """Whether a file is a script of a shell, by its name or its first line."""
    with path.open("rb") as file:
        return path.suffix in (".sh", ".bash") or re.match(rb"#!.*\b(ba|da|z|k)?sh\b", file.readline(200)) is not None


def _of_lines(text: str) -> list[str]:
    """The words of a shell script; a line that ends within quotes has none."""
    words = []
    for line in text.replace("\\\n", " ").splitlines():
        with suppress(ValueError):
            words += shlex.split(line, comments=True)
    return words


def _joined(hashes: Mapping[str, float]) -> dict[str, float]:
    """File -> hash, as the keys of a fingerprint."""
    found = {f"code {name}": hashes[name] for name in sorted(hashes)}
    joined = " ".join(f"{key} {value:.0f}" for key, value in found.items())
    return {"code": whole(hashlib.sha256(joined.encode()).digest()), **found} if found else {}


def _hashes(files: Mapping[str, Path]) -> dict[str, float]:
    return {name: _hashed(path.read_bytes()) for name, path in files.items()}


def _modules(parts: Iterable[Any]) -> list[str]:
    """The names of the modules that define these parts and their base classes."""
    found: list[str] = []
    for part in parts:
        if isinstance(part, str):
            found.append(part)
        else:
            found += [each.__module__ for each in (inspect.getmro(part) if inspect.isclass(part) else (part,))]
    return list(dict.fromkeys(found))


def _files(modules: Iterable[str], folders: Sequence[str] | None = None) -> dict[str, Path]:
    """Name such as `package/module.py` -> path, for the user's files among these modules and their imports.

    Arguments:
        folders: where modules are looked up; None: on Python's path.
    """
    found: dict[str, Path] = {}
    seen: set[str] = set()
    left = list(modules)
    while left:
        module = left.pop()
        if module in seen:
            continue
        seen.add(module)
        path = _source(module, folders)
        if path is None:
            continue
        name = module.replace(".", "/") + ("/__init__.py" if path.name == "__init__.py" else ".py")
        found[name] = path
        left += _imported(path.read_bytes(), module if path.name == "__init__.py" else module.rpartition(".")[0])
        left += _parents(module)
    return found


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _source(module: str, folders: Sequence[str] | None) -> Path | None:
    """The source file of a module of the user's; None for other modules. It imports nothing."""
    if module.partition(".")[0] in sys.stdlib_module_names:
        return None
    spec = _spec(module, folders)
    imported = getattr(sys.modules.get(module), "__file__", None) if folders is None else None
    origin = (spec.origin if spec else None) or imported
    path = Path(origin).resolve() if origin else None
    return path if path and path.suffix == ".py" and path.is_file() and is_users(str(path)) else None


def _spec(module: str, folders: Sequence[str] | None) -> ModuleSpec | None:
    """Where Python would find a module. Its packages are not imported, as `importlib.util.find_spec` would do."""
    places = folders
    spec = None
    for name in [*_parents(module), module]:
        try:
            spec = PathFinder.find_spec(name.rpartition(".")[2], places)
        except (ImportError, ValueError, AttributeError):
            return None
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or [])
    return spec


@lru_cache(maxsize=1024)
def _imported(content: bytes, package: str) -> list[str]:
    """The modules that a file imports anywhere; of `from a import b` both `a` and `a.b`, which may be a module.

    Arguments:
        package: the package of the file, for relative imports.
    """
    found: list[str] = []
    for node in ast.walk(_parsed(content) or ast.Module([], [])):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                above = parts[: len(parts) - node.level + 1]
                base = ".".join([*above, *filter(None, [node.module])])
            found += [base, *(f"{base}.{alias.name}" for alias in node.names)] if base else []
    return found


def _parsed(content: bytes) -> ast.Module | None:
    try:
        return ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return None


@lru_cache(maxsize=1024)
def _hashed(content: bytes) -> float:
    """The hash of the syntax tree of a file with this content; of its bytes if it cannot be parsed."""
    tree = _parsed(content)
    text = content if tree is None else "".join(dumped(tree)).encode("utf-8", "surrogatepass")
    return whole(hashlib.sha256(text).digest())


def dumped(node: Any) -> Iterator[str]:
    """The text of a syntax tree without comments, docstrings, positions and empty fields.

    `ast.dump` has fields that only some versions of Python know; here they are left out if they are empty.
    """
    if isinstance(node, ast.Constant):
        yield f"({type(node.value).__name__} {node.value!r})"
    elif isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name, value in ast.iter_fields(node):
            if value is not None and value != [] and name != "type_comment":
                yield f" {name}="
                yield from dumped(value)
        yield ")"
    elif isinstance(node, list):
        yield "["
        for each in node:
            if not _says_nothing(each):
                yield from dumped(each)
        yield "]"
    else:
        yield repr(node)


def _says_nothing(node: Any) -> bool:
    """True for a docstring, or any other statement that is only a string."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
