"""Write docs/configuration.md and docs/commands.md from the schema, the files in conf/ and the argument parsers.

Run `python docs/generate.py` after a change of these. A test fails if a page is stale.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from study.commands import USAGE, parser
from study.config.composed import schema
from study.config.composed.choices import CONF, GROUPS, choices

DOCS = Path(__file__).parent
MARK = "<!-- Written by docs/generate.py; do not edit. -->"
TYPES = {int: "a whole number", float: "a number", bool: "`true`, `false`"}
CONFIGURATION = """\
# Configuration

Every key is given on the command line as `key=value`:

```
python -m study sweep workload=simple_cnn_mnist optimizer=sgd,momentum batch_size=32,256 search.trials=20
```

Several values with commas make a study for each combination. Keys that say where and how a sweep runs (`engine`,
`checkpoint`, `cluster`, `shards`, `track`, `notify`) take one value. `python -m study sweep --cfg` with the same keys
prints the composed configuration and trains nothing. An unknown key or a value that does not fit is refused with the
nearest known one, and a key that would do nothing beside the others with the reason. Keys of files give way instead.

Several values of an argument of a workload, such as `'workload.widths=[32],[128]'`, make a workload for each, in one
results folder: `mlp_digits_widths-32` and `mlp_digits_widths-128`. `workload.name=` with a reference, such as
`'workload.name=mlp${workload.split_seed}'`, names them otherwise.

A folder may have any name: `'results=~/runs/a, b (1)'` is one folder below your home folder, and `results=` is never
swept unless you quote each value: `"results='a','b'"`. In `results=here/${workload.name}` the name of another key is
replaced by its value.

A results folder holds one question for each workload and optimizer. Asking for more extends it: batch sizes,
optimizers, trials, step budgets, repeats, reruns. Any other change is refused and the difference is shown.

## Your own files

`--config-dir DIR` adds a folder with the layout of `conf/`: `DIR/workload/NAME.yaml` is chosen by `workload=NAME`, and
so on. Three kinds of files apply by their path alone, in `conf/` and in your folder:

| path | applies to |
| --- | --- |
| `space/WORKLOAD/OPTIMIZER.yaml` | the search space of this workload with this optimizer |
| `preset/workload/PRESET/WORKLOAD.yaml` | this workload under `preset=PRESET` |
| `preset/optimizer/PRESET/OPTIMIZER.yaml` | this optimizer under `preset=PRESET` |

Python files in the folder can be imported. The folder comes last on Python's path: give a module a name that no
installed package has.
"""
COMMANDS = """\
# Command line

`study` and `python -m study` are the same command. One difference: if the current folder holds a `study.py` or a
package `study` of your own, Python runs that for `python -m study`, and only `study` works.

The exit status is 0 when all is done, 1 if something failed on the way, 2 if the request was refused, and 130 if it was
interrupted, by Ctrl-C, SIGTERM or SIGHUP (a closed terminal, without `nohup`).
"""


def pages() -> dict[str, str]:
    """File name -> text of each generated page."""
    return {
        "configuration.md": "\n".join([MARK, "", CONFIGURATION, *_groups(), *_keys()]),
        "commands.md": "\n".join([MARK, "", COMMANDS, *_commands()]),
    }


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    lines = [[*columns], ["---"] * len([*columns]), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def _groups() -> Iterator[str]:
    yield "## Groups: choices with files of their own\n"
    for group, about in GROUPS.items():
        found = choices(group)
        yield f"### `{group}=`\n\n{about}\n"
        timed = any(each.takes for each in found)
        rows = ([f"`{each.name}`", each.purpose, *([each.takes] if timed else [])] for each in found)
        yield from _table(["choice", "purpose", *(["time"] if timed else [])], rows)


def _keys() -> Iterator[str]:
    yield "## Keys\n"
    yield from _table(["key", "default", "values", "meaning"], _fields())
    yield "## Search space\n\nAn entry of `search.space` is a range, a list of choices or a number:\n"
    rows = ([f"`search.space.{entry}`", _sentence(text)] for entry, text in schema.SPACE.items())
    yield from _table(["example", "meaning"], rows)
    yield "## Keys of workloads\n\nA workload has the keys that its file lists; `--cfg workload=NAME` shows them.\n"
    yield from _table(["key", "meaning", "default"], _workload_keys())


def _fields() -> Iterator[list[str]]:
    for name, field, kind in schema.every_key():
        about = field.metadata
        default: Any = (
            field.default if field.default is not dataclasses.MISSING else typing.cast(Any, field).default_factory()
        )
        shown = f"by `{about['by']}`" if about["by"] else f"`{_plain(default)}`"
        basic = next((each for each in (kind, *typing.get_args(kind)) if each in TYPES), None)
        yield [
            f"`{name}`",
            shown,
            about["values"] or TYPES.get(typing.cast(type, basic), ""),
            _sentence(about["meaning"]),
        ]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _plain(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()


def _workload_keys() -> Iterator[list[str]]:
    """The keys below `workload:` that have a comment; where defaults differ, without one."""
    meanings: dict[str, str] = {}
    defaults: dict[str, set[str]] = {}
    for path in sorted((CONF / "workload").glob("*.yaml")):
        for name, default, meaning in re.findall(r"^  (\w+): (.+?) +# (.+)$", path.read_text(), re.MULTILINE):
            meanings.setdefault(name, meaning)
            defaults.setdefault(name, set()).add(default)
    for name, meaning in meanings.items():
        yield [f"`workload.{name}`", _sentence(meaning), f"`{min(defaults[name])}`" if len(defaults[name]) == 1 else ""]


def _commands() -> Iterator[str]:
    top = parser()
    verbs = next(action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    helps = {action.dest: action.help for action in verbs._choices_actions}
    yield from _table(
        ["command", "what it does"], ([f"[`{name}`](#{name})", helps[name] or ""] for name in verbs.choices)
    )
    for name, verb in verbs.choices.items():
        actions = [action for action in verb._actions if not isinstance(action, argparse._HelpAction)]
        others = _others(verb)
        # Options that exclude each other stand together, at the place of the first.
        together = dict.fromkeys((action, *others.get(action, ())) for action in actions)
        usages = [_usage(group) for group in {frozenset(each): each for each in reversed(together)}.values()][::-1]
        yield f"## {name}\n\n{helps[name]}\n\n```\nstudy {' '.join([name, *usages])}\n```\n"
        rows = ([f"`{_name(action)}`", _meaning(action, others.get(action, ()))] for action in actions)
        yield from _table(["argument", "meaning"], rows)
    examples = "\n".join(line.removeprefix("  ") for line in USAGE.splitlines())
    yield f"## Examples\n\n```\n{examples}\n```\n"


def _metavar(action: argparse.Action) -> str:
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return str(action.metavar or action.dest.upper())


def _name(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings)
    return f"{names} {_metavar(action)}" if names and action.nargs != 0 else names or _metavar(action)


def _others(verb: argparse.ArgumentParser) -> dict[argparse.Action, list[argparse.Action]]:
    """Option -> those that it excludes."""
    groups = [group._group_actions for group in verb._mutually_exclusive_groups]
    return {one: [each for each in group if each is not one] for group in groups for one in group}


def _usage(group: Sequence[argparse.Action]) -> str:
    """An argument, or options that exclude each other."""
    if len(group) > 1:
        return f"[{' | '.join(map(_name, group))}]"
    action = group[0]
    if action.option_strings:
        return f"[{_name(action)}]" if not action.required else _name(action)
    name = _metavar(action)
    return {"*": f"[{name} ...]", "+": f"{name} ...", "?": f"[{name}]"}.get(str(action.nargs), name)


def _meaning(action: argparse.Action, others: Iterable[argparse.Action]) -> str:
    repeatable = (
        "; repeatable" if isinstance(action, argparse._AppendAction) and "repeat" not in (action.help or "") else ""
    )
    return "; ".join([f"{action.help or ''}{repeatable}", *(f"not with `{each.option_strings[0]}`" for each in others)])


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text)
