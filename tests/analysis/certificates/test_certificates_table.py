"""The table of certificates: read from the trainings on file, and as sentences."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.certificates import table
from analysis.certificates.estimate import certificate, power
from analysis.counting import Goal
from analysis.load import load
from analysis.report.build import read
from study.search import stages

METRIC = "val/classification_error"
ERRORS = [0.08, 0.09, 0.085, 0.07]


@pytest.fixture
def certified(sweep, make_study, make_curve, write_study):
    """A folder with a search whose trial 1 is the tuned one, and trainings of it up to each of these steps."""

    def write(steps, errors=ERRORS, wanted=4, trial=1, bad=()):
        folder = sweep({8: [900, 500, None]})
        study = make_study(batch_size=8, examples=4096, steps=2000, trials=3)
        points = {name: each.choices[0] if each.choices else each.low for name, each in study.search.space.items()}
        for step in steps:
            branch = study.branch._replace(rerun=trial, certify=step)
            again = stages.trained_again(study, points, wanted, branch)
            curves = [make_curve(again, i, bad=7 if i in bad else None, until=step) for i in range(len(errors))]
            for curve, error in zip(curves, errors, strict=True):
                curve.errors[METRIC][-1:] = error
            write_study(folder, again, curves)
        return list(load(folder))

    return write


def test_the_errors_at_the_step_are_tested(certified):
    found = table.table(certified([500]))
    [row] = found.to_dict("records")
    expected = certificate(ERRORS, 0.1)
    assert [row[name] for name in expected._fields] == pytest.approx(list(expected))
    assert (row["batch_size"], row["trial"], row["step"], row["steps_tested"]) == (8, 1, 500, 1)
    assert (row["diverged"], row["wanted"]) == (0, 4)
    assert row["certified"] == (expected.p_value < 0.01)
    [looser] = table.table(certified([500]), [Goal(METRIC, 0.2)])["p_value"]
    assert looser < expected.p_value


def test_each_tested_step_makes_the_level_stricter(certified):
    one, two = table.table(certified([500])), table.table(certified([500, 600]))
    assert two["step"].tolist() == [500, 600]
    assert two["steps_tested"].tolist() == [2, 2]
    assert two["p_value"].tolist() == pytest.approx([one["p_value"][0]] * 2)
    assert "times 2 steps that were tested" in table.sentences(two)[0]


def test_certificates_are_no_reruns_and_change_no_answer(certified):
    studies = certified([500])
    folder = studies[0].folder.parents[3]
    found = read([folder]).tables
    assert found["steps_to_result"]["steps_to_result"].tolist() == [500]
    assert found["rerun_steps"].empty
    assert found["rules"].empty
    assert len(found["certificates"]) == 1


def test_a_configuration_that_is_not_the_tuned_one_is_left_out(certified):
    assert table.table(certified([500], trial=0)).empty


def test_seeds_that_diverged_or_are_missing(certified):
    found = table.table(certified([500], bad=[2]))
    assert found["diverged"].tolist() == [1]
    assert not found["certified"][0]
    assert "because 1 of 4 seeds diverged before step 500" in table.sentences(found)[0]
    few = table.table(certified([600], errors=ERRORS[:2], wanted=5))
    assert "only 2 of 5 seeds are trained" in table.warnings(few[few["step"] == 600])[0]


NAMES = {"workload": "digits", "optimizer": "sgd", "batch_size": 8, "goal_metric": METRIC, "step": 440, "trial": 1}


def rows(errors, goal=0.1, steps_tested=1):
    test = certificate(errors, goal)
    certified = test.p_value * steps_tested < 0.01
    beside = {"diverged": int(np.isinf(errors).sum()), "wanted": len(errors), "steps_tested": steps_tested}
    return table.pd.DataFrame([NAMES | beside | {"goal_threshold": goal, "certified": certified} | test._asdict()])


@pytest.mark.parametrize(
    ("errors", "gap", "said"),
    [
        (ERRORS * 3, None, ["validation error < 0.1 is certified (p = ", "To certify the measured gap of 0.0188"]),
        (ERRORS, 0.01, ["is not certified (p = 0.0", "To certify a gap of 0.0100 with probability 0.8, 11 seeds"]),
        ([0.2, 0.21, 0.19], None, ["standard errors above the goal", "no number of seeds can show that it is"]),
        ([0.05, 0.05], None, ["all errors are equal and tell no spread"]),
    ],
)
def test_sentences(errors, gap, said):
    found = " ".join(table.sentences(rows(errors), gap))
    assert [text for text in said if text not in found] == []


def test_the_question_keeps_the_step_and_old_questions_keep_their_keys(make_study):
    study = make_study(steps=2000)
    assert "certify" not in study.question()["branch"]
    at = replace(study, branch=study.branch._replace(rerun=0, certify=300))
    assert at.question()["branch"]["certify"] == 300
    assert type(study).from_question(at.question()) == at
    assert at.evaluation_steps[-1] == 300 == at.last_step
    assert at.evaluation_steps[:-1] == tuple(step for step in study.evaluation_steps if step < 300)
    assert at.train_steps == study.train_steps == 2000
    with pytest.raises(ValueError, match="from 1 to the budget of 2,000"):
        replace(study, branch=study.branch._replace(rerun=0, certify=2001))


def test_the_seeds_needed_hold_for_all_steps_that_were_tested(certified):
    one = table.table(certified([500], [0.08, 0.1, 0.09, 0.105, 0.07, 0.11]))
    five = table.sentences(one.assign(steps_tested=5))[1]
    [row] = one.to_dict("records")
    n = int(five.split(", ")[-1].split()[0])
    least, fewer = (power(each, 0.1 - row["mean"], row["sd"], 0.01 / 5) for each in (n, n - 1))
    assert least >= 0.8 > fewer
