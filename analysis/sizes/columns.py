"""Columns of numbers as people have them: lists, tuples, arrays, columns of pandas, with gaps."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from analysis.labels import listed


def columns(**given: Iterable[Any]) -> list[np.ndarray]:
    """Each of these columns as floats [M], all of one length; None and other gaps become NaN.

    Raises:
        ValueError: a value is no number, or the lengths differ; the message has the names of the columns.

    >>> columns(sizes=[10, 100], critical=(None, "1e3"))
    [array([ 10., 100.]), array([  nan, 1000.])]
    >>> columns(sizes=[10, 100], critical=[4])
    Traceback (most recent call last):
    ValueError: sizes and critical must have equally many numbers, but got 2 and 1.
    """
    found = [_floats(name, values) for name, values in given.items()]
    lengths = [len(each) for each in found]
    if len(set(lengths)) > 1:
        raise ValueError(f"{listed(list(given))} must have equally many numbers, but got {listed(lengths)}.")
    return found


def check_positive(**given: np.ndarray) -> None:
    """Raise ValueError if a number in one of these columns is not above 0; NaN passes.

    >>> check_positive(sizes=np.array([1.0, np.nan]), critical=np.array([4.0, 0.0]))
    Traceback (most recent call last):
    ValueError: critical must be above 0, but got 0.
    """
    for name, values in given.items():
        if (values <= 0).any():
            raise ValueError(f"{name} must be above 0, but got {values[values <= 0][0]:g}.")


def check_confidence(confidence: float) -> None:
    """Raise ValueError unless it is a probability, which 95 is not.

    >>> check_confidence(95)
    Traceback (most recent call last):
    ValueError: the confidence must lie between 0 and 1, but got 95.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"the confidence must lie between 0 and 1, but got {confidence:g}.")


def _floats(name: str, values: Iterable[Any]) -> np.ndarray:
    if hasattr(values, "to_numpy"):  # pandas, whose missing value is no float
        values = values.to_numpy(dtype=float, na_value=np.nan)
    found = list(np.ravel(values) if isinstance(values, np.ndarray) else values)
    try:
        return np.array([np.nan if each is None else float(each) for each in found], dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers, but got {found}.") from error
