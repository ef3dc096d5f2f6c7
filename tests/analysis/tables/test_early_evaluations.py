"""Curves without errors above the goal (`evaluation.exact=false`) give the answers of exact ones, or none."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from analysis.counting import Goal
from analysis.estimates import by_goal, landscape
from analysis.export import ExportError, export
from analysis.load import load
from analysis.report import findings
from analysis.report.warnings import of_searches
from analysis.tables import audits, steps_to_result, trials
from study import store
from study.settings import Evaluation

ENDS = {8: [90, "bad", 40, None, 90, 20, None, *[60] * 10], 16: ["bad", None, None], 32: [10] * 3, 64: [7] * 3}
LOOSER = Goal("val/classification_error", 0.5)


@pytest.fixture
def both(tmp_path, make_study, make_curve, write_study):
    """The same searches with exact evaluations and with those that end early."""
    folders = []
    for exact in (True, False):
        folders.append(tmp_path / f"exact {exact}")
        for batch_size, ends in ENDS.items():
            evaluation = Evaluation(every=5 if exact else None, exact=exact)
            study = make_study(batch_size=batch_size, stopping="race", trials=len(ends), evaluation=evaluation)
            curves = []
            for index, end in enumerate(ends):
                curve = make_curve(study, index, **({"bad": 7} if end == "bad" else {"reaches": end} if end else {}))
                values = curve.errors["val/classification_error"]
                if not exact:
                    values[(values >= 0.1) & (curve.steps < study.train_steps)] = np.nan
                    curve = replace(curve, at_least={"val/classification_error": 0.1})
                curves.append(curve)
            write_study(folders[-1], study, curves)
    return [list(load(folder)) for folder in folders]


def test_all_that_follows_from_steps_is_the_same(both):
    exact, early = both
    pd.testing.assert_frame_equal(*(steps_to_result.table(studies) for studies in both))
    for one, other in zip(exact, early, strict=True):
        pd.testing.assert_frame_equal(
            *(steps_to_result.outcomes(study).drop(columns="least_error") for study in (one, other))
        )
        assert steps_to_result.is_left_censored(one, one.goal) == steps_to_result.is_left_censored(other, other.goal)
    assert not steps_to_result.is_left_censored(early[0], early[0].goal)
    assert not audits.differing(exact[0], early[0], ["evaluation"])


def test_errors_are_those_that_are_known(both):
    frame = trials.trials(both[1])
    assert frame[frame["steps_to_goal"].notna()]["least_error"].eq(0.05).all()
    missed = frame[frame["steps_to_goal"].isna() & (frame["status"] == "COMPLETE")]
    assert missed.groupby("batch_size")["least_error"].max().to_dict() == {8: np.inf, 16: 0.9}
    [unreached] = [study for study in both[1] if study.batch_size == 16]
    [told] = of_searches._budget(unreached, unreached.goal, steps_to_result.row(unreached))
    assert "the least error at the end was" in told.text
    assert "errors above it are not known" in findings._grid_sentence(both[1][0], [both[1][0].goal])
    [space] = landscape.table(landscape.modelled(both[1][:1])).to_dict("records")
    assert 0 < space["share"] <= 1


def test_other_goals_are_refused(both):
    exact, early = both
    assert not steps_to_result.refusals(exact, [LOOSER])
    assert steps_to_result.refusals(early, [LOOSER, early[0].goal]) == [
        "tiny, momentum: val/classification_error < 0.5 needs evaluation.exact=true, since evaluations ended when they "
        "missed val/classification_error < 0.1."
    ]
    assert set(by_goal.table(early)["goal_threshold"]) <= {0.1}


def test_exports_say_what_is_known(both, tmp_path):
    with pytest.raises(ExportError, match="choose csv or parquet"):
        export(tmp_path / "exact False", tmp_path / "released", "batch_science")
    for exact in (True, False):
        export(tmp_path / f"exact {exact}", tmp_path / f"out {exact}", "csv")
        assert set(pd.read_csv(tmp_path / f"out {exact}" / "trials.csv")["exact"]) == {exact}


def test_curves_say_what_errors_are_at_least(both):
    for studies, at_least in zip(both, ({}, {"val/classification_error": 0.1}), strict=True):
        curves = store.load(studies[0].folder)
        assert all(curve.at_least == at_least for curve in curves)


@pytest.mark.parametrize("stops", [(True, True), (True, False), (False, True), (False, False)])
def test_how_often_training_errors_are_measured_is_no_difference_beside_a_race(stops):
    rarely, often = (
        SimpleNamespace(
            question={"search": {}, "evaluation": {"first": 0.02, "every": every}}, stops_early=each, refines=False
        )
        for every, each in zip((None, 5), stops, strict=True)
    )
    assert audits.differing(rarely, often, ["evaluation"]) == (set() if any(stops) else {"evaluation"})
    often.question["evaluation"] |= {"first": 0.1}
    assert audits.differing(rarely, often, ["evaluation"]) == {"evaluation"}


def test_a_race_and_a_full_budget_may_measure_them_equally_often():
    race, budget = (
        SimpleNamespace(question={"search": {}, "evaluation": {"every": 5}}, stops_early=each, refines=False)
        for each in (True, False)
    )
    assert not audits.differing(race, budget, ["evaluation"])
