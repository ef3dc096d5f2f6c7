"""The precision of products and convolutions: in every arithmetic, recorded, and set for each study."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import desks, pretended
from helpers.blobs import CPU, WORKLOADS
from helpers.desks import Curves, Desk
from helpers.fused import CASES, Queue, each_once
from helpers.pretended import DEVICE

from study.devices import placement, precision
from study.engine import lane_count, train
from study.engine.fused import linear_blocks
from study.records import PRECISIONS, Study

HALF = 0.05
"""Relative, of losses: bfloat16 has 8 bits of mantissa."""


def trained(study: Study, where: torch.device = CPU, order: range = range(3)) -> Curves:
    return desks.trained(study, Queue(study, order), data=WORKLOADS[study.arithmetic].data(where))


def assert_near(found: Curves, expected: Curves, tolerance: float) -> None:
    for index, curve in expected.items():
        np.testing.assert_allclose(found[index].errors["val/loss"], curve.errors["val/loss"], rtol=tolerance)


def assert_unequal(found: Curves, expected: Curves) -> None:
    assert any(not np.array_equal(found[i].errors["val/loss"], expected[i].errors["val/loss"]) for i in expected)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "optimizer"), each_once(["linear_chain", "vmap"], ["momentum", "adam", "lars"]))
def test_lanes_in_bf16_are_near_models_alone_in_bf16(question, how, optimizer):
    study = question(how, optimizer, precision="bf16", steps=12)
    lanes = trained(study)
    alone = replace(study, arithmetic="plain")
    plain = desks.trained(alone, Queue(study, range(3)), workload=WORKLOADS[how])
    assert_near(lanes, plain, HALF)
    assert_unequal(lanes, trained(replace(study, precision="fp32")))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["linear_chain", "vmap"])
def test_lanes_in_bf16_are_trials_alone(question, how):
    """As in fp32: bits do not depend on the trials beside."""
    study = question(how, precision="bf16", steps=12)
    heights = list(lane_count.admitted(study, WORKLOADS[how], WORKLOADS[how].data(), most=4))
    assert len(heights) > 1
    alone = {i: trained(study, order=range(i, i + 1))[i] for i in range(3)}
    desks.assert_same_bits(trained(study), alone)


@pytest.mark.slow
def test_chains_in_bf16_on_a_gpu_have_the_curves_of_the_cpu(question):
    """The simulated device has no autocast, under which other models are computed."""
    study = question("linear_chain", precision="bf16", steps=12)
    expected = trained(study)
    with pretended.device():
        assert_near(trained(study, DEVICE), expected, HALF)


def test_sums_by_parts_are_not_computed_in_bf16(make_study):
    model = WORKLOADS["linear_blocks"].model()
    assert linear_blocks.can(model, make_study(precision="tf32"))
    assert not linear_blocks.can(model, make_study(precision="bf16"))


@pytest.mark.parametrize("how", CASES)
def test_tf32_changes_no_bit_on_a_cpu(question, how):
    study = question(how, steps=12)
    desks.assert_same_bits(trained(replace(study, precision="tf32")), trained(study))


@pytest.fixture(autouse=True)
def _as_before():
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    yield
    precision.settle("fp32")
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


@pytest.mark.parametrize("asked", PRECISIONS)
@pytest.mark.parametrize("how", ["linear_chain", "plain"])
def test_each_study_sets_its_precision(question, how, asked):
    """Also after a study of another precision, in training and while its cost is measured."""
    study, workload = question(how, precision=asked, steps=2), WORKLOADS[how]
    placement.settle_arithmetic()
    for other in PRECISIONS:
        for call in (
            lambda: train.measure(study, workload, workload.data(), most=1),
            lambda: list(train.train(study, workload, workload.data(), Desk([]), [4], 4)),
        ):
            precision.settle(other)
            call()
            flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
            assert flags == (asked == "tf32",) * 2


ASKED = {
    "all products": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "all products in bf16": lambda: setattr(torch.backends, "fp32_precision", "bf16"),
    "cuDNN": lambda: setattr(torch.backends.cudnn, "fp32_precision", "tf32"),
    "convolutions": lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "tf32"),
    "LSTMs": lambda: setattr(torch.backends.cudnn.rnn, "fp32_precision", "tf32"),
    "products of matrices": lambda: torch.set_float32_matmul_precision("medium"),
    "a CPU": lambda: setattr(torch.backends.mkldnn, "fp32_precision", "bf16"),
    "threads": lambda: torch.set_num_threads(3),
    "convolutions of a CPU": lambda: setattr(torch.backends.mkldnn.conv, "fp32_precision", "bf16"),
}
"""What the user's code may set in a process, before a study is trained or while its models are built."""


@pytest.mark.parametrize("asked", ["fp32", "tf32"])
@pytest.mark.parametrize("before", ASKED)
def test_a_study_has_its_precision_whatever_the_users_code_asks_of_torch(before, asked):
    ASKED[before]()
    precision.settle(asked)
    assert_settled(asked)


@pytest.mark.parametrize("asked", ["fp32", "tf32"])
@pytest.mark.parametrize("before", ASKED)
@pytest.mark.parametrize("how", ["linear_chain", "plain"])
def test_a_study_has_its_precision_whatever_model_asks_of_torch(question, how, before, asked):
    study, workload = question(how, precision=asked, steps=2), copy.copy(WORKLOADS[how])
    build = workload.model
    vars(workload)["model"] = lambda: (ASKED[before](), build())[1]
    list(train.train(study, workload, workload.data(), Queue(study, range(2)), [4], 4))
    assert_settled(asked)


def assert_settled(asked: str) -> None:
    assert torch.get_num_threads() == 1
    cuda, cudnn, mkldnn = torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn
    assert (cuda.matmul.allow_tf32, cudnn.allow_tf32) == (asked == "tf32",) * 2
    gpu = {each.fp32_precision for each in (cuda.matmul, cudnn.conv, cudnn.rnn)}
    assert gpu <= ({"tf32"} if asked == "tf32" else {"ieee", "none"})
    assert {each.fp32_precision for each in (mkldnn.matmul, mkldnn.conv, mkldnn.rnn)} <= {"ieee", "none"}
    assert torch.backends.fp32_precision == "none"  # which decides wherever there is "none"


def test_workers_let_cudnn_choose_its_kernels():
    torch.backends.cudnn.benchmark = False
    placement.settle_arithmetic()
    assert torch.backends.cudnn.benchmark


@pytest.mark.parametrize(
    ("device", "asked", "used"),
    [("cuda", "tf32", True), ("cuda:1", "tf32", True), ("cpu", "tf32", False), ("cuda", "fp32", False)],
)
def test_a_run_records_whether_tf32_was_used(device, asked, used):
    assert precision.uses_tf32(device, asked) is used


def test_every_precision_has_a_tolerance():
    assert precision.TOLERANCE.keys() == set(PRECISIONS)
