"""Every schedule is its closed form, from 1 downwards, and begins where its warmup ends."""

import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import yaml
from helpers.blobs import WORKLOADS, Blobs
from helpers.checkpointed import trial
from helpers.desks import Desk, assert_near, assert_same_bits, trained
from helpers.fused import CASES, Scheduled, admitted, partly, plain_loop
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler as lr

from study.config.composed.compose import CONF
from study.config.jobs import parse_jobs
from study.config.preflight import settle
from study.errors import UsageError
from study.records import Study
from study.schedules import SCHEDULES

STEPS = 40
ALPHA = {"learning_rate_decay_fraction": 0.6, "end_learning_rate_factor": 0.01}
HALVES = {"learning_rate_first_drop_fraction": 0.5, "learning_rate_drops": 2, "learning_rate_drop_factor": 0.1}


def in_turn(first, then, steps):
    """What builds the first scheduler for so many steps and then the other."""
    return lambda optimizer, factor=1: lr.SequentialLR(optimizer, [first(optimizer), then(optimizer)], [steps])


def hold(factor):
    return partial(lr.ConstantLR, factor=factor, total_iters=10**9)


# Schedule -> its hyperparameters, and what torch makes of them in a budget of T steps. Registering one enrols it.
TORCH = {
    "constant": ({}, lambda T: hold(1)),
    "linear_decay": (ALPHA, lambda T: partial(lr.LinearLR, start_factor=1, end_factor=0.01, total_iters=0.6 * T)),
    "cosine": (
        ALPHA,
        lambda T: in_turn(partial(lr.CosineAnnealingLR, T_max=0.6 * T, eta_min=0.01), hold(0.01), round(0.6 * T)),
    ),
    "exponential": ({"end_learning_rate_factor": 0.01}, lambda T: partial(lr.ExponentialLR, gamma=0.01 ** (1 / T))),
    "step": (HALVES, lambda T: partial(lr.MultiStepLR, milestones=[T // 2, T * 3 // 4], gamma=0.1)),
    "inverse_square_root": (
        {"learning_rate_timescale_fraction": 0.25},
        lambda T: partial(lr.LambdaLR, lr_lambda=lambda t: math.sqrt(T / (T + 4 * t))),
    ),
    "warmup_stable_decay": (
        ALPHA,
        lambda T: in_turn(
            hold(1), partial(lr.LinearLR, start_factor=1, end_factor=0.01, total_iters=0.6 * T), round(0.4 * T)
        ),
    ),
}


def torchs(scheduler, steps):
    """The learning rate of each update [steps] under a scheduler of torch, from 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = scheduler(optimizer)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def factors(name, hyperparameters, steps=STEPS, batch_size=1):
    """The factor of each update [steps]."""
    return list(map(SCHEDULES[name].factor(steps, batch_size, hyperparameters), range(steps)))


@pytest.mark.parametrize("initial", [0, 0.25])
@pytest.mark.parametrize("name", SCHEDULES)
def test_equals_torch_after_a_linear_warmup(name, initial):
    """W = 20: torch's ramp reaches 1 at its last update, and the schedule has a budget of the other 40."""
    hyperparameters, scheduler = TORCH[name]
    ramp = partial(lr.LinearLR, start_factor=initial + (1 - initial) / 20, end_factor=1, total_iters=19)
    found = factors(name, hyperparameters | {"warmup_steps": 20, "warmup_initial_factor": initial}, STEPS + 20)
    np.testing.assert_allclose(found[:20], torchs(ramp, 20), rtol=1e-9)
    np.testing.assert_allclose(found[20:], torchs(scheduler(STEPS), STEPS), rtol=1e-9)


WARMED = {"warmup_steps": 2, "learning_rate_decay_fraction": 0.5, "end_learning_rate_factor": 0.2}
WRITTEN = [
    ("linear_decay", {"learning_rate_decay_fraction": 1, "end_learning_rate_factor": 0}, 4, [1, 0.75, 0.5, 0.25]),
    ("cosine", {"learning_rate_decay_fraction": 0.5, "end_learning_rate_factor": 0.5}, 4, [1, 0.75, 0.5, 0.5]),
    ("exponential", {"end_learning_rate_factor": 1 / 16}, 4, [1, 1 / 2, 1 / 4, 1 / 8]),
    # 30, 60 (and 90) of 90 epochs, one a step of 10; and a single drop
    ("step", HALVES | {"learning_rate_first_drop_fraction": 1 / 3}, 9, [1] * 3 + [0.1] * 3 + [0.01] * 3),
    ("step", HALVES | {"learning_rate_drops": 1}, 4, [1, 1, 0.1, 0.1]),
    ("step", HALVES | {"learning_rate_drops": 1.5}, 6, [1, 1, 1, 0.1, 0.1, 0.01]),  # a third of the budget apart
    ("step", HALVES | {"learning_rate_first_drop_fraction": 1}, 4, [1, 1, 1, 1]),
    ("inverse_square_root", {"learning_rate_timescale_fraction": 1 / 9}, 9, [(1 + t) ** -0.5 for t in range(9)]),
    ("warmup_stable_decay", {"learning_rate_decay_fraction": 1, "end_learning_rate_factor": 0}, 2, [1, 0.5]),
    ("warmup_stable_decay", WARMED, 10, [0.5, 1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4]),
]


@pytest.mark.parametrize(("name", "hyperparameters", "steps", "expected"), WRITTEN)
def test_known_numbers(name, hyperparameters, steps, expected):
    np.testing.assert_allclose(factors(name, hyperparameters, steps), expected, rtol=1e-12)


def test_after_a_warmup_of_its_timescale_the_inverse_square_root_is_the_transformers():
    """Vaswani et al. 2017, eq. 3: min(s^-0.5, s W^-1.5), here over its peak, with s one less after the peak."""
    warmup, steps = 10, 50
    found = factors("inverse_square_root", {"learning_rate_timescale_fraction": 10 / 40, "warmup_steps": warmup}, steps)
    theirs = [min(s**-0.5, s * warmup**-1.5) * warmup**0.5 for s in range(1, steps + 1)]
    np.testing.assert_allclose(found[:warmup], theirs[:warmup])
    np.testing.assert_allclose(found[warmup + 1 :], theirs[warmup:-1])


FRACTION = st.floats(0.01, 1)
ALPHAS = st.floats(1e-6, 1)
TUNED = {
    "learning_rate_decay_fraction": FRACTION,
    "end_learning_rate_factor": ALPHAS,
    "learning_rate_first_drop_fraction": FRACTION,
    "learning_rate_drops": st.floats(1, 5) | st.integers(1, 5),
    "learning_rate_drop_factor": ALPHAS,
    "learning_rate_timescale_fraction": st.floats(1e-3, 10),
}
WARMUP = {
    "warmup_steps": st.just(0) | st.floats(0, 150) | st.integers(0, 150),
    "warmup_initial_factor": st.floats(0, 1),
}


@pytest.mark.parametrize("name", SCHEDULES)
@given(data=st.data(), steps=st.integers(1, 100))
def test_up_to_1_and_down_again_and_never_0(name, data, steps):
    own = data.draw(st.fixed_dictionaries({key: TUNED[key] for key in SCHEDULES[name].hyperparameters}))
    warmup = data.draw(st.fixed_dictionaries(WARMUP))
    found = np.array(factors(name, own | warmup, steps))
    length = min(math.ceil(warmup["warmup_steps"]), steps)
    assert (found > 0).all()
    assert (found <= 1).all()
    assert (np.diff(found[:length]) >= 0).all()
    assert (np.diff(found[length:]) <= 1e-15).all()
    assert SCHEDULES[name].factor(steps, 1, own)(0) == 1
    if length:
        assert found[0] >= warmup["warmup_initial_factor"]
    if warmup["warmup_steps"] == length < steps:  # a whole number of updates, the next of them the schedule's first
        assert found[length] == 1
        assert length == 0 or found[length - 1] == 1


@pytest.mark.parametrize("name", sorted(SCHEDULES.keys() - {"step"}))
@given(data=st.data(), warmup=st.floats(0, 30))
def test_a_little_more_warmup_changes_little(name, data, warmup):
    """No jump where the warmup, which need not be whole, comes to cover one update more (a step may cross a drop)."""
    own = data.draw(st.fixed_dictionaries({key: TUNED[key] for key in SCHEDULES[name].hyperparameters}))
    own |= {"learning_rate_decay_fraction": 1} if "learning_rate_decay_fraction" in own else {}
    less, more = (factors(name, own | {"warmup_steps": each}) for each in (warmup, warmup + 1e-9))
    np.testing.assert_allclose(less, more, atol=1e-6)


@given(steps=st.floats(0, 60) | st.integers(0, 60), batch_size=st.integers(1, 10**6), initial=st.floats(0, 1))
def test_a_warmup_in_examples_is_one_in_steps(steps, batch_size, initial):
    counted = {**TORCH["cosine"][0], "warmup_initial_factor": initial}
    in_steps = factors("cosine", counted | {"warmup_steps": steps}, batch_size=batch_size)
    in_examples = factors("cosine", counted | {"warmup_examples": steps * batch_size}, batch_size=batch_size)
    np.testing.assert_allclose(in_examples, in_steps, rtol=1e-9)


@pytest.mark.parametrize("warmup", [40, 41, 400, 40.5])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_warmup_as_long_as_the_budget_is_all_there_is(name, warmup):
    found = factors(name, TORCH[name][0] | {"warmup_steps": warmup})
    np.testing.assert_allclose(found, [(t + 1) / warmup for t in range(STEPS)], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_composes_from_the_command_line(name):
    asked, optional = SCHEDULES[name].hyperparameters, SCHEDULES[name].optional_hyperparameters
    file = yaml.safe_load((CONF / "schedule" / f"{name}.yaml").read_text())
    in_file = file.get("search", {}).get("space", {}).keys()
    assert file["schedule"] == name
    assert in_file - optional.keys() == asked.keys()
    assert ("warmup_steps" in in_file) is (name == "warmup_stable_decay")
    for key in asked.keys() | optional.keys():
        assert sum(f"{key}:" in line for line in SCHEDULES[name].multiplier.__doc__.splitlines()) == (key in asked)
    [job] = parse_jobs([f"schedule={name}", "batch_size=64"])
    assert job.study.search.space.keys() == {"learning_rate", "momentum"} | in_file


REFUSED = [
    (["search.space.warmup_steps=5", "search.space.warmup_examples=9"], ["warmup_steps={'choices': [5.0]} and"]),
    (
        ["schedule=warmup_stable_decay", "search.space.warmup_examples=[0,9]"],
        ["in steps, in examples or in tokens", "at 0"],
    ),
    (["search.space.warmup_initial_factor=0.1"], ["got none", "add search.space.warmup_steps"]),
    (["search.space.warmup_initial_factor=0.1", "search.space.warmup_steps=0"], ["warmup_initial_factor", "[0.0]"]),
    (["search.space.warmup_steps=-1"], ["search.space.warmup_steps must lie in [0, inf)", "-1"]),
    (["search.space.warmup_examples={low: -1, high: 9}"], ["search.space.warmup_examples must lie in [0, inf)", "-1"]),
    (["search.space.warmup_steps=1", "search.space.warmup_initial_factor=2"], ["warmup_initial_factor", "[0, 1]", "2"]),
    (["search.space.warmup_step=5"], ["search.space.warmup_step is", "did you mean 'warmup_steps'"]),
    (["search.space.learning_rate_drops=2"], ["learning_rate_drops is a parameter of neither", "schedule constant"]),
    (["schedule=exponential", "search.space.end_learning_rate_factor=0"], ["end_learning_rate_factor", "(0, 1]", "0"]),
    (["schedule=step", "search.space.learning_rate_drops=0"], ["learning_rate_drops", "[1, inf)", "0"]),
    (["schedule=cosine", "search.space.schedule=[cosine,step]"], ["schedule=cosine chooses", "give one of them"]),
    (["search.space.schedule=[cosine,cosin]"], ["unknown schedule 'cosin'", "did you mean 'cosine'"]),
    (["search.space.schedule=[1,2]"], ["unknown schedule '1'"]),
    (["search.space.schedule=[cosine,2]"], ["search.space.schedule", "one or more numbers, or names", "['cosine', 2]"]),
    (["search.space.schedule={low: 0, high: 1}"], ["search.space.schedule must list names", "a range"]),
    (["search.space.momentum=high"], ["search.space.momentum takes numbers in [0, 1)", "'high'"]),
    (["search.space.momentum=[high,low]"], ["search.space.momentum takes numbers in [0, 1)", "'high'"]),
    (
        ["search.space.schedule=[cosine,warmup_stable_decay]"],
        ["cosine and warmup_stable_decay search different ranges", "give search.space.learning_rate_decay_fraction"],
    ),
    (
        ["search.space.schedule=[cosine,warmup_stable_decay]", "search.space.learning_rate_decay_fraction.low=0.2"],
        ["search.space.learning_rate_decay_fraction", "low=0.2, high=None"],
    ),
    (
        ["search.space.schedule=[linear_decay,exponential]", "search.space.end_learning_rate_factor=[0,1]"],
        ["end_learning_rate_factor must lie in (0, 1]"],
    ),
    (
        ["search.space.schedule=[constant,cosine]", "search.space.learning_rate_drops=2"],
        ["schedule constant or cosine"],
    ),
    (["search.space.schedule=[constant,cosine]", "optimizer=sgd", "search=cmaes"], ["two ranges", "got learning_rate"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "words"), partly(REFUSED, 4), ids=[" ".join(row[0]) for row in REFUSED])
def test_refuses(arguments, words):
    with pytest.raises(UsageError) as refusal:
        settle(parse_jobs([*arguments, "batch_size=64", "engine=serial"]))
    assert [word for word in words if word not in str(refusal.value)] == []


RATES = {"low": 0.02, "high": 0.1}
RANGES = {
    "learning_rate_decay_fraction": {"low": 0.3, "high": 1.0},
    "end_learning_rate_factor": {"low": 1e-3, "high": 0.5, "scale": "log"},
    "learning_rate_first_drop_fraction": {"low": 0.2, "high": 0.6},
    "learning_rate_drops": {"low": 1, "high": 4, "integer": True},
    "learning_rate_drop_factor": {"low": 0.01, "high": 0.5, "scale": "log"},
    "learning_rate_timescale_fraction": {"low": 0.01, "high": 1.0, "scale": "log"},
}


def losses(study, fused):
    """The validation losses of each of the first four trials of the study's search [4, E], and the trials."""
    trials = [trial(study, index) for index in range(4)]
    study = replace(study, arithmetic="linear_chain" if fused else "plain")
    curves = trained(study, Desk(trials), heights=(1, 2, 4), workload=Blobs())
    return np.array([curves[index].errors["val/loss"] for index in range(4)]), trials


@pytest.fixture
def tuned(make_study):
    """A study of Blobs over 30 steps of 6 examples, in which everything that the schedule asks for is tuned."""

    def make(name, learning_rate=RATES, **warmup):
        ranges = {key: RANGES[key] for key in SCHEDULES[name].hyperparameters}
        space = {"learning_rate": learning_rate, "momentum": 0.5, **ranges, **warmup}
        return make_study(space=space, schedule=name, batch_size=6, steps=30)

    return make


WARMUPS = ["warmup_steps", "warmup_examples"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"),
    partly([(name, WARMUPS[(row + at) % 2]) for row, name in enumerate(SCHEDULES) for at in (0, 1)], 4),
)
def test_every_parameter_is_tuned_on_either_engine(tuned, name, count):
    whole = {"low": 0, "high": 120, "integer": True, "hard": ["low"]}
    study = tuned(name, **{count: whole, "warmup_initial_factor": {"low": 0.0, "high": 1.0}})
    plain, trials = losses(study, fused=False)
    fused, _ = losses(study, fused=True)
    np.testing.assert_allclose(fused, plain, rtol=1e-4)
    for key in {*SCHEDULES[name].hyperparameters, count, "warmup_initial_factor"}:
        assert len({trial.hyperparameters[key] for trial in trials}) > 1, key
    assert all(trial.hyperparameters[count] % 1 == 0 for trial in trials)


@pytest.mark.slow
@pytest.mark.parametrize("fused", partly([False, True], 2, 1), ids=["serial", "lanes"])
def test_what_a_warmup_does_to_training(tuned, fused):
    def found(**fields):
        return losses(tuned("constant", **fields), fused)[0]  # nothing is tuned, so that trials differ in seeds alone

    without, warm = found(learning_rate=0.1), found(learning_rate=0.1, warmup_steps=5)
    np.testing.assert_array_equal(found(learning_rate=0.1, warmup_steps=0), without)
    np.testing.assert_array_equal(found(learning_rate=0.1, warmup_examples=30), warm)  # batches of 6
    # The first evaluation is after a single update: of a fifth of the learning rate.
    np.testing.assert_allclose(warm[:, 0], found(learning_rate=0.02)[:, 0], rtol=1e-6)
    assert abs(warm / without - 1).min(axis=0).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "ranges"),
    partly(
        [
            (["search.space.schedule=[constant,linear_decay,cosine]"], {"learning_rate_decay_fraction": (0.5, 1.0)}),
            (["search.space.schedule=[constant,cosine]"], {"end_learning_rate_factor": (1e-4, 0.1)}),
            (["search.space.schedule=[constant,warmup_stable_decay]"], {"warmup_steps": (0, 100)}),
            (["search.space.schedule=exponential"], {"end_learning_rate_factor": (1e-4, 1.0)}),
            (
                ["search.space.schedule=[constant,cosine]", "search.space.learning_rate_decay_fraction.low=0.2"],
                {"learning_rate_decay_fraction": (0.2, 1.0)},
            ),
            (
                [
                    "search.space.schedule=[cosine,warmup_stable_decay]",
                    "search.space.learning_rate_decay_fraction={low: 0.25, high: 0.75}",
                ],
                {"learning_rate_decay_fraction": (0.25, 0.75), "end_learning_rate_factor": (1e-4, 0.1)},
            ),
            # In a file of one's own, where `schedule: cosine` may stand beside it.
            (["workload=own"], {"learning_rate_decay_fraction": (0.5, 1.0)}),
        ],
        2,
    ),
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_tuned_schedule_brings_the_ranges_of_the_schedules_that_it_may_be(arguments, ranges, tmp_path):
    own = (CONF / "workload" / "mlp_digits.yaml").read_text().replace("search: {trials: 20}", "")
    (tmp_path / "workload").mkdir()
    chosen = "schedule: cosine\nsearch: {space: {schedule: [constant, cosine]}}\n"
    (tmp_path / "workload" / "own.yaml").write_text(own + chosen)
    [job] = parse_jobs([*arguments, "batch_size=64"], tmp_path)
    space = job.study.search.space
    assert job.study.schedule == "tuned"
    assert job.study.schedules == space["schedule"].choices
    assert {name: (space[name].low, space[name].high) for name in ranges} == ranges
    assert Study.from_question(json.loads(json.dumps(job.study.question()))) == job.study


def scheduled(model, h):
    """SGD with momentum under a scheduler of torch."""
    of_torch = [*torchs(TORCH[h["schedule"]][1](STEPS), STEPS), 0.0]
    sgd = torch.optim.SGD(model.parameters(), lr=h["learning_rate"], momentum=h["momentum"])
    return Scheduled(sgd, of_torch.__getitem__)


@pytest.mark.slow
@pytest.mark.parametrize("how", partly(CASES, len(CASES), CASES.index("linear_blocks")))
def test_lanes_of_different_schedules_equal_the_serial_engine_and_a_plain_loop(make_study, how):
    """Seven trials, each with another schedule, in one stack."""
    fixed = {key: value for hyperparameters, _ in TORCH.values() for key, value in hyperparameters.items()}
    space = {"learning_rate": RATES, "momentum": 0.5, "schedule": list(SCHEDULES), **fixed}
    study = make_study(space=space, schedule="tuned", arithmetic=how, batch_size=6, steps=STEPS)
    rates = [0.02 + 0.01 * number for number in range(len(SCHEDULES))]
    chosen = zip(rates, SCHEDULES, strict=True)
    points = [{"learning_rate": rate, "momentum": 0.5, "schedule": name, **fixed} for rate, name in chosen]
    trials, workload = [study.trial(index, point) for index, point in enumerate(points)], WORKLOADS[how]
    assert {each.hyperparameters["schedule"]: each.hyperparameters.keys() for each in trials} == {
        name: {"learning_rate", "momentum", "schedule", *TORCH[name][0]} for name in SCHEDULES
    }
    heights = admitted(study)
    together = trained(study, Desk(trials), heights)
    assert_same_bits(together, {each.index: trained(study, Desk([each]), heights[:1])[each.index] for each in trials})
    assert_near(together, trained(replace(study, arithmetic="plain"), Desk(trials), workload=workload), 1e-4)
    for each in trials:
        by_step = np.array([*plain_loop(study, workload, each, scheduled)])
        wanted = by_step[np.array(study.evaluation_steps) - 1]
        np.testing.assert_allclose(together[each.index].errors["val/loss"], wanted, rtol=1e-4, err_msg=str(each))
