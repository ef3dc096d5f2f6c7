"""Before a sweep writes anything: checks every job, and fills in what depends on the machine."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import torch
from torch import nn

from study import store
from study.checks.command import check_command, check_engine, check_program
from study.checks.model import check_model, first
from study.checks.parts import check_parts, small_parts
from study.config.checked import CheckedWorkload, checked_for
from study.config.code_fingerprint import code_of_command
from study.config.fingerprint import of_optimizer
from study.config.jobs import Job
from study.data.resident import EVALUATION_CHUNK
from study.devices import folder
from study.devices.memory import device_bytes, micro_batch, most_workers
from study.devices.placement import Placement, slots
from study.engine.arithmetic import alone, candidates, fused
from study.engine.trial.checkpoints import bytes_of
from study.errors import UsageError, usage_errors
from study.records import COMMAND, Study
from workloads.base import optional
from workloads.command import Command
from workloads.user_code.importing import build

CHUNK_BYTES = 2**24
"""Most bytes that one forward pass of an evaluation of a language model keeps on a CPU."""


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
        workload = checked_for(job, checked, job.placement.device)
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
            _fingerprinted(job, checked_for(job, checked, "cpu"))
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


def _fingerprinted(job: Job, checked: CheckedWorkload) -> Job:
    return replace(job, fingerprint={**checked.fingerprint, **of_optimizer(job.study)}, notes=checked.notes)


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
