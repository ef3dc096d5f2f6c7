"""On a CUDA device: every way to train agrees with the CPU's serial engine to a tolerance, and sweeps find the GPUs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from helpers import checkpointed
from helpers.blobs import Blobs
from helpers.checkpointed import Desk, Killed

from study.__main__ import main
from study.config import preflight
from study.config.jobs import parse_jobs
from study.data import streaming
from study.data.resident import Data
from study.data.streaming import Streamed
from study.devices import memory
from study.engine import lane_count, lanes, serial, train
from study.engine.fused import cuda_graph
from study.records import Curve, Study

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and -m gpu"),
]

TOLERANCE = 1e-2  # relative, of the validation cross entropy after 60 updates
SMALL = ["batch_size=32", "search.trials=6", "budget.epochs=0", "budget.steps=60", "stopping=budget"]
TAME = {
    "momentum": ["search.space.learning_rate=[0.01,0.02]", "search.space.momentum=[0.0,0.5]"],
    "folded_momentum": ["search.space.learning_rate=[0.01,0.02]", "search.space.momentum=0.5"],
    "rmsprop": ["search.space.learning_rate=[0.0005,0.001]", "search.space.beta2=0.99"],
    "adam": ["search.space.learning_rate=[0.001,0.002]", "search.space.beta1=0.9"],
    "nadam": ["search.space.learning_rate=[0.001,0.002]", "search.space.beta1=0.9"],
    "lars": ["search.space.learning_rate=[1.0,2.0]", "search.space.momentum=0.5"],
    "lamb": ["search.space.learning_rate=[0.005,0.01]", "search.space.beta1=0.9"],
    "muon": ["search.space.learning_rate=[0.001,0.002]", "search.space.momentum=0.9"],
}
"""Configurations that rounding leaves alone; signs and null spaces (Lion, SOAP) it does not."""


def losses(folder: Path) -> np.ndarray:
    [path] = folder.glob("studies/*/*/*/curves.parquet")
    return pq.read_table(path)["val/cross_entropy_error"].to_numpy()


@pytest.mark.parametrize("optimizer", TAME)
@pytest.mark.parametrize("engine", ["serial", "lanes"])
def test_the_gpu_agrees_with_the_cpus_serial_engine(tmp_path: Path, engine: str, optimizer: str) -> None:
    for folder, how in (
        ("cpu", ["engine=serial", "engine.device=cpu", "engine.workers=1"]),
        ("gpu", [f"engine={engine}"]),
    ):
        asked = [f"optimizer={optimizer}", *TAME[optimizer], *how]
        assert main(["sweep", *SMALL, *asked, f"results={tmp_path / folder}"]) == 0
    np.testing.assert_allclose(losses(tmp_path / "gpu"), losses(tmp_path / "cpu"), rtol=TOLERANCE)


@pytest.fixture(autouse=True)
def _fp32() -> Iterator[None]:
    """As in the workers; torch's convolutions are TF32 by default, which moves losses by more than the tolerance."""
    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = False
    yield
    for backend, allowed in zip(backends, before, strict=True):
        backend.allow_tf32 = allowed


@pytest.fixture(scope="module")
def device() -> torch.device:
    """The first GPU."""
    return torch.device("cuda", 0)


@pytest.fixture
def question(make_study: Callable[..., Study]) -> Callable[..., Study]:
    """A study of a small convolutional net, in an arithmetic."""

    def make(how: str, optimizer: str = "momentum", **fields: Any) -> Study:
        return checkpointed.asked(make_study, how, optimizer, **fields)

    return make


def trained(study: Study, data: Any, desk: Desk | None = None, heights: Sequence[int] = (4,)) -> list[Curve]:
    """Six trials, in the order of their indices, of what the study's arithmetic trains."""
    workload = checkpointed.CASES[study.arithmetic]
    desk = desk or Desk([checkpointed.trial(study, index) for index in range(6)])
    if study.arithmetic == "plain":
        curves = serial.train(study, workload, data, desk)
    else:
        curves = lanes.train(study, workload, data, desk, heights, heights[-1])
    return sorted(curves, key=lambda curve: curve.trial.index)


def held(how: str, device: torch.device) -> Data:
    return Data.of(checkpointed.CASES[how].splits(torch.device("cpu")), device)


def assert_near(found: Sequence[Curve], expected: Sequence[Curve]) -> None:
    assert [curve.trial.index for curve in found] == [curve.trial.index for curve in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.steps.tolist() == other.steps.tolist()
        np.testing.assert_allclose(one.errors["val/loss"], other.errors["val/loss"], rtol=TOLERANCE)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("how", ["plain", "linear_chain", "vmap"])
def test_curves_are_those_of_the_cpu(question, device, how, optimizer):
    study = question(how, optimizer)
    assert_near(trained(study, held(how, device)), trained(study, held(how, torch.device("cpu"))))


@pytest.mark.parametrize("how", ["linear_chain", "vmap"])
def test_a_diverging_lane_harms_no_other(question, device, how):
    """Kernels of many groups may multiply one group's NaN by zeros of another's."""
    study = question(how)
    desks = [
        Desk([checkpointed.trial(study, i, **({"learning_rate": 1e38} if i == 1 else {})) for i in range(4)])
        for _ in range(2)
    ]
    there, here = (
        trained(study, held(how, where), desk) for where, desk in zip((device, torch.device("cpu")), desks, strict=True)
    )
    assert [curve.first_bad_step is None for curve in there] == [True, False, True, True]
    assert there[1].first_bad_step == here[1].first_bad_step
    del there[1], here[1]
    assert_near(there, here)


@pytest.mark.parametrize("how", ["linear_chain", "vmap"])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_updates_are_recorded_and_replayed(question, device, monkeypatch, how, optimizer):
    study = question(how, optimizer)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="updates are launched kernel by kernel")
        found = trained(study, held(how, device), heights=(1, 2, 4))
    monkeypatch.delitem(cuda_graph.GRAPHS, "cuda")
    assert_near(found, trained(study, held(how, device), heights=(1, 2, 4)))


def test_what_cannot_be_recorded_leaves_nothing_behind(question, device, monkeypatch):
    loss = Blobs.loss

    def asking(self: Blobs, outputs: torch.Tensor, *others: Any, **hyperparameters: Any) -> torch.Tensor:
        return loss(self, outputs, *others, **hyperparameters) * torch.tensor([1.0], device=outputs.device)

    study = question("vmap")
    expected = trained(study, held("vmap", device))
    monkeypatch.setattr(Blobs, "loss", asking)
    with pytest.warns(UserWarning, match="kernel by kernel"):
        assert_near(trained(study, held("vmap", device)), expected)
    assert torch.rand(3, device=device).shape == (3,)  # draws are forbidden to what is still recorded
    monkeypatch.undo()
    assert_near(trained(study, held("vmap", device)), expected)


@pytest.mark.parametrize("how", ["plain", "linear_chain", "vmap"])
def test_a_killed_trial_goes_on(question, device, how):
    study, data = question(how), held(how, device)
    kept: dict[int, bytes] = {}
    trials = [checkpointed.trial(study, index) for index in range(3)]
    with pytest.raises(Killed):
        trained(study, data, Desk(trials, minutes=0.0, kept=kept, lives=3))
    assert kept
    whole, again = Desk(trials), Desk(trials, kept=kept)
    assert_near(trained(study, data, again), trained(study, data, whole))
    assert again.pace.made < whole.pace.made


def test_streamed_data_make_the_same_curves(question, device):
    study, splits = question("plain"), checkpointed.CASES["plain"].splits(torch.device("cpu"))
    data = streaming.source(splits, str(device), 0.0, loaders=1)
    assert isinstance(data, Streamed)
    assert_near(trained(study, data), trained(study, held("plain", device)))


def test_bf16_is_near_fp32(question, device):
    halves = trained(question("plain", precision="bf16", micro_batch=None), held("plain", device))
    for half, whole in zip(halves, trained(question("plain"), held("plain", device)), strict=True):
        first, expected = half.errors["val/loss"][0], whole.errors["val/loss"][0]  # later ones are parted by chaos
        assert first != expected
        assert first == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("how", ["linear_chain", "vmap"])
def test_several_heights_are_admitted(question, device, how):
    for optimizer in ("momentum", "adam"):
        study = question(how, optimizer)
        heights = list(lane_count.admitted(study, checkpointed.CASES[how], held(how, device), most=32))
        assert heights[-1] == 32, optimizer


def test_out_of_memory_is_known_for_what_it_is(device):
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**46, dtype=torch.uint8, device=device)
    assert memory.out_of_memory(caught.value)


def test_lanes_that_do_not_fit_are_fewer(question, device, monkeypatch):
    """Some model's 16 lanes have room, and no more."""
    study, advance = question("vmap"), lanes.Lanes.advance

    def bounded(self: lanes.Lanes, steps: int) -> None:
        if len(self.lanes) > 16:
            torch.empty(2**46, dtype=torch.uint8, device=device)
        advance(self, steps)

    monkeypatch.setattr(lanes.Lanes, "advance", bounded)
    cost = train.measure(study, Blobs(images=True), held("vmap", device), most=64)
    assert cost.heights[-1] <= 16


def test_a_gpu_is_used_without_being_told(tmp_path: Path) -> None:
    [job] = preflight.settle(parse_jobs(["batch_size=32"]))
    assert job.placement.device == "cuda"
    assert job.placement.workers == torch.cuda.device_count()
    assert main(["sweep", *SMALL, f"results={tmp_path}"]) == 0
    [record] = tmp_path.glob("studies/*/*/*/study.json")
    [run] = json.loads(record.read_text())["provenance"]
    assert run["gpu"] == torch.cuda.get_device_name(0)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("how", [["engine.workers=2"], ["engine=serial", "engine.devices=2"]])
def test_two_gpus_agree_with_one(tmp_path: Path, how: list[str]) -> None:
    asked = [*SMALL, *TAME["momentum"]]
    assert main(["sweep", *asked, "engine.device=cuda:1", f"results={tmp_path / 'one'}"]) == 0
    assert main(["sweep", *asked, *how, f"results={tmp_path / 'two'}"]) == 0
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=TOLERANCE)
