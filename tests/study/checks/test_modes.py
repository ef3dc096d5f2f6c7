"""A user's code that leaves settings of torch changed for the whole process is refused before anything trains."""

import functools
from collections.abc import Iterator

import pytest
import torch
from helpers.users.checked import Made, Model, refused

from study.checks.calling import calling
from study.checks.data import check_members
from study.checks.model import check_evaluation, check_model
from study.devices import modes, precision
from workloads.base import cross_entropy_error

CHANGES = {
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "inference_mode": lambda: HELD.append(torch.inference_mode()) or HELD[-1].__enter__(),
    "autocast": lambda: torch.autocast("cpu").__enter__(),
    "set_default_dtype": lambda: torch.set_default_dtype(torch.float64),
    "set_default_device": lambda: torch.set_default_device("meta"),
    "set_num_threads": lambda: torch.set_num_threads(3),
    "set_float32_matmul_precision": lambda: torch.set_float32_matmul_precision("medium"),
}
SETTLED = ("set_num_threads", "set_float32_matmul_precision")  # by workers, after splits() and model()
HELD: list[torch.inference_mode] = []


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    yield
    while HELD:
        HELD.pop().__exit__(None, None, None)
    torch.set_grad_enabled(True)
    torch.set_autocast_enabled("cpu", False)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    precision.settle("fp32")


def said(change: str) -> str:
    return rf"must leave the settings of torch .*, but changes torch.{change} \(.* before, .* now\); leave it out: .*\w"


def test_each_setting_has_a_case():
    assert {f"torch.{change}" for change in CHANGES} == modes.MODES.keys() == modes.INSTEAD.keys()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["loss", "model", "splits()", "model()"])
def test_a_call_that_leaves_a_setting_changed(make_study, name, change):
    settled = name.endswith("()") and change in (
        "set_num_threads",
        "set_float32_matmul_precision",
    )  # workers settle it again
    with refused(None if settled else f"{name.replace('()', '..')} {said(change)}"), calling(make_study(), name):
        CHANGES[change]()


@pytest.mark.parametrize("member", ["loss", "model", "errors"])
@pytest.mark.parametrize("change", ["set_num_threads", "set_float32_matmul_precision", "autocast"])
def test_losses_errors_and_models_that_leave_a_setting_changed(make_study, member, change):
    def changing(value):
        CHANGES[change]()
        return value

    few = torch.randn(8, 6), torch.randint(2, (8,))
    workload = {
        "loss": Made(Model, loss=lambda outputs, targets: changing(cross_entropy_error(outputs, targets))),
        "model": Made(lambda: Model(act=lambda self, y: changing(y))),
        "errors": Made(
            Model, errors={"wrong": lambda outputs, targets: changing(cross_entropy_error(outputs, targets))}
        ),
    }[member]
    name = "errors\\['wrong'\\]" if member == "errors" else member
    with refused(f"{name} {said(change)}"):
        layout = check_model(make_study(), workload, *few)
        check_evaluation(make_study(), workload, *few, layout, [8, 8])


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_leaves_a_setting_changed(make_study, change):
    CHANGES[change]()
    accepted = change in (*SETTLED, "set_default_dtype")
    workload = Made(Model, splits=None)
    with refused(None if accepted else f"file {said(change)}"):
        check_members(make_study(), workload)


@pytest.mark.parametrize(
    ("backend", "now"),
    [("", "tf32"), ("", "bf16"), ("cuda.matmul", "tf32"), ("mkldnn", "bf16"), ("mkldnn.matmul", "tf32")],
)
def test_precisions_that_a_file_assigns_are_read_and_a_loss_that_assigns_them_is_refused(make_study, backend, now):
    own = functools.reduce(getattr, filter(None, backend.split(".")), torch.backends)
    own.fp32_precision = now
    with calling(make_study(), "loss"):
        pass
    precision.settle("fp32")
    with refused("loss must leave the settings"), calling(make_study(), "loss"):
        own.fp32_precision = now
