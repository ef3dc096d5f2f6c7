"""Before a sweep writes anything: builds every workload, loads its data, and takes a few training steps on the CPU."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor, nn

from analysis.question.columns import TABLE_COLUMNS
from study import store
from study.checks.calling import FEW, calling, in_the_loss
from study.checks.command import check_command, check_engine, check_program
from study.checks.data import check_count, check_fresh_data, check_members, check_splits
from study.checks.functions import check_functions
from study.checks.goal import check_falls
from study.checks.model import check_apart, check_evaluation, check_model, first, mixture
from study.checks.optimizer import check_optimizer, check_treatments, mean_factor
from study.checks.padding import check_padding
from study.checks.parts import check_parts, small_parts
from study.checks.state import State, check_first_batch, stateful
from study.checks.values import check_values
from study.config.code_fingerprint import code_of_command
from study.config.composed.choices import OTHER_NAMES
from study.config.fingerprint import fingerprint, of_optimizer
from study.config.jobs import Job
from study.data import streaming
from study.data.digest import spaced
from study.data.examples import Examples, splits_of
from study.data.resident import EVALUATION_CHUNK, Data
from study.devices import folder
from study.devices.memory import device_bytes, micro_batch, most_workers
from study.devices.placement import Placement, slots
from study.engine.arithmetic import alone, candidates, fused
from study.engine.can_fuse import lanes_fail
from study.engine.trial.checkpoints import bytes_of
from study.engine.trial.evaluation import measured_names
from study.errors import UsageError, usage_errors
from study.records import COMMAND, Study
from study.schedules import SCHEDULE
from study.user_code.activations import evaluation_bytes, saved_bytes
from study.user_code.kept import Kept
from study.user_code.notes import notes
from workloads.base import Splits, Workload, metrics_of, optional
from workloads.command import Command
from workloads.suggest import suggest
from workloads.user_code.importing import build

CHUNK_BYTES = 2**24
"""Most bytes that one forward pass of an evaluation of a language model keeps on a CPU."""
CHECKED_BYTES = 2**26
"""Most bytes of the outputs with which loss and errors are checked; fewer examples if they are large."""


@contextmanager
def one_thread() -> Iterator[None]:
    """A block that computes with one thread, as workers do: on a busy machine several threads wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@one_thread()
def settle(jobs: Sequence[Job]) -> list[Job]:
    """Check the jobs and fill in the placement, micro-batch and arithmetic with which this machine trains them.

    The checks run on the CPU, so that this process opens no GPU: the workers train there, and on some clusters a GPU
    serves one process at a time. An error that only a GPU raises ends the measurement of the cost, in the worker.

    Raises:
        UsageError: a workload refuses its arguments, or cannot be trained as the study asks.
        Refused: the data are not there.
    """
    checked: dict[str, CheckedWorkload] = {}
    settled = []
    for job in jobs:
        job = replace(job, placement=job.placement.settled())
        if (command := _command(job)) is not None:
            check_program(command)
            settled.append(_as_begun(replace(job, fingerprint=code_of_command(command.words))))
            continue
        workload = _checked(job, checked, job.placement.device)
        settled.append(_settled(_fingerprinted(job, workload), workload))
    return settled


@one_thread()
def judge(jobs: Sequence[Job]) -> list[Job]:
    """Check jobs for machines that are not known yet; fill in only values that an earlier run has recorded.

    The check runs on the CPU and uses no other device. It raises as `settle` does.
    """
    checked: dict[str, CheckedWorkload] = {}
    return [
        _as_begun(
            _fingerprinted(job, _checked(job, checked, "cpu"))
            if (command := _command(job)) is None
            else replace(job, fingerprint=code_of_command(command.words))
        )
        for job in jobs
    ]


def _command(job: Job) -> Command | None:
    """The job's workload if it is a command, checked; None for other workloads."""
    if job.study.arithmetic != COMMAND:
        check_engine(job.study, job.placement)
        return None
    with usage_errors():
        command = cast(Command, build(job.study.workload))
        check_command(job.study, command, job.placement)
    return command


@dataclass(frozen=True)
class CheckedWorkload:
    """A workload that several studies share, and the results of the check on its first examples.

    Attributes:
        few: inputs and targets of the first examples.
        saved: bytes that the forward pass saves for each example.
        evaluated: bytes that an evaluation keeps for each example.
        streamed: the data do not fit on the device.
        layout: of images and weights (see `study.data.streaming.layout_for`).
        state: what the model keeps beside its parameters and buffers.
        notes: what may not be meant (`study.user_code.notes`).
        fresh: what its code kept before the first call.
        fails: question at a small batch size, and kind of device -> why its lanes fail there (`lanes_fail`).
    """

    workload: Workload
    few: tuple[Tensor, Tensor]
    saved: float
    evaluated: float
    fingerprint: Mapping[str, float]
    streamed: bool
    layout: torch.memory_format
    state: State
    notes: tuple[str, ...]
    fresh: Kept
    fails: dict[str, str | None] = field(default_factory=dict)

    @property
    def data(self) -> Data:
        """The first examples as every split."""
        return Data.of(Splits(self.few, self.few, self.few), layout=self.layout)

    def lanes_fail(self, study: Study, device: str) -> str | None:
        """Why lanes of this study fail on a device (see `study.engine.can_fuse.lanes_fail`), found out once for all
        batch sizes."""
        small = replace(study.constant, batch_size=min(2, study.workload["train_examples"]))
        key = json.dumps([small.question(), torch.device(device).type])
        if key not in self.fails:
            self.fails[key] = lanes_fail(small, self.workload, self.data, device, self.fresh)
        return self.fails[key]


def _checked(job: Job, checked: dict[str, CheckedWorkload], device: str) -> CheckedWorkload:
    """The job's workload, built once for all jobs that share it, and checked for this job's study."""
    key = str((job.study.workload, job.study.search.fresh_data))
    with usage_errors():
        if key not in checked:
            checked[key] = _built(job, device)
        _check(job.study, checked[key], device)
    return checked[key]


def _built(job: Job, device: str) -> CheckedWorkload:
    study = job.study
    workload = build(study.workload)
    check_members(study, workload)
    with calling(study, "splits()"):
        splits = splits_of(workload)
    check_splits(study, workload, splits)
    before = Kept(workload)
    examples = Examples(splits, optional(workload, "collate"))
    check_count(study, examples)
    check_fresh_data(study, workload, splits)
    few = examples.read("train", range(min(FEW, examples.count("train"))))
    layout = check_model(study, workload, *few)
    counts = [min(examples.count("val"), examples.count(split)) for split in ("train", "val")]
    check_evaluation(study, workload, *few, layout, [*counts, examples.count("test")])
    evaluated = evaluation_bytes(workload, *few)
    state = _behaviour(study, workload, examples, layout, evaluated, before)
    check_values(study, workload, examples)
    saved = saved_bytes(workload, *few, in_the_loss(study, workload))
    streamed = streaming.needed(splits, device, job.placement.data_memory)
    of_workload = {**fingerprint(study, workload, few, splits)} | mean_factor(study, workload)
    spread = examples.read("train", spaced(examples.reach("train"), FEW))  # they may be sorted by label or length
    noted = notes(workload, examples, spread, in_the_loss(study, workload), study.precision)
    return CheckedWorkload(workload, few, saved, evaluated, of_workload, streamed, layout, state, noted, before)


def _behaviour(
    study: Study,
    workload: Workload,
    examples: Examples,
    layout: torch.memory_format,
    evaluated: float,
    before: Kept,
) -> State:
    """Check loss, errors, metrics and weights; returns what the model keeps beside parameters and buffers.

    Arguments:
        evaluated: bytes that an evaluation keeps for each example.
        before: see `check_first_batch`.
    """
    chosen, val = mixture(examples.reach("train")), examples.count("val")
    most = max(3, int(CHECKED_BYTES / evaluated))
    mixed = examples.read("train", chosen[:: -(-len(chosen) // most)])
    more = examples.read("val", range(min(val, EVALUATION_CHUNK)))[1] if metrics_of(workload) else None
    check_functions(study, workload, *mixed, layout, more)
    check_padding(study, workload, examples)
    state = stateful(study, workload, *mixed, layout)
    check_first_batch(study, workload, before, *mixed, layout)
    return state


def _fingerprinted(job: Job, checked: CheckedWorkload) -> Job:
    return replace(job, fingerprint={**checked.fingerprint, **of_optimizer(job.study)}, notes=checked.notes)


def _check(study: Study, checked: CheckedWorkload, device: str) -> None:
    """Raise an error unless the workload can be trained as this study asks."""
    inputs, targets = checked.few
    if study.batch_size < FEW:  # many models fail on one example
        check_model(study, checked.workload, first(inputs, study.batch_size), first(targets, study.batch_size))
    check_names(study, checked.workload)
    if not study.evaluation.exact:
        check_apart(study, checked.workload, inputs, checked.layout)
    check_treatments(study, checked.workload)
    if device == "cpu":  # some optimizers of other packages need a GPU: the worker there checks them
        check_optimizer(study, checked.workload, checked.data)


def _as_begun(job: Job) -> Job:
    """The job with the micro-batch, arithmetic and search of earlier runs; the machine that trains it adds the rest."""
    with folder.of_command():
        job = replace(job, study=store.continued(job.results, job.study))
        begun = store.recorded(job.results, job.study)
    if not begun:
        return job
    search = store.extended(job.study.search, begun.question["search"])
    return replace(job, study=replace(job.study, search=search, **begun.settled))


def _settled(job: Job, checked: CheckedWorkload) -> Job:
    """The job with micro-batch and arithmetic for this machine, and no more workers than its memory holds."""
    job = _within_memory(job, checked)
    recorded = _as_begun(job).study  # its micro-batch and arithmetic stay, on other devices, too
    study = replace(recorded, arithmetic=job.study.arithmetic)
    model, devices = checked.workload.model(), job.placement.devices or 1
    check_parts(study, model, devices, checked.state.training, optional(checked.workload, "weights") is not None)
    inputs, targets = checked.few
    for part in small_parts(study, model, devices):
        check_model(study, checked.workload, first(inputs, part), first(targets, part))
    study, alone = _arithmetic(replace(job, study=study), recorded, model, checked)
    return replace(job, study=study, alone=alone, checkpoint_bytes=bytes_of(study, model))


def _within_memory(job: Job, checked: CheckedWorkload) -> Job:
    """The job with the micro-batch, the evaluation chunk and the workers that the memory of this machine holds."""
    placement, memory, devices = job.placement, device_bytes(job.placement.device), job.placement.devices or 1
    largest = job.study.batch_sizes[-1]
    fits = micro_batch(largest, checked.saved, memory)
    on_cpu = placement.device == "cpu"
    processes = devices if on_cpu else 1  # ranks of a team that share one device's memory
    apart = 1 if on_cpu else max(1, slots(placement.device) // devices)  # workers with devices of their own
    workers = min(placement.workers or 1, apart * most_workers(fits * processes, checked.saved, memory))
    chunk = micro_batch(_most_evaluated(job.study, checked, on_cpu), checked.evaluated, memory)
    study = replace(job.study, micro_batch=None if fits == largest else fits, evaluation_chunk=chunk)
    return replace(job, study=study, placement=replace(placement, workers=workers))


def _arithmetic(job: Job, recorded: Study, model: nn.Module, checked: CheckedWorkload) -> tuple[Study, str]:
    """The study with its arithmetic, and why its trials are not fused although the engine would fuse them (`alone`).

    Arguments:
        recorded: the study with the arithmetic of an earlier run.
    """
    study, placement = job.study, job.placement
    split = (placement.devices or 1) > 1 or checked.streamed
    why = checked.state.reason or ("its data are streamed, or it has several devices" if split else None)
    by_split = split and not checked.state.reason
    with folder.of_command():
        begun = store.recorded(job.results, study)
    if (begun and begun.settled) and (placement.name == "auto" or (placement.name == "lanes" and fused(recorded))):
        study = recorded
        if why and fused(recorded):
            cure = "leave out engine.devices and engine.data_memory, or choose" if by_split else "choose"
            raise UsageError(
                f"{job.results} was begun with fused lanes ({recorded.arithmetic}), which need one device that holds "
                f"all data, but {why}; {cure} another results=DIR."
            )
    elif placement.name != "serial" and not why:
        study, why = _with_arithmetic(study, model, checked, placement)
    reported = placement.name == "lanes" or (placement.name == "auto" and not by_split)
    return study, (why or "") if reported else ""


def _most_evaluated(study: Study, checked: CheckedWorkload, on_cpu: bool) -> int:
    """Most examples in one forward pass of an evaluation, before memory limits them.

    On a CPU, large tensors of new memory cost more time than the forward pass of a language model, whose outputs are as
    wide as its vocabulary (3.2 times the time with 64 MiB instead of 8).
    """
    if study.tokens_per_example is None or not on_cpu:
        return EVALUATION_CHUNK
    return max(1, min(EVALUATION_CHUNK, int(CHUNK_BYTES / checked.evaluated)))


def _with_arithmetic(
    study: Study, model: nn.Module, checked: CheckedWorkload, placement: Placement
) -> tuple[Study, str | None]:
    """The study with the first arithmetic that computes it here, and why its trials are not fused.

    With `engine=auto`, only if lanes were tried and failed.
    """
    forced = placement.name == "lanes"
    why = alone(model, study) if forced else None
    widest = replace(study, batch_size=study.batch_sizes[-1])  # where fusing pays least
    for name in candidates(model, widest, placement.device, forced):
        study = replace(study, arithmetic=name)
        if not fused(study):
            return study, why
        if (failed := checked.lanes_fail(study, placement.device)) is None:
            return study, None
        why = why or failed
    raise AssertionError("the last arithmetic computes every study")


def check_names(study: Study, workload: Workload) -> None:
    """Raise UsageError if neither optimizer, schedule nor workload takes a tuned parameter, or nothing measures the
    goal."""
    measured = measured_names(study, workload)
    if study.goal.metric not in measured:
        raise UsageError(f"{study.name} does not measure {study.goal.metric!r}{suggest(study.goal.metric, measured)}")
    check_falls(study.goal)
    if not study.evaluation.exact and study.goal.error not in workload.errors:
        raise UsageError(
            f"evaluation.exact=false needs an error of each example, but {study.goal.error} of {study.name} is a "
            "metric of the whole split; choose another goal or evaluation.exact=true."
        )
    if isinstance(workload.hyperparameters, str):
        raise UsageError(
            f"hyperparameters of {study.name} must be a tuple of names, but got the text "
            f"{workload.hyperparameters!r}; a tuple of one name has a comma: ({workload.hyperparameters!r},)."
        )
    of_training = {SCHEDULE, *study.asked_hyperparameters, *study.optional_hyperparameters}
    asked = {*of_training, *workload.hyperparameters}
    for name in sorted(of_training.intersection(workload.hyperparameters, study.search.space)):
        if study.arithmetic != COMMAND:  # a command gets all hyperparameters, and nothing else applies them
            raise UsageError(
                f"{name} is a hyperparameter of both optimizer {study.optimizer} with {study.scheduled_by} and the "
                f"loss of {study.name}, and one search.space.{name} would set both; give that of the loss another name."
            )
    for name in study.search.space:
        if name not in asked:
            hint = suggest(OTHER_NAMES.get(name, name).removeprefix("search.space."), asked)
            neither = f"neither optimizer {study.optimizer}, {study.scheduled_by} nor workload {study.name}"
            raise UsageError(f"search.space.{name} is a parameter of {neither}{hint}")
        if name in TABLE_COLUMNS:
            raise UsageError(
                f"search.space.{name} would share its name with a column of the tables; let {study.name} call it "
                f"own_{name}."
            )
