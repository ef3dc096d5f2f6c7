"""The model of a search space, on a bowl whose minimum and whose share near it are known."""

import json
import math

import numpy as np
import pytest

from analysis.estimates import landscape
from study.search.points import point

CENTRE, CURVATURE, FEWEST = np.array([0.62, 0.41]), 16, 100
TRUE_SHARE = math.pi * math.log(1.2) / CURVATURE


@pytest.fixture
def bowl(results, make_study):
    """Searches with this number of trials. Log steps grow with the squared distance from CENTRE."""

    def made(trials, sizes=(8,), **fields):
        steps = {}
        for size in sizes:
            study = make_study(batch_size=size, examples=4096, steps=2000, trials=trials, **fields)
            away = [np.square(np.array(point(study, index)[:2]) - CENTRE).sum() for index in range(trials)]
            steps[size] = [round(FEWEST * math.exp(CURVATURE * each)) for each in away]
        return results(
            {size: [each if each < 2000 else None for each in ends] for size, ends in steps.items()}, **fields
        )

    return made


def test_the_share_and_the_minimum_of_a_bowl(bowl):
    [found] = landscape.table(landscape.modelled(bowl(64))).to_dict("records")
    assert (found["batch_size"], found["trials"], found["sampler"]) == (8, 64, "sobol")
    assert found["share_low"] * 0.8 < TRUE_SHARE < found["share_high"] * 1.2
    assert found["model_steps"] == pytest.approx(FEWEST, rel=0.15)


def test_bad_trials_beyond_the_most_are_left_out(bowl, monkeypatch):
    monkeypatch.setattr(landscape, "MOST", 60)
    found = landscape.table(landscape.modelled(bowl(40, (8, 16))))
    assert found["trials"].tolist() == [30, 30]
    assert (found["share_low"] < 2 * TRUE_SHARE).all()
    assert (found["share_high"] > TRUE_SHARE / 2).all()


def test_ranges_that_rounds_extended_hold_the_minimum(bowl):
    """The search space ended below the best learning rates, and rounds extended it beyond them."""
    [search] = bowl(64)
    declared = search.question["search"]["space"]
    rate = declared["learning_rate"]
    (search.folder / "rounds").mkdir()
    (search.folder / "rounds/1.json").write_text(json.dumps({"wider": {"learning_rate": rate}}))
    declared["learning_rate"] = {**rate, "high": math.sqrt(rate["low"] * rate["high"])}
    [found] = landscape.table(landscape.modelled([search])).to_dict("records")
    assert TRUE_SHARE / 2 < found["share"] < TRUE_SHARE * 2
    assert found["model_steps"] == pytest.approx(FEWEST, rel=0.15)


def test_points_are_those_that_were_searched(bowl, make_study):
    [search] = bowl(16)
    study = make_study(batch_size=8, examples=4096, steps=2000, trials=16)
    searched = [point(study, index) for index in range(16)]
    np.testing.assert_allclose([result.point for result in landscape.trials(search).results], searched, atol=1e-6)


def test_searches_without_a_model(bowl):
    assert landscape.table(landscape.modelled(bowl(14))).empty, "too few trials"
    [search] = bowl(16, (16,))[1:]
    search.question["search"]["space"]["schedule"] = {"choices": ["constant", "cosine"]}
    assert landscape.trials(search) is None, "names have no distance"
    assert landscape.table(landscape.modelled([search])).empty


def test_a_goal_that_no_trial_reached_has_no_share(results):
    assert landscape.table(landscape.modelled(results({8: [None] * 16}))).empty
