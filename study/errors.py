"""The bases of errors that end a command in one line, and what the command line refuses."""

from analysis.errors import Failed as Failed
from analysis.errors import Refused as Refused


class UsageError(Refused):
    """The command line asks for something impossible."""
