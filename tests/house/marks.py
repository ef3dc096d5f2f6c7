"""Which tests an expression of marks (`pytest -m`) selects, which cases of a table run by default, and which of the
slow tests a commit draws."""

import itertools
import zlib


def only_gpu(expression: str) -> bool:
    """Whether an expression selects tests with the mark `gpu`, and no others.

    >>> [only_gpu(text) for text in ("gpu and not slow", "not gpu", "gpu or slow", "")]
    [True, False, False, False]
    """
    try:
        code = compile(expression, "-m", "eval")
        others = [name for name in code.co_names if name != "gpu"]
        marks = [dict(zip(others, each, strict=True)) for each in itertools.product([True, False], repeat=len(others))]
        with_it, without = ([bool(eval(code, {"gpu": gpu}, each)) for each in marks] for gpu in (True, False))
    except Exception:  # pytest tells what is wrong with it
        return False
    return any(with_it) and not any(without)


def drawn(test: str, commit: str, share: int) -> bool:
    """Whether a commit draws a test: of all tests one in `share`, of all commits one in `share`.

    >>> [drawn("test_disk.py::test_full", commit, 3) for commit in ("4e47988d", "d7267f09", "a07ab53b", "d6a1714d")]
    [True, False, False, True]
    """
    return zlib.crc32(f"{commit} {test}".encode()) % share == 0


def spread(cases: int, keep: int) -> set[int]:
    """The indices of `keep` cases of a table, evenly spread over it from first to last.

    >>> [sorted(spread(*each)) for each in [(9, 3), (2, 3), (9, 1)]]
    [[0, 4, 8], [0, 1], [0]]
    """
    return {round(index * (cases - 1) / max(1, keep - 1)) for index in range(keep)}
