"""Which tests an expression of marks (`pytest -m`) selects, and which of the slow ones a commit draws."""

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
