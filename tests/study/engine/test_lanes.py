"""Fused lanes equal one-trial runs: bit for bit within an arithmetic, to a stated tolerance across arithmetics."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.blobs import WORKLOADS
from helpers.desks import assert_near, assert_same_bits, full, trained
from helpers.fused import CASES, FUSING, STEPS, Flat, Queue, admitted, each_once, fusing, partly, seldom

from analysis.counting import Goal
from study.data.resident import Data
from study.engine import can_fuse, lanes, timing
from study.engine.fused import onednn, stack, vmapped
from study.optimizers import OPTIMIZERS
from study.schedules import SCHEDULES
from study.space import Dimension
from workloads.base import Splits

ALWAYS = [("momentum", "linear_blocks"), ("adam", "vmap"), ("lamb", "linear_chain"), ("soap", "linear_chain")]
BY_ONEDNN = [("momentum", "linear_blocks_onednn"), ("momentum", "linear_chain_onednn")]
TOLERANCE = 1e-4  # relative, of every measured error after STEPS updates, across arithmetics


@pytest.fixture(autouse=True)
def all_products_by_onednn(monkeypatch):
    """Those of the models here are small."""
    monkeypatch.setattr(onednn, "LEAST", 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "schedule", "how"),
    [
        # Each optimizer, and each schedule, in each arithmetic. Not SOAP: rounding decides its path (see its
        # docstring), and test_optimizers compares its lanes where rounding does not matter.
        *partly(
            [
                (optimizer, list(SCHEDULES)[(row + column) % len(SCHEDULES)], how)
                for row, optimizer in enumerate(name for name in FUSING if name != "soap")
                for column, how in enumerate(fusing(optimizer))
            ],
            8,
        ),
        *partly((("momentum", schedule, "linear_blocks") for schedule in SCHEDULES), 2),
        *((optimizer, "linear_decay", how) for optimizer, how in [*BY_ONEDNN, ("adam", "linear_chain_onednn")]),
    ],
)
def test_a_lane_equals_the_serial_engine(question, optimizer, schedule, how):
    study = question(how, optimizer, schedule)
    alone = trained(replace(study, arithmetic="plain"), Queue(study, range(4)), workload=WORKLOADS[how])
    assert_near(trained(study, Queue(study, range(4)), heights=(1, 2, 4)), alone, TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "how"),
    # One of each kind: in place, by the fused kernel, by norms of layers, and by products and factors of matrices.
    [
        *seldom(partly([*ALWAYS, *BY_ONEDNN], 3, 1)),
        *seldom((name, how) for name in FUSING for how in fusing(name) if (name, how) not in ALWAYS),
    ],
)
def test_slot_height_neighbours_and_refill_order_change_no_bit(question, optimizer, how):
    # Goals end trials at different steps, so that rows are refilled and the tail is compacted.
    study = question(how, optimizer, stopping="goal", goal=Goal("val/loss", 1.3))
    heights = admitted(study)
    assert len(heights) >= 3
    alone = {i: trained(study, Queue(study, [i]), heights[:1])[i] for i in range(7)}
    ends = {i: (len(curve.steps), round(float(curve.errors["val/loss"][-1]), 2)) for i, curve in alone.items()}
    assert len({end for end, _ in ends.values()}) > 1, ends
    orders = [range(7), range(6, -1, -1), [3, 0, 6, 2, 5, 1, 4]]
    for chosen, order in each_once([heights[:1], heights[:2], heights, heights[-1:]], orders):
        assert_same_bits(trained(study, Queue(study, order), chosen), alone)


@pytest.mark.slow
@pytest.mark.parametrize("how", CASES)
def test_a_diverging_lane_leaves_its_neighbours_bits_alone(question, how):
    study = question(how)
    heights = admitted(study)
    healthy = trained(study, Queue(study, range(4)), heights)
    beside = trained(study, Queue(study, range(4), learning_rate=1e30), heights)
    assert beside[2].first_bad_step is not None
    assert beside[2].first_bad_step < STEPS
    del healthy[2], beside[2]
    assert_same_bits(beside, healthy)


@pytest.mark.parametrize("how", CASES)
def test_the_first_bad_step_is_the_serial_engines(question, how):
    study = question(how)
    plain, fused = (
        trained(each, Queue(study, [2], learning_rate=1e12), workload=WORKLOADS[how])[2]
        for each in (replace(study, arithmetic="plain"), study)
    )
    assert plain.first_bad_step == fused.first_bad_step
    np.testing.assert_array_equal(plain.steps, fused.steps)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", partly(["momentum", "adam", "lamb", "muon"], 2))
def test_gradients_side_by_side_are_those_of_each_parameter(question, monkeypatch, optimizer):
    study = question("vmap", optimizer)
    apart = trained(study, Queue(study, range(4)))
    monkeypatch.setattr(vmapped, "Vmapped", Flat)
    assert_near(trained(study, Queue(study, range(4))), apart, TOLERANCE, "val/loss")


@pytest.mark.parametrize("optimizer", ["momentum", "lamb"])
def test_gradients_side_by_side_may_be_of_one_parameter(question, optimizer):
    """Whose row is longer than it, up to the next cache line."""
    template, algorithm = torch.nn.Linear(5, 2, bias=False), OPTIMIZERS[optimizer]
    alone, flat = (stack.Stack(template, algorithm, 2, form) for form in (vmapped.Vmapped, Flat))
    hyperparameters = {name: torch.full((2, 1), 0.1) for name in algorithm.hyperparameters}
    inputs, targets = torch.randn(2, 3, 5), torch.randint(2, (6,))
    for each in (alone, flat):
        for row in range(2):
            each.load(row, template)
        each.step(2)(
            inputs,
            lambda outputs: torch.nn.functional.cross_entropy(outputs.flatten(0, 1), targets, reduction="none"),
            torch.zeros(2, 0, dtype=torch.int32),
            hyperparameters,
            torch.ones(2, 1),
        )
    assert not torch.equal(alone.weights[0, :10], template.weight.flatten())
    torch.testing.assert_close(flat.weights, alone.weights)


def test_segments_bound_memory_and_change_no_bit(question, monkeypatch):
    study = question("linear_chain")
    whole = trained(study, Queue(study, range(3)))
    monkeypatch.setattr(lanes, "SEGMENT_INDICES", 1)
    assert_same_bits(trained(study, Queue(study, range(3))), whole)


@pytest.mark.parametrize("how", CASES)
def test_a_stack_predicts_what_the_models_in_it_do(question, how):
    study, workload = question(how), WORKLOADS[how]
    data = workload.data()
    stacked = timing.started(study, workload, data, range(4))
    stacked.advance(3)
    inputs = data.as_model_wants(data.evaluated["val"][0])
    found = stacked.predictor([3, 1])(inputs).unflatten(0, (2, -1))
    for outputs, row in zip(found, (3, 1), strict=True):
        model = workload.model().eval()
        model.load_state_dict({name: view[row] for name, view in stacked.stack.views.items()}, strict=False)
        torch.testing.assert_close(outputs, model(inputs), rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def alone(question):
    """A study, the heights that it admits, and its trials, each trained alone."""
    study = question("linear_chain", stopping="goal", goal=Goal("val/loss", 1.3))
    heights = admitted(study)
    return study, heights, {i: trained(study, Queue(study, [i]), heights[:1])[i] for i in range(7)}


@pytest.mark.slow
@pytest.mark.parametrize("failing", partly(["advance", "evaluate", "start"], 3))
def test_lanes_that_run_out_of_memory_start_again_with_fewer(alone, monkeypatch, failing):
    study, heights, expected = alone
    real, calls = getattr(lanes.Lanes, failing), []

    def short_of_memory(self, *arguments, **named):
        calls.append(self.capacity)
        if self.capacity > 2 and len(calls) > 3:
            full()
        return real(self, *arguments, **named)

    monkeypatch.setattr(lanes.Lanes, failing, short_of_memory)
    assert_same_bits(trained(study, Queue(study, range(7)), heights), expected)
    assert {8, 4, 2} == set(calls)


def test_one_lane_that_does_not_fit_is_out_of_memory(question, monkeypatch):
    monkeypatch.setattr(lanes.Lanes, "advance", full)
    with pytest.raises(torch.OutOfMemoryError):
        trained(question("linear_chain"), Queue(question("linear_chain"), range(2)))


def test_volumes_keep_their_axes():
    volumes = torch.randn(6, 1, 2, 3, 4), torch.zeros(6, dtype=torch.int64)
    data = Data.of(Splits(volumes, volumes, volumes))
    assert torch.equal(data.gather(torch.tensor([4, 1])), volumes[0][[4, 1]])


@pytest.mark.parametrize("how", ["linear_chain", "plain"])
def test_occasional_work_is_called_only_when_it_is_due(question, monkeypatch, how):
    soap, steps, calls = OPTIMIZERS["soap"], 7, []

    def refresh(state, hyperparameters, step):
        calls.append((int(hyperparameters["precondition_frequency"]), step))
        return soap.refresh(state, hyperparameters, step)

    def curves(optimizer):
        monkeypatch.setitem(OPTIMIZERS, "soap", optimizer)
        study = question(how, "soap", steps=steps)
        return trained(study, Queue(study, range(3)), workload=WORKLOADS["linear_chain"])

    looked, of_parameter = [], stack._of_parameter
    monkeypatch.setattr(stack, "_of_parameter", lambda *given: looked.append(given[0]) or of_parameter(*given))
    found, looks = curves(replace(soap, refresh=refresh)), len(looked)
    parameters = 4
    # Every 3, 5 and 1 updates, from the first one.
    assert sorted(calls) == sorted(
        (every, step) for every in (3, 5, 1) for step in range(1, steps + 1, every) for _ in range(parameters)
    )
    assert_same_bits(curves(replace(soap, due=lambda hyperparameters, step: True)), found)
    assert how == "plain" or looks < len(looked) - looks


@pytest.mark.parametrize(
    ("loss", "fits"),
    [  # outputs [B, 5]: of a tensor [B] for the tuned argument they make [B, 5], or fail
        (lambda each, weight: weight * each.mean(1), True),
        (lambda each, weight: (torch.as_tensor(weight).to(each).view(-1, 1) * each).mean(1), True),
        (lambda each, weight: (weight * each).mean(1), False),
        (lambda each, weight: (weight * each.mean(1, keepdim=True)).mean(1), False),
        (lambda each, weight: (weight * each[:, :4]).mean(1), False),
        (lambda each, weight: each.mean(1) if weight > 0.5 else each.sum(1), False),
    ],
)
@pytest.mark.parametrize("how", ["linear_chain", "vmap"])
def test_a_loss_that_cannot_take_the_arguments_of_several_trials(question, monkeypatch, how, loss, fits):
    """Broadcast along another axis than that of the examples, each trial would train with the arguments of all."""
    workload = WORKLOADS[how]
    monkeypatch.setattr(
        workload, "loss", lambda outputs, _, label_smoothing: loss(outputs**2, label_smoothing), raising=False
    )
    study = question(how)
    space = {**study.search.space, "label_smoothing": Dimension(0.0, 0.9)}
    study = replace(study, search=replace(study.search, space=space))
    found = can_fuse.lanes_fail(study, workload, workload.data())
    assert (found is None) if fits else "a value of label_smoothing for each example" in found, found
