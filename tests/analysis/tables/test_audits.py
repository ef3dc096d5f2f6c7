"""An optimum at an open edge of the box is reported, one at a hard side or by chance is not."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from helpers.estimated import estimated

from analysis.counting import Goal, evaluation_grid
from analysis.load import load_study
from analysis.tables import audits
from analysis.tables.audits import Edge, edges

MOMENTUM = {"low": 0.0, "high": 0.999, "scale": "reverse_log", "hard": ["low"]}
MIDDLE = (0.03, 0.97)


def ranged(low, high):
    return {"low": low, "high": high, "scale": "log"}


RATES = ranged(1e-3, 1.0)
SPACE = {"learning_rate": RATES, "momentum": MOMENTUM}
SGD = ("sgd", {"learning_rate": RATES})


@pytest.fixture
def searched(tmp_path, make_study, make_curve, write_study):
    """A study whose trials have these (learning rate, momentum) and reach the goal in this order, the first soonest."""

    def make(points, space=SPACE, missed=0):
        study = make_study(space=space, trials=len(points) + missed)
        names = ("learning_rate", "momentum")
        curves = []
        for index, values in enumerate([*points, *[MIDDLE] * missed]):
            curve = make_curve(study, index, reaches=10 + 5 * index if index < len(points) else None)
            trial = replace(curve.trial, hyperparameters=dict(zip(names, values, strict=True)))
            curves.append(replace(curve, trial=trial))
        return load_study(write_study(tmp_path, study, curves))

    return make


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([MIDDLE] * 5, []),
        ([(0.9, 0.97)] * 5, [Edge("learning_rate", "high", 0.9, 1.0)]),
        ([(0.0011, 0.97)] * 5, [Edge("learning_rate", "low", 0.0011, 0.001)]),
        ([(0.03, 0.9985)] * 5, [Edge("momentum", "high", 0.9985, 0.999)]),
        ([(0.03, 0.1)] * 5, []),  # momentum 0 is a hard side
        ([(0.9, 0.97), *[MIDDLE] * 4], []),  # the best trial alone
        ([MIDDLE, *[(0.9, 0.97)] * 4], []),  # all but the best
        ([(0.9, 0.97)] * 3 + [MIDDLE] * 2, [Edge("learning_rate", "high", 0.9, 1.0)]),
        ([(0.9, 0.97)] * 3 + [MIDDLE] * 20, [Edge("learning_rate", "high", 0.9, 1.0)]),  # of the best five
        ([(0.9, 0.97)] * 2, []),  # too few to say
        ([(0.49, 0.97)] * 5, []),  # just outside of the outer tenth, 10^-0.3 = 0.501
        ([(0.51, 0.97)] * 5, [Edge("learning_rate", "high", 0.51, 1.0)]),
    ],
)
def test_edges(searched, points, expected):
    assert edges(searched(points, missed=3)) == expected


@pytest.mark.slow
def test_an_irrelevant_parameter_rarely_alarms(searched):
    """With two parameters that do not matter, by chance: some 3 % and not the 36 % of the best trial alone."""
    generator = np.random.default_rng(0)
    searches = generator.random((60, 20, 2))
    alarms = [bool(edges(searched([(10 ** (-3 + 3 * a), 1 - 0.001**b) for a, b in units]))) for units in searches]
    assert sum(alarms) <= 8


def test_choices_have_no_edges(searched):
    space = SPACE | {"learning_rate": [0.1, 1.0]}
    assert edges(searched([(1.0, 0.97)] * 5, space=space)) == []


@pytest.fixture
def tuned(tmp_path, make_study, make_curve, write_study):
    """A study of an optimizer over a space, whose trials reach the goal at these steps; with its goal."""

    def write(optimizer, space, ends=(20, 22, 24, 26, 28, 30, 40, 50), **fields):
        study = make_study(optimizer=optimizer, space=space, trials=len(ends), **fields)
        curves = [make_curve(study, index, reaches=end) for index, end in enumerate(ends)]
        loaded = load_study(write_study(tmp_path / str(len(list(tmp_path.iterdir()))), study, curves))
        return loaded, loaded.goal

    return write


@pytest.mark.parametrize(
    ("momentum", "rates", "fields", "expected"),
    [
        (MOMENTUM, ranged(1e-4, 10.0), {}, True),
        ([0.0, 0.9], ranged(1e-3, 1.0), {}, True),
        ([0.9], ranged(1e-4, 10.0), {}, False),
        ({"low": 0.5, "high": 0.999, "scale": "reverse_log"}, ranged(1e-4, 10.0), {}, False),
        (MOMENTUM, ranged(1e-2, 10.0), {}, False),
        (MOMENTUM, [0.1], {}, False),
        (MOMENTUM, ranged(1e-4, 10.0), {"batch_size": 16}, False),
        (MOMENTUM, ranged(1e-4, 10.0), {"ends": (20, 30)}, False),  # fewer trials
    ],
)
def test_which_space_contains_which(tuned, momentum, rates, fields, expected):
    special, _ = tuned(*SGD)
    general, _ = tuned("nesterov", {"learning_rate": rates, "momentum": momentum}, **fields)
    assert audits.contains(general, special) == expected
    assert not audits.contains(special, general)


DECAY = {"learning_rate_decay_fraction": {"low": 0.5, "high": 1.0}, "end_learning_rate_factor": [0.1]}


@pytest.mark.parametrize(
    ("chosen", "schedule", "more", "expected"),
    [
        (["constant", "linear_decay"], "tuned", DECAY, True),
        (["linear_decay", "constant", "exponential"], "tuned", DECAY, True),
        (["constant", "exponential"], "tuned", DECAY | {"learning_rate_decay_fraction": [0.75]}, False),
        (["constant", "linear_decay"], "tuned", DECAY | {"end_learning_rate_factor": [0.2]}, False),
        (None, "linear_decay", DECAY, False),  # only one of the schedules that the special one chose from
    ],
)
def test_which_space_of_schedules_contains_which(tuned, chosen, schedule, more, expected):
    names = {"schedule": ["constant", "linear_decay"]}
    special, _ = tuned("sgd", {"learning_rate": RATES} | names | DECAY, schedule="tuned")
    space = SPACE | more | ({"schedule": chosen} if chosen else {})
    general, _ = tuned("momentum", space, schedule=schedule)
    assert audits.contains(general, special) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "under_tuned"),
    [
        ((40, 44, 48, 52, 56, 60, 80, 90), True),
        ((20, 44, 48, 52, 56, 60, 80, 90), False),  # the best trial is as good: the larger space costs trials, not S(B)
        ((26, 26, 26, 30, 31, 35, 60, 90), False),  # slower, but other searches may have found the reverse
        ((10, 11, 12, 13, 14, 15, 20, 25), False),
        ((None,) * 8, True),
    ],
)
def test_a_general_optimizer_must_not_be_slower(tuned, ends, under_tuned):
    special = tuned(*SGD)
    general = tuned("momentum", SPACE, ends)
    [found] = audits.inclusions([special, general], estimated([special[0], general[0]]).pairs)
    goal = Goal("val/classification_error", 0.1)
    assert (found.study.optimizer, found.special, found.goal) == ("momentum", "sgd", goal)
    assert found.ratio == pytest.approx(np.inf if ends[0] is None else min(ends) / 20)
    assert found.under_tuned == under_tuned


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ratio", "low", "high", "under_tuned"),
    [(0.5, 0.4, 0.6, True), (0.5, 0.2, 1.1, False), (0.9, 0.85, 0.95, False), (2.0, 1.8, 2.2, False)],
)
def test_fresh_seeds_decide_where_there_are_any(tuned, ratio, low, high, under_tuned):
    """The trials of the searches, which are the same, show nothing; `ratio` is steps of SGD over those of momentum."""
    special, general = tuned(*SGD), tuned("momentum", SPACE)
    pairs = estimated([special[0], general[0]]).pairs
    seeds = pairs.assign(kind="two configurations", ratio=ratio, low=low, high=high)
    [found] = audits.inclusions([special, general], pd.concat([pairs, seeds], ignore_index=True))
    assert found.ratio == pytest.approx(1 / ratio)
    assert found.under_tuned == under_tuned
    assert not audits.inclusions([special, general], pairs)[0].under_tuned


@pytest.mark.parametrize("name", ["adam", "zero"])
def test_names_may_come_in_either_order(tuned, monkeypatch, name):
    monkeypatch.setitem(audits.SPECIAL_CASES, (name, "sgd"), {"momentum": 0.0})
    special = tuned(*SGD)
    general, goal = tuned("momentum", {"learning_rate": ranged(1e-3, 1.0), "momentum": [0.0]}, (60,) * 8)
    general = replace(general, question=general.question | {"optimizer": name}, derived={})
    [found] = audits.inclusions([(general, goal), special], estimated([general, special[0]]).pairs)
    assert found.ratio == 3
    assert found.under_tuned


def test_near_best_is_the_same_under_every_stopping_rule(tuned):
    grid = np.array(evaluation_grid(100, first=0.02, ratio=1.1))
    ends = [int(grid[grid <= step][-1]) for step in (40, 90, 60, 20, 30, 45, 40, 99)]
    space = {"learning_rate": ranged(1e-3, 1.0), "momentum": [0.9]}
    found = {audits.near_best(tuned("momentum", space, ends, stopping=rule)[0]) for rule in ("budget", "goal", "race")}
    assert found == {(4, 2.0)}


def test_noise_tells_curves_that_cross_from_those_that_wander():
    assert audits.descent(np.linspace(0.5, 0.1, 12)) == pytest.approx(1)
    assert np.isnan(audits.descent(np.array([0.5, 0.1])))  # too short to tell
    generator = np.random.default_rng(0)
    wandering = [audits.descent(0.1 + 0.01 * generator.standard_normal(11)) for _ in range(200)]
    assert abs(np.median(wandering)) < 0.05
    assert audits.missed_again(np.full(20, 0.1), 0.1) == 1  # a goal is strict
    assert np.isnan(audits.missed_again(np.array([0.2, 0.2]), 0.1))
