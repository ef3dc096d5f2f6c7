"""Errors that end a command in one line."""

from __future__ import annotations


class UsageError(Exception):
    """The command line asks for something impossible; the message names the rule, the value and the cure."""
