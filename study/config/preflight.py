"""Before a sweep writes anything: every workload is built, its data loaded, and a few training steps taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from study import store
from study.config.jobs import Job
from study.config.workload_check import (
    FEW,
    asked_of,
    check_model,
    check_numbers,
    check_splits,
    fingerprint,
    in_the_loss,
)
from study.data import streaming
from study.data.resident import Data
from study.devices.memory import device_bytes, micro_batch, most_workers, saved_bytes
from study.devices.placement import slots
from study.engine.arithmetic import candidates, fused
from study.engine.can_fuse import lanes_can, refusal
from study.engine.evaluation import metrics
from study.errors import UsageError
from study.records import Study
from workloads.base import Splits, Workload, build
from workloads.layers import whole_batch_layers
from workloads.suggest import suggest


def materialise(jobs: Sequence[Job], here: bool = True) -> list[Job]:
    """Build every workload and load its data once, so that whatever is wrong is known before anything is written.

    Arguments:
        here: this machine trains them; else it looks at no device of its own, and only judges what is asked.

    Returns:
        The same jobs; here with the engine, and their studies' micro-batch and arithmetic, settled.

    Raises:
        UsageError: a workload refuses its arguments, or lacks an error or a parameter that the study wants.
        DataError: the data cannot be had.
    """
    tried: dict[str, Tried] = {}
    settled = []
    for job in jobs:
        if here:
            job = replace(job, engine=job.engine.settled())
        key = str(job.study.workload)
        try:
            if key not in tried:
                tried[key] = _tried(job, here)
            _check(job, tried[key], here)
        except ValueError as error:
            raise UsageError(str(error)) from error
        settled.append(_settled(job, tried[key]) if here else _as_begun(job))
    return settled


@dataclass(frozen=True)
class Tried:
    """A workload of several studies, and what its first examples told.

    Attributes:
        few: inputs and targets of those.
        saved: bytes that each example's forward pass saves.
        fingerprint: of the workload.
        streamed: the data do not fit on the device.
    """

    workload: Workload
    few: tuple[Tensor, Tensor]
    saved: float
    fingerprint: Mapping[str, float]
    streamed: bool

    def data(self, device: str) -> Data:
        """Those examples in every split."""
        return Data.of(Splits(self.few, self.few, self.few), torch.device(device))


def _tried(job: Job, here: bool) -> Tried:
    study = job.study
    workload = build(study.workload)
    with asked_of(study, "splits()"):
        splits = workload.splits(torch.device("cpu"))
    check_splits(study, splits)
    examples = streaming.Examples(splits)
    wanted, got = study.workload["train_examples"], examples.count("train")
    if got != wanted:
        raise UsageError(f"workload.train_examples is {wanted}, but {study.name}.splits() returns {got}.")
    few = examples["train", range(min(FEW, got))]
    check_model(study, workload, *few)
    check_numbers(study, workload, splits)
    saved = saved_bytes(workload, *few, in_the_loss(study, workload))
    streamed = here and streaming.needed(splits, job.engine.device, job.engine.data_memory)
    return Tried(workload, few, saved, fingerprint(study, workload, *few), streamed)


def _check(job: Job, tried: Tried, here: bool) -> None:
    """The workload can be trained as this study asks for."""
    study, (inputs, targets) = job.study, tried.few
    if study.batch_size < FEW:  # one example is often fewer than a model is written for
        check_model(study, tried.workload, inputs[: study.batch_size], targets[: study.batch_size])
    check(study, tried.workload)
    if study.algorithm.update is None:
        data = tried.data(job.engine.device if here else "cpu")
        if why := refusal(study, tried.workload, data):
            raise UsageError(
                f"{study.optimizer} cannot train {study.name} {why.rstrip('.')}; what it takes is given by "
                "search.space and optimizer.arguments."
            )


def _as_begun(job: Job) -> Job:
    """With what an earlier run settled for good; what it did not is for the machine to settle that trains it."""
    begun = store.held(job.results, job.study)
    if not begun:
        return job
    settled = {name: begun[0][name] for name in ("micro_batch", "arithmetic")}
    search = store.most(job.study.search, begun[0]["search"])
    return replace(job, study=replace(job.study, search=search, **settled))


def _settled(job: Job, tried: Tried) -> Job:
    """With micro-batch and arithmetic for this machine, and no more workers than its memory holds."""
    engine, memory, devices = job.engine, device_bytes(job.engine.device), job.engine.devices or 1
    fits = micro_batch(job.study.batch_size, tried.saved, memory)
    on_cpu = engine.device == "cpu"
    processes = devices if on_cpu else 1  # of a team, on a device that they share
    apart = 1 if on_cpu else max(1, slots(engine.device) // devices)  # workers that share none
    workers = min(engine.workers or 1, apart * most_workers(fits * processes, tried.saved, memory))
    study = replace(job.study, micro_batch=None if fits == job.study.batch_size else fits)
    begun = store.held(job.results, study)
    if begun:  # what the memory there was has settled stays; so does the arithmetic, on another device too
        search = store.most(study.search, begun[0]["search"])
        study = replace(study, micro_batch=begun[0]["micro_batch"], search=search)
    model = tried.workload.model()
    check_parts(study, model, devices)
    alone = devices > 1 or tried.streamed
    recorded = replace(study, arithmetic=begun[0]["arithmetic"]) if begun else None
    if recorded and (engine.name == "auto" or (engine.name == "lanes" and fused(recorded))):
        study = recorded
        if alone and fused(recorded):
            raise UsageError(
                f"{job.results} was begun with fused lanes ({recorded.arithmetic}), which take one device that holds "
                "all data; leave out engine.devices and engine.data_memory, or choose another results=DIR."
            )
    elif engine.name != "serial" and not alone:
        names = candidates(model, study, engine.device, forced=engine.name == "lanes")
        each = (replace(study, arithmetic=name) for name in names)
        few = tried.data(engine.device)
        study = next(one for one in each if not fused(one) or lanes_can(one, tried.workload, few))
    return replace(job, study=study, engine=replace(engine, workers=workers), fingerprint=tried.fingerprint)


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
