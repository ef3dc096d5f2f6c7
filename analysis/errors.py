"""The two bases of errors that end a command in one line, in `analysis` and in `study`. Where an error is both, work
had begun."""

import errno
import os
import traceback
from pathlib import Path

DEBUG = "HYDRA_FULL_ERROR"
"""Environment variable that `--debug` sets to 1; worker processes inherit it."""


def debugging() -> bool:
    """Whether whole tracebacks are wanted.

    >>> debugging()
    False
    """
    return os.environ.get(DEBUG) == "1"


OPEN_FILES = (errno.EMFILE, errno.ENFILE)
"""Errors of a process, or of a machine, that has too many open files."""
CURES = {
    **dict.fromkeys(OPEN_FILES, "Raise the limit of open files (ulimit -n), or choose fewer engine.workers"),
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), "Remove the file or the link to nowhere in the place of a folder"),
}
"""Error of a file -> what to do. Others mean that its disk is full or may not be written."""


def cure_of(error: OSError) -> str:
    """What to do about a file that cannot be written, as the beginning of a sentence.

    >>> cure_of(OSError(errno.ENOSPC, "No space left on device"))
    'Make room or change its permissions'
    >>> cure_of(OSError(errno.EMFILE, "Too many open files"))
    'Raise the limit of open files (ulimit -n), or choose fewer engine.workers'
    """
    return CURES.get(error.errno or 0, "Make room or change its permissions")


def unreadable(path: Path, error: OSError) -> str:
    """Why a file or folder that is there cannot be read, and the cure.

    >>> unreadable(Path("results/mine"), PermissionError(errno.EACCES, "Permission denied"))
    'cannot read results/mine: Permission denied; make it readable, and run the command again.'
    """
    return f"cannot read {path}: {os.strerror(error.errno or 0)}; make it readable, and run the command again."


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
