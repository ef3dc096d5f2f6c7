"""Files that appear whole or not at all, and messages that say why one cannot be written."""

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from study.errors import Refused

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class StoreError(Refused):
    """The results folder cannot take this study; the message says why and what to do."""


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write aside, flush to disk, rename: in place of what was there."""
    with _whole(path, write) as aside:
        os.replace(aside, path)


def create(path: Path, write: Callable[[Path], object]) -> bool:
    """Write aside, flush to disk, and give it its name unless there is such a file; returns whether there was none."""
    with _whole(path, write) as aside:
        return link(aside, path)


def link(aside: Path, path: Path) -> bool:
    """Give a file a second name that only one process gets; returns whether this one did."""
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.exists(path):  # a memory stick, say: nothing that many machines share
            return False
        os.replace(aside, path)
    return True


def beside(path: Path) -> Path:
    """A name for what is not finished: the dot keeps readers, which look for other names, off it."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")  # processes of two machines may have one number


@contextmanager
def _whole(path: Path, write: Callable[[Path], object]) -> Iterator[Path]:
    aside = beside(path)
    with writing(path):
        try:
            write(aside)
            with aside.open("rb") as file:
                os.fsync(file.fileno())
            yield aside
        finally:
            aside.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say what cannot be written, why, and what to do: a full disk, a read-only folder."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise StoreError(
            f"cannot write to {path}: {reason}; finished trials are safe, and the same command continues once it can "
            "be written. Make room or change its permissions, or choose another results=DIR."
        ) from error
