"""A worker process: carries out the parent's orders to train or measure studies, alone or as a rank of a team."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

from analysis.question.branches import TRUNK
from study.devices.imports import uncollected
from study.errors import Failed, Refused
from study.records import COMMAND, Curve, Study, Trial
from study.user_code import faults
from study.workers import messages
from study.workers.one_by_one import by_data

if TYPE_CHECKING:
    from study.data.resident import Source
    from study.devices.distributed import Rank, Team
    from study.devices.placement import Placement
    from study.engine.cost import Cost
    from study.engine.trial.pace import Pace
    from study.engine.trial.proposals import Proposals
    from workloads.base import Workload


TOLD = 1.0
"""Seconds between two reports of the steps that trials have reached."""


@dataclass(frozen=True)
class Setting:
    """The settings of a worker, as `study.workers.pool.Workers` takes them.

    Attributes:
        number: its place in the pool, from 0.
        variables: the environment of the parent, without what the pool sets for its workers.
    """

    placement: Placement
    import_path: Path | None
    number: int
    data: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


def workload_key(study: Study) -> str:
    """The arguments of a study's workload as text: studies with the same text share its data."""
    return json.dumps(study.workload, sort_keys=True)


class _Parent:
    """The parent's tuner and store, as the engine calls them: rank 0 of the team talks through the pipe and broadcasts
    what it hears. It waits for the parent only if it has no trial to train.

    Arguments:
        order: None while measuring, which proposes no trials.
    """

    def __init__(self, pipe: Connection | None, team: Team, pace: Pace, order: messages.Train | None = None) -> None:
        self.pipe, self.team, self.pace = pipe, team, pace
        self._lanes = order.room if order else 0
        self._room = self._lanes - len(order.proposals) if order else 0
        """Number of trials for which the worker has room beside those given and asked for; negative if it has more."""
        self._ready: list[messages.Proposal] = []
        self._limits: dict[int, int] = {}
        self._with_checkpoint = {TRUNK}
        """Indices of the trials that have a checkpoint; for other trials the parent need not be asked."""
        self._stored: list[bytes | None] = []
        self._ended = False
        self._told = time.monotonic()
        if order:
            self._take(order.proposals)

    def ask(self, wait: bool) -> Trial | None:
        proposal = self.team.broadcast(partial(self._next, wait))
        if proposal is None:
            return None
        if proposal.has_checkpoint:
            self._with_checkpoint.add(proposal.trial.index)
        return proposal.trial

    def _next(self, wait: bool) -> messages.Proposal | None:
        """The next trial given; None if there is none yet or, with `wait`, if the order has ended."""
        assert self.pipe is not None
        self._read()
        if not self._ready and (self._room > 0 or wait):
            self.pipe.send(messages.AskTrials(max(0, self._room), idle=wait))
            self._room = min(0, self._room)
        while wait and not self._ready and not self._ended:
            self._hear(self.pipe.recv())
        return self._ready.pop(0) if self._ready else None

    def train_at_once(self, lanes: int) -> None:
        self._room -= self._lanes - lanes
        self._lanes = lanes

    def step_limit(self, index: int) -> int:
        def known() -> int:
            self._read()
            return self._limits[index]

        return self.team.broadcast(known)

    def checkpoint(self, index: int) -> bytes | None:
        def stored() -> bytes | None:
            assert self.pipe is not None
            self.pipe.send(messages.AskCheckpoint(index))
            while not self._stored:
                self._hear(self.pipe.recv())
            return self._stored.pop()

        return self.team.broadcast(stored) if index in self._with_checkpoint else None

    def keep(self, index: int, checkpoint: bytes) -> None:
        self._with_checkpoint.add(index)
        self.report(messages.Checkpoint(index, checkpoint))

    def reached(self, steps: Callable[[], Mapping[int, int]]) -> None:
        if self.team.rank == 0 and (now := time.monotonic()) >= self._told + TOLD:
            self._told = now
            self.report(messages.Reached(steps()))

    def report(self, report: messages.Report) -> None:
        """Send a report, on rank 0 only."""
        self._room += isinstance(report, messages.Finished)
        if self.team.rank == 0:
            assert self.pipe is not None
            self.pipe.send(report)

    def _read(self) -> None:
        """Take note of the news that have come."""
        assert self.pipe is not None
        while self.pipe.poll():
            self._hear(self.pipe.recv())

    def _hear(self, news: messages.News) -> None:
        if isinstance(news, messages.StepLimits):
            self._limits.update(news.limits)
        elif isinstance(news, messages.Stored):
            self._stored.append(news.checkpoint)
        else:
            self._ended = not news.proposals
            self._take(news.proposals)

    def _take(self, proposals: Sequence[messages.Proposal]) -> None:
        self._ready += proposals
        self._limits.update({proposal.trial.index: proposal.step_limit for proposal in proposals})


def work(pipe: Connection) -> None:
    """Run a process of the pool from start to end.

    Arguments:
        pipe: to the parent, which first sends the setting and the rank in a team (None: this process trains alone).
            Ranks above 0 send only their errors.
    """
    with uncollected():
        from study.devices.distributed import Team, lost
        from study.engine import train  # noqa: F401 - now, while the parent reads its configuration
        from study.engine.fused.cuda_graph import CannotRecord
    os.environ.pop("PYTHONSAFEPATH", None)  # the pool set it for this process, not for what a workload starts
    try:
        setting, rank = pipe.recv()
        serve(pipe, setting, rank.join() if rank else Team(), rank)
    except (EOFError, ConnectionError):
        return
    except CannotRecord as error:
        with suppress(ConnectionError):
            pipe.send(messages.NotRecorded(str(error)))
    except BaseException as error:  # also sys.exit() in the user's code
        with suppress(ConnectionError):
            pipe.send(messages.Crashed(_for_people(error), lost(error)))


def _for_people(error: BaseException) -> str:
    """The message about a worker's last error, in one line with the cure."""
    from study.devices.distributed import lost
    from study.devices.memory import out_of_memory

    if isinstance(error, Refused | Failed):
        return str(error)
    if lost(error):
        return "another process of the team ended; its own error says why. The same command continues."
    if not out_of_memory(error):
        return f"{faults.told(error)} Finished trials are kept, and the same command continues."
    return (
        "a device of a team ran out of memory in the middle of a trial, too late to tell the other ranks: "
        f"{str(error).partition(chr(10))[0]}. Finished trials are kept, and the same command continues, with smaller "
        "micro-batches from the start where they are needed; end other programs on the device."
    )


def follow(rank: Rank) -> NoReturn:
    """Run a process that torchrun started with a rank above 0, from start to end."""
    from study.devices import signals
    from study.devices.distributed import end_with, lost

    end_with(rank)
    status = 0
    try:
        with signals.ignored():
            serve(None, None, rank.join(), rank)
    except Exception as error:
        if not lost(error):
            sys.stderr.write(f"study: {_for_people(error)}\n")
            status = 1
    sys.stderr.flush()
    os._exit(status)  # on a normal exit torch aborts if a thread still waits for a closed store


def serve(pipe: Connection | None, setting: Setting | None, team: Team, rank: Rank | None) -> None:
    """Carry out the parent's orders until the pipe closes.

    Arguments:
        pipe: to the parent; None on ranks above 0 under torchrun.
        setting: None as `pipe`; all ranks use the setting of rank 0.
    """
    import torch

    from study.devices.memory import release_if_short

    setting = team.broadcast(lambda: setting)
    assert setting is not None
    device = _prepared(setting, rank)
    if team.size > 1:  # NCCL connects when it is first used: if that fails, then before data are loaded
        team.sum(torch.zeros((), device=device))
    worker = _Worker(pipe, setting, team, device)
    while True:
        release_if_short(device)  # before it waits: other processes on the device may need the memory
        worker.obey(team.broadcast(partial(_next_order, pipe)))


def _next_order(pipe: Connection | None) -> messages.Order:
    """The next order, without late news of an order before that ended early."""
    assert pipe is not None
    while not isinstance(message := pipe.recv(), messages.Order):
        pass
    return message


def _prepared(setting: Setting, rank: Rank | None) -> str:
    """Prepare this process to train: import paths, current device and arithmetic settings. Returns the device."""
    import torch

    from study.devices import placement
    from workloads.command import COMMAND_PATH
    from workloads.user_code.importing import importable

    importable(setting.import_path)
    targets = [json.loads(arguments)["_target_"] for arguments in setting.data]
    device = setting.placement.device_of(setting.number if rank is None else rank.local_index)
    if {*targets} == {COMMAND_PATH}:
        device = "cpu"  # this process takes no memory of the GPU: the commands need it
    if device != "cpu":
        torch.cuda.set_device(device)
    placement.settle_arithmetic()
    for target in targets:  # now, because the user may edit the file before the sweep comes to this workload
        importlib.import_module(target.rpartition(".")[0])
    return device


class _Worker:
    """The state of a process that lasts from order to order: device, team and data of the latest workload."""

    def __init__(self, pipe: Connection | None, setting: Setting, team: Team, device: str) -> None:
        self.pipe, self._setting, self.team, self.device = pipe, setting, team, device
        self._teams: dict[int, Team | None] = {}
        self._loaded: dict[str, tuple[Workload, Source]] = {}

    def obey(self, order: messages.Order) -> None:
        """Carry out one order. If a trial does not fit in memory, report it; raise every other error."""
        if order.study.arithmetic == COMMAND:
            self._run_commands(order)
            return
        from study.devices.memory import out_of_memory, too_large
        from study.engine.fused.cuda_graph import recording
        from study.engine.trial.pace import Pace

        parent = _Parent(self.pipe, self.team, Pace(None))
        try:
            team = self._team_for(order.study, self._load(order.study)[0])
            if team is None:
                return  # the batch is too small to give this rank a part
            pace = Pace(self._setting.placement.checkpoint_minutes, team.broadcast)
            parent = _Parent(self.pipe, team, pace, order if isinstance(order, messages.Train) else None)
            with recording(order.records):
                self._carry_out(order, team, parent)
        except Exception as error:
            if not (out_of_memory(error) and parent.team.agreed(error)):
                raise
            parent.report(messages.TooLarge(too_large(order.study, self.device, error)))

    def _run_commands(self, order: messages.Order) -> None:
        """Carry out an order whose trials are commands: they load their own data, and take the memory they need."""
        from study.engine.command.environment import environment
        from study.engine.command.train import UNKNOWN, Place, train
        from study.engine.trial.pace import Pace
        from workloads.command import Command
        from workloads.user_code.importing import build

        if isinstance(order, messages.Measure):
            _Parent(self.pipe, self.team, Pace(None)).report(messages.Measured(UNKNOWN))
            return
        parent = _Parent(self.pipe, self.team, Pace(None), order)
        setting, workload = self._setting, cast(Command, build(order.study.workload))
        assert order.folder is not None
        variables = environment(setting.variables, setting.placement, setting.number)
        assert self.pipe is not None  # commands have no teams
        place = Place(order.folder, variables, setting.placement.timeout, self.pipe.fileno())
        for curve in train(order.study, workload, parent, place):
            parent.report(messages.Finished(curve))

    def _carry_out(self, order: messages.Order, team: Team, parent: _Parent) -> None:
        if isinstance(order, messages.Measure):
            parent.report(messages.Measured(self._measured(order, team)))
            return
        for study, proposals in by_data(order.study, parent):
            for curve in self._trained(study, team, proposals, order):
                parent.report(messages.Finished(curve))

    def _measured(self, order: messages.Measure, team: Team) -> Cost:
        """The cost of a trial. The parent checked the study on the CPU: errors of a GPU turn up here.

        Raises:
            UsageError: the optimizer cannot train the model on this device.
            Failed: lanes cannot train it.
        """
        from study.checks.optimizer import check_optimizer
        from study.devices.memory import out_of_memory
        from study.engine import can_fuse, train
        from study.engine.arithmetic import fused
        from study.engine.fused.cuda_graph import CannotRecord

        study, on_gpu = order.study, self.device != "cpu"
        workload, data = self._load(study)
        if on_gpu:
            check_optimizer(study, workload, data)
        try:
            return train.measure(study, workload, data.shared(team), order.most, order.lanes, order.neighbour)
        except Exception as error:
            if not (on_gpu and fused(study)) or isinstance(error, CannotRecord) or out_of_memory(error):
                raise
            raise Failed(
                f"trials of {study.name} with {study.optimizer} at batch size {study.batch_size:,} cannot train side "
                f"by side on {self.device}, although they can on the CPU: {can_fuse.told(error)}. Choose engine=serial "
                "and, if the study has begun, another results=DIR."
            ) from error

    def _trained(self, study: Study, team: Team, proposals: Proposals, order: messages.Train) -> Iterator[Curve]:
        """The curves of the proposed trials, which share the data of `study`. Ends without holding the data."""
        from study.engine import train

        workload, data = self._load(study)
        yield from train.train(
            study, workload, data.shared(team), proposals, order.heights, order.lanes, order.compiled
        )

    def _load(self, study: Study) -> tuple[Workload, Source]:
        """The study's workload and data. Loading them releases the data of the workload before, to save memory.
        Raises Refused if the data are not those of the parent."""
        from study.data import streaming
        from workloads.user_code.importing import build

        key = workload_key(study)
        if key not in self._loaded:
            self._loaded.clear()
            workload, placement = build(study.workload), self._setting.placement
            digest = self._setting.data.get(key)
            data = streaming.of_workload(workload, self.device, placement.data_memory, placement.loaders, digest)
            self._loaded[key] = workload, data
        return self._loaded[key]

    def _team_for(self, study: Study, workload: Workload) -> Team | None:
        """The ranks that share the study's batch; None if the batch is too small to give this rank a part."""
        from study.data.order import places
        from workloads.layers import together

        size = 1
        if self.team.size > 1:
            size = len(places(study.batch_size, self.team.size, together=together(workload.model(), study.batch_size)))
        if size not in self._teams:
            self._teams[size] = self.team.first(size)
        return self._teams[size]
