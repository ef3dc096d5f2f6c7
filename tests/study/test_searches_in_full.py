"""Stages in wider boxes, multiples of the budget, repetitions and reruns: which comes next, and which is the answer."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from helpers.fused import partly
from helpers.processes import written

from analysis.counting import Branch
from analysis.load import load
from analysis.report import build
from analysis.tables import answers as analysis_searches
from analysis.tables import audits, steps_to_result
from study import store
from study.search import stages
from study.search.points import point
from study.search.tuner import Tuner

SPACE = {"learning_rate": {"low": 1e-3, "high": 1.0, "scale": "log"}, "momentum": 0.9}


@pytest.fixture
def swept(tmp_path, make_study, make_curve):
    """Train a study's searches, each trial by its formula (study, hyperparameters) -> steps to the goal or None.

    `missed`: hyperparameters -> the error of those that do not reach it. Returns the searches in the order in which
    they were made.
    """

    def make(formula, times=99, missed=None, **fields):
        study = make_study(**{"space": SPACE, "trials": 40} | fields)
        made = []

        def on_file(search):
            return store.load(store.study_folder(tmp_path, search))

        for _ in range(times):
            search = stages.next_search(study, on_file)
            if search is None:
                break
            made.append(search)
            tuner = Tuner(search, on_file(search))
            run = store.open_study(tmp_path, search, {"device": "cpu"})
            folder = store.study_folder(tmp_path, search)
            while (trial := tuner.ask()) is not None:
                steps = formula(search, trial.hyperparameters)
                curve = make_curve(search, trial.index, reaches=None if steps is None else max(1, round(steps)))
                curve = replace(curve, trial=trial)
                if steps is None and missed is not None:
                    curve.errors["val/classification_error"][:] = missed(trial.hyperparameters)
                store.save(folder, curve)
                tuner.tell(curve)
            store.end_run(run, {"ended": "now"})
            store.gather(folder)
        return made

    return make


@pytest.fixture
def studies(tmp_path):
    """What `swept` left on file so far."""
    return lambda: list(load(tmp_path))


def best_at(learning_rate):
    """Steps to the goal rise with the distance from the best learning rate, in decades."""
    return lambda study, h: min(100, 10 + 20 * abs(math.log10(h["learning_rate"] / learning_rate)))


def test_one_search_is_all_by_default(swept):
    [only] = swept(best_at(100))
    assert only.branch == Branch()


def test_a_box_is_widened_until_the_optimum_lies_inside(swept, studies):
    made = swept(best_at(30), extend=True)
    assert [search.branch.widened for search in made] == [("learning_rate.high",) * stage for stage in range(3)]
    boxes = [search.search.space["learning_rate"] for search in made]
    assert [(box.low, box.high) for box in boxes] == [(1e-3, 1.0), (1e-3, 31.6), (1e-3, 5620.0)]
    [row] = steps_to_result.table(analysis_searches.answers(studies())).to_dict("records")
    assert row["stage"] == 2
    table = analysis_searches.table(studies())
    assert list(table["stage"]) == [0, 1, 2]
    assert list(table["answer"]) == [False, False, True]
    assert list(table["searched_learning_rate"]) == ["0.001 to 1, log", "0.001 to 31.6, log", "0.001 to 5620, log"]
    assert (table["complete"] == 40).all()


@pytest.mark.parametrize(("limit", "widened"), [(1, ("learning_rate_decay_fraction.low",)), (0, ())])
def test_a_parameter_that_only_some_schedules_take_is_widened_for_these(swept, studies, limit, widened):
    """The best trials decay over few steps; most of the other trials have no such parameter."""
    space = {
        "learning_rate": {"low": 1e-3, "high": 1.0, "scale": "log"},
        "momentum": 0.9,
        "schedule": ["constant", "exponential", "linear_decay"],
        "learning_rate_decay_fraction": {"low": 0.5, "high": 1.0, "hard": ["high"]},
        "end_learning_rate_factor": 0.1,
    }

    def steps(study, h):
        return 90 if h["schedule"] != "linear_decay" else 20 * h["learning_rate_decay_fraction"] ** 2

    made = swept(steps, space=space, schedule="tuned", extend=True, extend_limit=limit)
    assert made[-1].branch.widened == widened
    [answer] = analysis_searches.answers(studies())
    assert answer.branch == made[-1].branch
    [edge] = audits.edges(studies()[0])
    assert (edge.parameter, edge.side, edge.limit) == ("learning_rate_decay_fraction", "low", 0.5)


def test_stages_beyond_a_limit_that_was_raised_count(swept, studies):
    """Those that were made before hold the limit of then."""
    swept(best_at(1e4), extend=True, extend_limit=1)
    swept(best_at(1e4), extend=True, extend_limit=2)
    [answer] = analysis_searches.answers(studies())
    assert answer.branch.stage == 2


def test_a_search_that_missed_the_goal_is_widened_towards_its_least_errors(swept):
    def error(h):
        return 0.5 - 0.1 * math.log10(h["learning_rate"])

    made = swept(lambda study, h: None, missed=error, extend=True, extend_limit=1)
    assert [search.branch.widened for search in made] == [(), ("learning_rate.high",)]


def test_stages_have_points_and_seeds_of_their_own(swept):
    first, second = swept(best_at(30), times=2, extend=True)
    assert point(first, 0) != point(second, 0)
    assert first.trial(0, {}).seed != second.trial(0, {}).seed


@pytest.mark.slow
def test_budgets_share_points_and_seeds_and_the_least_steps_count(swept, studies):
    # With a tenth of the budget only the half manages to be fast, as a decaying schedule makes it.
    made = swept(lambda study, h: 60 * study.branch.budget, budgets=(0.5, 1.0, 2.0))
    assert [(search.branch.budget, search.train_steps) for search in made] == [(0.5, 50), (1.0, 100), (2.0, 200)]
    assert point(made[0], 3) == point(made[2], 3)
    assert made[0].trial(3, {}) == made[2].trial(3, {})
    [row] = steps_to_result.table(analysis_searches.answers(studies())).to_dict("records")
    assert (row["steps_to_result"], row["budget_multiple"], row["train_steps"]) == (30, 0.5, 50)


def test_a_budget_that_is_given_twice_is_one(make_study):
    study = make_study(**{"space": SPACE, "trials": 40, "budgets": (1.0, 1.0, 2.0)})
    assert [search.branch.budget for search in stages.planned(study)] == [1.0, 2.0]


@pytest.mark.slow
def test_ties_between_budgets_go_to_the_smaller(swept, studies):
    swept(lambda study, h: 40, budgets=(1.0, 2.0))
    [answer] = analysis_searches.answers(studies())
    assert answer.branch.budget == 1


@pytest.mark.slow
def test_repeats_have_other_seeds_and_never_give_the_answer(swept, studies):
    made = swept(lambda study, h: 40 - study.branch.repeat, repeats=2)
    assert [search.branch.repeat for search in made] == [0, 1, 2]
    assert len({tuple(point(search, 0)) for search in made}) == 3
    assert len({search.trial(0, {}).seed for search in made}) == 3
    [answer] = analysis_searches.answers(studies())
    assert answer.branch == Branch()
    assert list(analysis_searches.table(studies())["steps_to_result"]) == [40, 39, 38]
    [row] = analysis_searches.repeats(studies()).to_dict("records")
    assert (row["searches"], row["reached"], row["least"], row["median"], row["greatest"]) == (3, 3, 38, 39, 40)


@pytest.mark.slow
def test_repeats_answer_as_the_first_search_does_by_the_best_of_their_budgets(swept, studies):
    swept(lambda study, h: (40 - study.branch.repeat) * study.branch.budget, repeats=2, budgets=(0.5, 1.0))
    [row] = analysis_searches.repeats(studies()).to_dict("records")
    assert (row["searches"], row["least"], row["median"], row["greatest"]) == (3, 19, 20, 20)


@pytest.mark.slow
def test_budgets_that_were_not_searched_yet_are_told_and_their_repeats_do_not_count(swept, tmp_path, studies):
    """Searches are made budget by budget, the first one's before its repeat's."""
    swept(lambda study, h: 40 * study.branch.budget, times=2, repeats=1, budgets=(0.5, 1.0, 2.0))
    [(study, missing)] = analysis_searches.unsearched_budgets(studies())
    assert (study.branch.budget, missing) == (0.5, [2.0])
    [line] = build.read([tmp_path]).warnings[:1]
    assert "the search with 2 times the step budget is not complete; sweep again to continue." in line
    swept(lambda study, h: 40 * study.branch.budget, times=1, repeats=1, budgets=(0.5, 1.0, 2.0))
    assert analysis_searches.unsearched_budgets(studies()) == []
    swept(lambda study, h: 40 * study.branch.budget, times=1, repeats=1, budgets=(0.5, 1.0, 2.0))
    assert analysis_searches.repeats(studies()).empty
    swept(lambda study, h: 40 * study.branch.budget, repeats=1, budgets=(0.5, 1.0, 2.0))
    assert list(analysis_searches.repeats(studies())["searches"]) == [2]


@pytest.mark.slow
def test_the_tuned_configuration_is_rerun_with_fresh_seeds(swept, tmp_path, studies):
    def steps(study, h):
        return None if study.branch.rerun is not None else best_at(0.03)(study, h)

    made = swept(steps, reruns=5, stopping="race")
    search, again = made
    tuned = min(store.load(store.study_folder(tmp_path, search)), key=lambda curve: len(curve.steps)).trial
    curves = store.load(store.study_folder(tmp_path, again))
    assert again.stopping == "goal"
    assert again.branch.rerun == tuned.index
    assert [curve.trial.hyperparameters for curve in curves] == [tuned.hyperparameters] * 5
    assert len({*(curve.trial.seed for curve in curves), tuned.seed}) == 6
    [row] = analysis_searches.reruns(analysis_searches.rerun_steps(studies())).to_dict("records")
    assert (row["trial"], row["reruns"], row["reached"], row["median"]) == (tuned.index, 5, 0, math.inf)


def test_nothing_is_rerun_where_the_goal_was_missed(swept):
    assert len(swept(lambda study, h: None, reruns=3)) == 1


@pytest.mark.parametrize(
    "curves",
    [[{"reaches": 20, "bad": 40}] * 3, [{"reaches": 20, "bad": 40}, {}, {}]],
    ids=["all diverged", "the others missed it"],
)
def test_nothing_is_rerun_where_only_trials_that_diverged_later_met_the_goal(make_study, make_curve, curves):
    """With full budgets a trial goes on beyond its goal, and one that diverges there is not feasible."""
    study = make_study(stopping="budget", trials=2, max_launches=3, reruns=2)
    made = [make_curve(study, index, **curve) for index, curve in enumerate(curves)]
    assert next(stages.stages(study, lambda _: made)).complete
    assert stages.next_search(study, lambda search: made if search == study else []) is None


@pytest.mark.slow
def test_asking_for_more_goes_on_and_equals_asking_at_once(swept, tmp_path, make_study):
    swept(best_at(30))
    swept(best_at(30), extend=True, repeats=1)
    more = swept(best_at(30), extend=True, repeats=1, reruns=2, trials=50)
    assert more[0].branch == Branch()  # the first search is taken to fifty trials before anything follows from it
    held = json.loads((tmp_path / "studies/tiny/momentum/8/study.json").read_text())["question"]["search"]
    assert (held["trials"], held["extend"], held["repeats"], held["reruns"]) == (50, True, 1, 2)


@pytest.mark.slow
def test_asking_for_less_takes_nothing_back(swept, tmp_path):
    swept(best_at(0.03), reruns=3, repeats=1, budgets=(1.0, 2.0))
    assert swept(best_at(0.03), trials=4) == []
    before = json.loads((tmp_path / "studies/tiny/momentum/8/study.json").read_text())
    assert before["question"]["search"]["repeats"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", partly(range(2), 2))
def test_what_comes_next_and_what_is_the_answer_agree(swept, studies, seed):
    """Measuring and analysis walk the same stages, each from its own reading of the files."""
    optimum = 10 ** np.random.default_rng(seed).uniform(-5, 3)
    made = swept(best_at(optimum), extend=True, budgets=(1.0, 2.0))
    [answer] = analysis_searches.answers(studies())
    assert tuple(answer.branch.widened) in {search.branch.widened for search in made}
    last = [search for search in made if search.branch.budget == answer.branch.budget][-1]
    assert answer.branch.widened == last.branch.widened


NARROW = ["search.space.learning_rate={low: 0.001, high: 0.02, scale: log}", "search.space.momentum=0"]
SMALL = [
    "sweep",
    "batch_size=64",
    "search.trials=40",
    "search.reruns=0",
    "budget.epochs=10",
    "search.extend=true",
    *NARROW,
]


@pytest.mark.slow
def test_a_sweep_with_everything(tmp_path, says):
    small = [*SMALL, "search.trials=20", "search.reruns=3"]
    command = [*small, "search.budgets=[1,2]", "search.repeats=1", f"results={tmp_path}"]
    assert "Not included: wider search spaces and fresh seeds" in says(*command)
    table = pd.read_csv(tmp_path / "tables/searches.csv")
    assert (set(table["repeat"]), set(table["budget_multiple"])) == ({0, 1}, {1, 2})
    assert table["stage"].max() >= 1
    assert table["answer"].sum() == 1
    assert list(pd.read_csv(tmp_path / "tables/reruns.csv")["reruns"]) == [3]
    page = (tmp_path / "report.html").read_text()
    titles = ("Search spaces", "All searches", "Tuned configurations with fresh seeds")
    assert all(title in page for title in titles)
    before = written(tmp_path)
    says(*command)
    assert written(tmp_path) == before
    out = says("status", tmp_path)
    assert "stage 1" in out
    assert "Done." in out
