"""From the command line to Studies: composition by Hydra, and the one function that builds a Study from it."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from torch import nn
from yaml import YAMLError

from analysis.counting import Goal
from study import store, streaming
from study.engine import lanes_can, refusal
from study.evaluation import Data, metrics
from study.memory import device_bytes, micro_batch, most_workers, saved_bytes
from study.optimizers.base import HALF_LIFE
from study.placement import placement
from study.records import ADAPTIVE_SAMPLERS, Budget, Evaluation, Search, Seeds, Study
from study.schema import CheckpointConfig, SweepConfig, UsageError
from study.space import parse_space
from study.stack import arithmetic
from workloads.base import Splits, Workload, build
from workloads.layers import whole_batch_layers
from workloads.suggest import suggest

CONF = Path(importlib.import_module("conf").__file__ or "").parent


@dataclass(frozen=True)
class Job:
    """One study to run, where its results go, and how it is run.

    Attributes:
        device, workers, devices: `workers` processes, or teams of `devices` processes, train on `device`.
        engine: `auto`, `serial` or `lanes`.
        lanes: trials that a process trains at once; None: as many as pay.
        checkpoint_minutes: from one checkpoint of trials under way to the next; None: never.
        storage: where Optuna keeps its trials (see `study.storage.Storage`).
        shards: parts of its trials that several processes can work on at once.
        data_memory, loaders: how data that do not fit are read (see `study.workers.Workers`).
    """

    study: Study
    results: Path
    device: str
    workers: int
    engine: str
    lanes: int | None
    checkpoint_minutes: float | None
    storage: str | None
    shards: int = 1
    devices: int = 1
    data_memory: float | None = None
    loaders: int = 0

    @property
    def engine_settings(self) -> tuple[Any, ...]:
        """What all jobs of a sweep have in common."""
        place = (self.device, self.workers, self.devices, self.data_memory, self.loaders)
        return (*place, self.engine, self.lanes, self.checkpoint_minutes)


def jobs(arguments: Sequence[str], config_dir: Path | None = None) -> list[Job]:
    """Every study that Hydra overrides such as `workload=resnet_cifar optimizer=sgd,momentum` ask for.

    Each workload brings its own batch sizes, unless `batch_size=64,256` names them.

    Raises:
        UsageError: anything that the schema or a record refuses.
    """
    found: dict[tuple[Path, str, str, int], Job] = {}
    try:
        for config in compositions(arguments, config_dir):
            for job in _jobs_of(config):
                study = job.study
                if found.setdefault((job.results, study.name, study.optimizer, study.batch_size), job) is not job:
                    raise UsageError(
                        f"two studies would share the folder of {study.name}, {study.optimizer}, batch size "
                        f"{study.batch_size} in {job.results}; give each its own results=DIR or workload.name=NAME."
                    )
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise UsageError(_first_line(error)) from error
    if len({job.engine_settings for job in found.values()}) > 1:
        raise UsageError("engine and checkpoint settings cannot be swept: they are how a sweep runs, not what it asks.")
    return list(found.values())


def _jobs_of(config: DictConfig) -> list[Job]:
    sizes = config.batch_sizes if config.batch_size is None else [config.batch_size]
    if not sizes:
        raise UsageError("batch_sizes is empty; name at least one, such as batch_size=64.")
    if not config.results:
        raise UsageError("results must name a folder, but got ''.")
    device, workers, devices = placement(config.engine)
    engine, minutes, results = config.engine, checkpoint_minutes(config.checkpoint), Path(config.results)
    if config.shards < 1:
        raise UsageError(f"shards must be at least 1, but got {config.shards}.")
    if config.shards > 1 and config.search.sampler in ADAPTIVE_SAMPLERS and config.search.storage is None:
        raise UsageError(
            f"shards={config.shards} of a search by {config.search.sampler}, which learns from all trials, need a "
            "storage that they share; add search.storage=journal or a database URL, or choose search=sobol."
        )
    how: tuple[Any, ...] = (engine.name, engine.lanes, minutes, config.search.storage, config.shards)
    how = (device, workers, *how, devices, engine.data_memory, engine.loaders)
    return [Job(build_study(config, size), results, *how) for size in sizes]


def build_study(config: DictConfig, batch_size: int) -> Study:
    """The Study that a composed configuration asks for at one batch size.

    Raises:
        UsageError: a record refuses a value.
    """
    plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    search = plain["search"]
    del search["storage"]  # where trials are kept is no part of the question
    try:
        return Study(
            workload=plain["workload"],
            optimizer=_optimizer(**plain["optimizer"]),
            optimizer_arguments=plain["optimizer"]["arguments"],
            schedule=plain["schedule"],
            batch_size=batch_size,
            goal=Goal.parse(plain["goal"]),
            budget=Budget(**plain["budget"]),
            search=Search(**search | {"space": parse_space(search["space"]), "budgets": tuple(search["budgets"])}),
            stopping=plain["stopping"],
            race_factor=plain["race_factor"],
            precision=plain["precision"],
            evaluation=Evaluation(**plain["evaluation"]),
            seeds=Seeds(**plain["seeds"]),
        )
    except (ValueError, KeyError) as error:
        missing = isinstance(error, KeyError)
        raise UsageError(f"the workload's YAML must name {error}." if missing else str(error)) from error


def _optimizer(name: str, target: str | None, arguments: dict[str, Any]) -> str:
    """A registered name, or the import path of a class, which is its name too."""
    if name == "torch" and target is None:
        raise ValueError("optimizer=torch needs the import path of a class: optimizer.target=torch.optim.RAdam.")
    if target is not None and "." not in target:
        raise ValueError(f"optimizer.target is an import path such as torch.optim.RAdam, but got {target!r}.")
    if name != "torch" and target is not None:
        raise ValueError(f"optimizer.target is for optimizer=torch, but got optimizer={name} with {target}.")
    return name if target is None else target


def checkpoint_minutes(checkpoint: CheckpointConfig) -> float | None:
    """Minutes from one checkpoint to the next, or None for never."""
    minutes = checkpoint.minutes
    if minutes is not None and not (math.isfinite(minutes) and minutes >= 0):
        raise UsageError(f"checkpoint.minutes must be a number of at least 0, or null for never, but got {minutes:g}.")
    return minutes


def materialise(jobs: Sequence[Job]) -> list[Job]:
    """Build every workload and load its data once, so that whatever is wrong is known before anything is written.

    Returns:
        The same jobs, their studies' micro-batch and arithmetic settled.

    Raises:
        UsageError: a workload refuses its arguments, or lacks an error or a parameter that the study wants.
        DataError: the data cannot be had.
    """
    built: dict[str, Workload] = {}
    saved: dict[str, float] = {}
    streamed: dict[str, bool] = {}
    probes: dict[str, Data] = {}
    settled = []
    for job in jobs:
        key = str(job.study.workload)
        try:
            if key not in built:
                built[key] = build(job.study.workload)
                splits = built[key].splits(torch.device("cpu"))
                examples = streaming.Examples(splits)
                wanted, got = job.study.workload["train_examples"], examples.count("train")
                if got != wanted:
                    raise UsageError(
                        f"workload.train_examples is {wanted}, but {job.study.name}.splits() returns {got}."
                    )
                few = examples["train", range(min(8, got))]
                saved[key] = saved_bytes(built[key], *few)
                probes[key] = Data.of(Splits(few, few, few))
                streamed[key] = streaming.needed(splits, job.device, job.data_memory)
            check(job.study, built[key])
            if job.study.algorithm.update is None and (why := refusal(job.study, built[key], probes[key])):
                raise UsageError(
                    f"{job.study.optimizer} cannot train {job.study.name} {why.rstrip('.')}; what it takes is given by "
                    "search.space and optimizer.arguments."
                )
        except ValueError as error:
            raise UsageError(str(error)) from error
        memory = device_bytes(job.device)
        fits = micro_batch(job.study.batch_size, saved[key], memory)
        processes = job.devices if job.device == "cpu" else 1  # of a team, on a device that they share
        workers = min(job.workers, most_workers(fits * processes, saved[key], memory))
        study = replace(job.study, micro_batch=None if fits == job.study.batch_size else fits)
        begun = store.held(job.results, study)
        if begun:  # what the memory there was has settled stays; so does the arithmetic, on another device too
            study = replace(study, micro_batch=begun[0]["micro_batch"])
        model = built[key].model()
        check_parts(study, model, job.devices)
        alone = job.devices > 1 or streamed[key]
        if begun and job.engine == "auto":
            study = replace(study, arithmetic=begun[0]["arithmetic"])
            if alone and study.arithmetic != "plain":
                raise UsageError(
                    f"{job.results} was begun with fused lanes ({study.arithmetic}), which take one device that holds "
                    "all data; leave out engine.devices and engine.data_memory, or choose another results=DIR."
                )
        elif job.engine != "serial" and not alone:
            how = arithmetic(model, study, job.device, forced=job.engine == "lanes")
            fused = replace(study, arithmetic=how)
            if how == "bmm" or (how == "vmap" and lanes_can(fused, built[key], probes[key])):
                study = fused
        settled.append(replace(job, study=study, workers=workers))
    return settled


def check_parts(study: Study, model: nn.Module, devices: int) -> None:
    """A batch that comes in parts, on several devices or one after the other, must mean what it does in one.

    Raises:
        UsageError: the model or the optimizer would see the parts.
    """
    if devices == 1 and study.micro_batch is None:
        return
    parts = f"{devices} devices" if devices > 1 else f"parts of {study.micro_batch} examples, by the memory there is"
    if whole_batch_layers(model):
        raise UsageError(
            f"{study.name} has batch norm over a whole batch, but batches of {study.batch_size} come in {parts}; "
            "workloads.layers.GhostBatchNorm(channels, group=32) means the same however a batch comes."
        )
    if devices > 1 and study.algorithm.sees_examples:
        raise UsageError(
            f"{study.optimizer} collects the gradients of single examples, of which each of {devices} devices has only "
            "its own; leave out engine.devices or choose another optimizer."
        )


def check(study: Study, workload: Workload) -> None:
    """Every tuned parameter is one that somebody asks for by name, and the goal one that is measured.

    Raises:
        UsageError: one is not.
    """
    measured = metrics(study, workload)
    if study.goal.metric not in measured:
        raise UsageError(f"{study.name} does not measure {study.goal.metric!r}{suggest(study.goal.metric, measured)}")
    asked = {*study.asked_hyperparameters, *study.optional_hyperparameters, *workload.hyperparameters}
    for name in study.search.space:
        if name not in asked:
            raise UsageError(
                f"search.space.{name} is asked for by none of optimizer {study.optimizer}, schedule "
                f"{study.schedule} and workload {study.name}{suggest(name, asked)}"
            )


def compositions(arguments: Sequence[str], config_dir: Path | None = None) -> Iterator[DictConfig]:
    """One composed configuration for each combination of the swept overrides.

    Raises:
        UsageError: an override that does not parse, names an unknown choice or key, or has a value of another type.
    """
    ConfigStore.instance().store(name="schema", node=SweepConfig)
    if config_dir is not None and not config_dir.is_dir():
        raise UsageError(f"--config-dir must be a folder, but got {config_dir}.")
    extra = [] if config_dir is None else [f"hydra.searchpath=[file://{config_dir.resolve()}]"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        try:
            overrides = OverridesParser.create().parse_overrides([_readable(text) for text in arguments])
            points = BasicSweeper.split_arguments(overrides, max_batch_size=None)[0]
            for point in points:
                yield _compose(extra, OverridesParser.create().parse_overrides(point))
        except (HydraException, OmegaConfBaseException) as error:
            raise UsageError(_first_line(error)) from error


def _readable(override: str) -> str:
    """What people type, as Hydra's grammar wants it: goals and addresses need quotes, and choices a name."""
    key, _, value = override.partition("=")
    if (key.lstrip("+") == "goal" or "://" in value) and value[:1] not in ("'", '"'):
        return f"{key}='{value}'"
    if re.fullmatch(r"\+*search\.space\.\w+", key) and value.startswith("["):
        return f"{key}={{choices: {value}}}"
    return override


def _compose(extra: list[str], overrides: Sequence[Override]) -> DictConfig:
    loader = GlobalHydra.instance().config_loader()
    choices: list[str] = []
    values: list[Override] = []
    for override in overrides:
        name = override.key_or_group
        options = [*loader.get_group_options(name), *_options_beside(extra, name)]
        if override.is_delete():
            raise UsageError(f"{name} cannot be removed; give it another value.")
        if not options:
            values.append(override)
            continue
        if "/" in name or override.package is not None:
            raise UsageError(f"{override.input_line} cannot be chosen here; the groups are the folders of conf/.")
        if override.value() not in options:
            raise UsageError(f"unknown {name} {override.value()!r}{suggest(str(override.value()), options)}")
        choices.append(f"{name}={override.value()}")
    known = compose("sweep", overrides=[*extra, *choices])
    keys = _keys(OmegaConf.to_container(known))
    final = []
    for override in values:
        key, text = override.key_or_group, str(override.input_line).lstrip("+")
        # The study judges whether anything asks for it.
        parameter = re.fullmatch(r"(search\.space|optimizer\.arguments)\.\w+", key)
        if key not in keys and not parameter:
            raise UsageError(f"unknown key {key!r}{suggest(key, keys)}")
        # `+key=value` of a declared key means what `key=value` does; an undeclared one was just refused.
        final.append(f"++{text}" if parameter else text)
    config = compose("sweep", overrides=[*extra, *choices, *final])
    given = {override.key_or_group for override in values}
    for name in list(config.search.space):
        stem = name.removesuffix(HALF_LIFE)  # which takes the place of the beta that a file gave
        if stem != name and f"search.space.{stem}" not in given:
            with open_dict(config):
                config.search.space.pop(stem, None)
    return config


def _options_beside(extra: Sequence[str], group: str) -> list[str]:
    """The choices of a group in the user's own --config-dir, which Hydra's loader learns of only while composing."""
    folders = [Path(text.partition("file://")[2].rstrip("]")) for text in extra]
    return [path.stem for folder in folders for path in (folder / group).glob("*.yaml")]


def _keys(tree: Any, prefix: str = "") -> list[str]:
    """Every dotted key of a plain configuration, branches included."""
    if not isinstance(tree, dict):
        return []
    return [key for name, branch in tree.items() for key in (f"{prefix}{name}", *_keys(branch, f"{prefix}{name}."))]


def _first_line(error: Exception) -> str:
    """What Hydra and OmegaConf say of a value, without their hints for developers."""
    cause = error.__cause__ or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    key = next((line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")), None)
    return lines[0] if key is None else f"{key}: {lines[0]}"


def as_yaml(arguments: Sequence[str], config_dir: Path | None = None) -> str:
    """The first composed configuration, as YAML."""
    return OmegaConf.to_yaml(next(iter(compositions(arguments, config_dir))), resolve=True)
