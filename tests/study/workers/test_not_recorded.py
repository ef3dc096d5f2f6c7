"""A worker that cannot record an update as a CUDA graph is replaced by a process that does not try."""

from multiprocessing import Pipe
from types import SimpleNamespace

import pytest
from helpers.blobs import Blobs
from helpers.made_workload import own_folder
from helpers.processes import tables

from study.__main__ import main
from study.devices.distributed import Team
from study.devices.placement import Placement
from study.engine import train
from study.engine.cost import Cost
from study.engine.fused import cuda_graph
from study.search.points import point
from study.space import values
from study.workers import messages, pool, process
from workloads.user_code import importing

REASON = "updates cannot be recorded as a CUDA graph: operation not permitted when stream is capturing"
COST = Cost(1.0, 1.0, 1.0, heights=(2,), lanes=2)


class End:
    """The parent's end of a pipe to a worker that answers every order by `answers`: order -> reports."""

    def __init__(self, answers):
        self.answers, self.orders, self.reports, self.closed = answers, [], [], False

    def send(self, message):
        if isinstance(message, messages.Order):
            self.orders.append(message)
            self.reports += self.answers(message)

    def poll(self):
        return bool(self.reports)

    def recv(self):
        return self.reports.pop(0)

    def close(self):
        self.closed = True


def workers_of(count, answers):
    """A pool without processes; `ended` lists the ends of the workers that were killed."""
    workers = object.__new__(pool.Workers)
    workers.placement, workers.notes, workers.too_small = Placement(device="cpu"), [], {}
    workers._costs, workers._not_recorded = {}, {}
    workers._pipes, workers._followers, workers._processes, workers.ended = [], [], {}, []

    def start(number, rank):
        end = End(answers)
        kill = lambda: workers.ended.append(end)  # noqa: E731
        workers._processes[end] = SimpleNamespace(kill=kill, join=lambda: None)
        return end

    workers._start = start
    workers._ready = lambda pipes, timeout=None: [pipe for pipe in pipes if pipe.reports]
    workers._pipes += [start(number, None) for number in range(count)]
    return workers


def measured(order):
    return [messages.NotRecorded(REASON) if order.records else messages.Measured(COST)]


def test_measuring_goes_on_in_other_processes(make_study):
    studies = [make_study(batch_size=size, arithmetic="vmap") for size in (4, 8, 16, 32)]
    workers = workers_of(2, measured)
    assert workers.measure(studies) == [COST] * 4
    assert len(workers.ended) == 2  # each worker tried before it could know
    assert all(end.closed for end in workers.ended)
    assert not set(workers.ended) & {*workers._pipes, *workers._processes}
    assert [order.records for end in workers._pipes for order in end.orders] == [False] * 4
    [note] = workers.notes
    assert f"{REASON}. So it is launched kernel by kernel" in note


def test_updates_of_other_studies_are_recorded(make_study):
    def answers(order):
        return [messages.Measured(COST)] if order.study.arithmetic == "linear_chain" else measured(order)

    studies = [make_study(arithmetic=how) for how in ("vmap", "linear_chain")]
    workers = workers_of(1, answers)
    workers.measure(studies)
    [end] = workers._pipes
    assert {order.study.arithmetic: order.records for order in end.orders} == {"vmap": False, "linear_chain": True}


def test_a_worker_is_replaced_once_at_most(make_study):
    workers = workers_of(1, lambda order: [messages.NotRecorded(REASON)])
    with pytest.raises(pool.WorkerError, match=f"was recorded again, although {REASON}"):
        workers.measure([make_study(arithmetic="vmap")])


class Search:
    """Trials of a study in their order."""

    folder, learns = None, False

    def __init__(self, study, trials):
        self.study, self.checkpoints, self.asked = study, {}, 0
        self.trials = [study.trial(i, values(study.search.space, point(study, i))) for i in range(trials)]

    def ask(self):
        self.asked += 1
        return self.trials[self.asked - 1] if self.asked <= len(self.trials) else None

    def step_limit(self, index):
        return 100


@pytest.mark.parametrize("count", [1, 2])
def test_no_trial_is_lost_or_trained_twice(make_study, make_curve, count):
    """Each worker finishes a trial and keeps a checkpoint of another one before an evaluation cannot be recorded."""
    study = make_study(arithmetic="vmap")
    search, continued = Search(study, 7), []

    def answers(order):
        first, *rest = [proposal.trial.index for proposal in order.proposals]
        continued.extend(proposal.trial.index for proposal in order.proposals if proposal.has_checkpoint)
        told = [messages.Finished(make_curve(study, first))]
        if order.records:
            return [*told, *(messages.Checkpoint(i, b"kept") for i in rest), messages.NotRecorded(REASON)]
        return [*told, *(messages.Finished(make_curve(study, i)) for i in rest), messages.AskTrials(2, idle=True)]

    def send(pipe, message):
        if isinstance(message, messages.Given) and message.proposals:  # as if they came with an order
            message = messages.Train(study, (2,), 2, message.proposals, 2, records=False)
        pipe.send(message)

    workers = workers_of(count, answers)
    workers._costs[pool._key(study)], workers._send = COST, send
    supply = SimpleNamespace(queues=lambda: [search], prepare=lambda: False)
    assert sorted(curve.trial.index for _, curve in workers.train(supply)) == list(range(7))
    assert len(workers.ended) == count
    assert continued == [1, 3][:count]


@pytest.mark.parametrize("records", [True, False])
def test_an_order_says_whether_updates_are_recorded(make_study, monkeypatch, records):
    seen = []
    monkeypatch.setitem(cuda_graph.GRAPHS, "cpu", object)
    monkeypatch.setattr(importing, "build", lambda workload: Blobs())
    monkeypatch.setattr(train, "measure", lambda *_: seen.append("cpu" in cuda_graph.GRAPHS) or COST)
    orders = iter([messages.Measure(make_study(), 4, None, records=records)])
    pipe = SimpleNamespace(recv=orders.__next__, send=lambda told: None, poll=lambda: False)
    with pytest.raises(StopIteration):
        process.serve(pipe, process.Setting(Placement(device="cpu"), None, 0), Team(), None)
    assert seen == [records]
    assert "cpu" in cuda_graph.GRAPHS


def test_a_process_that_cannot_record_says_so_and_ends(monkeypatch):
    def serve(*_):
        raise cuda_graph.CannotRecord(REASON)

    monkeypatch.setattr(process, "serve", serve)
    ours, theirs = Pipe()
    ours.send((None, None))
    process.work(theirs)
    assert ours.recv() == messages.NotRecorded(REASON)


ODD = """
import os
from multiprocessing import parent_process

from made_images import *
from study.engine.fused import cuda_graph


class Failing:
    def __init__(self, device, purpose, beside):
        pass

    def run(self, function):
        return function()

    def record(self, function):
        raise RuntimeError("operation not permitted when stream is capturing")


class Odd(Images):
    pass


if parent_process() is not None and "RECORDS" in os.environ:
    cuda_graph.GRAPHS["cpu"] = Failing
"""


@pytest.mark.slow
def test_a_sweep_whose_updates_cannot_be_recorded(tmp_path, monkeypatch, capsys):
    mine = own_folder(tmp_path / "mine", "odd", ODD, "made_odd.Odd")
    words = ["sweep", "--config-dir", str(mine), "workload=odd", "engine=lanes", "batch_size=2,4", "engine.workers=2"]
    assert main([*words, f"results={tmp_path / 'as ever'}"]) == 0
    assert "kernel by kernel" not in capsys.readouterr().out
    monkeypatch.setenv("RECORDS", "1")
    assert main([*words, f"results={tmp_path / 'other'}"]) == 0
    assert " ".join(capsys.readouterr().out.split()).count("launched kernel by kernel") == 1
    assert tables(tmp_path / "other") == tables(tmp_path / "as ever")
