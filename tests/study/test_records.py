"""Invariants of the records, and the question as it is written down."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from analysis.counting import Goal
from analysis.question.batch_schedules import BatchSchedule
from study.records import Curve, Study
from study.search.stages import trained_again
from study.settings import Budget, Evaluation, Search, Seeds
from study.space import parse_space


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"optimizer": "momentun"}, ["unknown optimizer 'momentun'", "did you mean 'momentum'"]),
        ({"schedule": "cosin"}, ["unknown schedule 'cosin'", "did you mean 'cosine'"]),
        ({"name": "../up"}, ["workload.name", "'../up'"]),
        ({"name": ".hidden"}, ["workload.name", "'.hidden'"]),
        ({"name": " "}, ["workload.name", "' '"]),
        ({"name": float("inf")}, ["workload.name", "got inf; quote it", "workload.name='inf'"]),
        ({"name": 12}, ["got 12; quote it"]),
        ({"examples": 0}, ["workload.train_examples must be", "at least 1", "got 0"]),
        ({"goal": Goal("train/classification_error", 0.1)}, ["val/", "train/classification_error", "stopping=budget"]),
        ({"optimizer": "adam"}, ["adam", "search.space.beta1", "missing"]),
        ({"schedule": "linear_decay"}, ["linear_decay", "search.space.learning_rate_decay_fraction", "missing"]),
        ({"space": {"momentum": 0.9}}, ["search.space.learning_rate", "missing"]),
    ],
)
def test_a_study_refuses(make_study, fields, words):
    with pytest.raises(ValueError) as refusal:
        make_study(**fields)
    assert [word for word in words if word not in str(refusal.value)] == []


def test_a_curve_refuses_steps_that_do_not_increase_and_errors_of_another_length(make_study):
    trial = make_study().trial(7, {})
    with pytest.raises(ValueError, match="increase, but trial 7"):
        Curve(trial, None, np.array([1, 3, 3]), {}, {})
    with pytest.raises(ValueError, match="trial 7 has 2 steps but 1 of val/loss"):
        Curve(trial, None, np.array([1, 3]), {"val/loss": np.array([0.5])}, {})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stopping": "budget", "goal": Goal("test/loss", 2.5), "seeds": Seeds(1, 2, 3)},
        {"budget": Budget(1.5, 10, 1000), "evaluation": Evaluation(0.1, 1.5, 2), "max_launches": 9},
        {"optimizer": "sgd", "space": {"learning_rate": [0.1, 0.01]}, "sampler": "random"},
        {"optimizer": "sgd", "space": {"learning_rate": 0.1}},
        {"space": {"learning_rate": 1, "momentum": 0, "warmup_examples": {"low": 0, "high": 60, "integer": True}}},
    ],
)
def test_a_study_survives_its_question(make_study, fields):
    study = make_study(**fields)
    question = json.loads(json.dumps(study.question()))
    assert Study.from_question(question) == study
    assert Study.from_question(question).question() == question
    assert question["train_steps"] == study.train_steps


def test_every_field_is_part_of_the_question(make_study):
    """A field that the question forgot could change a result unseen."""
    changes = {
        "optimizer": "nesterov",
        "batch_size": 16,
        "goal": Goal("val/classification_error", 0.2),
        "stopping": "budget",
        "budget": Budget(0, 200),
        "evaluation": Evaluation(first=0.1),
        "seeds": Seeds(data_order=1),
        "numerics_version": 99,
        "name": "other",
        "examples": 63,
        "sampler": "random",
        "trials": 5,
        "max_launches": 50,
        "space": {"learning_rate": 0.1, "momentum": 0.9},
        "no_decay": ["bias"],
        "tokens_per_example": 64,
        "batch_schedule": BatchSchedule("listed", switches=(9,), sizes=(16,)),
    }
    plain = make_study().question()
    fields = {field.name for field in dataclasses.fields(Study)}
    assert {*plain, "no_decay", "tokens_per_example", "batch_schedule"} == fields | {"train_steps"}
    for field, value in changes.items():
        assert make_study(**{field: value}).question() != plain, field


def test_a_bad_question_is_refused_on_reading(make_study):
    question = make_study().question()
    with pytest.raises(ValueError, match="batch_size"):
        Study.from_question(question | {"batch_size": 0})


@pytest.mark.parametrize(
    ("budget", "examples", "batch_size", "steps"),
    [
        (Budget(10, 1), 60, 6, 100),
        (Budget(10, 1), 60, 13, 47),  # rounded up: never fewer epochs than asked for
        (Budget(10, 200), 60, 6, 200),
        (Budget(0, 5), 60, 1, 5),
        (Budget(10, 1, 50), 60, 6, 50),
        (Budget(10, 1, 500), 60, 6, 100),
        (Budget(0.5, 1), 60, 60, 1),
    ],
)
def test_budget(budget, examples, batch_size, steps):
    assert budget.train_steps(examples, batch_size) == steps


@given(st.integers(1, 10**6), st.floats(1e-4, 1), st.floats(1.01, 3))
@example(1, 0.02, 1.1)
@example(2, 0.02, 1.1)
@example(7, 0.02, 1.1)
def test_the_evaluation_grid_increases_and_ends_at_the_budget(train_steps, first, ratio):
    grid = Evaluation(first, ratio).grid(train_steps)
    assert grid[-1] == train_steps
    assert grid[0] >= 1
    assert all(a < b for a, b in itertools.pairwise(grid))
    # Whole steps allow half a step more at either end, or one step where the ratio asks for less.
    assert all(b <= max(a + 1, (a + 0.5) * ratio + 0.5) for a, b in itertools.pairwise(grid))


@given(st.integers(1000, 10**7))
def test_the_default_grid_is_the_same_for_every_budget(train_steps):
    grid = Evaluation().grid(train_steps)
    assert abs(grid[0] - 0.02 * train_steps) <= 0.5
    ratios = np.array(grid[1:]) / np.array(grid[:-1])
    assert (ratios <= 1.1 + 2 / np.array(grid[:-1])).all()
    assert (ratios[:-1] >= 1.1 - 2 / np.array(grid[:-2])).all()


def test_equal_questions_share_one_grid(make_study):
    """It is read at every evaluation, and takes longer than everything else that the parent does then."""
    study, other = (make_study(budget=Budget(0, 1000)) for _ in range(2))
    assert study.evaluation_steps is other.evaluation_steps
    assert study.evaluation_steps == tuple(study.evaluation.grid(1000))
    longer = dataclasses.replace(study, budget=Budget(0, 2000))
    assert longer.evaluation_steps == tuple(study.evaluation.grid(2000))
    assert "evaluation_steps" not in study.question()


def test_seeds_differ_by_purpose_index_and_seed():
    purposes, indices = ("search", "trial", "data_order"), range(200)
    seeds = [Seeds(*[base] * 3).of(p, i) for base in (0, 1) for p in purposes for i in indices]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert Seeds().of("trial", 0) == Seeds(search=5, data_order=7).of("trial", 0)


def test_seeds_never_change():
    """Every recorded curve hangs on these numbers; whoever changes them raises NUMERICS_VERSION."""
    assert Seeds(trial=3).of("trial", 17) == 8_884_130_320_947_405_037


def test_a_trial_is_named_by_its_index_alone(make_study):
    study = make_study()
    one, other = study.trial(3, {"learning_rate": 0.1}), study.trial(3, {"learning_rate": 0.2})
    assert (one.seed, one.order_seed) == (other.seed, other.order_seed)
    assert len({one.seed, one.order_seed, study.trial(4, {}).seed, study.trial(4, {}).order_seed}) == 4


def test_a_tuned_warmup_of_0_is_trained_again_with_its_initial_factor(make_study):
    space = {"learning_rate": 0.1, "momentum": 0.9, "warmup_steps": [0, 20], "warmup_initial_factor": [0.1, 0.5]}
    tuned = {"learning_rate": 0.1, "momentum": 0.9, "warmup_steps": 0.0, "warmup_initial_factor": 0.5}
    study = make_study(space=space)
    assert trained_again(study, tuned, 2, study.branch._replace(rerun=0)).trial(0, tuned).hyperparameters == tuned


def test_launch_limit():
    space = parse_space({"learning_rate": 0.1})
    assert Search("sobol", 7, space).launch_limit == 70
    assert Search("sobol", 7, space, max_launches=9).launch_limit == 9
