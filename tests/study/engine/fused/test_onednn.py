"""Large products by oneDNN: right, the same wherever the numbers lie in memory, and only where they are faster."""

import pytest
import torch
from helpers.blobs import WORKLOADS
from helpers.checkpointed import asked, step, trial
from helpers.desks import Desk, assert_same_bits, trained
from helpers.fused import Queue
from torch import nn

from study.engine import arithmetic, lanes
from study.engine.fused import onednn
from workloads.layers import Dropout

LARGE = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
ADAM = {"optimizer": "adam", "space": dict.fromkeys(("learning_rate", "beta1", "beta2", "epsilon"), 0.1)}
BOTH = ["linear_chain_onednn", "linear_blocks_onednn"]
SIZES = [(1, 1, 1), (3, 50, 7), (64, 784, 64), (32, 784, 128), (250, 33, 129)]


def moved(tensor, offset):
    """A copy that begins `offset` numbers after the start of a cache line."""
    memory = torch.empty(tensor.numel() + 32)
    begin = -(memory.data_ptr() // 4) % 16 + offset
    return memory[begin : begin + tensor.numel()].view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize(("examples", "features", "outputs"), SIZES)
def test_products_are_right_and_the_same_at_every_address(examples, features, outputs):
    generator = torch.Generator().manual_seed(0)
    shapes = [(examples, features), (outputs, features), (outputs,), (examples, outputs)]
    x, w, b, dy = (torch.randn(shape, generator=generator) for shape in shapes)

    def products(x, w, b, dy):
        return onednn.product(x, w, b), onednn.product(dy.mT, x.mT), onednn.product(dy, w.mT)

    made, exact = products(x, w, b, dy), [tensor.double() for tensor in (x, w, b, dy)]
    expected = exact[0] @ exact[1].mT + exact[2], exact[3].mT @ exact[0], exact[3] @ exact[1]
    for one, right in zip(made, expected, strict=True):
        assert torch.allclose(one.double(), right, rtol=0, atol=1e-5 * float(right.abs().max() + 1))
    for offset in (1, 8, 15):
        elsewhere = products(*(moved(tensor, offset) for tensor in (x, w, b, dy)))
        assert all(map(torch.equal, made, elsewhere))


@pytest.fixture
def calls(monkeypatch):
    """The shapes of all products by oneDNN."""
    made, product = [], onednn.product

    def noted(x, y, bias=None):
        made.append((*x.shape, y.shape[0]))
        return product(x, y, bias)

    monkeypatch.setattr(onednn, "product", noted)
    return made


@pytest.mark.parametrize(("least", "used"), [(6 * 24 * 32, True), (6 * 24 * 32 + 1, False)])
def test_only_large_products_are_by_onednn(question, calls, monkeypatch, least, used):
    monkeypatch.setattr(onednn, "LEAST", least)
    study = question("linear_chain_onednn")
    fused = lanes.Lanes(study, WORKLOADS["linear_chain"], WORKLOADS["linear_chain"].data(), [2], 2)
    for each in Queue(study, range(2)).trials:
        fused.start(each)
    fused.advance(1)
    assert (calls == [(6, 24, 32)] * 2 + [(32, 6, 24)] * 2) == used
    assert bool(calls) == used


@pytest.mark.parametrize("how", BOTH)
def test_a_trial_goes_on_from_checkpoints_to_the_same_bits(make_study, monkeypatch, how):
    monkeypatch.setattr(onednn, "LEAST", 0)
    study = asked(make_study, how, space={"learning_rate": 0.05, "momentum": 0.9})
    one = trial(study, 0)
    undisturbed, desk = trained(study, Desk([one])), Desk([one], minutes=0)
    assert_same_bits(trained(study, desk), undisturbed)
    assert len(desk.taken) > 5
    for _, content in desk.taken[::3]:
        resumed = Desk([one], kept={0: content})
        assert_same_bits(trained(study, resumed), undisturbed)
        assert resumed.pace.made <= study.train_steps - step(content)


@pytest.mark.parametrize("how", BOTH)
def test_without_onednn_the_namesake_computes(question, calls, monkeypatch, how):
    monkeypatch.setattr(onednn, "LEAST", 0)
    monkeypatch.setattr(onednn, "available", lambda: False)
    study, namesake = (question(each) for each in (how, how.removesuffix("_onednn")))
    assert_same_bits(trained(study, Queue(study, range(3))), trained(namesake, Queue(namesake, range(3))))
    assert calls == []


ZEN_5 = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\n"
ZEN_4, INTEL = ZEN_5.replace("26", "25"), ZEN_5.replace("AuthenticAMD", "GenuineIntel")


@pytest.mark.parametrize(
    ("capability", "cpuinfo", "operator", "faster"),
    [
        ("AVX512", ZEN_5, True, True),
        ("AVX512", ZEN_5.replace("26", "27"), True, True),
        ("AVX512", ZEN_5, False, False),
        ("AVX2", ZEN_5, True, False),
        ("AVX512", ZEN_4, True, False),  # it computes 256 bits at once
        ("AVX512", INTEL, True, False),
        ("AVX512", ZEN_5.replace("26", "?"), True, False),
        ("AVX512", "", True, False),
        ("AVX512", None, True, False),
    ],
)
def test_where_onednn_is_faster(monkeypatch, tmp_path, capability, cpuinfo, operator, faster):
    file = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        file.write_text(cpuinfo)
    monkeypatch.setattr(onednn, "CPUINFO", file)
    monkeypatch.setattr(onednn, "available", lambda: operator)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert onednn.faster.__wrapped__() == faster


@pytest.mark.parametrize(
    ("model", "fields", "device", "how"),
    [
        (LARGE, {"batch_size": 64}, "cpu", "linear_chain_onednn"),
        (LARGE, {"batch_size": 4}, "cpu", "linear_blocks_onednn"),
        (LARGE, {"batch_size": 4} | ADAM, "cpu", "linear_chain_onednn"),  # evaluations are large
        (LARGE, {"batch_size": 64}, "cuda", "linear_chain"),
        (LARGE, {"batch_size": 64, "precision": "bf16"}, "cpu", "plain"),
        (nn.Sequential(Dropout(0.2), *LARGE), {"batch_size": 4}, "cpu", "linear_chain_onednn"),
        (nn.Sequential(nn.Linear(64, 128)), {"batch_size": 64}, "cpu", "linear_chain"),
        (nn.Sequential(nn.Linear(64, 128)), {"batch_size": 256}, "cpu", "linear_chain_onednn"),
        (nn.Sequential(nn.Conv2d(1, 2, 3)), {"batch_size": 8}, "cpu", "plain"),
    ],
)
def test_the_rule(make_study, monkeypatch, model, fields, device, how):
    study = make_study(examples=300, **fields)
    monkeypatch.setattr(onednn, "faster", lambda: True)
    assert arithmetic.candidates(model, study, device)[0] == how
    monkeypatch.setattr(onednn, "faster", lambda: False)
    assert arithmetic.candidates(model, study, device)[0] == how.removesuffix("_onednn")
