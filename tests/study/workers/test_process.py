"""What a worker process keeps while it waits for orders."""

import gc
import weakref
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest
import torch
from helpers.blobs import Blobs

from study.devices import memory
from study.devices.distributed import Team
from study.devices.placement import Placement
from study.engine import train
from study.engine.cost import Cost
from study.engine.trial.pace import Pace
from study.search.stages import trained_again
from study.workers import messages, pool, process
from workloads.user_code import importing


def served(monkeypatch, orders, waiting):
    """Serve these orders for Blobs; `waiting` is called when none is left."""

    def recv():
        for order in orders:
            return order
        waiting()
        raise EOFError

    monkeypatch.setattr(importing, "build", lambda workload: Blobs(images=True))
    pipe = SimpleNamespace(recv=recv, send=lambda told: None, poll=lambda: False)
    with pytest.raises(EOFError):
        process.serve(pipe, process.Setting(Placement(device="cpu"), None, 0), Team(), None)


def test_it_gives_memory_back_before_it_waits(make_study, monkeypatch):
    """To the others on its device, after a study that did not fit, too, when the error holds nothing any more."""
    held: list[weakref.ref[torch.Tensor]] = []

    def full(study, workload, data, *how):
        tensor = torch.ones(3)
        held.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("CUDA out of memory")

    released = []
    monkeypatch.setattr(memory, "release_cached_memory", lambda: released.append([tensor() for tensor in held]))
    for name in ("measure", "train"):
        monkeypatch.setattr(train, name, full)
    late = messages.Given(), messages.StepLimits({}), messages.Stored(None)  # of an order that ended early
    train_one = messages.Train(make_study(), (1,), 1, (), room=1)
    orders = iter([messages.Measure(make_study(), 4, None), *late, train_one])
    served(monkeypatch, orders, waiting=lambda: None)
    assert released == [[], [None], [None, None]]


def test_data_as_they_were_made_are_not_kept_beside_those_that_are_trained_on(make_study, monkeypatch):
    splits, made, held, kept = Blobs.splits, [], [], []

    def remembered(self, device):
        found = splits(self, device)
        made.append(weakref.ref(found.train[0]))
        return found

    def look():
        gc.collect()
        kept.extend(tensor() is not None for tensor in (*made, *held))

    monkeypatch.setattr(Blobs, "splits", remembered)
    monkeypatch.setattr(train, "measure", lambda study, workload, data, *how: held.append(weakref.ref(data.inputs)))
    served(monkeypatch, iter([messages.Measure(make_study(), 4, None)]), waiting=look)
    assert kept == [False, True]


@pytest.mark.slow
def test_trials_with_splits_of_their_own_train_alone_and_only_one_split_is_kept(make_study, monkeypatch):
    workload = {"_target_": "somewhere.Tiny", "name": "tiny", "train_examples": 64, "split_seed": 7}
    study = make_study(workload=workload, reruns=2, fresh_data="split")
    point = {"learning_rate": 0.1, "momentum": 0.9}
    study = trained_again(study, point, 2, study.branch._replace(rerun=0), "split")
    held, found = [], []

    def trained(study, workload, data, proposals, heights, lanes, compiled):
        gc.collect()
        held.append(weakref.ref(data.inputs))
        indices = []
        while (trial := proposals.ask(wait=False)) is not None:
            indices.append(trial.index)
        found.append((study.workload["split_seed"], indices, [tensor() is not None for tensor in held]))
        yield from ()

    monkeypatch.setattr(train, "train", trained)
    first, second = [messages.Proposal(study.trial(index, point), False, 100) for index in range(2)]
    orders = [messages.Train(study, (4,), 4, (first,), room=1), messages.Given((second,)), messages.Given()]
    served(monkeypatch, iter(orders), waiting=lambda: None)
    assert found == [(8, [0], [True]), (9, [1], [False, True])]


def order_of(study, given, room):
    """(the trials that follow those of an order, the parent's end of the pipe, the worker's view of it)."""
    proposals = [messages.Proposal(study.trial(index, {"learning_rate": 0.1}), False, 100) for index in range(9)]
    order = messages.Train(study, (room,), room, tuple(proposals[:given]), room)
    ours, theirs = Pipe()
    return proposals[given:], ours, process._Parent(theirs, Team(), Pace(None), order)


def test_a_worker_that_trains_does_not_wait_for_the_parent(make_study):
    later, parent, worker = order_of(make_study(), given=1, room=3)
    assert worker.ask(wait=True).index == 0
    assert worker.ask(wait=False) is None  # at once, though the parent has not answered
    assert worker.ask(wait=False) is None
    assert worker.step_limit(0) == 100
    assert parent.recv() == messages.AskTrials(more=2, idle=False)
    assert not parent.poll()  # it asks once
    parent.send(messages.Given(tuple(later[:1])))
    parent.send(messages.StepLimits({0: 50}))
    assert (worker.step_limit(0), worker.step_limit(1)) == (50, 100)
    assert worker.ask(wait=False).index == 1
    worker.report(messages.Finished(None))
    assert worker.ask(wait=False) is None
    assert [parent.recv() for _ in range(2)] == [messages.Finished(None), messages.AskTrials(more=1, idle=False)]


def test_after_a_shortage_of_memory_it_asks_for_fewer(make_study):
    _, parent, worker = order_of(make_study(), given=4, room=4)
    assert [worker.ask(wait=True).index for _ in range(4)] == [0, 1, 2, 3]
    worker.train_at_once(2)
    for left in (3, 2, 1):
        worker.report(messages.Finished(None))
        assert worker.ask(wait=False) is None
        assert parent.recv() == messages.Finished(None)
        assert parent.poll() == (left < 2)
    assert parent.recv() == messages.AskTrials(more=1, idle=False)


def test_an_idle_worker_says_so_and_hears_the_end_of_the_order(make_study):
    _, parent, worker = order_of(make_study(), given=2, room=2)
    assert [worker.ask(wait=True).index for _ in range(2)] == [0, 1]
    for _ in range(2):
        worker.report(messages.Finished(None))
    parent.send(messages.Given())
    assert worker.ask(wait=True) is None
    told = [parent.recv() for _ in range(3)]
    assert told == [messages.Finished(None), messages.Finished(None), messages.AskTrials(more=2, idle=True)]


def test_a_checkpoint_comes_between_other_news(make_study):
    _, parent, worker = order_of(make_study(), given=2, room=2)
    assert worker.checkpoint(0) is None  # nothing is asked: there is none
    worker.keep(0, b"latest")
    for news in (messages.StepLimits({1: 7}), messages.Stored(b"latest")):
        parent.send(news)
    assert worker.checkpoint(0) == b"latest"
    assert worker.step_limit(1) == 7
    assert [parent.recv() for _ in range(2)] == [messages.Checkpoint(0, b"latest"), messages.AskCheckpoint(0)]


def test_the_steps_reached_are_told_once_a_second(make_study, monkeypatch):
    _, parent, worker = order_of(make_study(), given=2, room=2)
    asked = []

    def steps():
        asked.append(True)
        return {0: 10 * len(asked), 1: 5}

    for _ in range(3):
        worker.reached(steps)
    assert not asked  # nothing is computed between two reports
    worker._told -= process.TOLD
    for _ in range(3):
        worker.reached(steps)
    assert parent.recv() == messages.Reached({0: 10, 1: 5})
    assert not parent.poll()


@pytest.mark.parametrize("first", [0, 1])
def test_the_first_error_of_a_team_is_told(first):
    """Not the error of the other rank, which says that a rank is gone."""
    pairs = [Pipe(), Pipe()]
    said = [messages.Crashed("a rank is gone", lost=True), messages.Crashed("your code fails")]
    for (_, theirs), message in zip(pairs, said if first else said[::-1], strict=True):
        theirs.send(message)
    workers = object.__new__(pool.Workers)
    processes = {ours: SimpleNamespace(join=lambda timeout: None, exitcode=0) for ours, _ in pairs}
    workers._processes, workers._followers = processes, []
    with pytest.raises(pool.WorkerError, match=r"^your code fails$"):
        workers._receive(pairs[0][0])


@pytest.mark.parametrize("debugging", [False, True])
def test_an_error_in_a_layer_of_torch_is_told_without_our_frames(monkeypatch, debugging):
    monkeypatch.setenv("HYDRA_FULL_ERROR", str(int(debugging)))
    try:
        torch.nn.functional.linear(torch.zeros(2, 3), torch.zeros(5, 4))
    except RuntimeError as error:
        told = process._for_people(error.with_traceback(error.__traceback__.tb_next))
    assert told.startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert "check that the layers of the model fit the data" in told
    assert told.count("RuntimeError") == 1 + debugging


def test_measuring_starts_from_the_cost_at_the_nearest_batch_size(make_study, monkeypatch):
    """In the same arithmetic, whose lanes and evaluations tell something."""
    sizes = [*((size, "plain") for size in (8, 16, 64)), *((size, "vmap") for size in (32, 4))]
    studies = [make_study(batch_size=size, arithmetic=how) for size, how in sizes]
    orders = []

    def receive(pipe):
        return messages.Measured(Cost(1.0, 1.0, 1.0, lanes=orders[-1].study.batch_size))

    workers = object.__new__(pool.Workers)
    workers.placement, workers._pipes = Placement(device="cpu"), ["pipe"]
    workers._costs, workers._not_recorded, workers._receive = {}, {}, receive
    monkeypatch.setattr(workers, "_ready", lambda pipes: pipes)
    monkeypatch.setattr(workers, "_send", lambda pipe, order: orders.append(order))
    found = workers.measure(studies)
    assert [order.neighbour and order.neighbour.lanes for order in orders] == [None, 8, 16, None, 32]
    assert [workers.cost_of(study) for study in studies] == found
