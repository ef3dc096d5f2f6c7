"""An error of a user's code in one line, and the line of their own file that led to it."""

import re
import traceback

from workloads.user_code.ownership import is_users

LONGEST = 1200
"""Most characters that are told of an error; `--debug` prints all."""
IN_A_LOADER = "Original Traceback (most recent call last):"
"""In the text of an error that torch passes on from a process that reads data."""


def text_of(error: BaseException) -> str:
    """The text of an error, which may be of a user's class; empty if the class fails to give one."""
    try:
        return str(error)
    except Exception:  # the class may be any user's
        return ""


def summary(error: BaseException) -> str:
    """The error in one line, with the example in which it arose if known, without a full stop. A group of errors is
    told by its first one."""
    text = text_of(error)
    if IN_A_LOADER in text:
        frames = text.rpartition(IN_A_LOADER)[2].rstrip().splitlines()
        last = max(number for number, line in enumerate(frames) if line.startswith(" ")) + 1
        return _one_line(" ".join(frames[last:]))
    named = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, BaseExceptionGroup):
        named = f"{_one_line(named)}; the first: {summary(error.exceptions[0])}"
    return _one_line(" ".join([named, *map(str, getattr(error, "__notes__", ()))]))


def _one_line(text: str) -> str:
    """A text without line ends, colours and other characters that a terminal obeys, and without its middle if it is
    very long, as an error that holds a whole tensor is."""
    plain = "".join(each if each.isprintable() else " " for each in re.sub(r"\x1b\[[\d;]*m", "", text))
    line = " ".join(plain.split()).rstrip(". ")
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} … {line[-LONGEST // 4 :]}"


def user_line(error: BaseException) -> str:
    """The last line of the user's own code that led to the error, in brackets; empty if there is none."""
    found = [(frame.filename, frame.lineno, frame.line) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, BaseExceptionGroup) and (of_first := user_line(error.exceptions[0])):
        return of_first
    if IN_A_LOADER in text_of(error):
        frames = re.findall(r'File "(.+?)", line (\d+), in .*\n\s+(.+)', text_of(error))
        found += [(file, int(line), source) for file, line, source in frames]
    theirs = [each for each in found if is_users(each[0])]
    if not theirs:
        return ""
    file, line, source = theirs[-1]
    return f" ({file}, line {line}: {source})" if source else f" ({file}, line {line})"
