"""Turns the command line into jobs. Only `build_study` here builds a Study from a configuration."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from analysis.counting import ADAPTIVE_SAMPLERS, RACE, Goal
from analysis.labels import listed
from analysis.question import measured
from analysis.question.batch_schedules import CONSTANT, BatchSchedule
from analysis.question.phases import LISTED
from analysis.question.stages import REFINE, STAGE, ends
from analysis.question.until import Until
from study.config import idle, tokens
from study.config.composed.compose import compositions, one_line_errors
from study.config.composed.naming import shared_folder
from study.config.composed.overrides import swept
from study.devices.placement import Placement
from study.errors import UsageError, usage_errors
from study.optimizers.foreign import class_path
from study.records import COMMAND, PLAIN, Study
from study.settings import Budget, Evaluation, Search, Seeds, check_single_pass, usual_scouts
from study.space import parse_space
from workloads.command import is_command
from workloads.user_code.importing import importable

EVERY = 5
"""Training and test errors are measured at every fifth evaluation."""


@dataclass(frozen=True)
class SweepOptions:
    """Settings that all jobs of a sweep share.

    Attributes:
        until: the width of intervals up to which the sweep goes on; None: it ends with its search.
        until_cost: the most trainings of a sweep that goes on, as a multiple of those of its search.
        track: the names of the trackers that are told of the sweep (`study.observers.trackers`).
        track_trials: trackers also get a run for each trial.
        notify: the URL to which a message is posted at the end of the sweep.
    """

    until: Until | None = None
    until_cost: float = 3.0
    track: tuple[str, ...] = ()
    track_trials: bool = False
    notify: str | None = None


@dataclass(frozen=True)
class Job:
    """One study, the folder of its results, and how it is trained.

    Attributes:
        placement: as configured, until `study.config.preflight.settle` fills it in; the same for all jobs of a sweep.
        storage: where Optuna stores its trials (see `study.search.optuna_storage.Storage`).
        shards: number of parts of the study's trials; one process works on each part.
        shard: the part that this job takes first.
        fingerprint: fingerprint of the workload and optimizer (`study.config.fingerprint`); empty until computed.
        notes: likely mistakes in the workload (`study.user_code.notes`); recorded with the results.
        alone: why trials train one at a time although the engine would fuse them; empty otherwise.
        mix: train on beside recorded trials of other code or data.
        checkpoint_bytes: bytes in the checkpoint of one trial; 0 until they are estimated.
        together: all batch sizes that the sweep asks for of this workload and optimizer.
        options: of the sweep.
    """

    study: Study
    results: Path
    placement: Placement
    storage: str | None = None
    shards: int = 1
    shard: int = 0
    fingerprint: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    alone: str = ""
    mix: bool = False
    checkpoint_bytes: int = 0
    together: tuple[int, ...] = ()
    options: SweepOptions = SweepOptions()

    @property
    def pooled(self) -> bool:
        """True if the batch sizes of the curve share a model, so that their trials are one queue."""
        return self.study.search.refines and self.study.search.pool

    @property
    def in_waves(self) -> bool:
        """True if a stage waits for the trials of several jobs (`study.cluster.waves`)."""
        return self.study.search.refines and self.shards > 1


GIVEN = {
    "goal": "'goal=val/classification_error < 0.1'",
    "batch_sizes": "batch_sizes=[8,64,512]",
    "budget.epochs": "budget.epochs=4",
    "budget.steps": "budget.steps=200",
}
"""Keys that a sweep must be given -> an example."""


def parse_jobs(arguments: Sequence[str], config_dir: Path | None = None) -> list[Job]:
    """A job for each study that Hydra overrides such as `workload=resnet_cifar optimizer=sgd,momentum` ask for.

    Each workload brings its own batch sizes, unless `batch_size=64,256` names them.

    Raises:
        UsageError: the schema, a class or a record refuses a value, or two jobs would write to the same folder.
    """
    importable(config_dir)  # creating a Study builds its workload and imports its optimizer
    jobs: dict[tuple[Path, str, str, int], Job] = {}
    with one_line_errors():
        configs = list(compositions(arguments, config_dir))
        idle.check(arguments, configs)
        asked = [(job, config) for config in configs for job in _jobs_of(config)]
        if len({(job.placement, job.shards, job.options) for job, _ in asked}) > 1:
            raise UsageError(
                "search.until, engine, checkpoint, shards, track and notify settings cannot be swept: all jobs of a "
                "sweep share them; give one value each."
            )
        for job, config in asked:
            if (first := jobs.setdefault((*_curve(job), job.study.batch_size), job)) is not job:
                name = f"{job.study.name}, {job.study.series}, batch size {job.study.batch_size}"
                if first == job:
                    raise UsageError(f"the overrides ask for {name} twice; give each value once.")
                raise UsageError(shared_folder(swept(arguments), arguments, config, f"{name} in {job.results}"))
    sizes: dict[tuple[Path, str, str], list[int]] = defaultdict(list)
    for job in jobs.values():
        sizes[_curve(job)].append(job.study.batch_size)
    return [replace(job, together=tuple(sizes[_curve(job)])) for job in jobs.values()]


def _curve(job: Job) -> tuple[Path, str, str]:
    return job.results, job.study.name, job.study.series


def _jobs_of(config: DictConfig) -> list[Job]:
    sizes = config.batch_sizes if config.batch_size is None else [config.batch_size]
    _check_given(config)
    if not config.results:
        raise UsageError("results must name a folder, but got ''.")
    placement = Placement(**config.engine, checkpoint_minutes=config.checkpoint.minutes)
    if config.shards < 1:
        raise UsageError(f"shards must be at least 1, but got {config.shards}.")
    if config.shards > 1 and config.search.sampler in ADAPTIVE_SAMPLERS and config.search.storage is None:
        raise UsageError(
            f"shards={config.shards} of search={config.search.sampler}, which learns from all trials, must share a "
            "storage; add search.storage=journal or a database URL, or choose search=sobol."
        )
    tokens_per_example = tokens.per_example(config)
    sizes = [tokens.batch_size(size, tokens_per_example, config.workload.get("name")) for size in sizes]
    how = (Path(config.results), placement, config.search.storage, config.shards)
    track = tuple(str(name) for name, chosen in config.track.items() if chosen and name != "trials")
    options = SweepOptions(_until(config), config.search.until_cost, track, config.track.trials, config.notify)
    _check_single_pass(config, sizes, tokens_per_example)
    return [Job(build_study(config, size, tokens_per_example), *how, options=options) for size in sizes]


def _check_given(config: DictConfig) -> None:
    """Refuse a configuration without some of the keys that no default can have; the message names them all."""
    absent = sorted(OmegaConf.missing_keys(config))
    if config.batch_size is None and not config.batch_sizes:
        absent.append("batch_sizes")
    if not absent:
        return
    absent.sort(key=lambda name: [*GIVEN, name].index(name))
    are, them = ("is", "it") if len(absent) == 1 else ("are", "them")
    examples = [GIVEN[name] for name in absent if name in GIVEN]
    such = f", such as {' '.join(examples)}" if examples else ""
    zero = "; budget.epochs=0 if budget.tokens or budget.steps alone count" if "budget.epochs" in absent else ""
    raise UsageError(
        f"{listed(absent)} {are} not set: give {them}{such}, or set {them} in the workload's file, below its "
        f"first line, `# @package _global_`{zero}."
    )


def _check_single_pass(config: DictConfig, sizes: Sequence[int], tokens_per_example: int | None) -> None:
    """Refuse budgets of a single pass that any batch size has too few examples for; the message names them all."""
    examples = config.workload.get("train_examples")
    known = tokens_per_example is not None or config.budget.tokens is None
    if not (config.budget.single_pass and isinstance(examples, int) and known):
        return  # building the study says what is wrong
    with usage_errors():
        budget, most = Budget(**config.budget), max(config.search.budgets, default=1)
        steps = {size: round(most * budget.train_steps(examples, size, tokens_per_example)) for size in sizes}
        check_single_pass({size: size * count for size, count in steps.items()}, examples, config.workload.name)


def _until(config: DictConfig) -> Until | None:
    if config.search.until is None:
        return None
    if config.search.until_cost < 1:
        raise UsageError(f"search.until_cost must be at least 1, but got {config.search.until_cost:g}.")
    with usage_errors():
        return Until.parse(config.search.until)


def build_study(config: DictConfig, batch_size: int, tokens_per_example: int | None = None) -> Study:
    """The Study of a composed configuration at one batch size.

    Raises:
        UsageError: a record refuses a value, or a value is missing.
    """
    plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    search = plain["search"]
    for name in ("storage", "until", "until_cost"):  # they change no training
        del search[name]
    search |= {"budgets": tuple(search["budgets"]), "refine": tuple(search["refine"])}
    confirm = search.pop("confirm")
    try:
        search["space"] = parse_space(search["space"])
        if search["sampler"] == REFINE:
            if search["scouts"] is None:
                search["scouts"] = usual_scouts(search["space"])
            search |= {"trials": ends(search, STAGE)[-1], "reruns": confirm, "max_launches": None, "extend": False}
        optimizer = _optimizer(plain["optimizer"]["name"], plain["optimizer"]["target"])
        return Study(
            workload=plain["workload"],
            optimizer=optimizer,
            optimizer_arguments=plain["optimizer"]["arguments"],
            no_decay=plain["optimizer"]["no_decay"],
            schedule=plain["schedule"],
            batch_schedule=_batch_schedule(plain["batch_schedule"], plain["workload"]["name"], optimizer, batch_size),
            batch_size=batch_size,
            tokens_per_example=tokens_per_example,
            goal=Goal.parse(plain["goal"]),
            budget=Budget(**plain["budget"]),
            search=Search(**search),
            stopping=plain["stopping"],
            race_factor=plain["race_factor"],
            precision=plain["precision"],
            arithmetic=COMMAND if is_command(str(plain["workload"].get("_target_"))) else PLAIN,
            evaluation=_evaluation(plain["evaluation"], plain["stopping"]),
            seeds=Seeds(**plain["seeds"]),
        )
    except (ValueError, KeyError) as error:
        missing = isinstance(error, KeyError)
        raise UsageError(f"the workload's YAML file must set {error}." if missing else str(error)) from error


def _batch_schedule(plain: Mapping[str, Any], workload: str, optimizer: str, batch_size: int) -> BatchSchedule:
    """The batch-size schedule, with measured numbers in place of the results that it is to be read from."""
    numbers = {name: tuple(plain[name]) for name in ("switches", "sizes")}
    if plain["source"] is None:
        return BatchSchedule(**{**plain, **numbers})
    if plain["kind"] not in (CONSTANT, LISTED) or any(numbers.values()):
        raise ValueError(
            f"batch_schedule.from={plain['source']} gives the whole schedule, but got batch_schedule={plain['kind']} "
            "with switches or parameters of its own; leave them out."
        )
    schedule = measured.read(Path(plain["source"]), workload, optimizer, batch_size=batch_size)
    return BatchSchedule(**{**plain, "kind": LISTED, **schedule._asdict()})


def _evaluation(plain: Mapping[str, Any], stopping: str) -> Evaluation:
    """The evaluations, with the default of `every`: races and evaluations that end early know few errors anyway."""
    if plain["every"] is None and stopping != RACE and plain["exact"]:
        return Evaluation(**{**plain, "every": EVERY})
    return Evaluation(**plain)


def _optimizer(name: str, target: str | None) -> str:
    """The optimizer's name: a registered one, or the import path of a class."""
    if name == "torch" and target is None:
        raise ValueError("optimizer=torch needs the import path of a class: optimizer.target=torch.optim.RAdam.")
    if target is not None and "." not in target:
        such = class_path(target, ()) or "torch.optim.RAdam"
        raise ValueError(f"optimizer.target is an import path such as {such}, but got {target!r}.")
    if name != "torch" and target is not None:
        raise ValueError(
            f"optimizer.target is for optimizer=torch, but got optimizer={name} with {target}. To sweep a class beside "
            "other optimizers, give it a file optimizer/NAME.yaml in your --config-dir (docs/guide/own-optimizer.md)."
        )
    return name if target is None else target
