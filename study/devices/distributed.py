"""Several processes that train each trial together, a device each, by torch's DistributedDataParallel.

All of them run the same engine on their own copy of the data. Only the first, the leader, hears the tuner and the
store; what it hears the others hear from it, and sums are the same bits everywhere, so that all decide alike.

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

T = TypeVar("T")

PATIENCE = timedelta(days=3650)
"""How long a process waits for the others: trials may be days apart, and whoever dies is seen to be dead."""
OVER = "over"


class TooLittleMemory(MemoryError):
    """A device of the team has no room left, and every process of it knows."""


@dataclass(frozen=True)
class Rank:
    """One process of a team, and where the team meets: a store at this address.

    Attributes:
        team: its name among the teams that meet there.
        index: of this process in its team, below `size`.
        local_index: of this process on its machine; see `study.devices.placement.Placement.device_of`.
    """

    host: str
    port: int
    team: str
    index: int
    size: int
    local_index: int

    def join(self) -> Team:
        """Meet the others; waits until all are there."""
        store = dist.PrefixStore(self.team, dist.TCPStore(self.host, self.port, is_master=False, timeout=PATIENCE))
        gpus = torch.cuda.is_available() and dist.is_nccl_available()
        backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
        dist.init_process_group(backend, store=store, rank=self.index, world_size=self.size, timeout=PATIENCE)
        return Team(self.index, self.size, dist.group.WORLD)


@dataclass(frozen=True)
class Team:
    """The processes that train together, seen from number `rank` of `size`; by default one alone."""

    rank: int = 0
    size: int = 1
    group: Any = None

    def first(self, size: int) -> Team | None:
        """The team of the first `size` processes, None for those left out; each process must ask."""
        if size >= self.size:
            return self
        group = dist.new_group(range(size), timeout=PATIENCE) if size > 1 else None
        return Team(self.rank, size, group) if self.rank < size else None

    def broadcast(self, call: Callable[[], T]) -> T:
        """What this call returns to the leader, which alone makes it."""
        if self.size == 1:
            return call()
        said: list[Any] = [call() if self.rank == 0 else None]
        dist.broadcast_object_list(said, group_src=0, group=self.group, device=torch.device("cpu"))
        return said[0]

    def share(self, examples: int) -> range:
        """Which of so many examples are this process's to measure."""
        return range(examples * self.rank // self.size, examples * (self.rank + 1) // self.size)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of every process's tensor, in place; the same bits in each."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def agree(self, call: Callable[[], object]) -> None:
        """Make this call, which must not wait for others, everywhere.

        Raises:
            TooLittleMemory: in every process, if memory ran out in any.
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
        """Whether an error came to all: going on after one that the others know nothing of would part them."""
        return self.size == 1 or isinstance(error, TooLittleMemory)

    def parallel(self, model: nn.Module, unused: bool) -> nn.Module:
        """The same model, whose backward passes end with the mean of all processes' gradients.

        Arguments:
            unused: some parameters have no part in the loss.
        """
        # Buffers alike without it; torch 2.13 gave the switch another name.
        known = inspect.signature(nn.parallel.DistributedDataParallel).parameters
        switch = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        how: dict[str, Any] = {"process_group": self.group, "find_unused_parameters": unused, switch: False}
        return nn.parallel.DistributedDataParallel(model, **how)


def ranks(count: int, size: int) -> tuple[object, list[list[Rank]]]:
    """(a store on this machine, to be kept for as long as they meet there, the ranks of `count` teams)."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    teams = [
        [Rank("localhost", store.port, f"team {team}", index, size, team * size + index) for index in range(size)]
        for team in range(count)
    ]
    return store, teams


def launched() -> Rank | None:
    """This process's rank among those that torchrun started; None if there is no other."""
    environment = os.environ
    size = int(environment.get("WORLD_SIZE", "1"))
    if size == 1 or not {"RANK", "MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
        return None
    index = int(environment["RANK"])
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    address = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    return Rank(*address, f"torchrun {attempt}", index, size, int(environment.get("LOCAL_RANK", index)))


@contextmanager
def leading(rank: Rank) -> Iterator[None]:
    """What the first process does that torchrun started; the others live until it is done (`end_with`)."""
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # else nobody serves the store yet
    store = dist.TCPStore(rank.host, rank.port, is_master=not agents, wait_for_workers=False, timeout=PATIENCE)
    try:
        yield
    finally:
        dist.PrefixStore(rank.team, store).set(OVER, "")


def lost(error: BaseException) -> bool:
    """Whether an error is one of a process whose team is gone."""
    return isinstance(error, dist.DistError) or any(
        text in str(error) for text in ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
    )


def end_with(rank: Rank) -> None:
    """From now on, end this process in peace as soon as the first that torchrun started is done."""
    store = dist.PrefixStore(rank.team, dist.TCPStore(rank.host, rank.port, is_master=False, timeout=PATIENCE))

    def watch() -> None:
        with suppress(RuntimeError):  # whoever serves the store may be gone before it has told
            store.wait([OVER], PATIENCE)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
