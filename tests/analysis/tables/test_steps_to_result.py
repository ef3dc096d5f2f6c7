"""Known answers of the central table and of the limits, on results folders written by the store."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.counting import COMPLETE, INCOMPLETE, INFEASIBLE, Goal
from analysis.intervals import median_best_of
from analysis.load import load_study
from analysis.report import derived, html_tables
from analysis.tables import scaling, steps_to_result, trials
from analysis.tables.scaling import Limit, maximum_useful_batch_size, perfect_scaling_limit
from study.settings import Budget, Evaluation

INF = math.inf


def test_one_study(results):
    ends = {32: [None, 400, "bad", 300, 300, 200]}
    frame = steps_to_result.table(results(ends, trials=4, stopping="goal"))
    [row] = frame.to_dict("records")
    tuned = {"learning_rate": row.pop("learning_rate"), "momentum": row.pop("momentum")}
    names = {"workload": "tiny", "optimizer": "momentum", "batch_size": 32, "stage": 0, "stopping": "goal"}
    goal = {"goal_metric": "val/classification_error", "goal_threshold": 0.1, "reached": True}
    # Trial 5 is beyond the first four feasible ones; of a tie the lower index counts.
    found = {"steps_to_result": 300, "examples_to_result": 9600, "trial": 3, "tuned_trial": 3}
    # Of four trials, two cannot be said to lie above their median.
    interval = {"steps_n": 300.0, "low": 300.0, "high": INF, "censored_at": 2000.0, "first_evaluation": 1}
    interval["step_before"] = 281
    counts = {"complete": 4, "incomplete": 0, "infeasible": 1}
    trained = {"train_steps": 2000, "budget_multiple": 1.0, "steps_trained": 2000 + 400 + 7 + 300 + 300}
    assert row == names | goal | found | interval | counts | trained
    [data] = results({})
    assert tuned == data.trials.loc[3, ["learning_rate", "momentum"]].to_dict()


@pytest.mark.parametrize(
    ("studies", "steps", "examples"),
    [
        ({1: [1000], 2: [500], 4: [250]}, [1000, 500, 250], [1000, 1000, 1000]),
        ({1: [1000], 16: [100], 256: [100]}, [1000, 100, 100], [1000, 1600, 25600]),
        ({1: [1000], 2: [None, None], 4: [250]}, [1000, None, 250], [1000, None, 1000]),
        ({1: [None], 2: [None]}, [None, None], [None, None]),
        ({1: ["bad"], 2: [500]}, [None, 500], [None, 1000]),
    ],
    ids=["perfect", "plateau", "one_unreached", "all_unreached", "all_diverged"],
)
def test_steps_and_examples(results, studies, steps, examples):
    frame = steps_to_result.table(results(studies))
    assert list(frame["batch_size"]) == list(studies)
    assert [None if pd.isna(s) else s for s in frame["steps_to_result"]] == steps
    assert [None if pd.isna(e) else e for e in frame["examples_to_result"]] == examples
    assert list(frame["reached"]) == [s is not None for s in steps]
    assert (frame["learning_rate"].notna() == frame["reached"]).all()


@pytest.mark.parametrize(
    ("ends", "trials", "counts"),
    [
        ([100, None, 300], 3, (3, 0, 0)),
        ([100, "bad", 300, "bad", 200, 50, "bad"], 3, (3, 0, 2)),
        ([100, "missing", 300], 3, (2, 1, 0)),
        ([100, "missing", 300, 200, 50], 3, (3, 1, 0)),
        (["bad", "bad"], 1, (0, 0, 2)),
        ([], 3, (0, 0, 0)),
    ],
)
def test_counts_are_of_the_prefix(results, ends, trials, counts):
    [row] = steps_to_result.table(results({8: ends}, trials=trials)).to_dict("records")
    assert (row["complete"], row["incomplete"], row["infeasible"]) == counts
    reached = [e for e in ends[: sum(counts)] if isinstance(e, int)]
    assert (row["steps_to_result"] if row["reached"] else None) == (min(reached) if reached else None)


def test_outcomes(results):
    [study] = results({8: ["bad", 300, "missing", None, 100]}, trials=2, stopping="goal")
    frame = steps_to_result.outcomes(study)
    assert list(frame["status"]) == [INFEASIBLE, COMPLETE, INCOMPLETE, COMPLETE, COMPLETE]
    assert list(frame["end"]) == [7, 300, 0, 2000, 100]
    assert list(frame["counted"]) == [True, True, True, True, False]
    assert steps_to_result.feasible_steps(study).tolist() == [300, INF]


def test_an_unfinished_trial_is_never_counted(tmp_path, make_study, make_curve, write_study):
    study = make_study(trials=2, stopping="budget")
    curves = [make_curve(study, 0, reaches=10, until=50), make_curve(study, 1, reaches=40)]
    data = load_study(write_study(tmp_path, study, curves, close=False))
    assert list(steps_to_result.outcomes(data)["status"]) == [INCOMPLETE, COMPLETE]
    assert steps_to_result.row(data)["steps_to_result"] == 40


def test_another_goal_is_read_off_the_same_curves(results):
    [study] = results({8: [300, None]}, evaluation=Evaluation())
    loose = Goal("val/classification_error", 0.95)
    assert steps_to_result.row(study, loose)["steps_to_result"] == 40  # 2 % of 2000
    assert steps_to_result.is_left_censored(study, loose)
    assert steps_to_result.row(study, Goal("val/classification_error", 0.06))["steps_to_result"] == 300
    assert not steps_to_result.row(study, Goal("val/classification_error", 0.01))["reached"]
    assert not steps_to_result.row(study, Goal("test/loss", 9.0))["reached"]  # never measured


def test_rows_are_ordered_by_number_and_columns_hold_every_hyperparameter(results):
    results({1024: [10], 8: [100]}, optimizer="sgd", space={"learning_rate": 0.1})
    frame = steps_to_result.table(results({64: [50]}))
    assert list(frame["optimizer"]) == ["momentum", "sgd", "sgd"]
    assert list(frame["batch_size"]) == [64, 8, 1024]
    assert frame["momentum"].notna().tolist() == [True, False, False]


def test_cost(results):
    [row] = steps_to_result.cost_table(results({8: [100, None, "bad"]}, stopping="goal")).to_dict("records")
    assert (row["trials"], row["steps"]) == (3, 100 + 2000 + 7)
    assert (row["seconds_training"], row["seconds_evaluation"]) == (6.0, 1.5)
    assert row["seconds_per_step"] == pytest.approx(6.0 / 2107)
    assert row["evaluation_share"] == pytest.approx(0.2)
    assert row["device"] == "cpu"


NOISY = {1: 1000.0, 2: 700.0, 4: 350.0, 8: 190.0, 16: 180.0}


@pytest.mark.parametrize(
    ("steps", "how", "limit"),
    [
        ({1: 1000, 2: 500, 4: 250}, {}, Limit(4.0, ">")),
        ({1: 1000, 2: 500, 4: 260, 8: 250}, {}, Limit(4.0, "=")),
        ({1: 1000, 2: 600, 4: 300.5}, {}, Limit(2.0, "=")),  # 1.2 is still perfect, 1.202 is not
        ({1: 1000, 2: 900, 4: 800}, {}, Limit(1.0, "<")),
        ({1: 1000, 2: 900, 4: 250}, {}, Limit(1.0, "<")),  # perfect again beyond a gap does not count
        ({8: 1000, 16: 400, 32: 200}, {}, Limit(32.0, ">")),
        ({1: 1000, 2: INF, 4: 250}, {}, Limit(1.0, "<")),
        ({1: 1000, 2: 500, 4: INF}, {}, Limit(2.0, "=")),
        ({1: INF, 2: 500, 4: 250, 8: 240}, {}, Limit(4.0, "=")),
        ({1: INF, 2: 500, 4: 490, 8: 480}, {}, Limit(2.0, "<")),  # nothing shows scaling up to 2
        (NOISY, {"base": None}, Limit(1.0, "<")),
        (NOISY, {"base": 2}, Limit(8.0, "=")),
        (NOISY, {"base": 3}, Limit(8.0, "=")),
        (NOISY, {"base": 10}, Limit(16.0, ">")),
        # A missed goal ends it where its budget says so: 32 may take 750 steps, which is perfect.
        ({8: 2900, 16: 1450, 32: INF, 64: 350}, {"censored_at": {32: 749}}, Limit(16.0, ">")),
        ({8: 2900, 16: 1450, 32: INF, 64: 350}, {"censored_at": {32: 870}}, Limit(16.0, "=")),
        ({8: 2900, 16: 1450, 32: INF}, {"censored_at": {32: 749}}, Limit(16.0, ">")),
        ({4: INF, 8: 2900, 16: 2800}, {"censored_at": {4: 100}}, Limit(8.0, "<")),  # it comes before the base
        ({4: 100, 8: INF, 16: 50, 32: 50}, {"base": 8, "censored_at": {8: 10}}, Limit(16.0, "<")),
    ],
)
def test_perfect_scaling_limit(steps, how, limit):
    assert perfect_scaling_limit(steps, **how) == limit


def test_a_missed_goal_ends_gains_where_its_budget_says_so():
    trials = {64: np.full(20, 1000.0), 128: np.full(20, INF)}
    assert maximum_useful_batch_size(trials, censored_at={128: 600}) == Limit(64.0, ">")
    assert maximum_useful_batch_size(trials, censored_at={128: 1000}) == Limit(64.0, "<")


def test_intervals_know_as_little_of_what_missed_the_goal():
    trials = {8: np.full(20, 400.0), 16: np.full(20, INF), 32: np.full(20, 100.0)}
    for censored_at, perfect in (({}, (8, 8)), ({16: 100}, (8, 32))):  # perfect scaling holds for all up to the limit
        found = scaling.intervals(scaling.resamples(trials), censored_at=censored_at)
        assert found == {"perfect_scaling_limit": perfect, "maximum_useful_batch_size": (32, 32)}
    few = {size: np.array([steps] * 3 + [INF] * 17) for size, steps in {64: 100.0, 128: 50.0}.items()}
    found = scaling.intervals(scaling.resamples({1: np.full(20, INF), **few}))
    assert found["maximum_useful_batch_size"][0] == 64  # resamples in which nothing reached it say nothing


def test_nothing_reached_has_no_limits(results):
    assert all(math.isnan(value) for value, _ in limits(results({1: [None] * 4, 2: ["bad"] * 4})).values())


@pytest.mark.parametrize(
    ("best", "limit"),
    [
        ({1: 1000, 2: 500, 4: 250}, Limit(4.0, ">")),
        ({1: 1000, 2: 500, 4: 250, 8: 250, 16: 250}, Limit(4.0, "=")),
        ({1: 250, 2: 250, 4: 260}, Limit(1.0, "<")),
        ({1: 1000, 2: 500, 4: 480}, Limit(2.0, "=")),  # 4 % is less than the 5 % that count
        ({1: 1000, 2: INF, 4: 250, 8: 250}, Limit(4.0, "=")),
        ({1: 1000, 2: 500, 4: INF}, Limit(2.0, "=")),  # 4 was measured, and is not shown to gain
    ],
)
def test_maximum_useful_batch_size_of_trials_that_all_agree(best, limit):
    assert maximum_useful_batch_size({size: np.full(12, float(steps)) for size, steps in best.items()}) == limit


def test_maximum_useful_batch_size_of_noisy_trials():
    """Halving is seen through noise of a factor of three; a few percent are not shown."""
    noise = np.exp(np.random.default_rng(1).uniform(0, np.log(3), (4, 20)))
    trials = {size: steps * noise[i] for i, (size, steps) in enumerate({1: 1000, 2: 500, 4: 250, 8: 235}.items())}
    assert maximum_useful_batch_size(trials) == maximum_useful_batch_size(trials) == Limit(4.0, "=")


@given(st.lists(st.integers(1, 9) | st.just(INF), min_size=1, max_size=5), st.integers(1, 4))
def test_median_best_of_against_brute_force(steps, draws):
    """The least value that the best of all N^n equally likely draws does not exceed half of the time."""
    best = sorted(min(drawn) for drawn in itertools.product(steps, repeat=draws))
    assert median_best_of(np.array(steps, dtype=float), draws) == best[(len(best) - 1) // 2]


def limits(studies):
    """Those that are read off the curve; `test_fits` has the fitted ones."""
    rows = scaling.table(studies).to_dict("records")
    return {row["definition"]: (row["value"], row["bound"]) for row in rows if "critical" not in row["definition"]}


@pytest.mark.parametrize(
    ("ends", "fields", "perfect", "useful"),
    [
        ({1: 1600, 2: 800, 4: 400}, {}, (4, ">"), (4, ">")),
        ({8: 1800, 16: 900, 32: None}, {"budget": Budget(4, 100)}, (16, ">"), (16, ">")),
        ({1: 1600, 4: 400, 16: 200, 64: 200, 256: 195}, {}, (4, "="), (16, "=")),
    ],
    ids=["perfect", "short_budgets", "plateau"],
)
def test_limits_of_s_and_s_n(results, ends, fields, perfect, useful):
    studies = results({size: [end] * 4 for size, end in ends.items()}, **fields)
    assert limits(studies) == {"perfect_scaling_limit": perfect, "maximum_useful_batch_size": useful}


def test_searches_that_learn_from_their_trials_have_no_s_n(results):
    studies = results({1: [1600] * 8, 4: [400] * 8}, sampler="tpe")
    steps = steps_to_result.table(studies)
    assert list(steps["steps_to_result"]) == [1600, 400]
    assert steps[["steps_n", "low", "high"]].isna().all(axis=None)
    assert scaling.table(studies)[["low", "high"]].isna().all(axis=None)
    assert trials.best_of_n(studies).empty


@pytest.mark.parametrize("ends", [[None], [400], [400, None, None]])
def test_with_fewer_than_four_trials_there_is_no_median_best_of_a_quarter(results, ends):
    """The page showed `inf`, or S(B) again under another name."""
    studies = results({8: ends, 16: ends})
    assert steps_to_result.table(studies)[["steps_n", "low", "high"]].isna().all(axis=None)
    shown, *_ = html_tables.sections(derived.tables(studies, studies, derived.Asked()))
    assert {"batch size", "median best of N/4 trials"} & {column.name for column in shown.columns} == {"batch size"}


def test_an_unfinished_study_does_not_break_the_limits(results):
    """Of fewer than four trials there is a best one, and nothing that it shows."""
    studies = results({1: [1600] * 4, 2: ["missing", 800, "missing", 800], 4: [400, "missing", "missing", "missing"]})
    assert limits(studies) == {"perfect_scaling_limit": (4, ">"), "maximum_useful_batch_size": (1, "<")}


def test_trials_that_a_race_cut_may_come_before_slower_ones_of_lower_index(results):
    """Those ran while nobody was fast yet; by full budgets S_n is some 450 steps here."""
    [study] = results({8: [1900, 1500, 200, *[450] * 17]}, stopping="race")
    row = steps_to_result.row(study)
    assert 200 < row["censored_at"] < 450
    assert (row["steps_to_result"], row["low"]) == (200, 200)
    assert (row["steps_n"], row["high"]) == (np.inf, np.inf)  # more than what they were cut at
    curve = trials.best_of_n([study]).set_index("n")["steps"]
    assert curve[20] == 200
    assert np.isinf(curve[[1, 2]]).all()


def test_each_optimizer_is_a_curve_of_its_own(results):
    results({1: [1000], 2: [500]}, optimizer="sgd", space={"learning_rate": 0.1})
    frame = scaling.table(results({1: [400], 2: [390]}))
    values = frame.set_index(["optimizer", "definition"])["value"]
    assert values["sgd", "perfect_scaling_limit"] == 2
    assert values["momentum", "perfect_scaling_limit"] == 1


def test_betas_searched_by_their_half_life_stand_in_the_tables_too(results):
    """Else figures of momentum and of effective learning rates would take it for 0."""
    studies = results({8: [20]}, space={"learning_rate": 0.1, "momentum_half_life_examples": 16.0})
    [row] = steps_to_result.table(studies).to_dict("records")
    assert (row["momentum_half_life_examples"], row["momentum"]) == (16.0, 0.5**0.5)
    [trial] = trials.trials(studies).to_dict("records")
    assert trial["momentum"] == 0.5**0.5
