"""Teams: processes that train one trial on several devices through torch's DistributedDataParallel.

All ranks run the same engine on their own copy of the data. Only rank 0, the leader, talks to the tuner and the store;
it broadcasts their answers. Sums have the same bits on every rank, so all ranks take the same decisions.

Shapes: k processes in a team.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from study.devices.memory import out_of_memory
from workloads.user_code.errors import text_of

T = TypeVar("T")

PATIENCE = timedelta(days=3650)
"""Timeout of collectives: trials may be days apart, and a dead rank is detected by its closed connection."""
OVER = "over"
TORCHRUN = "TORCHELASTIC_RUN_ID"
"""A variable that only torchrun sets. SLURM, MPI and notebooks also leave WORLD_SIZE and RANK behind."""


class TooLittleMemory(MemoryError):
    """Some device of the team ran out of memory; raised on every rank."""


@dataclass(frozen=True)
class Rank:
    """One process of a team, and the address of the store where the team meets.

    Attributes:
        team: name of the team at that store.
        index: number of this process in its team, below `size`.
        local_index: number of this process on its machine; see `study.devices.placement.Placement.device_of`.
    """

    host: str
    port: int
    team: str
    index: int
    size: int
    local_index: int

    def join(self) -> Team:
        """Join the team; waits for all its ranks."""
        store = dist.PrefixStore(self.team, dist.TCPStore(self.host, self.port, is_master=False, timeout=PATIENCE))
        gpus = torch.cuda.is_available() and dist.is_nccl_available()
        backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
        dist.init_process_group(backend, store=store, rank=self.index, world_size=self.size, timeout=PATIENCE)
        return Team(self.index, self.size, dist.group.WORLD)


@dataclass(frozen=True)
class Team:
    """The processes that train together, seen from rank `rank` of `size`; by default a single process."""

    rank: int = 0
    size: int = 1
    group: Any = None

    def first(self, size: int) -> Team | None:
        """The team of the first `size` ranks; None on the other ranks. Every rank must call it."""
        if size >= self.size:
            return self
        group = dist.new_group(range(size), timeout=PATIENCE) if size > 1 else None
        return Team(self.rank, size, group) if self.rank < size else None

    def broadcast(self, call: Callable[[], T]) -> T:
        """Run `call` on rank 0 and return its result on every rank."""
        if self.size == 1:
            return call()
        said: list[Any] = [call() if self.rank == 0 else None]
        dist.broadcast_object_list(said, group_src=0, group=self.group, device=torch.device("cpu"))
        return said[0]

    def share(self, examples: int) -> range:
        """The range of examples that this rank evaluates."""
        return range(examples * self.rank // self.size, examples * (self.rank + 1) // self.size)

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place; the result has the same bits on every rank."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def agree(self, call: Callable[[], object]) -> None:
        """Run `call` on every rank. `call` must not use collectives.

        Raises:
            TooLittleMemory: on every rank, if memory ran out on any rank.
        """
        full = torch.zeros(())
        try:
            call()
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            full += 1
        if self.sum(full):
            raise TooLittleMemory

    def agreed(self, error: BaseException) -> bool:
        """True if every rank saw this error. After any other error no rank may continue: ranks would diverge."""
        return self.size == 1 or isinstance(error, TooLittleMemory)

    def parallel(self, model: nn.Module, unused: bool) -> nn.Module:
        """Wrap the model so that its backward pass averages gradients over the ranks.

        Arguments:
            unused: some parameters do not contribute to the loss.
        """
        # Do not synchronise buffers: they are equal on all ranks. torch 2.13 renamed the switch.
        known = inspect.signature(nn.parallel.DistributedDataParallel).parameters
        switch = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        how: dict[str, Any] = {"process_group": self.group, "find_unused_parameters": unused, switch: False}
        return nn.parallel.DistributedDataParallel(model, **how)


def ranks(count: int, size: int) -> tuple[object, list[list[Rank]]]:
    """(a store on this machine where teams meet, the ranks of `count` teams); the caller must keep the store alive."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    teams = [
        [Rank("localhost", store.port, f"team {team}", index, size, team * size + index) for index in range(size)]
        for team in range(count)
    ]
    return store, teams


def launched() -> Rank | None:
    """The rank of this process under torchrun; None if torchrun started no other, or not this process."""
    environment = os.environ
    if not {TORCHRUN, "WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
        return None
    size = int(environment["WORLD_SIZE"])
    if size == 1:
        return None
    index = int(environment["RANK"])
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    address = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    return Rank(*address, f"torchrun {attempt}", index, size, int(environment.get("LOCAL_RANK", index)))


@contextmanager
def leading(rank: Rank) -> Iterator[None]:
    """Run rank 0's work under torchrun; on leaving, tell the other ranks to exit (`end_with`)."""
    # Without torchrun's agent, rank 0 must serve the store.
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = dist.TCPStore(rank.host, rank.port, is_master=not agents, wait_for_workers=False, timeout=PATIENCE)
    try:
        yield
    finally:
        dist.PrefixStore(rank.team, store).set(OVER, "")


def lost(error: BaseException) -> bool:
    """True if the error says that another rank of the team is gone."""
    return isinstance(error, dist.DistError) or any(
        text in text_of(error) for text in ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
    )


def end_with(rank: Rank) -> None:
    """Start a thread that exits with status 0 as soon as rank 0 has finished."""
    store = dist.PrefixStore(rank.team, dist.TCPStore(rank.host, rank.port, is_master=False, timeout=PATIENCE))

    def watch() -> None:
        with suppress(RuntimeError):  # the store may close before it delivers the message
            store.wait([OVER], PATIENCE)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
