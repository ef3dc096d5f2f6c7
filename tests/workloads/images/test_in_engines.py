"""Networks for images in the engines: lanes equal trials alone, and parts of a batch the whole, with every norm."""

from dataclasses import replace

import pytest
import torch
from helpers.desks import (
    Desk,
    Killed,
    assert_lanes_are_trials_alone,
    assert_near,
    assert_same_bits,
    desk,
    fixed_trial,
    trained,
    training,
)
from helpers.users.pictures import GHOST, NETWORKS

from study.engine.lanes import Lanes
from study.engine.run import Run
from study.settings import Evaluation
from workloads.layers import ghost_layers

SPACE = {
    "learning_rate": {"choices": [0.02, 0.01, 0.05, 0.03, 0.1]},
    "momentum": {"choices": [0.0, 0.9, 0.5, 0.8, 0.3]},
    "label_smoothing": {"choices": [0.0, 0.1, 0.2, 0.0, 0.3]},
}
STEPS = 6
FUSED = ("basic ghost",)
SPLIT = (*FUSED, "vit layer", "vgg none", "bottleneck group", "pre-activation layer")
"""Run by default; those of SPLIT that are not in FUSED in CI, and all others before a release."""


def networks(default):
    marks = {
        name: [] if name in default else [pytest.mark.slow if name in SPLIT else pytest.mark.release]
        for name in NETWORKS
    }
    return [pytest.param(name, marks=marks[name]) for name in NETWORKS]


@pytest.fixture
def asked(make_study):
    def make(how, **fields):
        grid = Evaluation(first=0.5, ratio=2)
        return make_study(
            **{"space": SPACE, "arithmetic": how, "batch_size": 8, "steps": STEPS, "evaluation": grid} | fields
        )

    return make


@pytest.mark.slow
@pytest.mark.parametrize("name", networks(FUSED))
def test_lanes_are_trials_alone(asked, name):
    assert_lanes_are_trials_alone(asked("vmap"), NETWORKS[name])


@pytest.mark.parametrize("name", networks(SPLIT))
def test_parts_of_a_batch_are_the_whole(asked, name):
    """Gradients and running averages, in micro-batches of every size that ghost batches allow."""
    workload = NETWORKS[name]
    data, study = workload.data(), asked("plain", space={"learning_rate": 0.1, "momentum": 0.0}, batch_size=8)
    trial = fixed_trial(study)
    [whole, *parts] = (Run(study, workload, data, trial, micro_batch) for micro_batch in (None, 4, 1))
    for run in (whole, *parts):  # last layers and the norms of blocks start at 0, and stop gradients
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    whole._descend(0.1)
    assert all(parameter.grad.any() for parameter in whole.model.parameters())
    for run, count in zip(parts, (2, 8), strict=True):
        assert len(run.parts) == (2 if ghost_layers(run.model) else count)
        run._descend(0.1)
        for (key, parameter), one in zip(run.model.named_parameters(), whole.model.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, one.grad, rtol=1e-4, atol=1e-5, msg=key)
        for (key, buffer), one in zip(run.model.named_buffers(), whole.model.buffers(), strict=True):
            torch.testing.assert_close(buffer, one, msg=key)


def test_lanes_of_ghost_batches_have_running_averages_of_their_own(asked):
    """One step of two lanes, against batch norm of torch on each ghost batch of the first layer."""
    study, workload = asked("vmap"), NETWORKS["vgg ghost"]
    data = workload.data()
    lanes = Lanes(study, workload, data, (2,), 2)
    for index in range(2):
        lanes.start(fixed_trial(study, index))
    lanes.advance(1)
    for row, lane in enumerate(lanes.lanes):
        run = Run(study, workload, data, lane.trial)
        inputs, _ = run.read(0, 0)
        features = run.model[0](inputs)
        groups = [features[:GHOST], features[GHOST:]]
        assert sum(map(len, groups)) == study.batch_size
        mean = sum(len(each) * each.mean((0, 2, 3)) for each in groups) / study.batch_size
        torch.testing.assert_close(lanes.stack.views["1.running_mean"][row], 0.1 * mean)
    one, other = lanes.stack.views["1.running_mean"]
    assert not torch.isclose(one, other).any()


def test_averaged_weights_are_judged_with_the_current_running_averages(asked):
    """As when trained alone: only weights are averaged."""
    space = {"learning_rate": 0.05, "momentum": 0.9, "ema_decay": 0.8}
    study, workload = asked("vmap", space=space), NETWORKS["pre-activation ghost"]
    found = trained(study, Desk([fixed_trial(study)]), (4,), workload)
    assert_near(found, trained(replace(study, arithmetic="plain"), Desk([fixed_trial(study)]), (4,), workload), 1e-4)


@pytest.mark.slow
def test_killed_lanes_continue_with_their_running_averages(asked):
    study, workload = asked("vmap"), NETWORKS["pre-activation ghost"]
    expected, finished, kept, kills = trained(study, desk(study), (4,), workload), {}, {}, 0
    while len(finished) < len(expected):
        left = Desk([trial for trial in desk(study).trials if trial.index not in finished], 0, kept, lives=3)
        try:
            for curve in training(study, left, (4,), workload):
                finished[curve.trial.index] = curve
        except Killed:
            kills += 1
    assert kills > 2
    assert_same_bits(finished, expected)
