"""The life of a worker process: it trains or measures whatever study it is handed, alone or as one of a team."""

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
from study.records import Trial

if TYPE_CHECKING:
    from study.devices.distributed import Rank, Team
    from study.devices.placement import Placement
    from study.engine.checkpoints import Pace


@dataclass(frozen=True)
class Setting:
    """What a worker is told when it starts; see `study.workers.Workers`.

    Attributes:
        number: of this worker, from 0.
    """

    engine: Placement
    import_path: Path | None
    number: int


class _Remote:
    """The tuner and the store, seen through the pipe of a team's leader: whatever they answer, all its processes hear.

    Arguments:
        pipe: used by the leader alone.
    """

    def __init__(self, pipe: Connection | None, team: Team, pace: Pace) -> None:
        self.pipe, self.team, self.pace = pipe, team, pace
        self.kept: set[int] = set()
        """Trials that have a checkpoint: nobody is asked for those of others."""

    def ask(self, wait: bool) -> Trial | None:
        proposal = self._answer("ask", wait)
        if proposal is None:
            return None
        trial, kept = proposal
        if kept:
            self.kept.add(trial.index)
        return trial

    def step_limit(self, index: int) -> int:
        return self._answer("limit", index)

    def checkpoint(self, index: int) -> bytes | None:
        return self._answer("checkpoint", index) if index in self.kept else None

    def keep(self, index: int, checkpoint: bytes) -> None:
        self.kept.add(index)
        self.tell("keep", (index, checkpoint))

    def tell(self, kind: str, content: object) -> None:
        """Say something that asks for no answer."""
        if self.team.rank == 0:
            assert self.pipe is not None
            self.pipe.send((kind, content))

    def _answer(self, kind: str, content: object) -> Any:
        def asked() -> Any:
            assert self.pipe is not None
            self.pipe.send((kind, content))
            return self.pipe.recv()

        return self.team.broadcast(asked)


def work(pipe: Connection, parent: int, setting: Setting, rank: Rank | None) -> None:
    """What a process of the pool does, from its start on.

    Arguments:
        pipe: to the parent, whom a follower in a team tells of its errors only.
        parent: its process id.
        rank: in a team; None: it trains alone.
    """
    from study.devices.distributed import Team

    signals.die_with(parent)
    try:
        _obey(pipe, setting, rank.join() if rank else Team(), rank)
    except (EOFError, ConnectionError):
        return
    except Exception as error:
        with suppress(ConnectionError):
            pipe.send(("error", _told(error)))


def _told(error: Exception) -> str:
    """What a person is told of a worker's last error."""
    from study.devices.memory import out_of_memory

    if not out_of_memory(error):
        return "".join(traceback.format_exception(error))
    return (
        "a device of a team ran out of memory in the middle of a trial, when the others could not be told any more: "
        f"{str(error).partition(chr(10))[0]}. Finished trials are kept, and the same command continues with smaller "
        "micro-batches where they are needed from the beginning; end other programs on the device."
    )


def follow(rank: Rank) -> NoReturn:
    """What the processes do that torchrun started beside the first, to their end."""
    from study.devices.distributed import end_with, lost

    end_with(rank)
    status = 0
    try:
        with signals.ignored():
            _obey(None, None, rank.join(), rank)
    except Exception as error:
        if not lost(error):
            traceback.print_exc()
            status = 1
    sys.stderr.flush()
    os._exit(status)  # torch aborts an interpreter that ends in order while a thread waits for a store that is gone


def _obey(pipe: Connection | None, setting: Setting | None, team: Team, rank: Rank | None) -> None:
    """Do what the parent orders, for as long as it lives.

    Arguments:
        setting: None where only the leader of the team was told.
    """
    import torch

    from study.data import streaming
    from study.data.order import places
    from study.data.resident import Source
    from study.devices import placement
    from study.devices.memory import out_of_memory, release_cached_memory, too_large
    from study.engine import train
    from study.engine.checkpoints import Pace
    from workloads.base import Workload, build, importable
    from workloads.layers import together

    setting = team.broadcast(lambda: setting)
    assert setting is not None
    importable(setting.import_path)
    device = setting.engine.device_of(setting.number if rank is None else rank.local_index)
    if device != "cpu":
        torch.cuda.set_device(device)
    placement.settle_arithmetic()
    teams: dict[int, Team | None] = {}
    loaded: dict[str, tuple[Workload, Source]] = {}
    while True:
        release_cached_memory()  # others on the device have more use for it, until the next order and beyond
        kind, study, *how = team.broadcast(pipe.recv if pipe else tuple)
        key = json.dumps(study.workload, sort_keys=True)
        remote = _Remote(pipe, team, Pace(None))
        try:
            if key not in loaded:
                loaded.clear()  # one data set at a time on the device
                workload = build(study.workload)
                reading = (device, setting.engine.data_memory, setting.engine.loaders)
                # From the CPU, since a device may not hold them; no name keeps them beside what is made of them.
                loaded[key] = workload, streaming.source(workload.splits(torch.device("cpu")), *reading)
            workload, data = loaded[key]
            size = 1
            if team.size > 1:
                size = len(places(study.batch_size, team.size, together=together(workload.model(), study.batch_size)))
            if size not in teams:
                teams[size] = team.first(size)
            if (taking := teams[size]) is None:
                continue  # a batch too small to be shared with this process
            data = data.shared(taking)
            remote = _Remote(pipe, taking, Pace(setting.engine.checkpoint_minutes, taking.broadcast))
            if kind == "measure":
                remote.tell("measured", train.measure(study, workload, data, *how))
                continue
            for curve in train.train(study, workload, data, remote, *how):
                remote.tell("curve", curve)
        except Exception as error:
            if not (out_of_memory(error) and remote.team.agreed(error)):
                raise
            remote.tell("too large", too_large(study, device, error))
