"""The bases of errors that end a command in one line, and what the command line refuses."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from analysis.errors import Failed as Failed
from analysis.errors import Refused as Refused
from analysis.errors import cure_of


class UsageError(Refused):
    """The command line asks for something impossible."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a ValueError in this block, by which a record refuses a value, into a UsageError."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


def unwritable(path: Path | str, error: OSError) -> str:
    """What is said of a file of a sweep that cannot be written, with the reason and the cure."""
    reason = os.strerror(error.errno) if error.errno else error
    return (
        f"cannot write to {path}: {reason}; finished trials are safe. {cure_of(error)}, and "
        "run the same command to continue; or choose another results=DIR."
    )
