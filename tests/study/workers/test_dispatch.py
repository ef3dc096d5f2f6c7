"""The bookkeeping of the pool, driven by workers that ask, finish and run out of memory in any order."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from study.records import Trial
from study.workers import messages
from study.workers.dispatch import Dispatch


class Search:
    """A queue of trials; `opens_after`: the number of trials of the supply that must have ended before its first."""

    def __init__(self, name, trials, opens_after=0):
        self.study, self.left, self.opens_after = name, list(range(trials)), opens_after
        self.checkpoints, self.ended = {}, 0

    def ask(self):
        if not self.left or self.supply.ended < self.opens_after:
            return None
        return Trial(self.left.pop(0), 0, 0, {})

    def step_limit(self, index):
        return 100 + index


class Supply:
    def __init__(self, searches):
        self.searches, self.failed, self.ended = searches, [], 0
        for search in searches:
            search.supply = self

    def queues(self):
        return iter(self.searches)

    def too_large(self, queue, reason):
        self.searches.remove(queue)
        self.failed.append((queue.study, reason))


class Worker:
    """As a worker process: it asks for a trial, with or without waiting, and ends an order at None."""

    def __init__(self, lanes, small_for=()):
        self.lanes, self.small_for = lanes, small_for
        self.queue, self.running, self.done = None, [], defaultdict(list)


@given(
    trials=st.lists(st.integers(0, 7), min_size=1, max_size=4),
    workers=st.lists(st.tuples(st.integers(1, 3), st.sets(st.integers(0, 3))), min_size=1, max_size=3),
    opens=st.lists(st.integers(0, 6), min_size=4, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_every_trial_is_trained_once_by_a_worker_that_can(trials, workers, opens, order):
    searches = [Search(n, count, opens[n] if n else 0) for n, count in enumerate(trials)]
    supply = Supply(list(searches))
    pool = [Worker(lanes, small) for lanes, small in workers]
    dispatch = Dispatch(supply, pool)
    while True:
        for worker, given_to in dispatch.hand_out():
            take(worker, given_to)
        if not dispatch.busy:
            break
        worker = order.choice(dispatch.busy)
        assert dispatch.queue(worker) is worker.queue
        if worker.queue.study in worker.small_for:
            dispatch.too_large(worker, f"too small for {worker.queue.study}")
            worker.queue, worker.running = None, []
        elif len(worker.running) < worker.lanes and (not worker.running or order.random() < 0.5):
            there, answer = dispatch.answer(worker, messages.AskTrial(wait=not worker.running))
            assert there or not worker.running
            if there:
                take(worker, answer)
                if answer is None:
                    end_one(worker, supply, dispatch, order)
        elif worker.running:
            end_one(worker, supply, dispatch, order)
    assert all(worker.queue is None and not worker.running for worker in pool)
    for search in searches:
        able = [worker for worker in pool if search.study not in worker.small_for]
        trained = sorted(index for worker in pool for index in worker.done[search.study])
        begun = list(range(trials[search.study] - len(search.left)))
        assert trained == (begun if able else [])
        if able and supply.ended >= search.opens_after:
            assert not search.left
        assert all(not worker.done[search.study] for worker in pool if worker not in able)


def take(worker, given_to):
    """What a worker does with what it is sent."""
    if given_to is None and not worker.running:
        worker.queue = None
    elif isinstance(given_to, messages.Proposal):
        worker.running.append(given_to.trial.index)
    elif given_to is not None:
        assert worker.queue is None
        worker.queue = given_to


def end_one(worker, supply, dispatch, order):
    index = worker.running.pop(order.randrange(len(worker.running)))
    worker.done[worker.queue.study].append(index)
    dispatch.finished(worker, index)
    supply.ended += 1


def test_questions_about_a_trial_go_to_its_search():
    [search] = searches = [Search("only", 2)]
    search.checkpoints[0] = b"kept"
    dispatch = Dispatch(Supply(searches), ["worker"])
    assert list(dispatch.hand_out()) == [("worker", search)]
    assert dispatch.answer("worker", messages.AskTrial(wait=True)) == (
        True,
        messages.Proposal(Trial(0, 0, 0, {}), True),
    )
    assert dispatch.answer("worker", messages.AskStepLimit(0)) == (True, 100)
    assert dispatch.answer("worker", messages.AskCheckpoint(0)) == (True, b"kept")
    assert dispatch.answer("worker", messages.AskCheckpoint(1)) == (True, None)
