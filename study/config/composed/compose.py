"""Composes the configuration with Hydra; refuses unknown keys and values with messages of one line."""

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException, ValidationError
from yaml import YAMLError

from analysis.labels import listed
from analysis.question.stages import REFINE
from analysis.units import stem
from study.config.composed.choices import CONF, hidden, nearest_key, workloads_with
from study.config.composed.kinds import (
    UNKNOWN,
    as_typed,
    check_kinds,
    check_ranges,
    told,
    told_of_file,
    told_of_launcher,
)
from study.config.composed.naming import named, to_tell_apart
from study.config.composed.overrides import parsed, quoted
from study.config.composed.paths import check_folder, literal, text_of
from study.config.composed.schema import SweepConfig
from study.errors import UsageError
from study.optimizers.foreign import class_path
from study.schedules import OWN_OR_WARMUP, SCHEDULE, TUNED
from workloads.suggest import nearest, suggest

EXTRAS = {"submitit_slurm": "slurm", "ray": "ray"}
"""Launcher of Hydra -> the extra of this package that installs it."""
COUNTED = frozenset({"search.trials", "search.max_launches", "search.reruns"})
"""Keys that `search=refine` derives from its own. On the command line, they choose a quasi-random search."""
BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
FOREIGN = re.compile(r"hydra(?!\.launcher\.[^_])")
"""Hydra's own keys that the command line may not set: all but the settings of launchers."""
NOT_SWEPT = re.compile(r"(?P<one>cluster$|hydra\b)|track$")
"""Groups that take one value, since all jobs of a sweep share them; trackers come in a list."""
OPEN = re.compile(
    r"(search\.space|optimizer\.arguments)\.\w+|workload\.arguments(\.[\w.]+)?|"
    rf"search\.space\.({'|'.join(sorted(OWN_OR_WARMUP))})\.\w+|"
    r"hydra\.launcher\.(additional_parameters|ray\.init|ray\.remote)\.[\w.-]+"
)
"""Keys outside the schema. They are checked later: by the study, if nothing takes the key, by the workload, whose
`arguments` are for another library, or by the launcher. The ends of a schedule's ranges are among them, because
`search.space.schedule` adds these ranges after composing."""

JOINED = {
    "space": ("space", "workload", "optimizer"),
    "preset_workload": ("preset/workload", "preset", "workload"),
    "preset_space": ("preset/optimizer", "preset", "optimizer"),
}
"""Folder where older versions kept FIRST_SECOND.yaml -> folder of FIRST/SECOND.yaml, groups of FIRST and SECOND."""


@contextmanager
def one_line_errors(config_dir: Path | None = None) -> Iterator[None]:
    """Turn Hydra's errors in this block into UsageErrors of one line, without its hints for developers."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(_first_line(error)) from error
    except YAMLError as error:
        raise UsageError(told_of_file(error)) from error
    except UnicodeDecodeError as error:
        for path in sorted(config_dir.rglob("*.yaml")) if config_dir else ():
            if error.object in path.read_bytes():
                text_of(path)  # raises an error that names it
        raise


def compositions(arguments: Sequence[str], config_dir: Path | None = None) -> Iterator[DictConfig]:
    """One composed configuration for each combination of the swept overrides.

    Raises:
        UsageError: an override does not parse, names an unknown choice or key, or has a value of another type.
    """
    for config in _with_hydra(arguments, config_dir):
        with open_dict(config):
            del config["hydra"]
        yield config


@contextmanager
def offered(workloads: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """In this block, `workload=NAME` also chooses these: name -> `_target_` and arguments, as a file would give them.

    Raises:
        UsageError: there is a file of this name.
    """
    for name in workloads:
        if name in _options([CONF], "workload"):
            raise UsageError(f"{name} is a workload of this package; give yours another name.")
    stored: dict[str, Any] = ConfigStore.instance().repo
    try:
        for name, node in workloads.items():
            node = {"workload": _literal(node)}
            ConfigStore.instance().store(group="workload", name=name, node=node, package="_global_")
        yield
    finally:
        for name in workloads:
            stored.get("workload", {}).pop(f"{name}.yaml", None)


def _literal(value: Any) -> Any:
    """A value whose texts refer to no other key."""
    if isinstance(value, Mapping):
        return {key: _literal(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_literal(each) for each in value]
    return literal(value) if isinstance(value, str) else value


def launcher(arguments: Sequence[str], config_dir: Path | None) -> dict[str, Any]:
    """The settings of the launcher that `cluster=` chose, under Hydra's own names; `_target_` is its class.

    Raises:
        UsageError: as `compositions` does.
    """
    config = next(_with_hydra(arguments, config_dir))
    with one_line_errors():
        settings: Any = OmegaConf.to_container(config.hydra.launcher, resolve=True)
    return settings


def as_yaml(arguments: Sequence[str], config_dir: Path | None = None) -> str:
    """The first composed configuration as YAML, with the settings of its launcher."""
    config = next(_with_hydra(arguments, config_dir))
    with open_dict(config):
        settings = config.pop("hydra").launcher
    text = OmegaConf.to_yaml(config, resolve=True)
    return f"{text}{OmegaConf.to_yaml({'hydra': {'launcher': settings}})}" if len(settings) > 1 else text


def _with_hydra(arguments: Sequence[str], config_dir: Path | None) -> Iterator[DictConfig]:
    ConfigStore.instance().store(name="schema", node=SweepConfig)
    if config_dir is not None:
        _check_config_dir(config_dir)
    with initialize_config_dir(str(CONF), version_base="1.3"), one_line_errors(config_dir):
        overrides = [parsed(text) for text in arguments]
        for override in overrides:
            value, typed = override.value(), str(override.input_line).partition("=")[2]
            values = value.list if isinstance(value, ChoiceSweep) else [value]
            check_kinds(override.key_or_group.lstrip("+"), typed, values)
            if override.is_sweep_override() and (why := NOT_SWEPT.match(override.key_or_group)):
                cure = "choose one value" if why["one"] else "give several as track=[tensorboard,mlflow]"
                raise UsageError(f"{override.input_line} cannot be swept: all jobs of a sweep share it; {cure}.")
        for config in _points(overrides, config_dir):
            yield named(config, to_tell_apart(overrides))


def _points(overrides: Sequence[Override], config_dir: Path | None) -> Iterator[DictConfig]:
    """A configuration for each combination of the swept overrides. Hydra takes a quarter of a second for each, so
    combinations that differ in the batch size alone, on which no choice of a file depends, are composed once."""
    composed: dict[tuple[str, ...], DictConfig] = {}
    for texts in BasicSweeper.split_arguments([*overrides], max_batch_size=None)[0]:
        point = OverridesParser.create().parse_overrides(texts)
        sizes = [each.value() for each in point if each.key_or_group == "batch_size"]
        others = tuple(str(each.input_line) for each in point if each.key_or_group != "batch_size")
        if others not in composed:
            composed[others] = _compose(config_dir, point)
        config = deepcopy(composed[others])
        if sizes:
            OmegaConf.update(config, "batch_size", sizes[-1])
        check_ranges({each.key_or_group for each in point}, config.search.space)
        yield config


def _check_config_dir(folder: Path) -> None:
    """Refuse a path that is not a folder, and files under the joined names of older versions, which nothing reads."""
    check_folder(folder)
    if "${" in str(folder.resolve()):  # Hydra reads it as a reference wherever the path appears
        raise UsageError(f"--config-dir cannot be a folder with ${{ in its path, but got {folder}; rename it.")
    if unread := hidden(folder):
        raise UsageError(f"{unread} is not read: a file of this package has its name; give it another one.")
    for old, (new, *groups) in JOINED.items():
        for path in (folder / old).glob("*.yaml"):
            firsts, seconds = (_options((CONF, folder), group) for group in groups)
            for first, second in itertools.product(firsts, seconds):
                if path.stem == f"{first}_{second}":
                    moved = folder / new / first / f"{second}.yaml"
                    raise UsageError(f"{path} is not read: its {groups[0]} is a folder now; move it to {moved}.")


def _compose(config_dir: Path | None, overrides: Sequence[Override]) -> DictConfig:
    own = [] if config_dir is None else [config_dir.resolve()]
    roots = [CONF, *own]
    chosen, values = _choices_and_values(overrides, roots, config_dir)
    search_path = [f"hydra.searchpath=[{quoted(f'file://{folder}')}]" for folder in own]
    config = _with_values(values, [*search_path, *chosen], roots)
    given = {override.key_or_group for override in overrides}
    if config.search.sampler == REFINE and COUNTED & given and "search" not in given:
        return _compose(config_dir, [*overrides, parsed("search=sobol")])
    if "cluster" not in given and config.hydra.launcher._target_ != BASIC:
        raise UsageError("choose a cluster on the command line, cluster=NAME; a configuration file cannot choose one.")
    _offer_schedules(config, given, roots)
    _drop_replaced_betas(config, given)
    return config


def _choices_and_values(
    overrides: Iterable[Override], roots: Sequence[Path], config_dir: Path | None
) -> tuple[list[str], dict[str, Override]]:
    """Overrides that choose a file of a group, as Hydra reads them; and the others by key.

    Raises:
        UsageError: an override removes a key, or chooses a file that is not there.
    """
    chosen: list[str] = []
    values: dict[str, Override] = {}
    for override in overrides:
        name = override.key_or_group
        options = _options(roots, name)
        if override.is_delete():
            raise UsageError(f"{name} cannot be removed; give it another value.")
        if not options and "/" not in name:
            values[name] = override
            continue
        if "/" in name or override.package is not None:
            raise UsageError(f"{override.input_line} cannot be chosen here; the groups are the folders of conf/.")
        chosen.append(_choice(override, options, config_dir))
    return chosen, values


def _with_values(values: Mapping[str, Override], chosen: Sequence[str], roots: Sequence[Path]) -> DictConfig:
    """The configuration of the chosen files with these values of keys. Raises UsageError for an unknown key."""
    if any(map(FOREIGN.match, values)):
        _refuse_unknown(values, chosen, roots)
    # Set such keys after composing: Hydra takes a key named like a folder in --config-dir for a choice in that folder.
    aside = {name: each.value() for name, each in values.items() if any((own / name).is_dir() for own in roots[1:])}
    # `+key=value` of a declared key means the same as `key=value`; Hydra refuses keys that nothing declares.
    texts = {name: str(each.input_line).lstrip("+") for name, each in values.items() if name not in aside}
    final = [f"++{text}" if OPEN.fullmatch(name) else text for name, text in texts.items()]
    try:
        config = compose("sweep", overrides=[*chosen, *final], return_hydra_config=True)
        for name, value in aside.items():
            OmegaConf.update(config, name, value)
    except (HydraException, OmegaConfBaseException):
        _refuse_unknown(values, chosen, roots)
        raise
    return config


def _drop_replaced_betas(config: DictConfig, given: Collection[str]) -> None:
    """Leave out each beta of a file whose half-life is searched in its place."""
    for name in list(config.search.space):
        beta = stem(name)
        if beta != name and f"search.space.{beta}" not in given:
            with open_dict(config):
                config.search.space.pop(beta, None)


def _choice(override: Override, options: Sequence[str], config_dir: Path | None) -> str:
    """`GROUP=NAME` as Hydra reads it; trackers may be a list of names. Raises UsageError for an unknown name."""
    group, value = override.key_or_group, override.value()
    names: Any = value if group == "track" and isinstance(value, list) else [value]
    if isinstance(value, list) and group != "track":
        cure = "" if NOT_SWEPT.match(group) else f"; give {group}={','.join(map(as_typed, value))} to sweep them"
        raise UsageError(f"{group} must be one name, but got {as_typed(value)}{cure}.")
    for name in names:
        if name not in options:
            hint = suggest(str(name), options)
            own = config_dir is None and group == "workload" and nearest(str(name), options) is None
            hint += " One of your own needs --config-dir." if own else ""
            if group == "optimizer" and (path := class_path(str(name), options)):
                hint = f"; a class is chosen by optimizer=torch optimizer.target={path} (docs/guide/own-optimizer.md)."
            raise UsageError(f"unknown {group} {name!r}{hint}")
    return f"{group}=[{','.join(names)}]" if isinstance(value, list) else f"{group}={value}"


def _offer_schedules(config: DictConfig, given: Collection[str], roots: Sequence[Path]) -> None:
    """If `search.space.schedule` lists schedules, add the ranges that their files search, where nothing sets them.

    Raises:
        UsageError: `schedule=` chooses one of them as well, or two files search different ranges of one parameter.
    """
    space = config.search.space
    if SCHEDULE not in space:
        return
    if SCHEDULE in given:
        raise UsageError(
            f"schedule={config.schedule} chooses one schedule, and search.space.schedule tunes it; give one of them."
        )
    plain: Any = OmegaConf.to_container(space)
    ranges: dict[str, dict[str, Any]] = {}
    for schedule in _names(plain[SCHEDULE]):
        for parameter, dimension in _searched(schedule, roots).items():
            ranges.setdefault(parameter, {})[schedule] = dimension
    alike = {}
    for parameter, by_schedule in ranges.items():
        first, *others = by_schedule.values()
        if all(other == first for other in others):
            alike[parameter] = first
        elif parameter not in space:
            raise UsageError(
                f"{' and '.join(by_schedule)} search different ranges of {parameter}; give search.space.{parameter}."
            )
    config.schedule = TUNED
    config.search.space = OmegaConf.merge(alike, space)


def _names(choices: Any) -> list[str]:
    """The names in a dimension of a search space as it is configured; empty if it has none."""
    values = choices.get("choices") if isinstance(choices, dict) else choices
    return [values] if isinstance(values, str) else [name for name in values or () if isinstance(name, str)]


def _searched(schedule: str, roots: Iterable[Path]) -> dict[str, Any]:
    """The search space in the file of a schedule; empty if there is none."""
    path = next((path for root in roots if (path := root / SCHEDULE / f"{schedule}.yaml").exists()), None)
    content: Any = {} if path is None else OmegaConf.to_container(OmegaConf.load(path))
    return dict(content.get("search", {}).get("space", {}))


def _refuse_unknown(names: Iterable[str], choices: Sequence[str], roots: Iterable[Path]) -> None:
    """Refuse a key that neither the schema nor a chosen file declares, and suggest the nearest one."""
    composed = compose("sweep", overrides=[*choices], return_hydra_config=True)
    keys = [key for key in _keys(OmegaConf.to_container(composed)) if not FOREIGN.match(key)]
    for name in names:
        if name in keys or OPEN.fullmatch(name):
            continue
        near = nearest_key(name, keys)
        hint = f"; did you mean {near!r}?" if near else suggest(name, keys)
        if name.startswith("hydra.launcher.") and not any(key.startswith("hydra.launcher.") for key in keys):
            hint = "; settings of a launcher need a cluster: choose cluster=local, slurm or ray, too."
        hint = _range(name, keys) or hint
        group, _, key = name.partition(".")
        own = [each.removeprefix("workload.") for each in keys if re.fullmatch(r"workload\.(?!_)\w+", each)]
        if group == "workload" and not get_close_matches(key, own):
            others = workloads_with(key, roots)[:3]
            there = f"workload={listed(others, 'or')} has it; " if others else ""
            hint = f"; {there}the file of this one has {', '.join(own)}; list other arguments of its class there."
        raise UsageError(f"unknown key {name!r}{hint}")


def _range(name: str, keys: Iterable[str]) -> str:
    """The hint for a key of a dimension that the search space lacks; empty if it has one of a similar name."""
    path, _, _ = name.rpartition(".")
    parameters = {key.split(".")[2] for key in keys if key.startswith("search.space.")}
    found = re.fullmatch(r"search\.space\.(\w+)", path)
    if not found or get_close_matches(found[1], parameters):
        return ""
    return f"; {found[1]} has no range here: give all of it, {path}='{{low: 0, high: 1}}'."


def _options(roots: Iterable[Path], group: str) -> list[str]:
    """The choices of a group: the names of its files, or of `offered` ones; for `space`, WORKLOAD/OPTIMIZER."""
    pattern = "*/*.yaml" if group == "space" else "*.yaml"
    files = [path.relative_to(root / group) for root in roots for path in (root / group).glob(pattern)]
    stored = ConfigStore.instance().repo.get(group, {}) if group == "workload" else {}
    return [str(path.with_suffix("")) for path in (*files, *map(Path, stored))]


def _keys(tree: Any, prefix: str = "") -> list[str]:
    """Every dotted key of a plain configuration, including the keys of branches."""
    if not isinstance(tree, dict):
        return []
    return [key for name, branch in tree.items() for key in (f"{prefix}{name}", *_keys(branch, f"{prefix}{name}."))]


def _first_line(error: Exception) -> str:
    """The message of Hydra or OmegaConf in one line, without its hints for developers."""
    cause = error.__cause__ or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    absent = re.search(r"Could not find 'hydra/launcher/(\w+)'", lines[0])
    if absent and (extra := EXTRAS.get(absent[1])):
        return f"cluster={extra} needs a package that is not installed: pip install 'batch-size-study[{extra}]'"
    key = next((line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")), None)
    if key is None and (file := re.match(r"In '(.+)': \w+ raised while composing config:", lines[0])):
        return f"{file[1]}.yaml must hold keys with values, such as `batch_sizes: [8, 64]`, but holds something else."
    value = cause.value if isinstance(cause, ValidationError) else UNKNOWN
    if key and (said := told(key, value) or told_of_launcher(key, lines[0])):
        return said
    return lines[0] if key is None else f"{key}: {lines[0]}"
