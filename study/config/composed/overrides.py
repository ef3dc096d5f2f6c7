"""Reads the arguments of the command line as overrides of Hydra, and more forms than its grammar has."""

import re
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from study.config.composed.paths import expanded, literal, one_path
from study.errors import UsageError
from study.optimizers.per_parameter import FEW_DIMENSIONS

UNQUOTED = re.compile(r"(?<![^\[, ])ndim *< *2(?![^\], ])")
"""The pattern FEW_DIMENSIONS in a list, without quotes around it."""


def parsed(argument: str) -> Override:
    """An override. Text that Hydra's grammar cannot read, such as `workload.folder=/data/a=b (1)`, is one value."""
    parser, text = OverridesParser.create(), _readable(argument)
    key, sign, value = text.partition("=")
    if not re.fullmatch(r"[+~]*[\w@./-]+" if sign else r"~[\w@./-]+", key):
        raise UsageError(f"{argument!r} must read key=value, such as batch_size=64.")
    try:
        return parser.parse_overrides([text])[0]
    except HydraException as error:
        if value[:1] in ("[", "{"):
            raise UsageError(
                f"{argument} cannot be read: a list is [1,2], a range is {{low: 1e-3, high: 1, scale: log}}; close "
                "each bracket, and quote a text with other characters."
            ) from error
        return parser.parse_overrides([f"{key}={quoted(value)}"])[0]


def swept(arguments: Sequence[str]) -> list[str]:
    """The arguments that give a key several values with commas: a study with each of them."""
    return [each for each in arguments if parsed(each).is_sweep_override()]


def quoted(text: str) -> str:
    """A text as one value of Hydra's grammar, whatever characters it has."""
    return QuotedString(literal(text), Quote.single).with_quotes()


def _readable(override: str) -> str:
    """Add what Hydra's grammar requires and people omit: quotes around goals, paths and patterns, `choices:` before a
    list."""
    key, _, value = override.partition("=")
    if key == "batch_schedule.from":  # a keyword of Python, which no schema can name
        key = "batch_schedule.source"
        override = f"{key}={value}"
    name = key.lstrip("+")
    if value[:1] in ("'", '"') and value[-1:] == value[0] and len(value) > 1:
        return override
    if re.fullmatch(r"search\.space\.\w+", name) and value.startswith("["):
        return f"{key}={{choices: {value}}}"
    if re.fullmatch(r"search\.space\.\w+", name) and value.startswith("{") and "choices" not in value:
        return f"{key}={{choices: null, {value[1:]}"  # Hydra merges a range with choices in a file
    if name == "optimizer.no_decay":
        return f"{key}={UNQUOTED.sub(repr(FEW_DIMENSIONS), value)}"
    paths = name in ("goal", "results", "batch_schedule.source")
    if paths or "://" in value or (text := expanded(value)) != value or one_path(text):
        return f"{key}={quoted(expanded(value))}"
    return override
