"""A worker gets its next trials before the parent writes those that ended, unless the next depend on these."""

from types import SimpleNamespace

import pytest

from study.devices.placement import Placement
from study.engine.cost import Cost
from study.search.points import point
from study.space import values
from study.workers import messages, pool

COST = Cost(1.0, 1.0, 1.0, heights=(2,), lanes=2)


class Worker:
    """The parent's end of a pipe to a worker that ends two trials at once, then waits for two more."""

    def __init__(self, study, make_curve, events, dies=False):
        self.study, self.make_curve, self.events, self.dies, self.reports = study, make_curve, events, dies, []

    def send(self, message):
        if proposals := getattr(message, "proposals", ()):
            indices = [proposal.trial.index for proposal in proposals]
            self.events.append(("given", indices))
            self.reports += [messages.Finished(self.make_curve(self.study, index)) for index in indices]
            self.reports.append(messages.Crashed("gone") if self.dies else messages.AskTrials(2, idle=True))

    def poll(self):
        return bool(self.reports)

    def recv(self):
        return self.reports.pop(0)


class Search:
    """Trials of a study in their order."""

    folder = None

    def __init__(self, study, trials, learns):
        self.study, self.trials, self.learns, self.checkpoints = study, trials, learns, {}

    def ask(self):
        return self.trials.pop(0) if self.trials else None

    def step_limit(self, index):
        return 100


def trained(study, make_curve, learns, dies=False):
    """What the parent does with a search of four trials: those it gives to a worker, and those that it keeps."""
    events: list[tuple[str, object]] = []
    trials = [study.trial(i, values(study.search.space, point(study, i))) for i in range(4)]
    search = Search(study, trials, learns)
    workers = object.__new__(pool.Workers)
    workers.placement, workers.too_small, workers._not_recorded = Placement(device="cpu"), {}, {}
    workers._costs, workers._followers, workers._processes = {pool._key(study): COST}, [], {}
    workers._pipes = [Worker(study, make_curve, events, dies)]
    workers._ready = lambda pipes, timeout=None: [pipe for pipe in pipes if pipe.reports]
    supply = SimpleNamespace(queues=lambda: [search], prepare=lambda: False)
    try:
        for _, curve in workers.train(supply):
            events.append(("kept", curve.trial.index))
    except pool.WorkerError:
        events.append(("gone", None))
    return events


KEPT = [("kept", index) for index in range(4)]


@pytest.mark.parametrize(
    ("learns", "expected"),
    [
        (False, [("given", [0, 1]), ("given", [2, 3]), *KEPT]),
        (True, [("given", [0, 1]), *KEPT[:2], ("given", [2, 3]), *KEPT[2:]]),
    ],
)
def test_trials_are_given_before_files_are_written(make_study, make_curve, learns, expected):
    assert trained(make_study(), make_curve, learns) == expected


def test_trials_that_ended_before_an_error_are_kept(make_study, make_curve):
    assert trained(make_study(), make_curve, False, dies=True) == [("given", [0, 1]), *KEPT[:2], ("gone", None)]
