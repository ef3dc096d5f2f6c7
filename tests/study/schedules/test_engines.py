"""Training while the batch size grows: lanes, the plain engine, checkpoints, micro-batches, the exact answer."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.blobs import WORKLOADS
from helpers.desks import Desk, Killed, assert_near, assert_same_bits, room_for, trained, training
from helpers.fused import CASES, HYPERPARAMETERS, each_once, partly

from analysis.counting import Goal
from analysis.question.batch_schedules import BatchSchedule
from study.data import streaming
from study.data.resident import Data
from study.engine import lane_count
from study.optimizers import OPTIMIZERS
from study.space import Dimension
from workloads.noisy_quadratic import NoisyQuadraticModel
from workloads.noisy_quadratic_exact import Recursion, spectrum

LISTED = BatchSchedule("listed", "square_root", switches=(36, 80), sizes=(12, 20))
GROWS = {
    "listed": (LISTED, {}),
    "ramp": (BatchSchedule("ramp", "linear", most=16), {"batch_growth": 3, "batch_ramp_fraction": 0.6}),
    "doubling": (BatchSchedule("doubling"), {"batch_first_switch_fraction": 0.2, "batch_switch_ratio": 2}),
    "step": (BatchSchedule("step"), {"batch_growth": 2, "batch_first_switch_fraction": 0.3, "batch_switches": 2}),
}
FUSED = [how for how in CASES if how != "linear_blocks"]


@pytest.fixture
def growing(question):
    """A study of Blobs whose batch size grows; its trials take their other values from HYPERPARAMETERS."""

    def make(how, optimizer="momentum", schedule="listed", **fields):
        grows, values = GROWS[schedule]
        study = question(how, optimizer, "linear_decay", **fields)
        space = {**study.search.space, **fixing(values)}
        return replace(study, batch_schedule=grows, search=replace(study.search, space=space))

    return make


def fixing(values):
    return {name: Dimension(choices=(value,)) for name, value in values.items()}


def queue(study, order, **desk):
    """A desk of trials in this order: trial i takes the i-th of HYPERPARAMETERS, and what the study fixes."""
    fixed = {name: each.choices[0] for name, each in study.search.space.items() if len(each.choices) == 1}
    wanted = {*study.asked_hyperparameters, "label_smoothing"} - fixed.keys()
    return Desk([study.trial(i, fixed | {name: HYPERPARAMETERS[name][i] for name in wanted}) for i in order], **desk)


def at_all(study):
    workload = WORKLOADS[study.arithmetic]
    return list(lane_count.admitted_at_all(study, workload, workload.data(), most=8))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "schedule", "how"),
    [
        *partly(each_once(sorted(OPTIMIZERS.keys() - {"soap", "kfac"}), GROWS, FUSED), 4),
        *partly([("momentum", schedule, how) for schedule in GROWS for how in FUSED], 3, 1),
    ],
)
def test_a_lane_equals_the_plain_engine(growing, optimizer, schedule, how):
    study = growing(how, optimizer, schedule)
    assert len(study.batch_sizes) > 1
    alone = trained(replace(study, arithmetic="plain"), queue(study, range(4)), workload=WORKLOADS[how])
    assert_near(trained(study, queue(study, range(4)), heights=(1, 2, 4)), alone, 1e-4)
    assert all(curve.steps[-1] == study.train_steps for curve in alone.values())


@pytest.mark.slow
@pytest.mark.parametrize(("how", "optimizer"), partly([("linear_chain", "momentum"), ("vmap", "adam")], 2))
def test_neighbours_lane_counts_and_refills_change_no_bit(growing, how, optimizer):
    study = growing(how, optimizer, stopping="goal", goal=Goal("val/loss", 1.3))
    heights = at_all(study)
    assert len(heights) >= 2
    alone = {i: trained(study, queue(study, [i]), heights[:1])[i] for i in range(7)}
    assert len({len(curve.steps) for curve in alone.values()}) > 1
    for chosen, order in each_once([heights[:1], heights[:2], heights], [range(7), [3, 0, 6, 2, 5, 1, 4]]):
        assert_same_bits(trained(study, queue(study, order), chosen), alone)


@pytest.mark.slow
@pytest.mark.parametrize("how", partly(["plain", "linear_chain"], 2, 1))
def test_killed_anywhere_a_trial_goes_on_in_its_phase(growing, how):
    study = growing(how)
    undisturbed = trained(study, queue(study, range(3)))
    for lives in (1, 4, 9):
        kept, finished, kills = {}, {}, 0
        while len(finished) < 3:
            left = [i for i in range(3) if i not in finished]
            try:
                for curve in training(study, queue(study, left, minutes=0, kept=kept, lives=lives)):
                    finished[curve.trial.index] = curve
            except Killed:
                kills += 1
        assert kills > 3
        assert_same_bits(finished, undisturbed)


def test_micro_batches_change_rounding_alone(growing, monkeypatch):
    study = replace(growing("plain"), micro_batch=None)
    whole = trained(study, queue(study, range(2)))
    assert_near(trained(replace(study, micro_batch=5), queue(study, range(2))), whole, 1e-5)
    room_for(9, monkeypatch)  # the first batch fits, and the last does not: the trial starts again in smaller parts
    halved = trained(study, queue(study, range(2)))
    assert {curve.micro_batch for curve in halved.values()} == {5}
    assert_near(halved, whole, 1e-5)


def test_streamed_batches_are_those_in_memory(growing):
    study, workload = growing("plain"), WORKLOADS["plain"]
    resident = trained(study, queue(study, range(2)))
    streamed = streaming.source(workload.splits(torch.device("cpu")), "cpu", gigabytes=0, loaders=0, workload=workload)
    assert_same_bits(trained(study, queue(study, range(2)), data=streamed), resident)


def test_without_growth_a_schedule_trains_the_bits_of_none(growing, question):
    study = growing("linear_chain", schedule="step")
    space = {**study.search.space, **fixing({"batch_growth": 1.0})}
    flat = replace(study, search=replace(study.search, space=space))
    constant = question("linear_chain", "momentum", "linear_decay")
    found, expected = (trained(each, queue(each, range(4)), (1, 4)) for each in (flat, constant))
    for index in found:
        for metric, errors in expected[index].errors.items():
            assert found[index].errors[metric].tobytes() == errors.tobytes()


@pytest.mark.parametrize("how", ["plain", "vmap"])
def test_the_noisy_quadratic_model_follows_its_recursion(make_study, how):
    """s <- (1 - a h)^2 s + a^2 h / b(t) for each coordinate: the loss of 256 replicas, within its own spread."""
    schedule = BatchSchedule("listed", switches=(256, 1024), sizes=(16, 64))
    model = NoisyQuadraticModel(name="nqm", train_examples=4096, dimensions=50, replicas=256)
    workload = {"_target_": "workloads.noisy_quadratic.NoisyQuadraticModel", "name": "nqm", "train_examples": 4096}
    study = make_study(
        space={"learning_rate": {"choices": [0.4]}},
        optimizer="sgd",
        workload=workload,
        goal=Goal("val/loss", 1e-9),
        stopping="budget",
        batch_size=4,
        steps=1024,
        arithmetic=how,
        batch_schedule=schedule,
    )
    assert study.phases.starts == (0, 64, 112)
    data = Data.of(model.splits(torch.device("cpu")))
    curve = trained(study, Desk([study.trial(0, {"learning_rate": 0.4})]), (1,), model, data)[0]
    exact, moments, made = {}, None, 0
    for start, size, end in zip((0, 64, 112), (4, 16, 64), (64, 112, study.train_steps), strict=True):
        recursion = Recursion(size, 0.4, curvatures=spectrum(50))
        moments = recursion.start if moments is None else moments
        for step in [step for step in study.evaluation_steps if start < step <= end] + [end]:
            moments, made = recursion.after(moments, step - made), step
            exact[step] = float(recursion.loss(moments))
    expected = [exact[step] for step in curve.steps]
    np.testing.assert_allclose(curve.errors["val/loss"], expected, rtol=0.08)
    assert exact[112] > 2 * exact[study.train_steps]  # the last batches are seen to be less noisy
