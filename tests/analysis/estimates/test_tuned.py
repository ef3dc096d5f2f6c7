"""Estimates from fresh seeds: known answers, missing seeds, and how often the intervals hold the truth."""

import shutil

import numpy as np
import pandas as pd
import pytest
from helpers.estimated import estimated
from scipy import stats

from analysis.counting import Goal
from analysis.estimates import limits, split, tuned
from analysis.estimates.until import widest
from analysis.load import CURVE, GOAL, STUDY
from analysis.question.until import Until
from analysis.tables import answers, scaling, steps_to_result
from study.records import Budget
from study.settings import Evaluation

INF, NAN = np.inf, np.nan
NAMES = {"workload": "tiny", "optimizer": "sgd", "goal_metric": "val/loss", "goal_threshold": 0.1}


def curve(fewest, seeds):
    """The table of one curve: {batch size: S(B), None if not reached}, {batch size: steps with fresh seeds}."""
    steps = pd.DataFrame(
        {**NAMES, "batch_size": list(fewest), "steps_to_result": pd.array([*fewest.values()], "Int64")}
    )
    rows = [{**NAMES, "batch_size": size, "rerun": n, "steps": s} for size in seeds for n, s in enumerate(seeds[size])]
    return tuned.table(steps, pd.DataFrame(rows, columns=[*STUDY, *GOAL, "rerun", "steps"]))


@pytest.mark.parametrize(
    ("seeds", "missed", "median"),
    [
        ([100, 200, 400, 800], 0, 200 * 2**0.5),
        ([100, 200, 400, INF], 1, 200 * 2**0.5),
        ([100, 200, INF, INF], 2, INF),
        ([100, 200, 400, 800, INF], 1, 400),
        ([100, 200, 400, INF, INF], 2, 400),
        ([100, 200, INF, INF, INF], 3, INF),
        ([100], 0, 100),
        ([INF], 1, INF),
        ([], 0, NAN),
    ],
)
def test_missing_seeds(seeds, missed, median):
    [row] = curve({8: 90}, {8: seeds}).to_dict("records")
    assert (row["seeds"], row["missed"]) == (len(seeds), missed)
    assert row["tuned_steps"] == pytest.approx(median, nan_ok=True)
    known = np.log([each for each in seeds if np.isfinite(each)])
    assert row["seed_sd"] == pytest.approx(np.std(known, ddof=1) if len(known) > 1 else NAN, nan_ok=True)
    assert row["luck"] == pytest.approx(median / 90 if np.isfinite(median) else NAN, nan_ok=True)
    assert np.isnan(row["tuned_low"]) == (not np.isfinite(median) or len(known) < 2)


SIZES = [1, 2, 4, 8, 16, 32]
SEEDS = {size: (320 / size * np.exp([-0.2, -0.1, 0.1, 0.2])).tolist() for size in SIZES}


def test_intervals_are_students():
    found = curve(dict.fromkeys(SIZES, 10), SEEDS)
    s = np.std(np.log(SEEDS[1]), ddof=1)
    half = stats.t.ppf(0.975, 6 * 3) * 1.25 * s / 2
    np.testing.assert_allclose(found["tuned_high"] / found["tuned_steps"], np.exp(half))
    np.testing.assert_allclose(found["tuned_steps"] / found["tuned_low"], np.exp(half))
    # Without residuals about the curve the noise of seeds is the larger term.
    np.testing.assert_allclose(found["optimum_high"], found["tuned_high"])
    np.testing.assert_allclose(found["curve_steps"], [320 / size for size in SIZES])
    assert (found["read_from"] == tuned.SEEDS).all()
    assert list(tuned.log_errors(found).values()) == pytest.approx([half / stats.norm.ppf(0.975)] * 6)


def test_the_larger_term_brings_its_degrees_of_freedom():
    bent = {size: [steps * 2 ** (-1) ** n for steps in SEEDS[size]] for n, size in enumerate(SIZES)}
    found = curve(dict.fromkeys(SIZES, 10), bent)
    residuals = np.log(found["tuned_steps"] / found["curve_steps"])
    rms = np.sqrt((residuals**2).sum() / 2)
    assert found["residual_sd"].iloc[0] == pytest.approx(rms)
    expected = np.exp(stats.t.ppf(0.975, 2) * rms)
    np.testing.assert_allclose(found["optimum_high"] / found["tuned_steps"], expected)
    assert (found["tuned_high"] < found["optimum_high"]).all()
    noise, shortfall, high = split.shares(found)
    assert noise == pytest.approx(1.092 * found["seed_sd"].iloc[0] / 2)
    assert 0.5 * rms < shortfall < high


@pytest.mark.parametrize(
    ("fewest", "without", "read_from", "optimum"),
    [
        (dict.fromkeys(SIZES, 10), [], tuned.SEEDS, True),
        (dict.fromkeys(SIZES[:5], 10), [], tuned.SEEDS, False),  # fewer than six batch sizes
        (dict.fromkeys(SIZES, 10), [8], tuned.SEARCH, False),  # one batch size has no seeds: no mixture
        (dict.fromkeys(SIZES, 10) | {64: None}, [], tuned.SEEDS, True),  # a missed goal needs none
        (dict.fromkeys(SIZES, 10), SIZES, tuned.SEARCH, False),
    ],
)
def test_what_the_curve_runs_through(fewest, without, read_from, optimum):
    found = curve(fewest, {size: SEEDS[size] for size in SIZES if size not in without})
    assert (found["read_from"] == read_from).all()
    reached = found["steps_to_result"].notna()
    assert found.loc[reached, "optimum_low"].notna().all() == optimum
    assert list(found["curve_steps"].notna()) == list(reached)
    assert bool(tuned.log_errors(found)) == (read_from == tuned.SEEDS or len(fewest) >= tuned.ENOUGH)


def test_a_batch_size_far_off_the_curve_is_named_and_kept():
    rng = np.random.default_rng(0)
    sizes = [2**n for n in range(11)]
    noisy = {size: (3200 / size * np.exp(0.1 * rng.standard_normal(4))).tolist() for size in sizes}
    assert tuned.far_off(curve(dict.fromkeys(sizes, 1), noisy)) == {}
    noisy[64] = [3 * steps for steps in noisy[64]]
    found = curve(dict.fromkeys(sizes, 1), noisy)
    assert list(tuned.far_off(found)) == [64]
    assert tuned.points(found)[64] == found.set_index("batch_size")["tuned_steps"][64]


def test_points_close_to_a_hyperbola_by_chance_are_no_better_known():
    fewest = {size: round(100 * (1 + 32 / size)) for size in (1, 4, 16, 64, 256, 1024)}
    exact = {size: [steps * 0.8, steps / 0.8] for size, steps in fewest.items()}
    found = limits.estimates(curve(fewest, exact))["critical_batch_size_mccandlish"]
    assert found.value == pytest.approx(32, rel=0.1)
    assert found.low < 26
    assert found.high > 40
    assert limits.estimates(curve(fewest, {}))["critical_batch_size_mccandlish"].low > 30


def test_fresh_seeds_of_files_are_those_of_the_configuration_that_a_goal_chose(results, make_study):
    """Rerun curves fall from 1 to their goal, so that another goal chooses the same trial, or one without reruns."""
    size, ends = 8, [400, 200, 300, 500]
    study = make_study(batch_size=size, examples=4096, steps=2000, trials=4)
    [search] = results({size: ends})
    branch = search.branch._replace(rerun=1)
    again = results({size: [250, None, 350]}, branch=branch, budget=Budget(4, 2000), trials=3)
    assert {str(each.branch) for each in again} == {"", "reruns of trial 1"}, study.goal
    runs = answers.rerun_steps(again)
    assert runs["steps"].tolist() == [250, INF, 350]
    missed = runs.assign(trial=np.nan, steps_to_result=np.nan)  # the search missed the goal that its fresh seeds meet
    assert answers.reruns(missed)["reached"].tolist() == [2]
    [row] = tuned.table(steps_to_result.table(answers.answers(again)), runs).to_dict("records")
    assert (row["steps_to_result"], row["tuned_steps"], row["missed"]) == (200, 350, 1)
    other = answers.fresh_seeds({each.branch: each for each in again}, search.goal)
    assert other is not None
    assert other[1].branch == branch
    limits_found = limits.table(
        scaling.table(answers.answers(again)), tuned.table(steps_to_result.table([search]), runs)
    )
    assert limits_found["estimate"].isna().all()  # one batch size


REFINE = {"sampler": "refine", "scouts": 2, "refine": (1,), "candidates": 2, "screens": 1}


def test_fresh_seeds_of_refine_are_those_of_the_configuration_that_its_screens_chose(results):
    """Trial 1 needs the fewest steps, and the screens, trials 3 and 4, preferred the other candidate."""
    size = 8
    [search] = results({size: [400, 200, 300, 250, 320]}, trials=5, **REFINE)
    branch = search.branch._replace(rerun=3)
    made = results({size: [250, 350]}, branch=branch, budget=Budget(4, 2000), trials=2)
    row = steps_to_result.row(search)
    assert (row["trial"], row["tuned_trial"]) == (1, 3)
    assert row["learning_rate"] == search.trials.at[3, "learning_rate"]  # of the configuration that counts
    search, again = answers.fresh_seeds({each.branch: each for each in made})
    assert (search.branch.rerun, again.branch) == (None, branch)
    assert answers.rerun_steps(made)["steps"].tolist() == [250, 350]


def test_at_another_goal_refine_names_the_goal_that_it_tuned_for(results):
    """Errors fall from 0.9 to 0.05 at once, so that both goals are met at the same steps."""
    [search] = results({8: [400, 200, 300, 250, 320]}, trials=5, **REFINE)
    made = results({8: [250, 350]}, branch=search.branch._replace(rerun=3), budget=Budget(4, 2000), trials=2)
    other = Goal(search.goal.metric, search.goal.threshold * 2)
    runs = answers.rerun_steps(made, [search.goal, other])
    assert runs["tuned_for"].tolist() == [None, None, "validation error < 0.1", "validation error < 0.1"]
    found = tuned.table(steps_to_result.table([search], goals=[search.goal, other]), runs)
    assert found["tuned_for"].tolist() == [None, "validation error < 0.1"]
    assert found["tuned_steps"].tolist() == [(250 * 350) ** 0.5] * 2
    assert answers.reruns(runs)["tuned_for"].tolist() == [None, "validation error < 0.1"]


def simulated(generator, curves, tuning=0.2):
    """(share of configuration intervals that hold its steps, of optimum intervals that hold the tuned optimum)."""
    sizes = [2**n for n in range(11)]
    truth = np.array([10 * (1 + 32 / size) for size in sizes])
    held = []
    for _ in range(curves):
        own = truth * np.exp(tuning * generator.standard_normal(11))
        seeds = own * np.exp(0.2 * generator.standard_normal((4, 11)))
        found = curve(dict.fromkeys(sizes, 10), dict(zip(sizes, seeds.T.tolist(), strict=True)))
        held.append(
            [
                ((found["tuned_low"] <= own) & (own <= found["tuned_high"])).mean(),
                ((found["optimum_low"] <= truth) & (truth <= found["optimum_high"])).mean(),
            ]
        )
    return np.mean(held, axis=0)


@pytest.mark.slow
def test_the_split_of_known_parts():
    """Seeds of spread 0.2 and a scatter of 0.3 of tuning at eleven batch sizes; without the latter, its end is low."""
    generator, sizes = np.random.default_rng(1), [2**n for n in range(11)]

    def found(scatter):
        own = np.array([10 * (1 + 32 / size) for size in sizes]) * np.exp(scatter * generator.standard_normal(11))
        seeds = own * np.exp(0.2 * generator.standard_normal((4, 11)))
        return split.table(curve(dict.fromkeys(sizes, 10), dict(zip(sizes, seeds.T.tolist(), strict=True))))

    rows = pd.concat([found(0.3) for _ in range(8)])
    assert np.sqrt((rows["shortfall"] ** 2).mean()) == pytest.approx(0.3, rel=0.25)
    assert rows["seed_error"].mean() == pytest.approx(1.09 * 0.2 / 2, rel=0.1)
    assert (rows["shortfall_high"] > 0.3).mean() > 0.8
    assert (rows["seeds"] == 4).all()
    none = pd.concat([found(0.0) for _ in range(8)])
    assert none["shortfall_high"].median() < 0.25
    assert (none["shortfall"] == 0).any()
    assert split.table(curve(dict.fromkeys(sizes, 10), {})).empty


def test_a_curve_that_bends_at_every_batch_size_bounds_no_shortfall():
    steps = dict(zip(SIZES, (1000, 600, 400, 300, 250, 230), strict=True))
    found = split.shares(curve(steps, {size: [each * 0.99, each * 1.01] for size, each in steps.items()}))
    assert found[1:] == (0, INF)


def test_intervals_hold_their_steps():
    assert simulated(np.random.default_rng(0), 8).min() > 0.85


@pytest.mark.slow
def test_how_often_intervals_hold_their_steps():
    configuration, optimum = simulated(np.random.default_rng(0), 300)
    assert 0.93 < configuration < 0.99
    assert 0.93 < optimum <= 1


def test_an_empty_table_has_the_columns():
    empty = steps_to_result.table([])
    assert set(tuned.COLUMNS) < set(tuned.table(empty, answers.rerun_steps([])))
    assert list(empty[CURVE]) == CURVE


AT_FIRST = {1: 40, 4: 40, 16: 130, 64: 60, 256: 42, 1024: 41}
"""Batch size -> steps. The first evaluation is at 2 % of 2,000 steps: 1 and 4 met the goal there."""
AFTER = {size: steps for size, steps in AT_FIRST.items() if size >= 16}


def four(ends):
    return {size: [steps] * 4 for size, steps in ends.items()}


@pytest.mark.slow
@pytest.mark.parametrize("first", [0.02, 0.0005])
def test_steps_known_only_as_an_upper_bound_have_no_part_in_a_curve(results, tmp_path, first):
    # A flat start was read off the grid of evaluations: without it S(B) falls from the first known point on.
    whole = estimated(results(four(AT_FIRST), evaluation=Evaluation(first=first)))
    bounds = [size for size, steps in tuned.points(whole.steps).items() if np.isnan(steps)]
    assert bounds == ([1, 4] if first == 0.02 else [])
    assert whole.steps["curve_steps"].isna().sum() == len(bounds)
    assert whole.steps["first_evaluation"].unique().tolist() == [round(2000 * first)]
    shutil.rmtree(tmp_path / "studies")
    alone = estimated(results(four(AFTER), evaluation=Evaluation(first=first)))
    columns = ["definition", "value", "bound", "estimate", "estimate_low", "estimate_high"]
    assert whole.limits[columns].equals(alone.limits[columns]) == bool(bounds)


@pytest.mark.slow
def test_upper_bounds_say_so(results, tmp_path, says):
    results(four(AT_FIRST), evaluation=Evaluation())
    assert "≤ 40" in says("report", tmp_path)


def test_steps_that_are_only_an_upper_bound_take_no_part_in_a_split_or_in_the_width():
    rng = np.random.default_rng(0)
    sizes = [2**k for k in range(8)]
    seeds = {size: (640 / size * np.exp(0.2 * rng.standard_normal(4))).tolist() for size in sizes}
    rows = [{**NAMES, "batch_size": size, "rerun": n, "steps": s} for size in sizes for n, s in enumerate(seeds[size])]
    steps = pd.DataFrame({**NAMES, "batch_size": sizes, "steps_to_result": [640 // size for size in sizes]})
    runs, firsts = pd.DataFrame(rows), [1] * 7 + [100]  # at batch size 128 the goal was met at the first evaluation
    runs["step_before"] = runs["steps"].where(runs["batch_size"] < 128, 0.0)
    found = tuned.table(steps.assign(first_evaluation=firsts), runs)
    without = tuned.table(steps[:7], runs[runs["batch_size"] < 128])
    assert found[["optimum_low", "optimum_high"]].iloc[-1].isna().all()
    assert tuned.log_errors(found).keys() == set(sizes[:7])
    assert split.shares(found) == split.shares(without)
    assert split.table(found)["batch_sizes"].tolist() == [7]
    width = Until("width", 1.5)
    assert widest(width, found, pd.DataFrame()) == widest(width, without, pd.DataFrame()) < INF
