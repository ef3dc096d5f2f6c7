"""Whether a model may draw random numbers: only of known code it is said that it does not."""

import pytest
from helpers.blobs import Blobs
from torch import nn

from study.config.jobs import parse_jobs
from study.user_code.draws import may_draw
from workloads.base import build


@pytest.mark.parametrize("name", ["mlp_digits", "simple_cnn_mnist", "resnet_cifar", "vit_cifar10"])
def test_our_own_models_draw_by_keys_alone(name):
    workload = build(parse_jobs([f"workload={name}", "batch_size=8"])[0].study.workload)
    model = workload.model()
    assert not may_draw(workload, model)
    spoilt = {
        "a layer of torch that draws": nn.Sequential(model, nn.Dropout(0.1)),
        "a recurrent layer": nn.ModuleList([model, nn.LSTM(2, 3)]),
        "a layer of others": nn.Sequential(model, type("Own", (nn.Module,), {})()),
    }
    for what, other in spoilt.items():
        assert may_draw(workload, other), what
    model.register_forward_hook(lambda *_: None)
    assert may_draw(workload, model)


def test_other_workloads_may_draw():
    workload = build(parse_jobs(["batch_size=8"])[0].study.workload)
    assert not may_draw(workload, nn.Linear(2, 3))
    object.__setattr__(workload, "loss", Blobs().loss)
    assert may_draw(workload, nn.Linear(2, 3))
    assert may_draw(Blobs(), nn.Linear(2, 3))
    inherited = type("Mine", (type(build(parse_jobs(["batch_size=8"])[0].study.workload)),), {"__module__": "mine"})
    assert may_draw(object.__new__(inherited), nn.Linear(2, 3))
