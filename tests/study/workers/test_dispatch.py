"""The bookkeeping of the pool, driven by workers that ask, finish, run out of memory and end in any order."""

from collections import defaultdict
from itertools import chain

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
    """As a worker process: it reads what it was sent when it likes, asks for trials when it has room, and waits when it
    has none."""

    def __init__(self, lanes, small_for=()):
        self.lanes, self.small_for = lanes, small_for
        self.sent = []
        self.queue, self.running, self.room, self.idle, self.done = None, [], 0, False, defaultdict(list)

    def read(self):
        while self.sent:
            queue, given = self.sent.pop(0)
            if queue is not None:
                assert not self.running
                self.queue, self.room = queue, self.lanes - len(given)
            if given:
                self.running += [proposal.trial.index for proposal in given]
                self.idle = False
            elif queue is None:
                assert self.idle
                self.queue, self.idle = None, False
            assert len(self.running) <= self.lanes

    def asked(self):
        """Its request for trials."""
        self.idle = not self.running
        request, self.room = messages.AskTrials(self.room, self.idle), 0
        return request


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
    fewest = min(worker.lanes for worker in pool)
    for worker in pool:
        worker.lanes = fewest
    dispatch, ended = Dispatch(supply, pool, lambda queue: fewest), []
    while True:
        for worker, queue, given_to in chain(dispatch.hand_out(), dispatch.end()):
            worker.sent.append((queue, given_to))
        if not dispatch.busy:
            break
        worker = order.choice(dispatch.busy)
        if len(ended) < 3 and order.random() < 0.1:  # it ends, and another process takes its place
            ended.append(worker)
            pool[pool.index(worker)] = new = Worker(worker.lanes, worker.small_for)
            dispatch.replaced(worker, new)
            continue
        if not worker.sent or order.random() < 0.5:  # messages may cross
            act(worker, supply, dispatch, order)
        else:
            worker.read()
    for worker in pool:
        worker.read()
    assert all(worker.queue is None and not worker.running for worker in pool)
    for search in searches:
        able = [worker for worker in pool if search.study not in worker.small_for]
        trained = sorted(index for worker in [*pool, *ended] for index in worker.done[search.study])
        begun = list(range(trials[search.study] - len(search.left)))
        assert trained == (begun if able else [])
        if able and supply.ended >= search.opens_after:
            assert not search.left
        assert all(not worker.done[search.study] for worker in pool if worker not in able)


def act(worker, supply, dispatch, order):
    """What a worker does next with what it has read."""
    if worker.idle or worker.queue is None:
        worker.read()
    elif worker.queue.study in worker.small_for:
        dispatch.too_large(worker, f"too small for {worker.queue.study}")
        worker.queue, worker.running, worker.sent = None, [], []  # it skips late news
    elif not worker.running or (worker.room and order.random() < 0.5):
        dispatch.asked(worker, worker.asked())
    else:
        index = worker.running.pop(order.randrange(len(worker.running)))
        worker.done[worker.queue.study].append(index)
        worker.room += 1
        dispatch.finished(worker, index)
        supply.ended += 1


def test_a_worker_gets_as_many_trials_as_it_has_room_for():
    [search] = searches = [Search("only", 5)]
    search.checkpoints[1] = b"kept"
    dispatch = Dispatch(Supply(searches), ["worker"], lambda queue: 2)
    [(worker, begun, given)] = dispatch.hand_out()
    assert (worker, begun) == ("worker", search)
    assert [(each.trial.index, each.has_checkpoint, each.step_limit) for each in given] == [
        (0, False, 100),
        (1, True, 101),
    ]
    assert not list(dispatch.hand_out())
    dispatch.finished("worker", 0)
    dispatch.asked("worker", messages.AskTrials(more=1, idle=False))
    [(_, begun, given)] = dispatch.hand_out()
    assert (begun, [each.trial.index for each in given]) == (None, [2])


def test_a_worker_hears_of_the_step_limits_that_changed():
    [search] = searches = [Search("only", 3)]
    dispatch = Dispatch(Supply(searches), ["worker"], lambda queue: 3)
    list(dispatch.hand_out())
    assert not list(dispatch.lowered())
    search.step_limit = lambda index: 100 + min(index, 1)
    assert list(dispatch.lowered()) == [("worker", {2: 101})]
    assert not list(dispatch.lowered())


def test_who_asked_before_its_trials_came_is_not_idle():
    dispatch = Dispatch(Supply([Search("first", 2), Search("second", 1)]), ["worker"], lambda queue: 1)
    list(dispatch.hand_out())
    dispatch.finished("worker", 0)
    dispatch.asked("worker", messages.AskTrials(more=1, idle=False))
    [(_, _, [given])] = dispatch.hand_out()
    dispatch.asked("worker", messages.AskTrials(more=0, idle=True))  # sent before it read what it was given
    assert not list(dispatch.hand_out())
    assert dispatch.busy == ["worker"]
    dispatch.finished("worker", given.trial.index)
    dispatch.asked("worker", messages.AskTrials(more=1, idle=True))
    assert [(begun.study if begun else None, len(given)) for _, begun, given in dispatch.hand_out()] == [
        (None, 0),
        ("second", 1),
    ]
