"""Processes that form a team: each makes the same call on its own data."""

import multiprocessing as mp
import os
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from study.devices import distributed
from study.devices.distributed import Rank
from study.devices.signals import die_with, ignored
from study.workers.pool import one_thread_environment


def _obey(pipe: Any, parent: int, rank: Rank) -> None:
    die_with(parent)
    torch.set_num_threads(1)
    joined = rank.join()
    teams = {}
    while True:
        size, call, arguments = pipe.recv()
        try:
            if size not in teams:
                teams[size] = joined.first(size)
            pipe.send(None if teams[size] is None else call(teams[size], *arguments))
        except Exception:
            pipe.send(traceback.format_exc())


class Crew(ExitStack):
    """`size` processes of one team, killed at the end of the block."""

    def __init__(self, size: int) -> None:
        super().__init__()
        context = mp.get_context("spawn")
        self.store, [ranks] = distributed.ranks(1, size)
        self.pipes = []
        with one_thread_environment(), ignored():
            for rank in ranks:
                ours, theirs = context.Pipe()
                process = context.Process(target=_obey, args=(theirs, os.getpid(), rank))
                process.start()
                self.pipes.append(ours)
                self.callback(process.join)
                self.callback(process.kill)

    def run(self, size: int, call: Callable[..., Any], *arguments: Any) -> list[Any]:
        """The results of `call(team, *arguments)` on the first `size` processes, which form the team."""
        for pipe in self.pipes:
            pipe.send((size, call, arguments))
        answers = [pipe.recv() for pipe in self.pipes]
        for answer in answers:
            assert not (isinstance(answer, str) and "Traceback" in answer), answer
        return answers[:size]
