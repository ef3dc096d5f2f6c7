"""While no worker waits, searches that are over are settled, and the next one is claimed."""

import pytest

from study import store
from study.devices.placement import Placement
from study.engine.cost import Cost
from study.training.lines import run_all
from study.training.search import SearchRun


class Pool:
    """Begins all trials of the first search before any ends, and prepares then and after the last."""

    count, placement = 1, Placement(device="cpu", workers=1, devices=1)

    def __init__(self, make_curve):
        self.make_curve, self.asked, self.prepared = make_curve, [], []

    def cost_of(self, _):
        return Cost(0, 0, 0)

    def train(self, supply):
        while (queue := next(iter(supply.queues()), None)) is not None:
            begun = []
            while (trial := queue.ask()) is not None:
                begun.append(trial.index)
                self.asked.append(trial)
                self.prepared.append(supply.prepare())
            for index in begun:
                yield queue, self.make_curve(queue.study, index, reaches=30)
            while supply.prepare():
                pass


@pytest.mark.parametrize(("shards", "claims"), [(1, True), (2, False)])
def test_the_next_search_is_claimed_when_the_last_trial_has_begun(tmp_path, make_study, make_curve, shards, claims):
    studies = [make_study(batch_size=size, trials=2) for size in (8, 16)]
    pool = Pool(make_curve)
    lines = [[SearchRun(study, tmp_path, shards=shards)] for study in studies]
    assert not run_all(lines, pool)
    # In a shard of two, the first trial is the last.
    assert pool.prepared[:2] == ([False, True] if claims else [False, False])
    for study in studies:
        folder = store.study_folder(tmp_path, study)
        assert [curve.trial.index for curve in store.load(folder)] == [0, 1]
        assert not [*(folder / "trials").iterdir()]


@pytest.mark.parametrize("trials", [0, 2], ids=["nothing to train", "two trials"])
def test_chores_wait_until_the_first_trials_are_given_out_and_are_all_done(tmp_path, make_study, make_curve, trials):
    study = make_study(trials=2)
    if not trials:
        run_all([[SearchRun(study, tmp_path)]], Pool(make_curve))
    pool, done = Pool(make_curve), []
    chores = (done.append(len(pool.asked)) for _ in range(5))
    assert not run_all([[SearchRun(study, tmp_path)]], pool, chores=chores)
    assert len(done) == 5
    assert not trials or min(done) > 0
