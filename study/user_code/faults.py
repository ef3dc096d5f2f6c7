"""Faults in a user's code, told in one line: the error, the line of their own file, and where to see the rest."""

import errno
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from analysis.errors import DEBUG as DEBUG
from analysis.errors import OPEN_FILES, cure_of
from analysis.errors import debugging as debugging
from workloads.user_code.errors import summary, user_line
from workloads.user_code.ownership import is_users

OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM)
"""Errors that say nothing of the program: a disk is full, over its quota, read-only or broken, or a file too large or
forbidden."""
OF_NAMES = {errno.ENAMETOOLONG: "Choose a shorter name.", errno.ELOOP: "Its links lead in a circle: remove one."}
"""Errors of a path, such as that of results=DIR, with the cure."""
CLOSED = (errno.EBADF, errno.ENOTSOCK)
"""Errors of a file of the program's that is closed, or that is another one."""


def guard_process() -> None:
    """From now on, let os._exit() and os.fork() in a user's code raise errors in this process, which name their line:
    the one would end the command without a word, the other would continue the sweep twice. Modules of Python, such as
    multiprocessing, call them as before, and so do the processes that they start."""
    end, fork, own = os._exit, os.fork, os.getpid()

    def theirs() -> bool:
        return os.getpid() == own and is_users(sys._getframe(2).f_code.co_filename)

    def guarded_exit(status: int) -> NoReturn:
        if theirs():
            raise SystemExit(status)
        end(status)

    def guarded_fork() -> int:
        if theirs():
            raise RuntimeError("os.fork() would run the sweep twice: start processes by subprocess or multiprocessing")
        return fork()

    vars(os).update(_exit=guarded_exit, fork=guarded_fork)


def succeeds(call: Callable[[], object]) -> bool:
    """Whether a call of a user's code, which may raise any error, raises none."""
    try:
        call()
    except Exception:
        return False
    return True


def told(error: BaseException) -> str:
    """What a person is told of an unexpected error: the error and its place in their code; the traceback if debugging.

    An error without such a place may be one of ours, or come from a layer of torch in their model.
    """
    where = user_line(error)
    text = f"your code fails: {summary(error)}{where}."
    if not where and isinstance(error, OSError) and error.errno in OF_DISKS:
        of = f" {error.filename}" if error.filename else " a file"
        text = (
            f"cannot read or write{of}: {os.strerror(error.errno)}. Make room or change its permissions; temporary "
            "files go to the folder that TMPDIR names."
        )
    elif not where and isinstance(error, OSError) and error.errno in OPEN_FILES:
        text = f"{summary(error)}. {cure_of(error)}; if your code opens files, let it close them."
    elif not where and isinstance(error, OSError) and error.errno in OF_NAMES:
        text = f"cannot use {error.filename}: {os.strerror(error.errno)}. {OF_NAMES[error.errno]}"
    elif not where and isinstance(error, OSError) and error.errno in CLOSED:
        text = (
            f"{summary(error)}. A file of this process is closed: look for os.close() and os.closerange() in your "
            "code, and let it close only files that it has opened."
        )
    elif not where:
        text = (
            f"{summary(error)}. No line of your files led to it: check that the layers of the model fit the data. If "
            "they do, this is a fault of the program; please report it, with the traceback."
        )
    if debugging():
        return f"{text}\n\n{''.join(traceback.format_exception(error))}"
    return f"{text} --debug prints the traceback."
