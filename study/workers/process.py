"""The life of a worker process: it trains or measures every study it is ordered to, alone or as a rank of a team."""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from study.devices import signals
from study.records import Study, Trial
from study.workers import messages

if TYPE_CHECKING:
    from study.data.resident import Source
    from study.devices.distributed import Rank, Team
    from study.devices.placement import Placement
    from study.engine.checkpoints import Pace
    from workloads.base import Workload


@dataclass(frozen=True)
class Setting:
    """What a worker must know when it starts; see `study.workers.pool.Workers`. `number`: of this worker, from 0."""

    placement: Placement
    import_path: Path | None
    number: int


class _Parent:
    """The tuner and the store behind the pipe to the parent: rank 0 of a team asks, all ranks get the answer."""

    def __init__(self, pipe: Connection | None, team: Team, pace: Pace) -> None:
        self.pipe, self.team, self.pace = pipe, team, pace
        self._with_checkpoint: set[int] = set()
        """Trials that have a checkpoint: for the others there is no need to ask."""

    def ask(self, wait: bool) -> Trial | None:
        proposal = self._answer(messages.AskTrial(wait))
        if proposal is None:
            return None
        if proposal.has_checkpoint:
            self._with_checkpoint.add(proposal.trial.index)
        return proposal.trial

    def step_limit(self, index: int) -> int:
        return self._answer(messages.AskStepLimit(index))

    def checkpoint(self, index: int) -> bytes | None:
        return self._answer(messages.AskCheckpoint(index)) if index in self._with_checkpoint else None

    def keep(self, index: int, checkpoint: bytes) -> None:
        self._with_checkpoint.add(index)
        self.report(messages.Checkpoint(index, checkpoint))

    def report(self, report: messages.Report) -> None:
        """Say something that needs no answer."""
        if self.team.rank == 0:
            assert self.pipe is not None
            self.pipe.send(report)

    def _answer(self, question: messages.Question) -> Any:
        def asked() -> Any:
            assert self.pipe is not None
            self.pipe.send(question)
            return self.pipe.recv()

        return self.team.broadcast(asked)


def work(pipe: Connection, parent: int, setting: Setting, rank: Rank | None) -> None:
    """Run a process of the pool from its start to its end. `pipe`: to the parent, whose process id is `parent`; a
    follower in a team only reports its errors through it. `rank`: in a team; None: this process trains alone."""
    from study.devices.distributed import Team

    signals.die_with(parent)
    try:
        serve(pipe, setting, rank.join() if rank else Team(), rank)
    except (EOFError, ConnectionError):
        return
    except Exception as error:
        with suppress(ConnectionError):
            pipe.send(messages.Crashed(_for_people(error)))


def _for_people(error: Exception) -> str:
    """The last error of a worker: a traceback, or how to continue where memory ran out."""
    from study.devices.memory import out_of_memory

    if not out_of_memory(error):
        return "".join(traceback.format_exception(error))
    return (
        "a device of a team ran out of memory in the middle of a trial, too late to tell the other ranks: "
        f"{str(error).partition(chr(10))[0]}. Finished trials are kept, and the same command continues, with smaller "
        "micro-batches from the start where they are needed; end other programs on the device."
    )


def follow(rank: Rank) -> NoReturn:
    """Run a process that torchrun started with a rank above 0, from its start to its end."""
    from study.devices.distributed import end_with, lost

    end_with(rank)
    status = 0
    try:
        with signals.ignored():
            serve(None, None, rank.join(), rank)
    except Exception as error:
        if not lost(error):
            traceback.print_exc()
            status = 1
    sys.stderr.flush()
    os._exit(status)  # torch aborts an interpreter that exits normally while a thread waits for a store that is gone


def serve(pipe: Connection | None, setting: Setting | None, team: Team, rank: Rank | None) -> None:
    """Carry out the parent's orders until the pipe closes. `setting`: None on a follower under torchrun; rank 0
    broadcasts its own."""
    from study.devices.memory import release_cached_memory

    setting = team.broadcast(lambda: setting)
    assert setting is not None
    worker = _Worker(pipe, setting, team, _prepared(setting, rank))
    while True:
        release_cached_memory()  # until the next order, others on the device have more use for the memory
        worker.obey(team.broadcast(pipe.recv if pipe else tuple))


def _prepared(setting: Setting, rank: Rank | None) -> str:
    """The device of this process, made the current one; from now on this process computes as every worker does."""
    import torch

    from study.devices import placement
    from workloads.base import importable

    importable(setting.import_path)
    device = setting.placement.device_of(setting.number if rank is None else rank.local_index)
    if device != "cpu":
        torch.cuda.set_device(device)
    placement.settle_arithmetic()
    return device


class _Worker:
    """One process between orders: its device, its team and the data of the latest workload."""

    def __init__(self, pipe: Connection | None, setting: Setting, team: Team, device: str) -> None:
        self.pipe, self.placement, self.team, self.device = pipe, setting.placement, team, device
        self._teams: dict[int, Team | None] = {}
        self._loaded: dict[str, tuple[Workload, Source]] = {}

    def obey(self, order: messages.Order) -> None:
        """Carry out one order; reports that one trial does not fit, and raises every other error."""
        from study.devices.memory import out_of_memory, too_large
        from study.engine.checkpoints import Pace

        parent = _Parent(self.pipe, self.team, Pace(None))
        try:
            workload, data = self._load(order.study)
            team = self._team_for(order.study, workload)
            if team is None:
                return  # the batch is too small to share with this process
            parent = _Parent(self.pipe, team, Pace(self.placement.checkpoint_minutes, team.broadcast))
            self._carry_out(order, workload, data.shared(team), parent)
        except Exception as error:
            if not (out_of_memory(error) and parent.team.agreed(error)):
                raise
            parent.report(messages.TooLarge(too_large(order.study, self.device, error)))

    def _carry_out(self, order: messages.Order, workload: Workload, data: Source, parent: _Parent) -> None:
        from study.engine import train

        if isinstance(order, messages.Measure):
            cost = train.measure(order.study, workload, data, order.most, order.lanes)
            parent.report(messages.Measured(cost))
            return
        for curve in train.train(order.study, workload, data, parent, order.heights, order.lanes):
            parent.report(messages.Finished(curve))

    def _load(self, study: Study) -> tuple[Workload, Source]:
        """The study's workload and data; one data set at a time is on the device."""
        import torch

        from study.data import streaming
        from workloads.base import build

        key = json.dumps(study.workload, sort_keys=True)
        if key not in self._loaded:
            self._loaded.clear()
            workload = build(study.workload)
            reading = (self.device, self.placement.data_memory, self.placement.loaders)
            # Splits are made on the CPU, since they may not fit on the device. No local variable holds them, so that
            # they do not stay in memory beside the source made of them.
            self._loaded[key] = workload, streaming.source(workload.splits(torch.device("cpu")), *reading)
        return self._loaded[key]

    def _team_for(self, study: Study, workload: Workload) -> Team | None:
        """The ranks that share the study's batch; None if it is too small for this one to get a part."""
        from study.data.order import places
        from workloads.layers import together

        size = 1
        if self.team.size > 1:
            size = len(places(study.batch_size, self.team.size, together=together(workload.model(), study.batch_size)))
        if size not in self._teams:
            self._teams[size] = self.team.first(size)
        return self._teams[size]
