"""A trial that goes on from any of its checkpoints ends as one that was left in peace, to the last bit."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.blobs import WORKLOADS
from helpers.checkpointed import CASES, SPACES, STEPS, WHOLE, held, saved, step, trial
from helpers.desks import Desk, Killed, assert_same_bits, full, room_for, trained, training
from helpers.fused import admitted, each_once, partly

from study.engine import lanes
from study.engine.trial import checkpoints
from study.engine.trial.checkpoints import Checkpoint
from study.engine.trial.evaluation import Log


@pytest.mark.parametrize(
    ("how", "optimizer"),
    partly([(how, name) for how in CASES for name in SPACES if name not in WHOLE or how == "plain"], 8),
)
def test_a_trial_goes_on_from_any_checkpoint_to_the_same_bits(resumable, how, optimizer):
    study = resumable(how, optimizer)
    three = trial(study, 3)
    assert set(study.evaluation_steps) < set(range(1, STEPS + 1))
    undisturbed = trained(study, Desk([three]))[3]
    checkpointed = Desk([three], minutes=0)
    assert_same_bits(trained(study, checkpointed)[3], undisturbed)
    reached = [step(content) for _, content in checkpointed.taken]
    assert {*range(1, STEPS)} <= {*reached}
    for done, (_, content) in zip(reached, checkpointed.taken, strict=True):
        desk = Desk([three], kept={3: content})
        assert_same_bits(trained(study, desk)[3], undisturbed)
        assert desk.pace.made == STEPS - done


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "optimizer"),
    partly(
        [*each_once(CASES, [name for name in SPACES if name not in WHOLE]), *(("plain", name) for name in WHOLE)], 6
    ),
)
def test_killed_again_and_again_ends_the_same(resumable, how, optimizer):
    """Trials refill rows, and a kill may fall between the checkpoints of two lanes."""
    killed_again_and_again(resumable(how, optimizer))


def test_lanes_of_different_schedules_killed_again_and_again_end_the_same(resumable):
    decay = {"learning_rate_decay_fraction": [0.5, 1.0], "end_learning_rate_factor": 0.1}
    space = SPACES["momentum"] | {"schedule": ["constant", "cosine", "exponential"]} | decay
    study = resumable("linear_chain", space=space, schedule="tuned")
    assert len({trial(study, index).hyperparameters["schedule"] for index in range(5)}) == 3
    killed_again_and_again(study)


def killed_again_and_again(study):
    wanted = [trial(study, index) for index in range(5)]
    undisturbed = {t.index: trained(study, Desk([t]))[t.index] for t in wanted}
    chance, kept, finished, kills = random.Random(0), {}, {}, 0
    while True:
        desk = Desk([t for t in wanted if t.index not in finished], 0, kept, lives=chance.randint(1, 12))
        try:
            for curve in training(study, desk):
                finished[curve.trial.index] = curve
            break
        except Killed:
            kills += 1
    assert kills > 5
    assert_same_bits(finished, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["linear_chain", "vmap"])
def test_a_checkpoint_fits_any_slot_and_any_number_of_lanes(resumable, how):
    study = resumable(how)
    heights = admitted(study)
    assert len(heights) >= 3
    wanted = {index: trial(study, index) for index in range(5)}
    undisturbed = {index: trained(study, Desk([t]), heights[:1])[index] for index, t in wanted.items()}
    desk = Desk(list(wanted.values()), minutes=0)
    trained(study, desk, heights[-1:])
    by_step = {(index, step(content)): content for index, content in desk.taken}
    kept = {0: by_step[0, 4], 1: by_step[1, 11], 3: by_step[3, 1]}  # the others start anew
    orders = [range(5), range(4, -1, -1), [1, 2, 0, 4, 3]]
    for chosen, order in each_once([heights[:1], heights[:2], heights, heights[-1:]], orders):
        assert_same_bits(trained(study, Desk([wanted[i] for i in order], kept=dict(kept)), chosen), undisturbed)


@pytest.mark.parametrize("how", CASES)
def test_a_diverging_trial_diverges_at_the_same_step(resumable, how):
    study = resumable(how)
    beside, diverging = trial(study, 0), trial(study, 1, learning_rate=1e38)
    undisturbed = trained(study, Desk([beside, diverging]))
    assert undisturbed[1].first_bad_step is not None
    desk = Desk([beside, diverging], minutes=0)
    assert_same_bits(trained(study, desk)[1], undisturbed[1])
    contents = [content for index, content in desk.taken if index == 1]
    assert contents
    for content in contents:
        assert_same_bits(trained(study, Desk([diverging], kept={1: content}))[1], undisturbed[1])


def test_a_checkpoint_holds_one_lane_of_the_stack(resumable):
    study = resumable("linear_chain")
    sizes = []
    for heights in ((4,), (64,)):
        desk = Desk([trial(study, 0)], minutes=0)
        trained(study, desk, heights)
        sizes.append(len(desk.taken[0][1]))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)


def test_seconds_add_up(resumable):
    study = resumable("linear_chain")
    desk = Desk([trial(study, 0)], minutes=0)
    trained(study, desk)
    content = held(desk.taken[4][1])
    content["seconds"] = {"training": 1000.0, "evaluation": 500.0}
    seconds = trained(study, Desk([trial(study, 0)], kept={0: saved(content)}))[0].seconds
    assert 1000 < seconds["training"] < 1100
    assert 500 < seconds["evaluation"] < 600


def test_lanes_that_run_out_of_memory_go_on_with_fewer_from_their_checkpoints(resumable, monkeypatch):
    study = resumable("linear_chain")
    assert {2, 4} <= {*admitted(study)}
    wanted = [trial(study, index) for index in range(4)]
    undisturbed = trained(study, Desk(wanted))
    advance = lanes.Lanes.advance

    def short_of_memory(self: lanes.Lanes, steps: int) -> None:
        if self.capacity == 4 and self.lanes[0].step == 7:
            full()
        advance(self, steps)

    monkeypatch.setattr(lanes.Lanes, "advance", short_of_memory)
    desk = Desk(wanted, minutes=0)
    assert_same_bits(trained(study, desk, heights=(2, 4)), undisturbed)
    assert max(step(content) for _, content in desk.taken[:28]) == 7
    assert [step(content) for _, content in desk.taken[28:]] == [8, 8, 9, 9, 10, 10, 11, 11] * 2


def test_a_checkpoint_holds_for_its_own_micro_batch_only(resumable, monkeypatch):
    study = resumable("plain", micro_batch=None)
    asked = trial(study, 0)
    desk = Desk([asked], minutes=0)
    desk.taken.append((0, b""))  # the whole batch fits at first
    room_for(4, monkeypatch, whenever=lambda run: run.step == 5 or desk.taken == [])
    [curve] = trained(study, desk).values()
    assert curve.micro_batch == 4
    assert [held(content)["micro_batch"] for _, content in desk.taken[1:]] == [None] * 5 + [4] * STEPS
    content = desk.taken[1 + 5 + 7][1]
    desk = Desk([asked], kept={0: content})  # where the whole batch does not fit from the first step on
    assert_same_bits(trained(study, desk)[0], curve)
    assert desk.pace.made == 1 + STEPS - 8  # the first slice is a single step
    monkeypatch.undo()
    assert_same_bits(trained(replace(study, micro_batch=4), Desk([asked]))[0], curve)


def test_hyperparameters_of_numpys_kind_are_plain_numbers(resumable):
    """As adaptive samplers may propose them; torch.load takes no scalars of numpy's."""
    study = resumable("linear_chain")
    asked = study.trial(0, {name: np.float64(1 / 3) for name in study.search.space})
    log = Log(study, WORKLOADS["linear_chain"], WORKLOADS["linear_chain"].data(), asked)
    content = checkpoints.pack(log, Checkpoint(1, {"weights": torch.zeros(3)}, {}))
    assert checkpoints.trials({0: content}) == [asked]
    assert checkpoints.restore(content, log, {"weights": torch.ones(3)}) is not None
