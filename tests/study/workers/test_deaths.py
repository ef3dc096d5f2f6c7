"""A worker that dies while it trains is replaced, a few times in a sweep; no trial is lost or trained twice."""

import os
import re
import signal
import struct
from multiprocessing import Pipe
from threading import Thread
from types import SimpleNamespace

import pytest
from helpers.processes import SWEEP, started, tables, wait_until, workers

from study.__main__ import main
from study.devices.placement import Placement
from study.engine.cost import Cost
from study.search.points import point
from study.space import values
from study.workers import messages, pool

EARLY, BETWEEN, WITHIN = "before it reads its order", "between two messages", "in the middle of a message"


class Search:
    """Trials of a study in their order."""

    folder, learns = None, False

    def __init__(self, study, trials):
        self.study, self.checkpoints, self.left = study, {}, list(range(trials))

    def ask(self):
        at = self.left.pop(0) if self.left else None
        return None if at is None else self.study.trial(at, values(self.study.search.space, point(self.study, at)))

    def step_limit(self, index):
        return 100


def train(pipe, curve, death, continued):
    """A worker: trains what it is given, or keeps a checkpoint of all but the first of these trials and dies."""
    while death != EARLY:
        try:
            given = getattr(pipe.recv(), "proposals", ())
        except EOFError:
            break
        indices = [proposal.trial.index for proposal in given]
        continued += [proposal.trial.index for proposal in given if proposal.has_checkpoint]
        for at, index in enumerate(indices):
            pipe.send(messages.Checkpoint(index, b"kept") if death and at else messages.Finished(curve(index)))
        if death:
            break
        if indices:
            pipe.send(messages.AskTrials(len(indices), idle=True))
    if death == WITHIN:
        os.write(pipe.fileno(), struct.pack("!i", 1000) + b"the first bytes of a message of 1000")
    pipe.close()


def trained(study, make_curve, count, death, deaths):
    """(the trials that `count` workers finished, those continued from a checkpoint, notes), where the first `deaths`
    processes that start die."""
    made, continued = [], []

    def start(number, rank):
        ours, theirs = Pipe()
        dies = death if len(made) < deaths else None
        made.append(Thread(target=train, args=(theirs, lambda index: make_curve(study, index), dies, continued)))
        made[-1].start()
        workers._processes[ours] = SimpleNamespace(kill=lambda: None, join=lambda timeout=None: None, exitcode=-9)
        return ours

    workers = object.__new__(pool.Workers)
    workers.__dict__ |= {"placement": Placement(device="cpu"), "notes": [], "too_small": {}, "_not_recorded": {}}
    workers.__dict__ |= {"_followers": [], "_processes": {}, "_start": start, "_deaths": 0}
    workers._costs = {pool._key(study): Cost(1.0, 1.0, 1.0, heights=(2,), lanes=2)}
    workers._pipes = [start(number, None) for number in range(count)]
    search = Search(study, 11)
    supply = SimpleNamespace(queues=lambda: [search], prepare=lambda: False)
    try:
        found = [curve.trial.index for _, curve in workers.train(supply)]
    finally:
        for pipe in workers._pipes:
            pipe.close()
        for thread in made:
            thread.join()
    return sorted(found), sorted(continued), workers.notes


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("deaths", range(pool.REPLACED + 1))
@pytest.mark.parametrize("death", [EARLY, BETWEEN, WITHIN])
def test_no_trial_is_lost_or_trained_twice(make_study, make_curve, death, deaths, count):
    found, continued, notes = trained(make_study(arithmetic="vmap"), make_curve, count, death, deaths)
    assert found == list(range(11))
    assert len(continued) >= (0 if death == EARLY else deaths > 0)
    assert len(notes) == deaths
    assert all(
        re.match(r"\w+ with \w+ at batch size \d+: a worker process died \(exit code -9\)", note) for note in notes
    )


@pytest.mark.parametrize("death", [EARLY, BETWEEN, WITHIN])
def test_too_many_deaths_end_the_sweep(make_study, make_curve, death):
    with pytest.raises(
        pool.WorkerDied,
        match=r"with \w+ at batch size \d+: a.*died \(exit code -9\).*Finished trials are kept, and the same command",
    ):
        trained(make_study(arithmetic="vmap"), make_curve, 1, death, pool.REPLACED + 1)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pool.REPLACED + 1])
def test_a_sweep_whose_workers_are_killed(tmp_path, swept_once, kills):
    process = started(tmp_path)
    killed = set()
    for _ in range(kills):
        wait_until(lambda: workers(process.pid) - killed)
        victim = min(workers(process.pid) - killed)
        os.kill(victim, signal.SIGKILL)
        killed.add(victim)
    _, said = process.communicate(timeout=120)
    assert process.returncode == (kills > pool.REPLACED)
    assert ("a worker process died (exit code -9)" in said) == (kills > pool.REPLACED)
    assert "Traceback" not in said
    assert main([*SWEEP, f"results={tmp_path}"]) == 0
    assert tables(tmp_path) == tables(swept_once(*SWEEP))
