"""argparse with the refusals of this program: one line, with the nearest known word, and no usage above it."""

import argparse
import re
from typing import Any

from study.errors import UsageError
from workloads.suggest import suggest

KINDS = {"int": "a whole number", "float": "a number"}
"""Name of the type of an argument -> what it takes."""
OF_ANOTHER_KIND = re.compile(rf"argument (?P<name>\S+): invalid (?P<kind>{'|'.join(KINDS)}) value: (?P<got>.*)")
LACKING = re.compile(r"argument (?P<name>\S+): expected (?:one|at least one) argument")
REQUIRED = "the following arguments are required: "


class Parser(argparse.ArgumentParser):
    """A parser that raises UsageError where argparse would print its usage and exit."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = action.option_strings[0] if action.option_strings else action.dest
            raise UsageError(f"unknown {name} {value!r}{suggest(str(value), map(str, action.choices))}")

    def error(self, message: str) -> Any:
        """Raise UsageError with a message of argparse in our form."""
        raise UsageError(f"{_ours(message, self.prog)}.")


def _ours(message: str, command: str) -> str:
    """A message of argparse in the form of this program, without its full stop.

    >>> _ours("argument --width: invalid float value: 'abc'", ""), _ours("argument --goal: expected one argument", "")
    ("--width must be a number, but got 'abc'", '--goal needs a value')
    >>> _ours("argument --seeds: must be odd.", ""), _ours("argument --plan: not allowed with argument --json", "")
    ('--seeds must be odd', '--plan: not allowed with argument --json')
    """
    if found := OF_ANOTHER_KIND.match(message):
        return f"{found['name']} must be {KINDS[found['kind']]}, but got {found['got']}"
    if found := LACKING.match(message):
        return f"{found['name']} needs a value"
    if message.startswith(REQUIRED):
        return f"give {message.removeprefix(REQUIRED)}; {command} --help shows all arguments"
    return re.sub(r"^argument (\S+?):(?= must be)|^argument ", r"\1", message).removesuffix(".")
