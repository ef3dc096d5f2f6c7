"""Several processes on one study: together they make what one makes, whoever is first and whoever dies."""

import pytest
from helpers.desks import asked
from hypothesis import given, settings
from hypothesis import strategies as st

from study import store
from study.devices.placement import Placement
from study.engine.cost import Cost
from study.search.optuna_storage import Storage
from study.search.tuner import Tuner
from study.store.claims import Shard
from study.store.curves import Reader
from study.training.lines import run_all
from study.training.search import SearchRun


@pytest.mark.slow
@settings(max_examples=30)
@given(
    ends=st.lists(st.sampled_from([-9, -9, 0, 20, 51, 97]), min_size=40, max_size=40),
    count=st.integers(1, 4),
    order=st.randoms(use_true_random=False),
)
def test_shards_launch_what_one_process_launches(make_study, make_curve, ends, count, order):
    """Whatever they know of each other, and when: a trial reaches its goal, misses it (0) or diverges (below 0)."""
    study = make_study(trials=5, max_launches=40, stopping="race", batch_size=8)
    curves = [make_curve(study, i, max(end, 0) or None, max(-end, 0) or None) for i, end in enumerate(ends)]
    alone = Tuner(study)
    while (trial := alone.ask()) is not None:
        alone.tell(curves[trial.index])
    made = []
    heard = [0] * count

    def news(number):
        since = made[heard[number] :] if order.random() < 0.5 else []
        heard[number] += len(since)
        return since

    tuners = [Tuner(study, shard=Shard(i, count), others=lambda i=i: news(i)) for i in range(count)]
    under_way = []
    for _ in range(2000):
        tuner = order.choice(tuners)
        if under_way and order.random() < 0.5:
            tuner, trial = under_way.pop(order.randrange(len(under_way)))
            tuner.tell(curves[trial.index])
            made.append(curves[trial.index])
        elif (trial := tuner.ask()) is not None:
            assert trial.index in tuner.shard
            under_way.append((tuner, trial))
        if Tuner(study, made).complete:
            break
    together = Tuner(study, made)
    assert together.complete
    counted = [trial.index for trial in alone.counted_trials]
    assert [trial.index for trial in together.counted_trials] == counted
    assert {i: together.outcomes[i] for i in counted} == {i: alone.outcomes[i] for i in counted}
    # What is under way beside a divergence that nobody knows yet is all that can be too much.
    launched = {curve.trial.index for curve in made} | {trial.index for _, trial in under_way}
    assert len(launched) <= len(counted)


def test_a_shard_hears_of_the_goals_of_others(tmp_path, make_study, make_curve):
    study = make_study(stopping="race", trials=8)
    store.open_study(tmp_path, study, {})
    folder = store.study_folder(tmp_path, study)
    reader = Reader(folder)
    tuner = Tuner(study, shard=Shard(1, 2), others=reader.new)
    trial = tuner.ask()
    assert trial.index == 1
    assert tuner.step_limit(1) == study.train_steps
    store.save(folder, make_curve(study, 0, reaches=10))
    assert tuner.step_limit(1) == study.rule.bound(10) < study.train_steps
    assert tuner.steps_to_result == 10


class Trainer:
    """A pool that trains by hand, and leaves after so many trials."""

    count, placement = 1, Placement(device="cpu", workers=1, devices=1)

    def __init__(self, make_curve, leaves_after=None):
        self.make_curve, self.left, self.made = make_curve, leaves_after, []

    def cost_of(self, _):
        return Cost(0, 0, 0)

    def train(self, supply):
        for queue, trial in asked(supply):
            if self.left == 0:
                raise InterruptedError
            self.left = None if self.left is None else self.left - 1
            self.made.append(trial.index)
            yield queue, self.make_curve(queue.study, trial.index, reaches=30)


def test_a_process_takes_the_shards_that_nobody_works_on(tmp_path, make_study, make_curve):
    study = make_study(trials=6)
    folder = store.study_folder(tmp_path, study)
    first, second = Trainer(make_curve, leaves_after=1), Trainer(make_curve)
    with pytest.raises(InterruptedError):
        run_all([[SearchRun(study, tmp_path, shards=3)]], first)
    run_all([[SearchRun(study, tmp_path, shards=3)]], second)
    assert (first.made, second.made) == ([0], [3, 1, 4, 2, 5])
    assert [curve.trial.index for curve in store.load(folder)] == list(range(6))
    provenance = store.runs(folder)
    assert sorted(record["shard"] for record in provenance) == ["0-of-3", "0-of-3", "1-of-3", "2-of-3"]
    assert sum(record.get("doubled_trials", 0) for record in provenance) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["curves.parquet", "study.json", "trials"]


def test_a_trial_that_another_process_kept_meanwhile_is_counted_once(tmp_path, make_study, make_curve, monkeypatch):
    """A process that was taken for dead had just kept what its heir trained too."""
    study = make_study(trials=2)
    folder = store.study_folder(tmp_path, study)
    trainer = Trainer(make_curve)
    real = store.save

    def late(folder, curve, **how):
        if curve.trial.index == 1:
            real(folder, curve)
        return real(folder, curve, **how)

    monkeypatch.setattr(store, "save", late)
    run_all([[SearchRun(study, tmp_path)]], trainer)
    assert [curve.trial.index for curve in store.load(folder)] == [0, 1]
    assert [record["doubled_trials"] for record in store.runs(folder)] == [1]


def test_an_adaptive_search_in_shards_needs_a_storage(tmp_path, says):
    message = says("sweep", "search=tpe", "shards=2", f"results={tmp_path / 'results'}", status=2)
    assert "shards=2 of search=tpe" in message
    assert "add search.storage=journal or a database URL, or choose search=sobol" in message
    assert "shards must be at least 1, but got 0" in says("sweep", "shards=0", status=2)
    assert not list(tmp_path.iterdir())


def test_shards_tell_a_shared_storage_their_own_trials(tmp_path, make_study, make_curve):
    study = make_study(sampler="tpe", trials=6)
    store.open_study(tmp_path, study, {})
    folder = store.study_folder(tmp_path, study)
    tuners = []
    for index in range(2):
        storage = Storage("journal", tmp_path)
        tuners.append(Tuner(study, storage=storage, shard=Shard(index, 2), others=Reader(folder).new))
    for turn in range(4):
        trial = tuners[turn % 2].ask()
        curve = make_curve(study, trial.index, reaches=30 + trial.index)
        store.save(folder, curve)
        tuners[turn % 2].tell(curve)
    found = Storage("journal", tmp_path).open(study).get_trials()
    assert sorted(trial.user_attrs["index"] for trial in found) == [0, 1, 2, 3]
