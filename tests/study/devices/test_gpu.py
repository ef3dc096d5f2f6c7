"""On a CUDA device: every way to train agrees with the CPU's serial engine to a tolerance, and sweeps find the GPUs."""

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from helpers import desks
from helpers.blobs import CPU, WORKLOADS, Blobs
from helpers.checkpointed import trial
from helpers.desks import Curves, Desk, Killed, fixed_trial
from helpers.gpu.convolutions import CASES, assert_exact, assert_rectified
from helpers.made_workload import own_folder
from helpers.users.pictures import NETWORKS

from study.__main__ import main
from study.config import preflight
from study.config.jobs import parse_jobs
from study.data import streaming
from study.data.streaming import Streamed
from study.devices import memory, placement, precision
from study.engine import lane_count, lanes, train
from study.engine.fused import cuda_graph, stack
from study.engine.fused.convolution import operations
from study.records import PRECISIONS, Study

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and -m gpu"),
]

TOLERANCE = 1e-2  # relative, of the validation cross entropy after 60 updates
SMALL = ["batch_size=32", "search.trials=6", "search.reruns=0", "budget.epochs=0", "budget.steps=60", "stopping=budget"]
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
    ways = {"cpu": ["engine=serial", "engine.device=cpu", "engine.workers=1"], "gpu": [f"engine={engine}"]}
    for folder, how in ways.items():
        asked = [f"optimizer={optimizer}", *TAME[optimizer], *how]
        assert main(["sweep", *SMALL, *asked, f"results={tmp_path / folder}"]) == 0
    np.testing.assert_allclose(losses(tmp_path / "gpu"), losses(tmp_path / "cpu"), rtol=TOLERANCE)


@pytest.fixture(autouse=True)
def _fp32() -> Iterator[None]:
    """As in the workers; torch's convolutions are TF32 by default, which moves losses by more than the tolerance."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    precision.settle("fp32")
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def test_a_convolution_of_a_worker_is_single_precision(device: torch.device) -> None:
    """With TF32, it would be wrong by about 3e-4."""
    generator = torch.Generator().manual_seed(0)
    images, weights = (torch.randn(shape, generator=generator) for shape in ((8, 64, 16, 16), (64, 64, 3, 3)))
    placement.settle_arithmetic()
    found = torch.nn.functional.conv2d(images.to(device), weights.to(device)).cpu().double()
    expected = torch.nn.functional.conv2d(images.double(), weights.double())
    assert (found - expected).norm() <= 1e-5 * expected.norm()


@pytest.fixture(scope="module")
def device() -> torch.device:
    """The first GPU."""
    return torch.device("cuda", 0)


def trained(study: Study, data: Any, desk: Desk | None = None, heights: Sequence[int] = (4,)) -> Curves:
    """Six trials, of what the study's arithmetic trains."""
    return desks.trained(study, desk or Desk([trial(study, index) for index in range(6)]), heights, data=data)


assert_near = partial(desks.assert_near, tolerance=TOLERANCE, metrics="val/loss")


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("how", ["plain", "linear_chain", "vmap"])
def test_curves_are_those_of_the_cpu(resumable, device, how, optimizer):
    study = resumable(how, optimizer)
    assert_near(trained(study, WORKLOADS[how].data(device)), trained(study, WORKLOADS[how].data()))


@pytest.mark.parametrize("how", ["linear_chain", "vmap"])
def test_a_diverging_lane_harms_no_other(resumable, device, how):
    """Kernels of many groups may multiply one group's NaN by zeros of another's."""
    study = resumable(how)
    trials = [trial(study, 0), trial(study, 1, learning_rate=1e38), trial(study, 2), trial(study, 3)]
    there, here = (trained(study, WORKLOADS[how].data(where), Desk(trials)) for where in (device, CPU))
    assert [there[index].first_bad_step is None for index in range(4)] == [True, False, True, True]
    assert there[1].first_bad_step == here[1].first_bad_step
    del there[1], here[1]
    assert_near(there, here)


@pytest.mark.parametrize("how", ["linear_chain", "vmap"])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_updates_are_recorded_and_replayed(resumable, device, monkeypatch, how, optimizer):
    study = resumable(how, optimizer)
    found = trained(study, WORKLOADS[how].data(device), heights=(1, 2, 4))  # else it raises CannotRecord
    monkeypatch.delitem(cuda_graph.GRAPHS, "cuda")
    assert_near(found, trained(study, WORKLOADS[how].data(device), heights=(1, 2, 4)))


@pytest.mark.parametrize("how", ["linear_chain", "vmap"])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_updates_are_compiled_and_recorded(resumable, device, how, optimizer):
    study, data = resumable(how, optimizer), WORKLOADS[how].data(device)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="updates are (not compiled|launched kernel by kernel)")
        desk = Desk([trial(study, index) for index in range(6)])
        curves = lanes.train(study, WORKLOADS[how], data, desk, (1, 2, 4), 4, compiled=True)
        found = {curve.trial.index: curve for curve in curves}
    assert_near(found, trained(study, data, heights=(1, 2, 4)))


def test_what_cannot_be_recorded_leaves_nothing_behind(resumable, device, monkeypatch):
    loss = Blobs.loss

    def asking(self: Blobs, outputs: torch.Tensor, *others: Any, **hyperparameters: Any) -> torch.Tensor:
        return loss(self, outputs, *others, **hyperparameters) * torch.tensor([1.0], device=outputs.device)

    study = resumable("vmap")
    expected = trained(study, WORKLOADS["vmap"].data(device))
    monkeypatch.setattr(Blobs, "loss", asking)
    with pytest.raises(cuda_graph.CannotRecord):
        trained(study, WORKLOADS["vmap"].data(device))
    with cuda_graph.recording(False):
        assert_near(trained(study, WORKLOADS["vmap"].data(device)), expected)
    assert torch.rand(3, device=device).shape == (3,)  # draws are forbidden to what is still recorded
    monkeypatch.undo()
    assert_near(trained(study, WORKLOADS["vmap"].data(device)), expected)


@pytest.mark.parametrize("how", ["plain", "linear_chain", "vmap"])
def test_a_killed_trial_goes_on(resumable, device, how):
    study, data = resumable(how), WORKLOADS[how].data(device)
    trials, kept = [trial(study, index) for index in range(3)], {}
    with pytest.raises(Killed):
        trained(study, data, Desk(trials, minutes=0.0, kept=kept, lives=3))
    assert kept
    whole, again = Desk(trials), Desk(trials, kept=kept)
    assert_near(trained(study, data, again), trained(study, data, whole))
    assert again.pace.made < whole.pace.made


def test_streamed_data_make_the_same_curves(resumable, device):
    study, splits = resumable("plain"), WORKLOADS["plain"].splits(CPU)
    data = streaming.source(splits, str(device), 0.0, loaders=1)
    assert isinstance(data, Streamed)
    assert_near(trained(study, data), trained(study, WORKLOADS["plain"].data(device)))


@pytest.mark.parametrize("name", ["basic ghost", "bottleneck group", "vgg layer", "pre-activation none", "vit layer"])
def test_image_networks_train_in_lanes(make_study, device, name):
    space = {"learning_rate": {"choices": [0.02, 0.01, 0.05]}, "momentum": 0.5}
    study = make_study(space=space, arithmetic="vmap", steps=12, batch_size=8)
    network, there, here = NETWORKS[name], *(Desk([fixed_trial(study, index) for index in range(3)]) for _ in range(2))
    found = desks.trained(study, there, (1, 2, 4), network, network.data(device))
    assert_near(found, desks.trained(replace(study, arithmetic="plain"), here, workload=network))


def test_bf16_is_near_fp32(resumable, device):
    halves = trained(resumable("plain", precision="bf16", micro_batch=None), WORKLOADS["plain"].data(device))
    for index, whole in trained(resumable("plain"), WORKLOADS["plain"].data(device)).items():
        # Chaos parts the later ones.
        first, expected = halves[index].errors["val/loss"][0], whole.errors["val/loss"][0]
        assert first != expected
        assert first == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("low", ["tf32", "bf16"])
@pytest.mark.parametrize("how", ["linear_chain", "vmap"])
def test_lanes_in_a_lower_precision_are_near_fp32(resumable, device, how, low):
    expected = trained(resumable(how), WORKLOADS[how].data(device))
    precision.settle(low)
    found = trained(resumable(how, precision=low), WORKLOADS[how].data(device))
    for index, whole in expected.items():
        assert found[index].errors["val/loss"][0] == pytest.approx(whole.errors["val/loss"][0], rel=0.05)


@pytest.mark.parametrize("how", ["linear_chain", "vmap"])
@pytest.mark.parametrize("together", [(32, 4, 1), (1,)])
def test_evaluations_are_recorded_and_replayed(resumable, device, monkeypatch, how, together):
    """In groups of models that share the memory of their recordings."""
    study = resumable(how)
    monkeypatch.setattr(stack, "EVALUATED_TOGETHER", together)
    found = trained(study, WORKLOADS[how].data(device))
    monkeypatch.delitem(cuda_graph.GRAPHS, "cuda")
    assert_near(found, trained(study, WORKLOADS[how].data(device)))


@pytest.mark.parametrize("low", PRECISIONS)
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("how", ["linear_chain", "vmap"])
def test_all_trials_are_measured_in_one_stack(resumable, device, monkeypatch, how, optimizer, low):
    """Rows of every number of lanes that is tried are near the reference's."""
    tried: dict[int, bool] = {}
    add = lane_count._Tries.add

    def noted(self: Any, height: int) -> bool:
        tried[height] = add(self, height)
        return tried[height]

    monkeypatch.setattr(lane_count._Tries, "add", noted)
    train.measure(resumable(how, optimizer, precision=low), WORKLOADS[how], WORKLOADS[how].data(device), most=100)
    assert tried == {4: True, 100: True, 50: True, 1: True}


def test_out_of_memory_is_known_for_what_it_is(device):
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**46, dtype=torch.uint8, device=device)
    assert memory.out_of_memory(caught.value)


def test_lanes_that_do_not_fit_are_fewer(resumable, device, monkeypatch):
    """Some model's 16 lanes have room, and no more."""
    study, advance = resumable("vmap"), lanes.Lanes.advance

    def bounded(self: lanes.Lanes, steps: int) -> None:
        if len(self.lanes) > 16:
            torch.empty(2**46, dtype=torch.uint8, device=device)
        advance(self, steps)

    monkeypatch.setattr(lanes.Lanes, "advance", bounded)
    cost = train.measure(study, Blobs(images=True), WORKLOADS["vmap"].data(device), most=64)
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


SINGULAR = """
from made_images import *


class Singular(Images):
    def loss(self, outputs, targets):
        return super().loss(outputs, targets) + 0 * torch.linalg.eigvalsh((outputs.mT @ outputs).detach()).sum()
"""


def test_a_sweep_survives_a_loss_that_invalidates_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Linear algebra waits for the GPU inside of its libraries, where torch does not notice it beforehand."""
    mine = own_folder(tmp_path / "mine", "singular", SINGULAR, "made_singular.Singular")
    words = ["sweep", "--config-dir", str(mine), "workload=singular", "engine=lanes", "batch_size=4"]
    assert main([*words, f"results={tmp_path / 'results'}"]) == 0
    assert "kernel by kernel" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("low", "dtype", "rounding"),
    [("fp32", torch.float32, 3e-6), ("tf32", torch.float32, 3e-3), ("fp32", torch.bfloat16, 2e-2)],
)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_convolutions_of_lanes_are_exact_to_rounding(device, case, low, dtype, rounding):
    precision.settle(low)
    assert operations._of_gpu(device) is not None
    for check in (assert_exact, assert_rectified):
        check(case, *case.made(dtype, device), rounding)
