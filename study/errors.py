"""The two bases of errors that end a command in one line: `Refused` (exit status 2) and `Failed` (exit status 1)."""

from analysis.errors import Refused as Refused


class UsageError(Refused):
    """The command line asks for something impossible."""


class Failed(Exception):
    """Work that started and did not end well. The message says why and how to continue."""
