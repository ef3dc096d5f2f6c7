"""The trials of `search=refine` do not depend on who trains them, in which order, or on processes that die."""

import json
import math
import random
import time

import numpy as np
import pytest
from helpers.desks import asked
from helpers.fused import partly
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from analysis.counting import Goal
from analysis.load import folders, load_study
from analysis.tables.answers import fresh_seeds
from study import store
from study.devices.placement import Placement
from study.engine.cost import Cost
from study.records import Curve
from study.search import rounds, stages
from study.search.rounds import Pool
from study.search.tuner import Tuner
from study.store.claims import Shard
from study.training import lines as training
from study.training import part
from study.training.lines import run_all
from study.training.search import SearchRun

ROUNDS = {"sampler": "refine", "scouts": 4, "refine": (2, 3), "candidates": 2, "screens": 2, "trials": 13}
SIZES = (8, 64)
NARROW = {
    "learning_rate": {"low": 1e-4, "high": 0.02, "scale": "log"},
    "momentum": {"low": 0.0, "high": 0.999, "scale": "reverse_log", "hard": ["low"]},
}
"""A search space that ends below the best learning rate, 0.05."""
BEYOND = {"space": NARROW, "scouts": 6, "refine": (4, 3), "trials": 17}


def steps_of(trial, batch_size):
    """Steps to the goal on a valley: least at learning rate 0.05 and momentum 0.9; they differ between seeds."""
    h = trial.hyperparameters
    away = abs(math.log10(h["learning_rate"] / 0.05)) + abs(math.log10((1 - h["momentum"]) / 0.1))
    noise = np.random.default_rng(trial.seed).normal(scale=0.1)
    return 80 / math.sqrt(batch_size) * math.exp(min(away, 3) + noise)


def trained(study, trial, limit):
    """The curve of a trial on that valley, where its error falls to the threshold. Far away it diverges."""
    grid = np.array([step for step in study.evaluation_steps if step <= limit])
    needed = steps_of(trial, study.batch_size)
    bad = 5 if trial.hyperparameters["learning_rate"] > 0.7 else None
    errors = study.goal.threshold * (needed / grid) ** 1.1
    met = np.flatnonzero(errors < study.goal.threshold)
    end = met[0] + 1 if len(met) else len(grid)
    kept = slice(0, end) if bad is None else slice(0, int((grid < bad).sum()))
    return Curve(trial, bad, grid[kept], {study.goal.metric: errors[kept]}, {"training": 1.0, "evaluation": 0.0})


class Trainer:
    """A pool of workers by hand: trials end in any order, and the process may die after some."""

    count, placement = 2, Placement(device="cpu", workers=2, devices=1)

    def __init__(self, order, dies_after=None):
        self.order, self.left = order, dies_after

    def cost_of(self, _):
        return Cost(0, 0, 0)

    def train(self, supply):
        under_way = []
        while True:
            for queue in supply.queues():
                while self.order.random() < 0.7 and (trial := queue.ask()) is not None:
                    under_way.append((queue, trial))
            if not under_way:
                found = next(asked(supply), None)
                if found is None:
                    return
                under_way.append(found)
            if self.left == 0:
                raise InterruptedError
            self.left = None if self.left is None else self.left - 1
            queue, trial = under_way.pop(self.order.randrange(len(under_way)))
            yield queue, trained(queue.study, trial, queue.step_limit(trial.index))


def lines(studies, results, shards=1, waits=True):
    pool = Pool(studies, results, waits) if studies[0].search.pool else None

    def line(study):
        for search in stages.remaining(study, lambda each: store.load(store.study_folder(results, each))):
            own = None if search.branch.rerun is not None else pool or Pool([search], results, waits)
            yield SearchRun(search, results, shards=shards, pool=own)

    return [line(study) for study in studies]


def everything(results, studies):
    """The points of all stages, and every trial: its configuration, its seed and how it ended."""
    found = {}
    for study in studies:
        folder = store.study_folder(results, study)
        for path in sorted(folder.rglob("*.json")):
            if path.parent.name == "rounds":
                found[str(path.relative_to(results))] = json.loads(path.read_text())
        for search in [study, again] if (again := rerun_of(results, study)) else [study]:
            tuner = Tuner(search, store.load(store.study_folder(results, search)))
            assert tuner.complete
            for trial in tuner.counted_trials:
                found[search.batch_size, search.branch.path, trial.index] = trial, tuner.outcomes[trial.index]
    return found


def rerun_of(results, study):
    tuner = Tuner(study, store.load(store.study_folder(results, study)))
    return stages.rerun(tuner) if tuner.tuned else None


@pytest.fixture(scope="module")
def refined(make_study):
    """Studies of two batch sizes, whose processes wait briefly for each other."""

    def studies(**fields):
        asked_for = {"stopping": "race", "goal": Goal("val/loss", 0.1), "steps": None, **ROUNDS, "reruns": 2, **fields}
        return [make_study(batch_size=size, **asked_for) for size in SIZES]

    with pytest.MonkeyPatch.context() as patch:
        for module in (training, part, rounds):
            patch.setattr(module, "POLL", 0.2)
        yield studies


@pytest.mark.slow
@pytest.mark.parametrize("fields", partly([BEYOND, {"pool": False}], 2))
@settings(max_examples=2, phases=[Phase.generate])
@given(
    order=st.randoms(use_true_random=False), shards=st.integers(1, 3), deaths=st.lists(st.integers(0, 9), max_size=3)
)
def test_the_same_trials_whoever_trains_them_and_dies(refined, tmp_path_factory, order, shards, deaths, fields):
    studies = refined(**fields)
    alone, other = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("other")
    run_all(lines(studies, alone), Trainer(order))
    for dies_after in [*deaths, None]:
        try:
            run_all(lines(studies, other, shards), Trainer(order, dies_after))
        except InterruptedError:
            continue
    found = everything(alone, studies)
    assert found == everything(other, studies)
    assert sum("rerun-" in key[1] for key in found if isinstance(key, tuple)) == len(SIZES) * studies[0].search.reruns
    files = [each for each in found.values() if isinstance(each, dict)]
    assert sum(len(each["points"]) for each in files) == len(SIZES) * (sum(studies[0].search.refine) + 4)
    assert any(each["extended"] for each in files) == ("space" in fields)


@pytest.mark.slow
def test_a_job_that_does_not_wait_trains_one_stage(refined, tmp_path_factory, monkeypatch):
    """The last one then trains what follows each search: the reruns."""
    monkeypatch.setattr(training, "POLL", 0.01)
    monkeypatch.setattr(rounds, "POLL", 0.01)
    studies, order = refined(), random.Random(0)
    alone, other = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("other")
    run_all(lines(studies, alone), Trainer(order))
    folders = [store.study_folder(other, study) for study in studies]
    ends = 4, 6, 9, 13
    for number, end in enumerate(ends):
        run_all(lines(studies, other, 2, waits=False), Trainer(order), waits=False)
        assert [store.read_round(folder, number + 1) for folder in folders] == [None, None]
        assert [len(store.load(folder)) for folder in folders] == [end, end]
    assert everything(alone, studies) == everything(other, studies)


def test_only_a_job_that_does_not_wait_leaves_a_stage_to_others(refined, tmp_path, monkeypatch):
    """Other processes hold shard 1 of both batch sizes."""
    studies, looks = refined(), []

    def sleep(_):
        looks.append(1)
        if len(looks) > 4:
            raise InterruptedError

    monkeypatch.setattr(training, "POLL", 0.01)
    monkeypatch.setattr(time, "sleep", sleep)
    folders = [store.study_folder(tmp_path, study) for study in studies]
    with store.claimed(folders[0], Shard(1, 2)), store.claimed(folders[1], Shard(1, 2)):
        run_all(lines(studies, tmp_path, 2, waits=False), Trainer(random.Random(0)), waits=False)
        assert [sorted(curve.trial.index for curve in store.load(folder)) for folder in folders] == [[0, 2], [0, 2]]
        with pytest.raises(InterruptedError):
            run_all(lines(studies, tmp_path, 2), Trainer(random.Random(0)))


def test_a_batch_size_that_is_added_later_changes_no_other(refined, tmp_path):
    studies, order = refined(), random.Random(0)
    run_all(lines(studies[:1], tmp_path), Trainer(order))
    before = everything(tmp_path, studies[:1])
    run_all(lines(studies[1:], tmp_path), Trainer(order))
    assert everything(tmp_path, studies[:1]) == before
    folders = [store.study_folder(tmp_path, study) for study in studies]
    assert [store.read_round(folder, 3)["batch_sizes"] for folder in folders] == [[8], [8, 64]]


class Small(Trainer):
    """A pool whose workers have too little memory for batch size 8."""

    def train(self, supply):
        for queue in [queue for queue in supply.queues() if queue.study.batch_size == 8]:
            supply.too_large(queue, "no room")
        yield from super().train(supply)


def test_a_batch_size_that_fits_on_no_worker_holds_up_no_other(refined, tmp_path):
    studies = refined()
    [error] = run_all(lines(studies, tmp_path), Small(random.Random(0)))
    assert str(error) == "no room"
    assert len(everything(tmp_path, studies[1:])) == 3 + 13 + 2


@pytest.mark.slow
def test_rounds_that_are_added_later_are_those_that_were_asked_at_once(refined, tmp_path):
    """A search that gains a round keeps its trials, and confirms what the last screens choose."""
    first, more = refined(), refined(added=1, trials=20)
    order, grown, fresh = random.Random(0), tmp_path / "grown", tmp_path / "fresh"
    run_all(lines(first, grown), Trainer(order))
    before = everything(grown, first)
    for results in (grown, fresh):
        run_all(lines(more, results), Trainer(order))
    found = everything(grown, more)
    assert found == everything(fresh, more)
    assert all(found[key] == value for key, value in before.items() if isinstance(key, str))
    for study in more:
        searches = {
            each.branch: each for each in map(load_study, folders(fresh)) if each.batch_size == study.batch_size
        }
        _, again = fresh_seeds(searches)
        assert again.branch == rerun_of(fresh, study).branch
        assert len(again.trials) == 2


@pytest.mark.parametrize(("limit", "high"), partly([(1, 0.283), (0, 0.02)], 2))
def test_rounds_go_beyond_an_edge_at_which_the_best_trials_lie(refined, tmp_path, limit, high):
    study = refined(**BEYOND, extend_limit=limit)[1]
    run_all(lines([study], tmp_path), Trainer(random.Random(0)))
    folder = store.study_folder(tmp_path, study)
    held = [store.read_round(folder, number)["extended"] for number in (1, 2, 3)]
    assert held == ["", "learning_rate.high" * limit, ""]
    assert load_study(folder).searched["learning_rate"]["high"] == high  # half as wide again, on a log scale
    tuned = Tuner(study, store.load(folder)).tuned.hyperparameters["learning_rate"]
    assert 0.02 < tuned < 0.1 if limit else tuned <= 0.02


def test_added_rounds_do_not_wait_for_a_batch_size_that_missed_the_goal(refined, tmp_path, monkeypatch):
    """Its search ended with its rounds, so it never has the trials of screens."""
    usual = steps_of
    monkeypatch.setitem(globals(), "steps_of", lambda trial, size: 1e6 if size == SIZES[0] else usual(trial, size))
    run_all(lines(refined(reruns=0), tmp_path), Trainer(random.Random(0)))
    pool = Pool(refined(reruns=0, added=1, trials=20), tmp_path)
    assert [len(pool.points(size)) for size in SIZES] == [9, 16]
