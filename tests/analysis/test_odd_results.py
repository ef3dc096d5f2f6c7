"""Reports on what sweeps leave behind when they go badly: empty studies, divergence, goals never reached."""

import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.advice import splits
from analysis.counting import RECORDED, Goal, TrialCurve
from analysis.edges import scaled
from analysis.figures import charts, draw
from analysis.load import LoadError, load
from analysis.report import warnings
from analysis.report.build import Asked, build, read
from analysis.report.findings import grid_sentences, stopping_sentences
from analysis.tables import best_errors, steps_to_result, trials
from analysis.tables.answers import answers as searches_answers
from study.search import stages
from study.search.tuner import Tuner
from study.settings import Budget, Evaluation

FIELDS = {"examples": 4096, "budget": Budget(0, 2000), "stopping": "budget"}


@pytest.fixture
def advise(says):
    """What `study advise` says of a folder and these milliseconds of steps."""
    return lambda folder, milliseconds, **status: says(
        "advise", folder, "--max-per-device-batch", 64, "--step-ms", milliseconds, **status
    )


@pytest.mark.slow
def test_a_study_without_trials_has_not_missed_its_goal(sweep):
    folder = sweep({8: [400, 500], 64: [], 128: []})
    data = build([folder], folder)
    assert list(pd.read_csv(folder / "tables/steps_to_result.csv")["batch_size"]) == [8]
    assert list(pd.read_csv(folder / "tables/searches.csv")["batch_size"]) == [8, 64, 128]
    waiting = "tiny, momentum, batch sizes 64 and 128: no trial has finished yet; sweep again to continue."
    assert waiting in data.warnings
    assert "not reached" not in " ".join(data.sentences)


def test_a_sweep_of_which_no_trial_has_ended(sweep):
    folder = sweep({8: [], 64: []})
    with pytest.raises(LoadError, match=r"no trial in .* has finished yet; sweep again to continue"):
        read([folder])


@pytest.mark.slow
@pytest.mark.parametrize("trial", ["bad", None])
def test_a_batch_size_at_which_nothing_worked_stays(sweep, trial):
    folder = sweep({8: [400] * 4, 64: [trial] * 4})
    build([folder], folder)
    falling = best_errors.best_errors(load(folder))
    assert set(falling["batch_size"]) == {8, 64}
    budgets = best_errors.by_budget(falling)
    assert set(budgets["batch_size"]) == {8, 64}
    assert budgets["budget"].min() > 0


def test_a_trial_that_diverges_after_its_goal_is_no_success_on_a_map(tmp_path, make_study, make_curve, write_study):
    study = make_study(batch_size=8, trials=2, **FIELDS)
    early, later = study.evaluation_steps[0], study.evaluation_steps[3]
    curves = [make_curve(study, 0, reaches=early, bad=later), *(make_curve(study, i, reaches=later) for i in (1, 2))]
    write_study(tmp_path, study, curves)
    table = trials.maps(trials.trials(load(tmp_path)))
    steps = table[table["unit"] == "steps"].set_index("trial")
    assert set(steps["budget"]) == {later}
    assert steps["state"].to_dict() == {0: "infeasible", 1: "reached", 2: "reached"}
    assert list(steps.index[steps["fastest"]]) == [1]


@pytest.mark.slow
@pytest.mark.parametrize("again", ["{}", "{}/", "{}/../{.name}"])
def test_a_folder_given_twice_is_one_folder(sweep, again):
    """As with `results/* results/digits`."""
    folder = sweep({8: [400] * 4, 64: [200] * 4})
    twice = read([folder, again.format(folder, folder)]).tables["steps_to_result"]
    pd.testing.assert_frame_equal(twice, read([folder]).tables["steps_to_result"])


COPIES = [f"studies/tiny/momentum/{name}" for name in ("8 (1)", "8 copy", "8_old", "8\N{SUPERSCRIPT TWO}")]


@pytest.mark.parametrize("verb", ["status", "compare"])
@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_of_a_study_under_no_batch_size_is_passed_over(sweep, says, tmp_path, verb, copy):
    folder = sweep({8: [400, 500, 300, 600]})
    shutil.copytree(folder / "studies/tiny/momentum/8", folder / copy)
    said = says(verb, folder, status=2 if verb == "compare" else 0)
    assert (
        "of two workloads with one optimizer, but got tiny with momentum at batch size 8." in said or verb == "status"
    )


@pytest.mark.parametrize("place", ["tiny/momentum/16", "tiny/momentum_old/8", "tiny copy/momentum/8"])
@pytest.mark.parametrize(
    "words", [("report",), ("advise", "--step-ms", "8:1"), ("export", "out"), ("schedule",)], ids=str
)
def test_numbers_of_a_study_that_two_folders_hold_are_refused(sweep, says, tmp_path, monkeypatch, words, place):
    monkeypatch.chdir(tmp_path)
    folder = sweep({8: [400, 500, 300, 600]}, tmp_path / "results")
    shutil.copytree(folder / "studies/tiny/momentum/8", folder / "studies" / place)
    said = says(words[0], folder, *words[1:], status=2)
    assert "both hold tiny, momentum, batch size 8; move one of them elsewhere" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_goal_given_twice_is_one_goal(sweep):
    folder = sweep({8: [400]})
    goal = Goal("val/classification_error", 0.2)
    assert len(read([folder], Asked([goal, goal])).tables["steps_to_result"]) == 1


def test_the_step_before_a_crossing_is_one_at_which_its_metric_was_measured():
    trial = TrialCurve([10, 20, 30, 40], [0.5, math.nan, math.nan, 0.01], None)
    assert steps_to_result._last_before(trial, 40) == 10


def test_values_where_a_scale_ends():
    assert scaled(1.0, "reverse_log") == math.inf
    assert scaled(0.0, "log") == -math.inf


@pytest.mark.slow
def test_searches_whose_first_is_not_on_file_are_left_out(tmp_path, make_study, make_curve, write_study):
    """As where its torn file was removed, or a sweep was killed while it announced what it would do."""
    here, gone = (make_study(batch_size=size, trials=4, reruns=1, **FIELDS) for size in (8, 64))
    write_study(tmp_path, here, [make_curve(here, index, reaches=400) for index in range(4)])
    for branch in (gone.branch._replace(budget=0.5), gone.branch._replace(rerun=2)):
        study = replace(gone, branch=branch)
        write_study(tmp_path, study, [make_curve(study, 0, reaches=100)])
    data = read([tmp_path])
    why = "tiny, momentum, batch size 64: its first search is missing, so its other searches are left out; sweep again."
    assert why in data.warnings
    assert list(data.tables["steps_to_result"]["batch_size"]) == [8]
    shutil.rmtree(tmp_path / "studies/tiny/momentum/8")
    with pytest.raises(LoadError, match="has finished yet; sweep again to continue"):
        read([tmp_path])


@pytest.mark.slow
def test_reruns_under_way_are_neither_infeasible_nor_missed(tmp_path, make_study, make_curve, write_study):
    study = make_study(trials=3, reruns=4, **FIELDS)
    write_study(tmp_path, study, [make_curve(study, index, reaches=400) for index in range(3)])
    again = stages.rerun(Tuner(study, [make_curve(study, index, reaches=400) for index in range(3)]))
    write_study(tmp_path, again, [make_curve(again, 1, reaches=420), make_curve(again, 3, reaches=420)], close=False)
    [row] = read([tmp_path]).tables["reruns"].to_dict("records")
    assert (row["reruns"], row["infeasible"], row["reached"]) == (2, 0, 2)


@pytest.mark.slow
def test_batch_sizes_that_nobody_has_trained_are_neither_advised_against_nor_costed(sweep, advise):
    folder = sweep({8: [400] * 4, 64: []})
    build([folder], folder)
    assert list(pd.read_csv(folder / "tables/cost.csv")["batch_size"]) == [8]
    said = advise(folder, "8:1,64:2")
    assert "No trial reached the goal" not in said
    assert "batch size 64: no trial has finished yet" in said
    shutil.rmtree(folder / "studies/tiny/momentum/8")
    assert "batch size 64: no trial has finished yet; sweep again" in advise(folder, "8:1,64:2", status=2)


def test_nobody_can_sweep_further_what_was_imported(sweep):
    folder = sweep({8: [400] * 4})
    [study] = load(folder)
    empty = replace(study, trials=study.trials[:0], question=study.question | {"stopping": RECORDED})
    assert warnings.waiting([empty], []) == ["tiny, momentum, batch size 8: no trial has finished yet."]


@pytest.mark.slow
def test_the_base_that_is_warned_of_is_the_one_that_was_asked_for(sweep):
    """Batch size 8 takes 1.5 times the examples of 16, the best, and 32 twice as many."""
    folder = sweep({8: [600] * 4, 16: [200] * 4, 32: [200] * 4})

    def warned(base):
        return [text for text in read([folder], Asked(base_batch_size=base)).warnings if "base of" in text]

    assert "batch size 8, the base of perfect scaling" in warned(None)[0]
    assert not warned(16)
    assert "batch size 32, the base of perfect scaling" in warned(32)[0]
    few = sweep({8: [600] * 4, 16: [200] * 4}, name="two")  # two batch sizes show no limit that could be too large
    assert not [text for text in read([few]).warnings if text.startswith("two") and "base of" in text]
    with pytest.raises(LoadError, match=r"--base-batch-size: batch size 48 was not measured; choose among 8, 16, 32\."):
        warned(48)
    with pytest.raises(LoadError, match="--normalise-at: batch size -7 was not measured"):
        read([folder], Asked(normalise_at=-7))


@pytest.mark.parametrize(
    ("curves", "expected"),
    [
        ([("a", "momentum", 2000), ("b", "momentum", 2000)], [("", "2,000")]),
        (
            [("a", "momentum", 2000), ("b", "momentum", 2000), ("c", "momentum", 3000)],
            [("a, b: ", "2,000"), ("c: ", "3,000")],
        ),
        (
            [("a", "momentum", 2000), ("a", "nesterov", 3000), ("b", "momentum", 2000)],
            [("a with momentum, b: ", "2,000"), ("a with nesterov: ", "3,000")],
        ),
    ],
)
def test_the_budget_and_grid_of_every_curve_are_told(sweep, curves, expected):
    for name, optimizer, steps in curves:
        folder = sweep({8: [400]}, name=name, optimizer=optimizer, budget=Budget(0, steps))
    texts = grid_sentences([*load(folder)])
    found = [re.match(r"(.*)Step budget: (\S+) steps", text) for text in texts]
    assert [match.groups() for match in found] == expected


def test_what_stopping_saved_is_said_of_whom(sweep):
    sweep({8: [400] * 4}, stopping="race", name="raced")
    [alone] = stopping_sentences(list(load(sweep({}))))
    assert alone == "Early stopping (race) skipped 80% of the steps of full budgets."
    found = stopping_sentences(list(load(sweep({8: [400] * 4}))))
    assert found[0] == f"raced with momentum: e{alone[1:]}"
    assert found[1].startswith("tiny with momentum: with stopping=race, 80% of the steps would have been skipped")


@pytest.mark.parametrize(("ends", "said"), [([400] * 4, "80%"), ([1] * 4, "99.9%"), ([1999] * 4, "0.05%")])
def test_only_all_steps_are_told_as_all_and_none_as_none(sweep, ends, said):
    [found] = stopping_sentences(list(load(sweep({8: ends}))))
    assert found.startswith(f"With stopping=race, {said} of the steps would have been skipped")
    [found] = stopping_sentences(list(load(sweep({8: ends}, stopping="race", name="raced")))[:1])
    assert f" skipped {said} of the steps" in found


def test_budgets_and_grids_that_are_more_than_one_are_told(sweep):
    folder = sweep({8: [400] * 4}, budgets=(0.5, 1.0))
    studies = list(load(folder))
    [plain] = grid_sentences(studies)
    assert plain.startswith("Step budget: 2,000 steps. Searches ran with 0.5 and 1 times ")
    assert "Training and test errors" not in plain
    [said] = grid_sentences(studies, [Goal("test/classification_error", 0.1)])
    assert "Training and test errors are measured every 61% more steps, so goals on them are as coarse." in said


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"budget": Budget(0, 60)}, "Step budget: 60 steps. Validation errors are measured first at 0.05% of the "),
        ({"budget": Budget(0, 60, 80)}, "Step budget: 60 steps. "),
        ({"budget": Budget(2, 60, 80)}, "Step budget: the larger of 2 epochs and 60 steps, at most 80. "),
        ({"arithmetic": "command"}, "Step budget: 2,000 steps. Errors are known where the script logged them, so S(B)"),
    ],
)
def test_a_budget_says_only_what_counts_and_a_script_logs_when_it_likes(sweep, fields, said):
    [sentence] = grid_sentences(list(load(sweep({8: [40]}, **fields))))
    assert sentence.startswith(said)
    assert ("measured" in sentence) == ("arithmetic" not in fields)


@pytest.mark.parametrize(("first", "ratio", "said"), [
    (0.02, 1.1, "first at 2% of the budget, then every 10% more steps"),
    (0.002, 1.004, "first at 0.2% of the budget, then every 0.4% more steps"),
])  # fmt: skip
def test_a_fine_grid_is_not_told_as_none(sweep, first, ratio, said):
    [sentence] = grid_sentences(list(load(sweep({8: [400] * 4}, evaluation=Evaluation(first, ratio)))))
    assert said in sentence


@pytest.mark.slow
def test_nobody_can_look_before_the_only_step(sweep):
    folder = sweep({8: [1] * 4}, budget=Budget(0, 1))
    assert not [text for text in read([folder]).warnings if "evaluation.first" in text]


@pytest.mark.slow
def test_fewer_than_four_trials_have_no_interval_anywhere(sweep, advise):
    folder = sweep({16: [400] * 2, 64: [100] * 2})
    sgd = {"optimizer": "sgd", "space": {"learning_rate": {"low": 1e-3, "high": 1.0, "scale": "log"}}}
    sweep({16: [600] * 2, 64: [300] * 2}, **sgd)
    data = build([folder], folder)
    limits = data.tables["scaling"].set_index("definition").loc[["perfect_scaling_limit", "maximum_useful_batch_size"]]
    assert limits["value"].notna().all()
    assert limits[["low", "high"]].isna().all(axis=None)
    assert not [text for text in data.sentences if "in every resample)" in text or "needs fewer steps than" in text]
    assert [text for text in data.sentences if "it is not known yet whether momentum or sgd needs fewer steps" in text]
    page = (folder / "report.html").read_text()
    assert "nan to nan" not in page
    assert "(nan" not in page
    said = advise(folder, "16:1,64:2")
    assert "nan" not in said
    assert "Too few trials" in said
    machine = splits.Machine((1,), splits.StepTimes({16: 1e-3, 64: 2e-3}, "entered"))
    found = splits.table(searches_answers(load(folder))[:2], machine)
    assert (found["steps_low"] == 0).all()
    assert np.isinf(found["steps_high"]).all()


def test_advice_says_what_its_steps_do_not_show(sweep, advise):
    """Of searches that learned from their trials, and where the goal was met at the first evaluation."""
    ends = {8: [400] * 8, 64: [40] * 8}
    folder = sweep(ends, sampler="tpe", evaluation=Evaluation())
    said = advise(folder, "8:1,64:1")
    assert "Adaptive searches, at batch sizes 8 and 64, give no confidence interval." in said
    assert "Too few trials" not in said
    assert "batch size is shown to be slower" not in said
    assert "Whether batch size 8 is slower is not known yet: adaptive searches have no interval." in said
    assert "At batch size 64 the goal was met at the first evaluation: the steps are upper bounds." in said


@pytest.mark.slow
def test_nothing_is_said_of_the_limits_of_half_a_curve(sweep):
    """The interval would be that of the curve without the batch size that has too few trials."""
    folder = sweep({8: [1600] * 3, 16: [400] * 8, 32: [200] * 8})
    limits = read([folder]).tables["scaling"].set_index("definition")
    assert limits.loc["perfect_scaling_limit", ["low", "high"]].isna().all()


def test_what_is_left_out_is_told_where_nothing_can_be_advised(sweep, advise):
    folder = sweep({8: [None] * 4, 64: []})
    said = advise(folder, "8:1,64:2", status=2)
    assert "no trial of tiny with momentum reached" in said
    assert "batch size 64: no trial has finished yet" in said


@pytest.mark.slow
def test_the_terminal_folds_the_notes_and_tells_what_was_infeasible(sweep, says):
    folder = sweep({8: [400] * 2, 16: ["bad"] * 2, 32: [None] * 2, 64: []})
    said = says("report", folder)
    assert "16 infeasible 0 2" in said
    assert "32 > 2,000" in said
    [count] = re.findall(r"(\d+) notes in the report; `study report RESULTS --notes` prints them.", said)
    said = says("report", folder, "--notes")
    assert "Note: tiny, momentum, batch size 64: no trial has finished yet" in said
    assert said.count("Note: ") == int(count) > 3
    assert "--notes prints" not in said


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [-1.5, 0.0])
def test_goals_below_zero_are_reported_on_linear_axes(tmp_path, make_study, make_curve, write_study, threshold):
    """Log-likelihoods: errors of -1.95 that meet the goal, others just above it."""
    goal = Goal("val/log_likelihood_error", threshold)
    for size in (8, 64, 512):
        study = make_study(batch_size=size, goal=goal, **FIELDS)
        curves = [make_curve(study, index, reaches) for index, reaches in enumerate((40, 400, None, 900))]
        shifted = [{name: errors + threshold - 0.45 for name, errors in curve.errors.items()} for curve in curves]
        write_study(tmp_path, study, [replace(curve, errors=each) for curve, each in zip(curves, shifted, strict=True)])
    data = build([tmp_path], tmp_path)
    assert set(data.tables["steps_to_result"]["steps_to_result"]) == {40}
    assert f"log likelihood error &lt; {threshold:g}" in (tmp_path / "report.html").read_text()
    [chart] = charts(data.tables, ["error_against_budget"])
    assert {figure.axes[0].get_yscale() for figure in draw(chart)} == {"linear"}


@pytest.mark.parametrize(("least", "threshold", "value"), [(0.4, 0.2, 2), (-1.2, -1.5, 1.2), (0.5, 0.0, 1.5)])
def test_what_a_missed_goal_is_worth_to_a_search_grows_with_the_least_error(
    make_study, make_curve, least, threshold, value
):
    study = make_study(goal=Goal("val/log_likelihood_error", threshold), sampler="tpe", **FIELDS)
    tuner = Tuner(study)
    trial = tuner.ask()
    curve = make_curve(study, trial.index)
    tuner.tell(replace(curve, trial=trial, errors={study.goal.metric: np.full(len(curve.steps), least)}))
    [told] = tuner._history.optuna_study().get_trials()
    assert told.value == pytest.approx(math.log(study.train_steps * value))
