"""Writes files that appear whole or not at all, and reports why a file cannot be written."""

import errno
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from study.errors import Failed, Refused, unwritable

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class StoreError(Refused):
    """The results folder cannot be read or written, or refuses this study. The message gives reason and cure."""


class Stopped(StoreError, Failed):
    """The results folder could be written when a command began, and cannot any more. What was written is safe."""


def gone(folder: Path) -> Stopped:
    """The error of a command whose folder went away while it trained."""
    return Stopped(
        f"{folder} is no longer there: it was moved, renamed or removed while this command trained. Trials in it are "
        "safe where it is now. Move it back, or name its new place by results=DIR, and run the same command to "
        "continue."
    )


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file, in place of any file at `path`: under a temporary name, flushed to disk, then renamed.

    Arguments:
        write: writes the content to the path that it is given.

    Raises:
        StoreError: the file cannot be written.
    """
    with _whole(path, write) as aside:
        os.replace(aside, path)


def create(path: Path, write: Callable[[Path], object]) -> bool:
    """Write a file as `replace` does, unless `path` exists; returns True if this call created it.

    Raises:
        StoreError: the file cannot be written.
    """
    with _whole(path, write) as aside:
        return link(aside, path)


def link(aside: Path, path: Path) -> bool:
    """Hard-link the file `aside` to `path`, which only one process can do; returns True if this process did."""
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Two processes could get past this check, but machines do not share a file system without hard links.
        if os.path.exists(path):
            return False
        os.replace(aside, path)
    return True


def as_json(tree: Mapping[str, Any]) -> Callable[[Path], object]:
    """Writes plain data as JSON: for `replace` and `create`."""
    return lambda path: path.write_text(json.dumps(tree, indent=1) + "\n")


def read_json(path: Path, cure: str) -> dict[str, Any]:
    """Read a file of `as_json`.

    Raises:
        StoreError: the file cannot be read; the message ends with the cure.
    """
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"cannot read {path}: {error}; {cure}.") from error


def make_folder(folder: Path, parents: bool = True) -> None:
    """Make a folder, unless it is there. Raises StoreError if it cannot be made."""
    with writing(folder):
        folder.mkdir(parents=parents, exist_ok=True)


def flush_names(folder: Path) -> None:
    """Flush the names in a folder to disk. Call it before removing the files that new ones in the folder replace.

    On a file system that does not write both in order, a power cut could undo the renaming and keep the removal.
    """
    with suppress(OSError):  # some file systems have no such operation
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def temporary(path: Path) -> Path:
    """A name for a temporary file in the same folder. It begins with a dot, so that readers skip it."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")  # no process id: two machines may use the same one


@contextmanager
def _whole(path: Path, write: Callable[[Path], object]) -> Iterator[Path]:
    aside = temporary(path)
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
    """Turn an OSError in this block, such as a full disk, into a Stopped with the path, the reason and the cure."""
    try:
        yield
    except OSError as error:
        raise Stopped(unwritable(path, error)) from error
