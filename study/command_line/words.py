"""Words that mean something in other programs, such as `--trials 5`: refused with the form that works here."""

import sys
from collections.abc import Collection, Sequence
from difflib import get_close_matches

from study.config.composed.choices import GROUPS, full_key, nearest_key
from study.config.composed.schema import every_key
from study.errors import UsageError
from workloads.suggest import suggest

MULTIRUN = ("-m", "--multirun")
"""Hydra's flags for sweeps."""


def check_text(words: Sequence[str]) -> None:
    """Raise UsageError if a word has bytes that Python cannot read as text here, which no file of results can hold."""
    encoding = sys.getfilesystemencoding()
    for word in words:
        if not word.isascii() and any("\ud800" <= letter <= "\udfff" for letter in word):
            raise UsageError(
                f"{word!r} has bytes that are no text in {encoding}, the encoding of this environment: "
                "set PYTHONUTF8=1 if they are UTF-8; otherwise rename the file or folder."
            )


def check_verb(words: Sequence[str], verbs: Collection[str], flags: Collection[str]) -> None:
    """Raise UsageError if a command line does not begin with a verb.

    Arguments:
        flags: that may come before the verb.
    """
    word = next((word for word in words if word not in flags), None)
    if word is None or word in verbs:
        return  # argparse says what else is wrong
    if "=" in word or word in MULTIRUN:
        raise UsageError("a command comes before its settings, such as `python -m study sweep workload=mlp_digits`.")
    if f"--{word}" in flags:
        raise UsageError(f"unknown command {word!r}; did you mean '--{word}'?")
    kind, known = ("option", flags) if word.startswith("-") else ("command", verbs)
    raise UsageError(f"unknown {kind} {word!r}{suggest(word, known)}")


def refuse(unknown: Sequence[str], words: Sequence[str], flags: Collection[str], settings: bool) -> None:
    """Raise UsageError for the first of these unknown words, with the right form.

    Arguments:
        words: the whole command line.
        flags: of the verb.
        settings: the verb takes settings, key=value.
    """
    word = unknown[0]
    name, sign, value = word.partition("=")
    if not settings:
        hint = suggest(name, flags) if name.startswith("-") else "; this command takes no such argument."
        raise UsageError(f"unknown argument {word!r}{hint}")
    if word in MULTIRUN:
        raise UsageError(f"leave out {word}: several values with commas are swept, such as optimizer=sgd,momentum.")
    keys = [*GROUPS, *(name for name, _, _ in every_key())]
    as_key = name.lstrip("-").replace("-", "_")
    key = full_key(as_key, keys)
    if key is None:
        hint = suggest(name, flags)
        if (near := nearest_key(as_key, keys)) and not get_close_matches(name, flags):
            hint = f"; did you mean {near}={value or _value(word, words) or 'VALUE'}?"
        raise UsageError(f"unknown option {word}{hint} Settings are key=value.")
    given = "" if sign else _value(word, words)
    right = f"{key}={value or given or 'VALUE'}"
    raise UsageError(f"settings are key=value: give {right} in place of {word}{given and f' {given}'}.")


def _value(word: str, words: Sequence[str]) -> str:
    """The word after this one, if it is its value."""
    after = [*words[words.index(word) + 1 :], ""][0]
    return "" if after.startswith("-") or "=" in after else after
