"""`linear_blocks` trains as `linear_chain` does, wherever lanes are in their blocks, whatever disturbs them."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from helpers.blobs import WORKLOADS
from helpers.desks import Desk, assert_near, assert_same_bits, fixed_trial, trained
from helpers.fused import partly

from analysis.counting import Goal
from study.engine import lane_count, lanes, timing
from study.engine.fused.linear_blocks import BLOCK, LinearBlocks
from study.optimizers import OPTIMIZERS
from study.records import Study
from study.settings import Evaluation

LINEAR = [name for name, optimizer in OPTIMIZERS.items() if optimizer.linear]
STEPS = 90
BATCH_SIZE = 3  # 21 steps a block, and one example too few to fill it
GRID = Evaluation(first=0.3, ratio=1.5)
BEGINNINGS = {0, 21, 27, 40, 61, 82}  # of blocks, which evaluations after steps 27, 40, 61 and 90 end, too
RATES, MOMENTA = [0.02, 0.05, 0.01, 0.03, 0.04, 0.015], [0.5, 0.0, 0.9, 0.7, 0.3, 0.8]
WORKLOAD = WORKLOADS["linear_blocks"]
DATA = WORKLOAD.data()


def desk(study: Study, order: Sequence[int], minutes: float | None = None, kept: Any = None) -> Desk:
    """Trials of these numbers."""
    chosen = {i: {"learning_rate": RATES[i], "momentum": MOMENTA[i]} for i in order}
    trials = [fixed_trial(study, i, **{k: v for k, v in chosen[i].items() if k in study.search.space}) for i in order]
    return Desk(trials, minutes, kept)


@pytest.fixture
def question(make_study: Any) -> Any:
    def make(how: str = "linear_blocks", optimizer: str = "momentum", decay: Mapping = {}, **fields: Any) -> Study:
        fixed = dict.fromkeys(OPTIMIZERS[optimizer].hyperparameters, 0.1) | decay
        fixed |= {"learning_rate_decay_fraction": 0.8, "end_learning_rate_factor": 0.1}
        fields = {"arithmetic": how, "schedule": "linear_decay", "batch_size": BATCH_SIZE, "evaluation": GRID} | fields
        return make_study(fixed, optimizer=optimizer, steps=STEPS, **fields)

    return make


@pytest.mark.parametrize(
    ("optimizer", "decay"),
    partly(product(LINEAR, [{}, {"l2": 0.1}, {"weight_decay": 0.1}, {"l2": 0.05, "weight_decay": 0.2}]), 3),
)
def test_blocks_of_steps_are_steps(question, optimizer, decay):
    """`l2` mixes the weights of a block's beginning into its velocities, too."""
    found, expected = (
        trained(study, desk(study, range(4)))
        for study in (question(how, optimizer, decay) for how in ("linear_blocks", "linear_chain"))
    )
    assert_near(found, expected, 1e-4)
    losses = expected[0].errors["val/loss"]
    assert losses[-1] < 0.95 * losses[0]  # something was learned that could have gone wrong


@pytest.mark.slow
def test_lanes_in_other_places_of_their_blocks_change_no_bit(question):
    study = question(stopping="goal", goal=Goal("val/loss", 0.9))
    heights = list(lane_count.admitted(study, WORKLOAD, DATA, most=8))
    assert len(heights) >= 3
    alone = {index: trained(study, desk(study, [index]), heights[:1])[index] for index in range(6)}
    assert len({len(curve.steps) for curve in alone.values()}) > 1  # so that rows are refilled, and the tail compacted
    for chosen in (heights[:2], heights):
        for order in (range(6), range(5, -1, -1), [3, 0, 5, 2, 1, 4]):
            assert_same_bits(trained(study, desk(study, order), chosen), alone)


@pytest.mark.slow
def test_a_trial_goes_on_from_the_beginning_of_the_block_it_was_interrupted_in(question):
    study = question()
    undisturbed = trained(study, desk(study, [2]))[2]
    beside = desk(study, [0, 2, 1], minutes=0)
    assert_same_bits(trained(study, beside)[2], undisturbed)
    taken = [content for index, content in beside.taken if index == 2]
    assert {step_of(study, content) for content in taken} == BEGINNINGS
    assert len(taken) > 80
    for content in taken[:: len(taken) // 6]:
        assert_same_bits(trained(study, desk(study, [2, 0], kept={2: content}))[2], undisturbed)


def step_of(study: Study, content: bytes) -> int:
    fused = lanes.Lanes(study, WORKLOAD, DATA, (4,), 4)
    fused.start(desk(study, [2]).ask(wait=False))
    fused.restore({2: content}.get)
    return fused.lanes[0].step


def test_a_step_is_timed_over_whole_blocks(question, monkeypatch):
    study, timed = question(), []
    real = lanes.Lanes.advance

    def noted(self, steps):
        timed.append(steps)
        real(self, steps)

    monkeypatch.setattr(lanes.Lanes, "advance", noted)
    lane_count.fused_cost(study, WORKLOAD, DATA, (4,), 4, {})
    assert timed
    assert all(steps % (BLOCK // BATCH_SIZE) == 0 for steps in timed)


def test_a_row_is_true_once_it_is_settled(question):
    study = question()
    fused = timing.started(study, WORKLOAD, DATA, range(4))
    assert isinstance(fused.stack, LinearBlocks)
    before = fused.stack.weights.clone()
    fused.advance(5)
    assert fused.stack.pending(1) == 5
    assert torch.equal(fused.stack.weights, before)
    fused.stack.settle(1)
    assert fused.stack.pending(1) == 0
    whole = timing.started(question("linear_chain"), WORKLOAD, DATA, range(4))
    whole.advance(5)
    torch.testing.assert_close(fused.stack.weights[1], whole.stack.weights[1], rtol=1e-4, atol=1e-6)
    settled = fused.stack.weights.clone()
    fused.stack.settle(1)  # nothing is pending any more
    assert torch.equal(fused.stack.weights, settled)


def test_a_stack_is_all_on_one_device(question):
    model = WORKLOAD.model().to("meta")
    stack = LinearBlocks(model, OPTIMIZERS["momentum"], 4, BATCH_SIZE)
    held = [stack.weights, stack.combined.weights, stack.known, stack.examples, *stack.combined.state.values()]
    assert {tensor.device.type for tensor in held} == {"meta"}
