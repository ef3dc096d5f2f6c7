"""Which tests an expression of marks (`pytest -m`) selects."""

import itertools


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
