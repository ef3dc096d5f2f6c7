"""The choices of each group, read off the files in conf/, and the nearest key to a word. Imports no Hydra."""

import difflib
import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from study.config.composed.paths import text_of

CONF = Path(__file__).parents[2] / "conf"
"""The configuration files. In a checkout this is a link to `conf/` at the top of the repository."""
GROUPS = {
    "workload": "The model and its data.",
    "optimizer": "Each brings the ranges that are searched unless the workload narrows them.",
    "schedule": "The learning rate over the steps of a trial, as a multiple of the tuned learning rate.",
    "batch_schedule": "How the batch size grows during a trial, and steps with it; such curves are no points of S(B).",
    "search": "How the points of the search space are chosen.",
    "preset": "A smaller or larger version of any sweep.",
    "engine": "How trials are trained.",
    "cluster": "Where studies are trained. It changes no trial and cannot be swept.",
    "track": "Tools that record the sweep. `track=[tensorboard,wandb]` chooses two. It changes no trial and cannot be "
    "swept.",
}
"""Group, a folder of conf/ -> what it chooses."""
OTHER_NAMES = {
    "lr": "search.space.learning_rate",
    "learning_rate": "search.space.learning_rate",
    "momentum": "search.space.momentum",
    "weight_decay": "search.space.weight_decay",
    "wd": "search.space.weight_decay",
    "bs": "batch_size",
    "seed": "seeds.trial",
    "gpu": "engine.device",
    "gpus": "engine.devices",
    "jobs": "engine.workers",
    "num_workers": "engine.workers",
    "n_trials": "search.trials",
    "output": "results",
    "output_dir": "results",
    "out": "results",
    "optim": "optimizer",
    "model": "workload",
}
"""What other programs call a key -> its name here."""
OTHER_ENDS = {"min": "low", "minimum": "low", "lower": "low", "max": "high", "maximum": "high", "upper": "high"}
"""What other programs call an end of a range -> its name here."""


class Choice(NamedTuple):
    """A choice of a group: its name, what it is, and how long it takes, if its file says so (otherwise empty)."""

    name: str
    purpose: str
    takes: str


def header(path: Path) -> tuple[str, str]:
    """The first line of a file's header, a sentence that says what it is; and how long it takes, if it says so."""
    lines = [line for line in text_of(path).splitlines() if line != "# @package _global_"]
    text = [line.removeprefix("#").strip() for line in itertools.takewhile(lambda line: line.startswith("#"), lines)]
    takes = re.search(r"Takes: +(.*?)(?: Expect:| Known:|$)", " ".join(text))
    return text[0] if text else "", takes[1] if takes else ""


def choices(group: str, config_dir: Path | None = None) -> list[Choice]:
    """The choices of a group by name; with those of the user's own folder."""
    folders = [CONF, *([config_dir] if config_dir else [])]
    paths = {path.stem: path for folder in folders for path in sorted((folder / group).glob("*.yaml"))}
    return [Choice(name, *header(path)) for name, path in sorted(paths.items())]


def hidden(folder: Path) -> Path | None:
    """A file of the user's own folder that one of ours with the same path hides, because Hydra looks here first; None
    if there is none. Copies without a change count as ours."""
    pairs = ((folder / ours.relative_to(CONF), ours) for ours in sorted(CONF.glob("*/**/*.yaml")))
    return next((own for own, ours in pairs if own.is_file() and own.read_bytes() != ours.read_bytes()), None)


def full_key(word: str, keys: Collection[str]) -> str | None:
    """The key that a word most likely stands for: its own name, its last part, or what other programs call it.

    >>> full_key("trials", ["search.trials", "batch_size"]), full_key("lr", []), full_key("x", ["y"])
    ('search.trials', 'search.space.learning_rate', None)
    >>> full_key("search.space.momentum.max", ["search.space.momentum.high"])
    'search.space.momentum.high'
    """
    group, _, last = word.rpartition(".")
    for name in (word, f"{group}.{OTHER_ENDS.get(last)}"):
        if name in keys:
            return name
    return OTHER_NAMES.get(word) or next((key for key in keys if key.endswith(f".{word}")), None)


def workloads_with(key: str, roots: Iterable[Path]) -> list[str]:
    """The workloads whose files have this key below `workload`; the one of that name first. Files that cannot be read
    have none.

    >>> workloads_with("command", [CONF]), workloads_with("nonsense", [CONF])
    (['command'], [])
    """
    import yaml

    paths = [path for root in roots for path in sorted((root / "workload").glob("*.yaml"))]
    found = []
    for path in paths:
        with suppress(UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
            if key in yaml.safe_load(path.read_text())["workload"]:
                found.append(path.stem)
    return sorted(found, key=lambda name: name != key)


def nearest_key(word: str, keys: Collection[str]) -> str | None:
    """The key that a word stands for, also a mistyped one: the last part of a key counts as its name.

    >>> nearest_key("trails", ["track.trials", "search.trials"][::-1]), nearest_key("serch.trials", ["search.trials"])
    ('search.trials', 'search.trials')
    """
    names = [*keys, *(key.rpartition(".")[2] for key in keys), *OTHER_NAMES]
    near = difflib.get_close_matches(word, dict.fromkeys(names), n=1)
    return full_key(word, keys) or (full_key(near[0], keys) if near else None)


def plain(kinds: Mapping[str, Iterable[Choice]]) -> list[dict[str, str]]:
    """Choices by their kind as records for JSON."""
    return [{"kind": kind, **choice._asdict()} for kind, found in kinds.items() for choice in found]
