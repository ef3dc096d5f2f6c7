"""The current folder, which a user's code may change. Results are in the folder in which the command began."""

import os
from collections.abc import Iterator
from contextlib import chdir, contextmanager

_users: dict[str, str] = {}
"""The folder of a command -> that to which the user's code went. A module goes there once, when it is imported."""
_own: list[str] = []
"""The folders of the commands of blocks under way."""


@contextmanager
def kept() -> Iterator[None]:
    """A block that begins and ends in the folder of the command, although it may import a user's code."""
    own = os.getcwd()
    _own.append(own)
    try:
        with chdir(own):
            try:
                yield
            finally:
                if (now := os.getcwd()) != own:
                    _users[own] = now
    finally:
        _own.pop()


@contextmanager
def of_user() -> Iterator[None]:
    """A block that calls a user's code in the folder to which it went before; it ends in that of the command."""
    with kept():
        os.chdir(_users.get(_own[-1], _own[-1]))
        yield


@contextmanager
def of_command() -> Iterator[None]:
    """A block in the folder of the command, within one of `of_user`."""
    with chdir(_own[-1] if _own else os.curdir):
        yield
