"""The two bases of errors that end a command in one line, in `analysis` and in `study`. Where an error is both, work
had begun."""

import os
import traceback

DEBUG = "HYDRA_FULL_ERROR"
"""Environment variable that `--debug` sets to 1; worker processes inherit it."""


def debugging() -> bool:
    """Whether whole tracebacks are wanted.

    >>> debugging()
    False
    """
    return os.environ.get(DEBUG) == "1"


class _Told(Exception):
    """An error whose message suffices."""

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython and notebooks show in place of a traceback."""
        return traceback.format_exception(self) if debugging() else [f"{type(self).__name__}: {self}"]


class Refused(_Told):
    """A request that cannot be met. The message names the rule, the value and the cure; commands exit with status 2."""


class Failed(_Told):
    """Work that began and did not end well. The message says why and how to continue; commands exit with status 1."""


class Unwritten(Refused, Failed):
    """Files made from measurements cannot be written. The measurements are safe."""
