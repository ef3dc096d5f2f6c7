"""A healthy sweep raises no warning; one with a planted defect raises that warning and no other."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from helpers.estimated import estimated
from helpers.fused import partly

from analysis.counting import Goal
from analysis.export import export
from analysis.load import load, load_study
from analysis.report import warnings
from analysis.report.warnings import caution, of_curves, of_searches
from analysis.tables import audits
from analysis.tables.steps_to_result import answerable
from study.exchange.importing import import_released
from study.settings import Budget, Evaluation
from study.store import write_round

RANGE = {"low": 1e-3, "high": 1.0, "scale": "log"}
SPACES = {
    "momentum": {"learning_rate": RANGE, "momentum": {"low": 0.0, "high": 0.999, "scale": "reverse_log"}},
    "sgd": {"learning_rate": RANGE},
}
HEALTHY = {8: 1000, 16: 500, 32: 250, 64: 250}
SLOWER = {size: round(1.5 * steps) for size, steps in HEALTHY.items()}
SPREAD = (1.0, 1.03, 1.06, 1.1, 1.2, 1.5, 2.5, None)
"""Of the trials of a healthy search, in units of the fewest steps."""


def ends(fewest, spread=SPREAD):
    return [None if factor is None or factor * fewest > 2000 else round(factor * fewest) for factor in spread]


@pytest.fixture
def warned(tmp_path, make_study, make_curve, write_study):
    """The warnings about sweeps that were written so far and one more, of which some batch sizes are not as usual.

    Arguments:
        fewest: batch size -> S(B).
        odd: batch size -> what is different there: `ends` (of its trials), `learning_rate`, `written` (how many
            trials), `shape` (a change of each curve) and fields of the study.
    """

    def write(fewest=HEALTHY, odd=None, optimizer="momentum", goals=(), **fields):
        for size, steps in fewest.items():
            changes = dict((odd or {}).get(size, {}))
            ended = changes.pop("ends", ends(steps))
            rate, written = changes.pop("learning_rate", 0.03), changes.pop("written", len(ended))
            shape = changes.pop("shape", lambda study, index, curve: curve)
            usual = {"examples": 4096, "budget": Budget(0, 2000), "stopping": "budget", "trials": len(SPREAD)}
            space = {"space": SPACES[optimizer], "optimizer": optimizer, "batch_size": size}
            study = make_study(**usual | space | fields | changes)
            curves = []
            for index, end in enumerate(ended[:written]):
                curve = make_curve(study, index, **({"bad": 7} if end == "bad" else {"reaches": end}))
                tuned = {"learning_rate": rate, "momentum": 0.9} if optimizer == "momentum" else {"learning_rate": rate}
                curves.append(shape(study, index, replace(curve, trial=replace(curve.trial, hyperparameters=tuned))))
            write_study(tmp_path, study, curves)
        studies, asked = list(load(tmp_path)), goals or (None,)
        return warnings.sentences(list(answerable(studies, asked)), *estimated(studies, asked))

    return write


def to_and_fro(study, index, curve):
    """Once met, the goal is missed at every other evaluation, or more often."""
    errors = curve.errors[study.goal.metric].copy()
    crossing = int(np.argmax(errors < 0.1))
    errors[crossing + 1 :: 2] = 0.12
    return replace(curve, errors=curve.errors | {study.goal.metric: errors})


def wandering(study, index, curve):
    """Errors that went up and down, and no further down, when one of them happened to meet the goal."""
    errors = np.where(np.arange(len(curve.steps)) % 2, 0.13, 0.11)
    errors[curve.errors[study.goal.metric] < 0.1] = 0.098
    return replace(curve, errors=curve.errors | {study.goal.metric: errors})


def falling(study, index, curve):
    """As errors should fall that crossed the goal for good: with little noise, and hardly below it at first."""
    noise = 0.01 * np.random.default_rng(index).standard_normal(len(curve.steps))
    errors = curve.errors[study.goal.metric]
    crossing = curve.steps[np.argmax(errors < 0.1)] if (errors < 0.1).any() else 5000
    found = 0.1 * (curve.steps / crossing) ** -0.7 * (1 + noise)
    found = np.where(curve.steps < crossing, np.maximum(found, 0.1), np.minimum(found, 0.0999))
    return replace(curve, errors=curve.errors | {study.goal.metric: found})


@pytest.mark.slow
def test_a_healthy_sweep_raises_none(warned):
    assert warned() == []
    assert warned(optimizer="sgd") == []


@pytest.mark.parametrize("stopping", ["budget", "goal", "race"])
def test_nor_does_one_whose_curves_fall_slowly(warned, stopping):
    assert warned(stopping=stopping, odd={size: {"shape": falling} for size in HEALTHY}) == []


FEW = [None, 1010, 1000, 1020, None, None, None, None]
PLANTED = {
    "edge": ({16: {"learning_rate": 0.9}}, {}, "batch size 16: the best trials have learning_rate 0.9, at the edge"),
    "unfinished": ({8: {"written": 6}}, {}, "batch size 8: only 6 of 8 feasible trials have finished; sweep again"),
    "few feasible": ({8: {"ends": [*ends(1000)[:7], "bad", "bad"], "max_launches": 9}}, {},
        "batch size 8: only 7 of 8 trials were feasible after 9 launches; raise search.max_launches"),
    "few near": ({8: {"ends": FEW}}, {}, "batch size 8: only 3 of 8 trials reached the goal within 2 times the fewest"),
    "noise after": ({16: {"shape": to_and_fro}}, {},
        "batch size 16: the validation error is noisy at the goal: after the goal was first met, "),
    "noise before": ({16: {"shape": wandering}}, {"stopping": "goal"},
        "batch size 16: the validation error is noisy at the goal: over the last 10 evaluations its net descent is "),
    "never": ({64: {"ends": [None] * 8}}, {},
        "batch size 64: no trial reached the goal within 2,000 steps; the least error was 0.9"),
    "at once": ({}, {"fewest": dict.fromkeys(HEALTHY, 1), "evaluation": Evaluation(first=1 / 2000)},
        "batch sizes 8, 16, 32 and 64: the goal was met after a single step, the fewest there can be; choose a stric"),
    "first": ({}, {"evaluation": Evaluation(first=0.3)},
        "batch sizes 16, 32 and 64: the goal was met at the first evaluation, perhaps earlier; lower evaluation.first"),
    "coarse": ({}, {"evaluation": Evaluation(ratio=3)},
        "batch sizes 8, 16, 32 and 64: the goal was met at step 1,000, 500, 250 and 250, and the evaluation before it "
        "was at step 360, 360, 120 and 120; lower evaluation.ratio"),
    "doubling": ({8: {"ends": ends(800, (1, 1.6, 1.65, 1.7, 1.75, 1.8, 1.85, None))}}, {},
        "batch size 8: each doubling of the number of trials, up to 8, divided the steps by 1.28; raise search.trials"),
    "late": ({8: {"ends": ends(1700, (1, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06, None))}},
        {"fewest": {8: 1700, 16: 850, 32: 425, 64: 425}}, "batch size 8: the goal was met after 80 % of the budget"),
    "base": ({}, {"fewest": HEALTHY | {8: 1500, 128: 250}}, "momentum: batch size 8, the base of perfect scaling, to"),
    "end": ({}, {"fewest": HEALTHY | {64: 125}}, "momentum: steps still fall at the largest batch size, 64, so scali"),
}  # fmt: skip


@pytest.mark.parametrize("name", partly(PLANTED, 4))
def test_a_planted_defect_raises_its_warning_and_no_other(warned, name):
    odd, fields, expected = PLANTED[name]
    [said] = warned(odd=odd, **fields)
    assert expected in said
    assert said.startswith("tiny, momentum")


@pytest.mark.parametrize(
    ("wider", "said"),
    [
        ({}, "learning_rate 0.9, at the edge of the search space (1); search again in a wider space: widen search.spa"),
        ({"learning_rate": RANGE | {"high": 31.6, "hard": []}}, None),
        (
            {"learning_rate": RANGE | {"high": 1.1, "hard": []}},
            "learning_rate 0.9, at the edge of the search space (1.1), which the rounds extended from 1; search again",
        ),
    ],
)
def test_the_edge_of_refine_is_where_its_rounds_ended(warned, tmp_path, wider, said):
    rounds = {"sampler": "refine", "scouts": 4, "refine": (2,), "candidates": 1, "screens": 2}
    warned({16: 500}, {16: {"learning_rate": 0.9}}, **rounds)
    [study] = load(tmp_path)
    write_round(study.folder, 1, {"points": []})
    write_round(study.folder, 2, {"points": [], "wider": wider})
    [study] = load(tmp_path)
    found = warnings.sentences(list(answerable([study])), *estimated([study], (None,)))
    edges = [each for each in found if "at the edge" in each]
    assert len(edges) == (said is not None)
    assert all(said in each for each in edges)


NOT_ANY_MORE = ("search.", "evaluation.f", "evaluation.r", "workload.", "sweep", "budget or", "larger b", "tune the")


@pytest.mark.slow
@pytest.mark.parametrize("name", partly(PLANTED, 6, 1))
def test_who_reads_published_measurements_is_not_told_to_measure(warned, name, tmp_path):
    odd, fields, expected = PLANTED[name]
    warned(odd=odd, **fields)
    export(tmp_path, tmp_path / "released", "batch_science")
    import_released(tmp_path / "released", tmp_path / "back")
    studies = list(load(tmp_path / "back"))
    [said] = warnings.sentences(list(answerable(studies)), *estimated(studies))
    if name not in ("unfinished", "few feasible"):  # which read otherwise there
        assert expected.split(";")[0] in said
    assert not any(words in said for words in NOT_ANY_MORE)
    assert said.endswith(".")


@pytest.mark.slow
def test_a_general_optimizer_that_is_slower_than_its_special_case(warned):
    warned(optimizer="sgd")
    [said] = warned(SLOWER)
    expected = "tiny, momentum, batch sizes 8, 16, 32 and 64: needed 1.5 times the steps of sgd, which the search sp"
    assert said.startswith(expected)


@pytest.mark.slow
def test_it_is_not_judged_where_its_space_leaves_the_special_case_out(warned):
    warned(optimizer="sgd")
    narrow = SPACES["momentum"] | {"momentum": {"low": 0.5, "high": 0.999, "scale": "reverse_log"}}
    assert warned(SLOWER, space=narrow) == []


TPE = (
    "tiny, sgd, batch sizes 8, 16, 32 and 64: tpe learns from earlier trials, so there is no S_n and no interval; "
    "add search.reruns=4, or use search=refine."
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "differing", "more"),
    [
        ({"budget": Budget(0, 1999), "evaluation": Evaluation(ratio=1.09)}, "budget and evaluation", []),
        ({"sampler": "tpe"}, "search.sampler", [TPE]),
        ({"budgets": (0.5, 1.0)}, "search.budgets", []),
    ],
)
def test_optimizers_that_were_not_given_the_same_are_no_fair_comparison(warned, fields, differing, more):
    warned()
    line = f"tiny, momentum: compared with sgd, which had a different {differing}; "
    said = warned(optimizer="sgd", **fields)
    assert set(said) == {f"{line}sweep all with the same settings.", *more}


def test_optimizers_on_other_data_are_no_fair_comparison(tmp_path, make_study, write_study):
    for name, examples in (("momentum", 4096), ("sgd", 300)):
        study = make_study(SPACES[name], optimizer=name)
        write_study(tmp_path, replace(study, workload=study.workload | {"train_examples": examples}), [])
    assert audits.differing(*load(tmp_path), of_curves.EQUAL) == {"workload"}


def test_more_scouts_for_more_parameters_are_fair(tmp_path, make_study, write_study):
    rounds = {"sampler": "refine", "refine": (2,), "candidates": 1, "screens": 1}
    for name, scouts in (("momentum", 6), ("sgd", 4)):
        write_study(tmp_path, make_study(SPACES[name], optimizer=name, scouts=scouts, trials=scouts + 3, **rounds), [])
    studies = list(load(tmp_path))
    assert audits.differing(*studies, of_curves.EQUAL) == set()
    studies[0].question["search"]["refine"] = [4]
    assert audits.differing(*studies, of_curves.EQUAL) == {"search.refine"}


@pytest.mark.slow
def test_a_general_optimizer_is_judged_whatever_budgets_the_two_answer_under(warned, tmp_path):
    warned(optimizer="sgd", budgets=(0.5, 1.0))
    said = warned(SLOWER, budgets=(0.5, 1.0))
    assert "1.5 times the steps of sgd" in said[0]
    studies = {study.optimizer: study for study in load(tmp_path) if study.batch_size == 64}
    general, special = studies["momentum"], studies["sgd"]
    special.question["train_steps"] = 1000  # as where it answers under half the budget
    assert audits.contains(general, special)
    special.question["search"]["budgets"] = [1.0]
    assert not audits.contains(general, special)


def test_a_general_optimizer_that_misses_what_its_special_case_meets(warned):
    warned(optimizer="sgd")
    said = warned(dict.fromkeys(HEALTHY, 5000))
    met = "missed the goal that sgd, which the search space contains, met, so tuning fell short"
    assert any(met in line for line in said)
    assert not any("inf" in line for line in said)


@pytest.mark.parametrize(("missed", "said"), [(None, True), (8, False), (64, True)])
def test_a_base_that_fresh_seeds_missed_takes_no_number_of_examples(missed, said):
    steps = pd.DataFrame({"batch_size": [8, 16, 32, 64], "tuned_steps": [900.0, 250.0, 125.0, 70.0]})
    steps["tuned_steps"] = steps["tuned_steps"].mask(steps["batch_size"] == missed)
    goal = {"goal_metric": "val/classification_error", "goal_threshold": 0.05}
    curve = steps.assign(workload="tiny", optimizer="sgd", reached=True, read_from="fresh seeds", **goal)
    curve = curve.assign(steps_to_result=100, steps_to_result_bound="=", tuned_bound="=")
    found = [caution.text for caution in of_curves._bases(curve, 8)]
    assert [text.startswith("batch size 8, the base of perfect scaling, took") for text in found] == [True] * said


def test_more_trials_at_some_batch_sizes_are_told(warned):
    more = {8: {"trials": 16, "ends": [*ends(1000), *ends(1010)]}}
    [line] = warned(odd=more)
    had = "tiny, momentum: batch sizes had 8 to 16 trials, and more trials find fewer steps; "
    assert line == f"{had}sweep all with the same number."


@pytest.mark.parametrize("refines", [False, True])
def test_more_trials_of_refine_are_not_told(refines):
    """Its S(B) comes from fresh seeds, and a search that missed the goal ends early."""
    same = {"refines": refines, "curve": ("tiny", "sgd")}
    studies = [SimpleNamespace(**same, question={"search": {"trials": trials}}) for trials in (8, 16)]
    found = [*of_curves._uneven([(study, Goal("val/classification_error", 0.1)) for study in studies])]
    assert len(found) == (not refines)


def test_a_larger_budget_is_no_cure_where_it_was_searched_too(warned):
    odd, fields, _ = PLANTED["late"]
    assert warned(odd=odd, **fields, budgets=(1.0, 2.0)) == []


@pytest.mark.parametrize(
    ("asked", "cure"),
    [
        ({"extend": True}, "sweep again to continue, or widen {}."),
        ({"extend": True, "extend_limit": 0}, "raise search.extend_limit or widen {} (after 0 extensions)."),
        ({"extend": True, "extend_limit": 0, "goals": [Goal("val/classification_error", 0.2)]}, "(1); widen {}."),
    ],
)
def test_what_widens_a_box_depends_on_the_goal_and_the_stage(warned, asked, cure):
    [line] = warned(odd={16: {"learning_rate": 0.9}}, **asked)
    assert line.endswith(cure.format("search.space.learning_rate.high"))


def test_nothing_is_larger_than_the_training_set(warned):
    assert warned(HEALTHY | {64: 125}, examples=64) == []


def test_batch_sizes_that_raise_the_same_share_a_line(warned):
    odd = {8: {"ends": FEW}, 16: {"ends": [*ends(500)[:4], *[None] * 4]}, 64: {"ends": [None] * 8}}
    few, never = warned(odd=odd)
    assert few.startswith("tiny, momentum, batch sizes 8 and 16: only 3 and 4 of 8 trials reached the goal within 2")
    assert never.startswith("tiny, momentum, batch size 64: no trial")


def test_so_do_those_that_differ_in_more_than_numbers(warned):
    odd = {16: {"learning_rate": 0.9}, 32: {"learning_rate": 0.0011}}
    [said] = warned(odd=odd)
    high, low = said.split(" Batch size 32: ")
    assert high.endswith("widen search.space.learning_rate.high.")
    assert low.endswith("widen search.space.learning_rate.low.")


@pytest.mark.slow
def test_optimizers_with_the_same_warning_share_a_line(warned):
    falls = {size: {"ends": [round(8000 / size)] * 8} for size in (8, 16, 32, 64)}
    warned(odd=falls, optimizer="sgd")
    said = [line for line in warned(odd=falls) if "steps still fall" in line]
    assert [line.partition(":")[0] for line in said] == ["tiny, momentum and sgd"]


def test_several_goals_are_told_apart(warned):
    goals = [Goal("val/classification_error", threshold) for threshold in (0.04, 0.2)]
    [said] = warned(goals=goals)
    assert said.startswith("tiny, momentum to validation error < 0.04, batch sizes 8, 16, 32 and 64: no trial")


def test_the_heaviest_come_first(warned):
    said = warned(odd={8: {"written": 6}, 64: {"ends": [None] * 8}, 32: {"learning_rate": 0.9}})
    starts = [": the best trials", ": only 6 of", ": no trial reached"]
    assert [start in text for start, text in zip(starts, said, strict=True)] == [True] * 3
    assert len(set(caution.KINDS)) == len(caution.KINDS)


@pytest.mark.parametrize(("trials", "most"), [(20, 0.1), (100, 0.04)])
def test_how_often_chance_looks_like_too_few_trials(trials, most):
    """In a search whose steps are lognormal with a spread of 20 %, or that has an optimum well inside of its box."""
    generator = np.random.default_rng(0)
    log_steps = 0.2 * generator.standard_normal((300, trials)), generator.exponential(0.5, (300, trials))
    for steps in np.exp(log_steps):
        alarms = [audits.gain_of_doubling(row) > of_searches.GAIN for row in steps]
        assert np.mean(alarms) <= most


@pytest.mark.parametrize(("metric", "recommended"), [("classification_error", True), ("cross_entropy_error", False)])
@pytest.mark.parametrize("settable", [True, False])
def test_a_noisy_goal_is_cured_by_another_metric_and_by_settings_of_the_workload(
    metric, recommended, settable, monkeypatch
):
    monkeypatch.setattr(audits, "noise", lambda study, goal: audits.Noise(missed_again=0.9, descent=0.1))
    study = load_study(Path(__file__).parents[3] / "results/published/mlp_digits/studies/mlp_digits/sgd/64")
    if not settable:
        del study.question["workload"]["validation_examples"]
    (caution,) = of_searches._noise(study, Goal(f"val/{metric}", 0.2), {"reached": True})
    assert ("such as a cross entropy" in caution.cure) == recommended
    assert ("workload.validation_examples" in caution.cure) == settable
