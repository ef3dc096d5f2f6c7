"""Networks for images in the engines: lanes equal trials alone, and parts of a batch the whole, with every norm."""

from dataclasses import replace

import pytest
import torch
from helpers.desks import Desk, assert_near, assert_same_bits, fixed_trial, trained
from helpers.users.pictures import GHOST, NETWORKS
from torch import nn

from study.engine import can_fuse, lane_count
from study.engine.serial import Run
from study.settings import Evaluation
from workloads.layers import ghost_layers

SPACE = {
    "learning_rate": {"choices": [0.02, 0.01, 0.05, 0.03, 0.1]},
    "momentum": {"choices": [0.0, 0.9, 0.5, 0.8, 0.3]},
    "label_smoothing": {"choices": [0.0, 0.1, 0.2, 0.0, 0.3]},
}
STEPS = 6
SHORT = ("basic ghost", "vgg none", "vit layer")
"""Run by default; the others in CI."""


@pytest.fixture
def asked(make_study):
    def make(how, **fields):
        grid = Evaluation(first=0.5, ratio=2)
        return make_study(
            **{"space": SPACE, "arithmetic": how, "batch_size": 8, "steps": STEPS, "evaluation": grid} | fields
        )

    return make


def desk(study, order=range(5)):
    chosen = [{name: each.choices[i] for name, each in study.search.space.items()} for i in range(5)]
    return Desk([study.trial(index, chosen[index]) for index in order])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in SHORT)) for name in NETWORKS]
)
def test_lanes_are_trials_alone(asked, name):
    study, workload = asked("vmap"), NETWORKS[name]
    data = workload.data()
    assert can_fuse.lanes_fail(study, workload, data) is None
    heights = list(lane_count.admitted(study, workload, data, most=4))
    assert len(heights) >= 2
    alone = {i: trained(study, desk(study, [i]), heights[:1], workload)[i] for i in range(5)}
    for chosen, order in ((heights[:2], range(5)), (heights, [3, 0, 4, 2, 1])):
        assert_same_bits(trained(study, desk(study, order), chosen, workload), alone)
    plain = trained(replace(study, arithmetic="plain"), desk(study), workload=workload)
    assert_near(alone, plain, 1e-4)
