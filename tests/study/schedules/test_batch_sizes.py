"""Every batch-size schedule is a pure function of examples: known numbers, invariants, and what a study makes of it."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import yaml
from helpers.fused import partly
from hypothesis import given
from hypothesis import strategies as st

from analysis.question import batch_schedules
from analysis.question.batch_schedules import COUPLINGS, PARAMETERS, BatchSchedule, Phases
from analysis.question.phases import KINDS
from study.config.composed.compose import CONF
from study.config.jobs import parse_jobs
from study.data.order import Batches
from study.errors import UsageError
from study.records import Study

SWITCHED = {"batch_growth": 4, "batch_first_switch_fraction": 0.5, "batch_switches": 2}
# Kind and parameters -> the batch size of each update, from 2 in a budget of 40 examples out of 100.
KNOWN = [
    (BatchSchedule("step"), SWITCHED, [2] * 10 + [8] * 2 + [32]),  # at 20 and 30 examples; 36 are seen by then
    (BatchSchedule("step", most=8), SWITCHED, [2] * 10 + [8] * 3),
    (BatchSchedule("ramp"), {"batch_growth": 3, "batch_ramp_fraction": 0.5}, [2] * 5 + [4] * 3 + [6] * 3),
    (
        BatchSchedule("doubling"),
        {"batch_first_switch_fraction": 0.1, "batch_switch_ratio": 4},
        [2, 2, 4, 4, 4, *[8] * 3],
    ),
    (BatchSchedule("listed", switches=(3, 9), sizes=(4, 10)), {}, [2, 2, 4, 4, *[10] * 3]),
    (BatchSchedule("listed", switches=(1, 2, 3), sizes=(3, 5, 7)), {}, [2, 5, *[7] * 5]),  # one update passes two
    (BatchSchedule("step"), SWITCHED | {"batch_growth": 1}, [2] * 20),
    (BatchSchedule("listed", switches=(40,), sizes=(8,)), {}, [2] * 20),  # at the end of the budget
]


def sizes(phases):
    return [phases.size(step) for step in range(phases.steps)]


@pytest.mark.parametrize(("schedule", "values", "expected"), KNOWN)
def test_known_numbers(schedule, values, expected):
    assert sizes(schedule.phases(2, 40, 100, values)) == expected


VALUES = st.fixed_dictionaries(
    {
        "batch_growth": st.floats(1, 50),
        "batch_first_switch_fraction": st.floats(0.001, 1),
        "batch_switches": st.floats(1, 6) | st.integers(1, 6),
        "batch_ramp_fraction": st.floats(0.001, 1),
        "batch_switch_ratio": st.floats(1.01, 20),
    }
)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "listed"])
@given(values=VALUES, first=st.integers(1, 64), steps=st.integers(1, 300), most=st.none() | st.integers(1, 400))
def test_grows_from_the_first_size_and_ends_with_the_budget(kind, values, first, steps, most):
    """Never more than the training set or `most`, unless the first one is; and the points as numbers say the same."""
    schedule = BatchSchedule(kind, most=most if kind != "constant" else None)
    budget, examples = first * steps, 512
    phases = schedule.phases(first, budget, examples, values)
    made = sizes(phases)
    assert made[0] == first
    assert all(a <= b <= max(first, min(most or examples, examples)) for a, b in pairwise([first, *made]))
    assert phases.examples(phases.steps - 1) < budget <= phases.examples(phases.steps)
    assert [phases.examples(step) for step in range(phases.steps + 1)] == [0, *np.cumsum(made)]
    assert phases.steps <= steps
    assert schedule.resolved(first, budget, examples, values).phases(first, budget, examples, {}) == phases
    once = schedule.phases(first, budget, examples, values, single_pass=True)
    assert once.steps == 1 or once.examples(once.steps) <= budget
    for step in range(phases.steps):
        assert phases.left(step) > 0


def test_a_switch_comes_with_the_first_update_that_finds_its_point_passed():
    schedule = BatchSchedule("doubling")
    values = {"batch_first_switch_fraction": 0.013, "batch_switch_ratio": 1.7}
    phases, points = schedule.phases(3, 999, 500, values), schedule.points(3, 999, 500, values)
    for place, size in points:
        later = [step for step in range(phases.steps) if phases.examples(step) >= place]
        assert phases.size(later[0]) >= size
        assert phases.size(later[0] - 1) < size


def test_growing_by_the_drops_of_the_step_schedule_keeps_the_ratio_of_rate_and_batch(make_study):
    """Smith et al. 2018: learning rate / batch size, and so the noise, is the same at equal examples."""
    space = {name: {"choices": [value]} for name, value in SWITCHED.items()} | {"learning_rate": {"choices": [0.5]}}
    grows = make_study(space=space, batch_size=2, steps=64, batch_schedule=BatchSchedule("step"), optimizer="sgd")
    drops = {"learning_rate_first_drop_fraction": 0.5, "learning_rate_drops": 2, "learning_rate_drop_factor": 0.25}
    space = {name: {"choices": [value]} for name, value in drops.items()} | {"learning_rate": {"choices": [0.5]}}
    decays = make_study(space=space, batch_size=2, steps=64, schedule="step", optimizer="sgd")
    rate = decays.learning_rate({"learning_rate": 0.5, **drops})
    for step in range(grows.train_steps):
        seen, size = grows.phases.examples(step), grows.phases.size(step)
        assert grows.learning_rate({"learning_rate": 0.5, **SWITCHED})(step) / size == rate(seen // 2) / 2


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_the_learning_rate_follows_examples_and_the_batch_size(make_study, coupling):
    decay = {"learning_rate_decay_fraction": 1.0, "end_learning_rate_factor": 0.1}
    values = SWITCHED | decay | {"learning_rate": 0.5}
    space = {name: {"choices": [value]} for name, value in values.items()}
    schedule = BatchSchedule("step", coupling)
    study = make_study(
        space=space, batch_size=2, steps=20, optimizer="sgd", schedule="linear_decay", batch_schedule=schedule
    )
    found = [study.learning_rate(values)(step) for step in range(study.train_steps)]
    seen = [study.phases.examples(step) for step in range(study.train_steps)]
    power = {"none": 0, "linear": 1, "square_root": 0.5}[coupling]
    expected = [
        0.5 * (1 - 0.9 * min(place / 2, 19) / 20) * (study.phases.size(step) / 2) ** power
        for step, place in enumerate(seen)
    ]
    np.testing.assert_allclose(found, expected)


@given(first=st.integers(1, 9), steps=st.integers(1, 60), values=VALUES, seed=st.integers(0, 9))
def test_batches_are_consecutive_slices_of_the_order_of_any_other_batch_size(first, steps, values, seed):
    phases = BatchSchedule("step").phases(first, first * steps, 20, values)
    batches = Batches(seed, 20, first, torch.device("cpu"), phases)
    found = torch.cat([batches(step) for step in range(phases.steps)])
    one_by_one = Batches(seed, 20, 1, torch.device("cpu")).range(0, len(found)).flatten()
    assert torch.equal(found, one_by_one)
    for start, end in pairwise([*phases.starts, phases.steps]):
        together = Batches(seed, 20, first, torch.device("cpu"), phases).range(start, end - start)
        assert torch.equal(together.flatten(), found[phases.examples(start) : phases.examples(end)])


def scheduled(make_study, tuned=False, **fields):
    growth = {"low": 1, "high": 8, "scale": "log"} if tuned else {"choices": [4]}
    own = {"batch_growth": growth, "batch_ramp_fraction": {"choices": [0.5]}, "learning_rate": {"choices": [0.1]}}
    return make_study(space=own, optimizer="sgd", batch_schedule=BatchSchedule("ramp"), **{"batch_size": 2} | fields)


def test_a_constant_schedule_is_no_part_of_the_question(make_study):
    study = make_study()
    assert "batch_schedule" not in study.question()
    assert study.series == study.optimizer
    assert batch_schedules.series(study.question()) == study.optimizer
    assert (study.batch_sizes, study.phases.sizes, study.constant is study) == ((study.batch_size,),) * 2 + (True,)


def test_a_question_is_read_back(make_study):
    for study in (scheduled(make_study), scheduled(make_study, tuned=True)):
        question = json.loads(json.dumps(study.question()))
        assert Study.from_question(question) == study
        assert question["budget_examples"] == 2 * study.first_steps
        assert batch_schedules.series(question) == study.series == "sgd+ramp"
        assert batch_schedules.tuned(question) == study.tunes_batches


def test_trials_that_tune_their_batch_sizes_have_studies_of_their_own(make_study):
    study = scheduled(make_study, tuned=True, steps=40)
    assert study.differs_by_trial
    assert study.batch_sizes == (2, 16)
    values = {"learning_rate": 0.1, "batch_growth": 4, "batch_ramp_fraction": 0.5}
    trial, fixed = study.trial(3, values), scheduled(make_study, steps=40)
    own = study.of_trial(trial)
    assert own.phases == fixed.phases
    assert own.evaluation_steps == fixed.evaluation_steps == study.grid_of(trial)
    assert own.trial(3, values) == trial
    assert not own.differs_by_trial
    assert batch_schedules.phases_of(study.question(), values) == own.phases
    assert study.train_steps == 40 > own.train_steps


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "batch_schedule").glob("*.yaml")))
def test_composes_from_the_command_line(name):
    held = yaml.safe_load((CONF / "batch_schedule" / f"{name}.yaml").read_text())
    kind = held["batch_schedule"]["kind"]
    listed = ["batch_schedule.switches=[600,2000]", "batch_schedule.sizes=[64,256]"] if name == "listed" else []
    [job] = parse_jobs([f"batch_schedule={name}", "batch_size=32", *listed])
    assert job.study.batch_schedule.kind == kind
    own = set(held.get("search", {}).get("space", {}))
    assert own == set(KINDS[kind].parameters)
    assert own == job.study.search.space.keys() & PARAMETERS
    assert bool(job.study.batch_schedule) == (name != "constant")
    assert len(job.study.batch_sizes) == (1 if name == "constant" else len(job.study.phases.starts))
    assert (name == "constant") == (job.study.batch_sizes == (32,))
    for key in KINDS[kind].parameters:
        assert key in KINDS[kind].points.__doc__


def test_every_kind_has_a_file():
    kinds = [yaml.safe_load(path.read_text())["batch_schedule"]["kind"] for path in (CONF / "batch_schedule").iterdir()]
    assert {*kinds} == {*KINDS}


@pytest.mark.slow
def test_curves_of_one_sweep_are_told_apart():
    jobs = parse_jobs(["batch_schedule=constant,ramp,doubling", "batch_size=32", "batch_schedule.coupling=none"])
    assert sorted(job.study.series for job in jobs) == ["momentum", "momentum+doubling", "momentum+ramp"]


REFUSED = [
    (["batch_schedule=rampp"], "did you mean 'ramp'"),
    (["batch_schedule=ramp", "batch_schedule.coupling=cubic"], "unknown coupling 'cubic'; choose none, linear or"),
    (["batch_schedule.coupling=linear"], "batch_schedule.coupling=linear is for batch sizes that grow"),
    (["batch_schedule=listed"], "batch_schedule.switches must be increasing numbers"),
    (["batch_schedule=listed", "batch_schedule.switches=[9,5]", "batch_schedule.sizes=[64,128]"], "increasing"),
    (["batch_schedule=listed", "batch_schedule.switches=[5,9]", "batch_schedule.sizes=[64,32]"], "never shrink"),
    (["batch_schedule=ramp", "search.space.batch_growth=0.5"], r"batch_growth must lie in \[1, inf\), but got 0.5"),
    (["optimizer=adam", "batch_schedule=ramp", "search.space.beta2_half_life_examples=100"], "is a half-life in"),
    (["batch_schedule=ramp", "batch_schedule.from=results/x"], "gives the whole schedule, but got batch_schedule=ramp"),
    (["batch_schedule.kinds=ramp"], "unknown key 'batch_schedule.kinds'"),
]


@pytest.mark.parametrize(("words", "said"), partly(REFUSED, 3))
def test_refused_with_the_rule_and_the_cure(words, said):
    with pytest.raises(UsageError, match=said):
        parse_jobs([*words, "batch_size=32"])


def test_phases_of_one_size_cost_nothing_to_ask():
    phases = Phases((0,), (8,), 10)
    assert (phases.size(10**9), phases.examples(10**9), phases.left(3)) == (8, 8 * 10**9, float("inf"))


def test_a_single_pass_sees_no_example_twice(make_study):
    study = scheduled(make_study, steps=1)
    once = replace(study, budget=replace(study.budget, epochs=1, single_pass=True))
    assert once.phases.examples(once.train_steps) <= study.workload["train_examples"]
