"""The settings that `sweep --help` shows: the groups, and the keys that matter most; and what several verbs take."""

import argparse
import re
import textwrap
from collections.abc import Mapping

from analysis.counting import Goal
from study.config.composed.choices import GROUPS
from study.config.composed.paths import own_folder
from study.config.composed.schema import every_key
from study.errors import usage_errors

MATTER = {
    "batch_size": "64,256",
    "goal": "'val/classification_error < 0.1'",
    "results": "DIR",
    "budget.epochs": "20",
    "stopping": "budget",
    "search.trials": "20",
    "search.reruns": "4",
    "search.until": "'factor 1.3'",
    "search.space.learning_rate.high": "3",
    "search.space.weight_decay": "0.01",
    "precision": "bf16",
    "engine.workers": "2",
    "engine.device": "cuda:1",
}
"""Key -> a value that shows how it is given."""
SPACE = {
    "search.space.learning_rate.high": "one end of a range that is searched, low or high",
    "search.space.weight_decay": "a fixed value; {low: 1e-3, high: 1, scale: log} is a range, [0,0.1] a choice",
}
"""Key of the search space -> its meaning. The schema has only the space as a whole."""
WIDTH, INDENT = 100, 34


def text() -> str:
    """The groups and keys, a line or two each."""
    meanings = {name: _short(field.metadata) for name, field, _ in every_key()} | SPACE
    groups = [_entry(f"{name}=NAME", about) for name, about in GROUPS.items()]
    keys = [_entry(f"{name}={value}", meanings[name]) for name, value in MATTER.items()]
    return "\n".join(
        [
            "settings are key=value; several values with commas are swept, such as optimizer=sgd,momentum",
            "\ngroups (python -m study list shows their choices):",
            *groups,
            "\nkeys that matter most:",
            *keys,
            "\nall keys: docs/configuration.md; python -m study sweep --cfg prints the configuration and stops\n",
        ]
    )


def _short(about: Mapping[str, str]) -> str:
    """A meaning up to its first semicolon, colon or full stop, with the legal values if they are a list of words."""
    meaning = re.split(r"[;:.](?= )", about["meaning"])[0]
    values = f" ({about['values']})" if re.fullmatch(r"`\w+`(, `[\w:]+`)*", about["values"]) else ""
    return f"{meaning}{values}".replace("`", "")


def _entry(name: str, meaning: str) -> str:
    lines = textwrap.wrap(meaning, WIDTH - INDENT)
    first = f"  {name:<{INDENT - 3}} {lines[0]}"
    if len(name) > INDENT - 3:
        first = f"  {name}\n{' ' * INDENT}{lines[0]}"
    return "\n".join([first, *(" " * INDENT + line for line in lines[1:])])


def mix_argument(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--mix", action="store_true", help="train on although your code or data changed since")


def plan_argument(verb: argparse._ActionsContainer) -> None:
    verb.add_argument("--plan", action="store_true", help="print what is missing and what it will cost, then stop")


def json_argument(verb: argparse._ActionsContainer) -> None:
    verb.add_argument("--json", action="store_true", help="one object, see docs/reference/json.md")


def curve_arguments(verb: argparse._ActionsContainer) -> None:
    """Of verbs that read some curves of a results folder."""
    verb.add_argument("--workload", metavar="NAME", help="only this one; default: each")
    verb.add_argument("--optimizer", metavar="NAME", help="only this one; default: each")


def config_dir_argument(verb: argparse._ActionsContainer) -> None:
    verb.add_argument("--config-dir", type=own_folder, help="folder of your own workload, as for its sweep")


def plan_or_json_arguments(verb: argparse.ArgumentParser) -> None:
    """A plan is a table for people, without rows."""
    either = verb.add_mutually_exclusive_group()
    plan_argument(either)
    json_argument(either)


def training_arguments(verb: argparse.ArgumentParser) -> None:
    """Of verbs that train beside a finished sweep."""
    config_dir_argument(verb)
    verb.add_argument("--device", default="auto", help="cpu, cuda, cuda:1; default: a GPU if there is one")
    verb.add_argument("--workers", type=int, metavar="N", help="processes; default: one per core or GPU")


def goal(text: str) -> Goal:
    """A goal of the command line. Raises UsageError."""
    with usage_errors():
        return Goal.parse(text)
