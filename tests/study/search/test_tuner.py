"""What is proposed, when a study waits, and when it is complete."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers.fused import partly
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import qmc

from analysis import counting
from analysis.counting import ADAPTIVE_SAMPLERS, COMPLETE, INCOMPLETE, INFEASIBLE, Goal, Outcome, TrialCurve
from analysis.question.stages import EARLIER, INDEXED_SAMPLERS, REFINE
from study.records import Curve
from study.schedules import SCHEDULES
from study.search.optuna_storage import Storage
from study.search.points import point
from study.search.tuner import STARTUP, Tuner
from study.settings import SAMPLERS, Seeds
from study.space import values

samplers = pytest.mark.parametrize("sampler", partly([name for name in SAMPLERS if name != REFINE], 2))
indexed = pytest.mark.parametrize("sampler", INDEXED_SAMPLERS)
WIDE = {f"x{i}": {"low": 0, "high": 1} for i in range(3)} | {"learning_rate": {"low": 1e-3, "high": 1, "scale": "log"}}


@samplers
def test_asks_for_the_trials_wanted_and_for_one_more_after_a_divergence(make_study, make_curve, sampler):
    study = make_study(trials=3, sampler=sampler)
    tuner = Tuner(study)
    trials = [tuner.ask() for _ in range(3)]
    assert [trial.index for trial in trials] == [0, 1, 2]
    for trial in trials:
        assert trial == study.trial(trial.index, trial.hyperparameters)
        assert trial.hyperparameters.keys() == study.search.space.keys()
    assert tuner.ask() is None
    assert tuner.tell(make_curve(study, 1, until=30)).status == INCOMPLETE
    assert tuner.tell(make_curve(study, 1, bad=5)).status == INFEASIBLE
    assert tuner.ask().index == 3
    for index in (0, 2, 3):
        assert tuner.ask() is None
        assert not tuner.complete
        assert tuner.tell(make_curve(study, index, reaches=30)).status == COMPLETE
    assert tuner.complete
    assert (tuner.feasible, tuner.infeasible) == (3, 1)
    assert tuner.ask() is None


@samplers
@pytest.mark.parametrize(
    ("trials", "held", "missing"),
    [
        (6, {0: None, 2: None, 4: None}, [1, 3, 5]),
        (2, {0: 50, 1: None}, [0]),  # unfinished
        # As when fewer trials are wanted than an interrupted run wanted, or a torn file was removed.
        (3, {0: None, 2: None, 3: None, 4: None}, [1]),
        (3, {0: None, 2: None, 3: None, 4: None, 5: None}, [1]),
    ],
)
def test_a_resumed_search_asks_for_exactly_what_is_missing(make_study, make_curve, sampler, trials, held, missing):
    study = make_study(trials=trials, sampler=sampler)
    undisturbed = Tuner(study)
    expected = [undisturbed.ask() for _ in range(trials)]
    tuner = Tuner(study, [make_curve(study, index, until=until) for index, until in held.items()])
    assert not tuner.complete
    assert [tuner.ask() for _ in range(len(missing) + 1)] == [*(expected[index] for index in missing), None]
    for index in missing:
        assert tuner.tell(make_curve(study, index)).status == COMPLETE
    assert tuner.complete


@pytest.mark.parametrize(
    ("statuses", "complete"),
    [
        ("", False),
        ("C", False),
        ("CC", True),
        ("CXC", True),
        ("C-C", False),  # trial 1 could yet be among the first two
        ("CC-C", True),
        ("XXXX", False),
        ("XXXXX", True),  # the launch limit
        ("XX-XXX", False),
        ("CXXXX", True),
    ],
)
def test_complete(make_study, make_curve, statuses, complete):
    study = make_study(trials=2, max_launches=5)
    bad = {"C": None, "X": 3}
    curves = [make_curve(study, i, bad=bad[letter]) for i, letter in enumerate(statuses) if letter in bad]
    assert Tuner(study, curves).complete is complete


@settings(max_examples=40)
@given(st.data())
def test_order_workers_and_interruptions_change_nothing(make_study, make_curve, data):
    """A study ends with the same trials counted, however many ran at once and whatever finished first."""
    diverges = data.draw(st.lists(st.booleans(), min_size=12, max_size=12))
    study = make_study(trials=4, max_launches=12)
    curves = [make_curve(study, index, bad=9 if diverges[index] else None) for index in range(12)]
    tuner, running, finished = Tuner(study), [], []
    while True:
        while len(running) < 3 and (trial := tuner.ask()) is not None:
            assert trial == curves[trial.index].trial
            running.append(trial.index)
        if not running:
            break
        index = running.pop(data.draw(st.integers(0, len(running) - 1)))
        finished.append(curves[index])
        tuner.tell(curves[index])
        if data.draw(st.booleans()):  # interrupted: what was running is lost
            tuner, running = Tuner(study, finished), []
    feasible = [index for index in range(12) if not diverges[index]][:4]
    last = feasible[-1] if len(feasible) == 4 else 11
    assert tuner.complete
    assert {curve.trial.index for curve in finished} >= set(range(last + 1))
    assert len({curve.trial.index for curve in finished}) == len(finished)


def test_the_best_is_the_fewest_steps_of_a_feasible_trial(make_study, make_curve):
    study = make_study(stopping="budget")
    tuner = Tuner(study, [make_curve(study, 0, reaches=40), make_curve(study, 1, reaches=20, bad=50)])
    assert tuner.steps_to_result == 40
    tuner.tell(make_curve(study, 2, reaches=30))
    tuner.tell(make_curve(study, 3))
    assert tuner.steps_to_result == 30


def cube(study, count=64):
    return np.array([point(study, index) for index in range(count)])


@indexed
def test_points_are_addressed_by_index(make_study, sampler):
    """In any asking order, and whatever number of points was asked for before."""
    study = make_study(sampler=sampler, space=WIDE, optimizer="sgd")
    whole = cube(study, 200)
    assert whole.shape == (200, 4)
    assert ((whole >= 0) & (whole < 1)).all()
    for index in (199, 0, 64, 63, 128, 127, 3):
        assert point(study, index) == whole[index].tolist()
    assert len(np.unique(whole, axis=0)) == 200


@indexed
def test_points_depend_on_the_search_seed_alone(make_study, sampler):
    same = [cube(make_study(sampler=sampler, seeds=Seeds(3, trial, order))) for trial, order in ((0, 0), (1, 2))]
    other = cube(make_study(sampler=sampler, seeds=Seeds(search=4)))
    assert (same[0] == same[1]).all()
    assert (same[0] != other).all()


@samplers
def test_proposals_lie_in_the_space(make_study, make_curve, sampler):
    study = make_study(sampler=sampler, trials=40)
    tuner = Tuner(study)
    while (trial := tuner.ask()) is not None:
        for name, dimension in study.search.space.items():
            assert dimension.low <= trial.hyperparameters[name] <= dimension.high
        tuner.tell(replace(make_curve(study, trial.index, reaches=40), trial=trial))


@pytest.mark.parametrize(
    "sampler", [pytest.param(name, marks=[pytest.mark.release] if name == "gp" else []) for name in ADAPTIVE_SAMPLERS]
)
def test_adaptive_samplers_find_what_is_fast_and_are_reproducible(make_study, make_curve, sampler):
    """A serial search of trials whose steps grow with the distance from (0.1, 0.9)."""

    def found(seed=0):
        study = make_study(sampler=sampler, trials=40, stopping="budget", seeds=Seeds(search=seed))
        tuner, proposed = Tuner(study), []
        while (trial := tuner.ask()) is not None:
            h = trial.hyperparameters
            away = abs(math.log10(h["learning_rate"] / 0.1)) + abs(math.log10((1 - h["momentum"]) / 0.1))
            tuner.tell(replace(make_curve(study, trial.index, reaches=2 + round(25 * away)), trial=trial))
            proposed.append((away, h))
        return proposed

    once, other = found(), found(seed=1)
    assert once == found()
    assert once != other
    away = np.array([[distance for distance, _ in each] for each in (once, other)])
    assert np.median(away[:, 25:]) < 0.6 * np.median(away[:, :10])


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_an_adaptive_search_learns_from_what_is_on_file(make_study, make_curve, sampler):
    study = make_study(sampler=sampler, trials=40, stopping="budget")
    curves = [make_curve(study, index, reaches=20 + index) for index in range(12)]
    slow = [make_curve(study, index, reaches=90 - index) for index in range(12)]
    assert Tuner(study, curves).ask().hyperparameters != Tuner(study, slow).ask().hyperparameters


CHOSEN = {
    "learning_rate": {"low": 1e-3, "high": 1.0, "scale": "log"},
    "momentum": {"low": 0.0, "high": 0.999, "scale": "reverse_log", "hard": ["low"]},
    "schedule": ["constant", "linear_decay", "exponential"],
    "learning_rate_decay_fraction": {"low": 0.5, "high": 1},
    "end_learning_rate_factor": {"low": 1e-4, "high": 0.1, "scale": "log"},
}


@pytest.mark.parametrize(
    "sampler",
    [pytest.param(name, marks=[pytest.mark.slow] if name == "gp" else []) for name in SAMPLERS if name != REFINE],
)
def test_a_trial_has_the_parameters_of_the_schedule_that_was_chosen(make_study, make_curve, sampler):
    study, count = make_study(space=CHOSEN, schedule="tuned", trials=24, sampler=sampler), 13 if sampler == "gp" else 24
    tuner, curves = Tuner(study), []
    for _ in range(count):
        trial = tuner.ask()
        own = SCHEDULES[trial.hyperparameters["schedule"]].hyperparameters
        assert trial.hyperparameters.keys() == {"learning_rate", "momentum", "schedule", *own}
        reaches = 20 if trial.hyperparameters["schedule"] == "linear_decay" else 60
        curves.append(replace(make_curve(study, trial.index, reaches=reaches), trial=trial))
        tuner.tell(curves[-1])
    chosen = [curve.trial.hyperparameters["schedule"] for curve in curves]
    assert {*chosen} == {*CHOSEN["schedule"]}
    if sampler == "tpe":
        assert chosen[12:].count("linear_decay") > 6  # it learns which is fast
    # What is on file decides the next trial, and one under way keeps its point.
    for held in (curves[:12], curves[:11]):
        under_way = [curve.trial for curve in curves[len(held) : 12]]
        resumed = Tuner(study, held, under_way)
        assert [resumed.ask() for _ in range(12 - len(held))] == under_way
    assert Tuner(study, curves[:12]).ask() == curves[12].trial


@indexed
def test_a_coordinate_that_the_schedule_does_not_use_moves_no_other_point(make_study, sampler):
    study = make_study(space=CHOSEN, schedule="tuned", sampler=sampler)
    asked = Tuner(study)
    for index in range(4):
        drawn = values(study.search.space, point(study, index))
        assert drawn.keys() == CHOSEN.keys()
        assert asked.ask().hyperparameters.items() <= drawn.items()


@pytest.mark.parametrize("count", [16, 64, 100])
def test_sobol_points_are_more_even_than_random_ones(make_study, count):
    def discrepancies(sampler):
        studies = [make_study(sampler=sampler, seeds=Seeds(search=seed)) for seed in range(10)]
        return [qmc.discrepancy(cube(study, count)) for study in studies]

    assert max(discrepancies("sobol")) < min(discrepancies("random"))


def test_choices_and_fixed_values_can_be_searched(make_study, make_curve):
    study = make_study(optimizer="sgd", space={"learning_rate": [0.1, 0.2, 0.4]}, trials=40)
    tuner = Tuner(study, [make_curve(study, 0)])
    proposed = {tuner.ask().hyperparameters["learning_rate"] for _ in range(39)}
    assert proposed == {0.1, 0.2, 0.4}
    tuner.tell(make_curve(study, 1))
    assert tuner.feasible == 2


def trained(tuner, study, full, order):
    """Race trials whose full curves are known as an engine would, three at once, finishing in any order."""
    running, finished = {}, {}
    while True:
        while len(running) < 3 and (trial := tuner.ask()) is not None:
            running[trial.index] = 0
        if not running:
            return finished
        index = sorted(running)[order() % len(running)]
        curve, limit = full[index], tuner.step_limit(index)
        running[index] += 1
        step = study.evaluation_steps[running[index] - 1]
        over = step > limit
        done = running[index] - over
        errors = curve.errors[study.goal.metric][:done]
        bad = None if over or (curve.first_bad_step or math.inf) > step else curve.first_bad_step
        reached = (errors < study.goal.threshold).any()
        if over or reached or bad is not None or step == study.train_steps:
            kept = Curve(curve.trial, bad, curve.steps[:done], {study.goal.metric: errors}, {})
            del running[index]
            tuner.tell(kept)
            finished[index] = kept


@settings(max_examples=30)
@given(st.data())
def test_a_race_is_the_full_curves_read_as_a_race(make_study, make_curve, data):
    """Whatever finishes first: the same trials are counted, with the same ends, as if each had run its whole budget."""
    study = make_study(trials=5, max_launches=12, stopping="race", goal=Goal("val/loss", 0.5), race_factor=1.5)
    grid = study.evaluation_steps
    full = []
    for index in range(12):
        reaches = data.draw(st.sampled_from([None, *grid]))
        bad = data.draw(st.one_of(st.none(), st.integers(1, study.train_steps)))
        steps = np.array([step for step in grid if bad is None or step < bad])
        errors = np.where(steps >= (reaches or math.inf), 0.4, 0.9)
        trial = study.trial(index, values(study.search.space, point(study, index)))
        full.append(Curve(trial, bad, steps, {"val/loss": errors}, {}))
    tuner = Tuner(study)
    finished = trained(tuner, study, full, lambda: data.draw(st.integers(0, 2)))
    assert tuner.complete
    read = {i: TrialCurve(c.steps, c.errors["val/loss"], c.first_bad_step) for i, c in enumerate(full)}
    expected = [*counting.outcomes(study.rule, read).values()]
    prefix = counting.counted_prefix([result.status for result in expected], study.search.trials)
    assert [tuner.outcomes[i] for i in range(prefix)] == expected[:prefix]
    # And so it is read from the files, in index order.
    again = Tuner(study, finished.values())
    assert again.complete
    assert [again.outcomes[i] for i in range(prefix)] == expected[:prefix]


def test_a_race_stops_those_that_fall_behind(make_study, make_curve):
    study = make_study(stopping="race", trials=5)
    grid = study.evaluation_steps
    tuner = Tuner(study)
    for index in range(4):
        assert tuner.ask().index == index
        assert tuner.step_limit(index) == 100
    tuner.tell(make_curve(study, 1, reaches=grid[20]))
    bound = max(step for step in grid if step <= 2 * grid[20])
    assert [tuner.step_limit(index) for index in range(4)] == [bound] * 4
    earlier = Tuner(replace(study, race_over=EARLIER), [make_curve(study, 1, reaches=grid[20])])
    assert [earlier.step_limit(index) for index in range(4)] == [100, 100, bound, bound]
    assert tuner.tell(make_curve(study, 2, until=bound)).status == COMPLETE
    assert tuner.tell(make_curve(study, 3, bad=bound + 1)) == Outcome(COMPLETE, bound, None)  # diverged after its end
    tuner.tell(make_curve(study, 0, reaches=grid[2]))  # now trial 1 was too slow to count
    assert tuner.outcomes[1] == Outcome(COMPLETE, max(step for step in grid if step <= 2 * grid[2]), None)
    assert tuner.steps_to_result == grid[2]


def test_a_round_of_refine_may_go_beyond_a_range(make_study, make_curve):
    """Optuna refuses trials outside its distributions, which therefore are wider for them."""
    rounds = {"scouts": 2, "refine": (2,), "candidates": 1, "screens": 1}
    study, points = make_study(sampler="refine", trials=5, **rounds), [(0.2, 0.2), (0.4, 0.4), (1.2, 0.5), (1.3, -0.1)]
    tuner = Tuner(study, points=lambda: points)
    trials = [tuner.ask() for _ in points]
    assert [trial.hyperparameters["learning_rate"] for trial in trials[2:]] == pytest.approx([10**0.6, 10**0.9])
    curves = [replace(make_curve(study, index, reaches=30), trial=trial) for index, trial in enumerate(trials)]
    for curve in curves:
        tuner.tell(curve)
    again = Tuner(study, curves, points=lambda: points)
    assert again.outcomes == tuner.outcomes
    assert [trial.hyperparameters for trial in again.counted_trials] == [trial.hyperparameters for trial in trials]


@pytest.mark.parametrize(("sampler", "opens"), [("sobol", False), ("tpe", True)])
def test_optuna_is_needed_by_samplers_that_learn_alone(make_study, make_curve, monkeypatch, sampler, opens):
    opened = []
    real = Storage.open
    monkeypatch.setattr(Storage, "open", lambda self, study: opened.append(study) or real(self, study))
    study = make_study(sampler=sampler, trials=STARTUP + 1)
    tuner = Tuner(study, [make_curve(study, index, reaches=30) for index in range(STARTUP)])
    assert not opened
    tuner.ask()
    assert bool(opened) == tuner.learns == opens
    assert len(tuner._history.optuna_study().get_trials()) == STARTUP + opens
