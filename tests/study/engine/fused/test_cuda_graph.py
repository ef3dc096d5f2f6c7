"""Updates that are recorded once and replayed are those that are launched one by one, bit for bit."""

import gc
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from helpers import desks, pretended
from helpers.blobs import WORKLOADS, Blobs
from helpers.desks import Curves, assert_same_bits
from helpers.fused import FUSING, Queue, partly, seldom
from helpers.pretended import DEVICE, NAME
from torch import Tensor

from study.devices import memory
from study.engine.fused import cuda_graph
from study.engine.lanes import Lanes
from study.records import Study

FUSED = ["linear_chain", "vmap"]


@pytest.fixture
def device():
    with pretended.device() as there:
        yield there


def trained(study: Study, workload: Blobs | None = None, heights: Sequence[int] = (1, 2, 4)) -> Curves:
    """Seven trials in four lanes; the third diverges."""
    workload = workload or WORKLOADS[study.arithmetic]
    return desks.trained(study, Queue(study, range(7), learning_rate=1e38), heights, workload, workload.data(DEVICE))


def started(study: Study, count: int = 4) -> Lanes:
    fused = Lanes(study, WORKLOADS[study.arithmetic], WORKLOADS[study.arithmetic].data(DEVICE), [1, 2, 4], 4)
    for trial in Queue(study, range(count)).trials:
        fused.start(trial)
    return fused


def test_what_the_pretended_device_records_is_not_made_and_made_anew(device):
    graph, total, times = pretended.Graph(), torch.zeros(3, device=DEVICE), 2
    given = torch.ones(3, device=DEVICE)
    found = graph.record(lambda: total.add_(given * times) + 1)
    assert total.tolist() == [0, 0, 0]
    given.fill_(5)
    times = 7  # which the device never learns of
    assert device.counted("launches", graph.replay) == 1
    assert (total.tolist(), found.tolist()) == ([10, 10, 10], [11, 11, 11])
    with pytest.raises(RuntimeError, match="capturing"):
        pretended.Graph().record(lambda: total * total.sum().item())
    assert (total + 1).tolist() == [11, 11, 11]


SCHEDULED = {"momentum": "linear_decay", "adam": "step", "folded_momentum": "cosine"}
ALWAYS = [("vmap", "momentum")]


@pytest.mark.parametrize(
    ("how", "optimizer"),
    [
        pytest.param("linear_blocks", "momentum", marks=pytest.mark.slow),
        *ALWAYS,
        *seldom((how, name) for how in FUSED for name in FUSING if (how, name) not in ALWAYS),
    ],
)
def test_curves_are_those_of_updates_launched_one_by_one(device, question, monkeypatch, how, optimizer):
    study = question(how, optimizer, SCHEDULED.get(optimizer, "constant"), steps=8)
    found = trained(study)
    monkeypatch.delitem(cuda_graph.GRAPHS, NAME)
    assert_same_bits(found, trained(study))
    assert [index for index, curve in found.items() if curve.first_bad_step is not None] == [2]


@pytest.mark.parametrize("how", partly(FUSED, 2))
def test_an_update_is_one_launch_besides_its_arguments(device, question, monkeypatch, how):
    fused = started(question(how, "adam"))
    fused._segment(1)
    few, many = (device.counted("launches", lambda steps=steps: fused._segment(steps)) for steps in (2, 9))
    # The inputs are gathered; they, targets, keys, rates and counts are copied; the losses are copied out.
    assert many - few == 7 * (1 + 5 + 1 + 1)
    monkeypatch.delitem(cuda_graph.GRAPHS, NAME)
    fused = started(question(how, "adam"))
    few, many = (device.counted("launches", lambda steps=steps: fused._segment(steps)) for steps in (2, 9))
    assert many - few > 7 * 35


def test_a_stack_of_another_height_is_recorded_anew(device, question):
    fused = started(question("vmap"))
    for count in (4, 2, 4, 1):
        del fused.lanes[count:]
        while len(fused.lanes) < count:
            fused.start(Queue(fused.study, [len(fused.lanes)]).trials[0])
        first, again = (device.counted("launches", lambda: fused._segment(1)) for _ in range(2))
        assert again < first


@dataclass
class Asking(Blobs):
    """Its loss looks at the host's numbers at every call."""

    def loss(self, outputs: Tensor, targets: Tensor, label_smoothing: Any = 0.0) -> Tensor:
        return super().loss(outputs, targets, label_smoothing) * torch.tensor([0.5], device=outputs.device)


@pytest.mark.slow
def test_what_cannot_be_recorded_says_so_and_can_be_launched_one_by_one(device, question, monkeypatch):
    study = question("linear_chain", steps=6)
    with pytest.raises(cuda_graph.CannotRecord, match="aten::_to_copy: operation not permitted"):
        trained(study, Asking(), [4])
    with cuda_graph.recording(False):
        found = trained(study, Asking(), [4])
    assert NAME in cuda_graph.GRAPHS
    monkeypatch.delitem(cuda_graph.GRAPHS, NAME)
    assert_same_bits(found, trained(study, Asking(), [4]))


@pytest.mark.parametrize("how", FUSED)
def test_memory_is_free_as_soon_as_lanes_are_let_go(device, question, how):
    """Fewer of them are tried where it runs out, and the garbage collector is not asked before."""
    fused = started(question(how))
    fused.advance(3)
    held = [weakref.ref(fused), weakref.ref(fused.stack), weakref.ref(fused._updated[1])]
    gc.disable()
    try:
        del fused
        assert [there() for there in held] == [None, None, None]
    finally:
        gc.enable()


class Recording(pretended.Graph):
    """Meets this error; leaving a recording that has failed is an error of its own, as torch's is."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self.error = error

    def record(self, function: Callable[[], Tensor]) -> Tensor:
        try:
            if self.error is not None:
                raise self.error
            return function()
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA"), RuntimeError("CUDNN_STATUS_ALLOC_FAILED")])
def test_a_recording_that_finds_no_room_is_out_of_memory(error):
    with pytest.raises(type(error), match=str(error)) as caught:
        cuda_graph.Replayed(lambda x: x, Recording(error), "updates")(torch.ones(2))
    assert memory.out_of_memory(caught.value)


def test_that_waiting_is_an_error_is_undone_and_says_nothing(monkeypatch):
    modes = ["default"]

    def set_mode(mode):
        modes.append(mode)
        warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with (
        pytest.warns(UserWarning, match="prototype"),
        cuda_graph._never_waiting(),
    ):  # which is the one of setting it back
        assert modes[-1] == "error"
    assert modes == ["default", "error", "default"]


def test_the_first_error_is_told():
    given = torch.ones(2)
    replayed = cuda_graph.Replayed(lambda x: x / 0 if x is given else x @ torch.ones(3), Recording(None), "updates")
    with pytest.raises(cuda_graph.CannotRecord, match=r"^updates cannot be recorded as .*: inconsistent tensor size"):
        replayed(given)
