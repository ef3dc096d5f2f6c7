"""Paths on the command line: any name that the file system allows, and `~` for the home folder."""

import argparse
import re
from dataclasses import fields
from pathlib import Path

from study.config.composed.schema import SweepConfig
from study.errors import UsageError

REFERENCE = re.compile(rf"\$\{{({'|'.join(each.name for each in fields(SweepConfig))})(\.\w+)*\}}")
"""A reference to another key, such as `results=here/${workload.name}`."""


def path(text: str) -> Path:
    """The type of an argument that is a path; a leading `~` is the home folder, also where the shell leaves it."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"{text} names the home folder of an unknown user; give its path.") from error


def own_folder(text: str) -> Path:
    """The type of `--config-dir`. Raises UsageError if it is no folder."""
    folder = path(text)
    check_folder(folder)
    return folder


def check_folder(folder: Path) -> None:
    """Raise UsageError if this value of `--config-dir` is no folder."""
    if not folder.is_dir():
        why = "is no folder" if folder.exists() else "does not exist"
        raise UsageError(f"--config-dir must be a folder, but {folder} {why}.")


def text_of(file: Path) -> str:
    """The text of a YAML file. Raises UsageError, with the place and the cure, if it is not UTF-8."""
    content = file.read_bytes()
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        *above, before = content[: error.start].decode().split("\n")
        place = f"{file}, line {len(above) + 1}"
        raise UsageError(
            f"cannot read {place}: the byte after {before!r} is not UTF-8; save the file as UTF-8."
        ) from error


def expanded(text: str) -> str:
    """A value with a leading `~/`, or `sqlite:///~/`, replaced by the home folder."""
    url, home, rest = re.fullmatch(r"(sqlite:///)?(~(?=/|$))?(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"{url or ''}{Path.home()}{rest}" if home else text


def one_path(text: str) -> bool:
    """Whether a value with a comma is the path of something that is there, and not two values to sweep."""
    pieces = map(_exists, text.split(","))
    return "," in text and _exists(text) and not all(pieces)


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except OSError:  # too long for a name
        return False


def literal(text: str) -> str:
    """The text with `${` escaped for OmegaConf, except where it refers to another key."""
    return re.sub(
        r"(\\*)\$\{", lambda found: found[0] if REFERENCE.match(text, found.end(1)) else rf"{2 * found[1]}\${{", text
    )
