"""A trial on several devices is the trial on one, to rounding; its processes decide, end and die together."""

import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from helpers.blobs import CPU, Blobs
from helpers.desks import Desk, assert_near, assert_same_bits, fixed_trial, room_for, training
from helpers.fused import partly, seldom
from helpers.processes import Crew
from torch import nn

from analysis.counting import Goal
from study import store
from study.checks.parts import check_parts
from study.config import preflight
from study.config.jobs import parse_jobs
from study.data import streaming
from study.data.order import places
from study.devices import placement
from study.devices.distributed import Team
from study.engine.trial.pace import Pace
from study.errors import UsageError
from study.records import Curve, Study
from study.settings import Evaluation, Seeds
from workloads.layers import GhostBatchNorm

STEPS = 8
FIXED: dict[str, Any] = {"learning_rate": 0.05, "momentum": 0.9}
ADAM: dict[str, Any] = {"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.9, "epsilon": 1e-3}
LBFGS: dict[str, Any] = {
    "optimizer": "torch.optim.LBFGS",
    "optimizer_arguments": {"max_iter": 3, "line_search_fn": "strong_wolfe"},
    "space": {"learning_rate": 0.1},
}
TOLERANCE = 2e-4
"""Relative, of every loss: sums are in another order."""


@dataclass
class Ghosts(Blobs):
    """Images through ghost batch norm, whose groups no device may cut."""

    images: bool = True

    def model(self) -> nn.Module:
        layers = [nn.Conv2d(2, 4, 3, padding=1), GhostBatchNorm(4, group=4), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(48, 5))


@dataclass
class Idle(Blobs):
    """Some parameters have no part in the loss."""

    def model(self) -> nn.Module:
        model = super().model()
        model.register_parameter("unused", nn.Parameter(torch.zeros(3)))
        return model


@dataclass
class Tuned(Blobs):
    """The first layer is frozen but for its bias, and the last one learns faster."""

    def model(self) -> nn.Module:
        model = super().model()
        model.get_submodule("1").weight.requires_grad_(False)
        return model

    def groups(self, model: nn.Module) -> dict[str, float]:
        return {"4": 2.0}


EARLY = {
    "stopping": "goal",
    "goal": Goal("val/classification_error", 0.4),
    "evaluation": Evaluation(first=0.25, ratio=1.5, exact=False),
}
CASES: dict[str, tuple[Blobs, dict[str, Any]]] = {
    "linear": (Blobs(), {}),
    "accumulated": (Blobs(), {"micro_batch": 5}),  # the last part is smaller, and not every device has as many
    "images": (Blobs(images=True), {"micro_batch": 7}),
    "ghosts": (Ghosts(), {"micro_batch": 8}),
    "averages": (Blobs(), {"space": FIXED | {"ema_decay": 0.8, "l2": 0.1}}),
    "clipped": (Blobs(), {"space": FIXED | {"clip_norm": 0.3, "l2": 0.1}, "micro_batch": 5}),
    "tuned": (Tuned(), {"space": FIXED | {"weight_decay": 0.3}, "no_decay": ["bias"], "micro_batch": 5}),
    "adam": (Blobs(), {"optimizer": "adam", "space": ADAM}),
    "asks more than once for the loss": (Blobs(), LBFGS | {"micro_batch": 9}),
    "ending early": (Blobs(), EARLY),
    "unused parameters": (Idle(), {}),
    "one example for each device": (Blobs(), {"batch_size": 2}),
    "whole layers": (Blobs(), {"optimizer": "lamb", "space": ADAM | {"weight_decay": 0.1}}),
}
"""Workloads, and fields of studies that are trained on one device and on several."""


def trained(
    team: Team,
    study: Study,
    workload: Any,
    minutes: float | None = None,
    kept: bytes | None = None,
    streamed: int | None = None,
) -> tuple[Curve, list[bytes]]:
    """(curve, checkpoints) as one process of a team sees them; `streamed`: by how many loaders."""
    data = workload.data() if streamed is None else streaming.source(workload.splits(CPU), "cpu", 0.0, streamed)
    desk = Desk([fixed_trial(study)], minutes, {} if kept is None else {0: kept})
    desk.pace = Pace(minutes, team.broadcast)
    [curve] = training(study, desk, workload=workload, data=data.shared(team))
    return curve, [content for _, content in desk.taken]


@pytest.fixture
def study_of(make_study: Any) -> Any:
    def make(name: str, **fields: Any) -> Study:
        # A batch size that is no multiple of the devices; seeds whose paths, with L-BFGS, do not amplify rounding.
        grid = Evaluation(first=0.25, ratio=1.5, every=1)
        defaults = {"space": FIXED, "batch_size": 33, "seeds": Seeds(shared=True), "evaluation": grid}
        return make_study(steps=STEPS, **defaults | CASES[name][1] | fields)

    return make


@pytest.fixture(scope="module")
def pair() -> Any:
    with Crew(2) as crew:
        yield crew


@pytest.fixture(scope="module")
def four() -> Any:
    with Crew(4) as crew:
        yield crew


def check(crew: Crew, devices: int, study: Study, workload: Any) -> None:
    expected, _ = trained(Team(), study, workload)
    curves = [curve for curve, _ in crew.run(devices, trained, study, workload)]
    for curve in curves:
        assert_near(curve, expected, TOLERANCE)
        assert_same_bits(curve, curves[0])  # whoever decides otherwise than the leader waits for ever


@pytest.mark.parametrize("name", partly(["accumulated", "linear", "tuned", "ghosts", "clipped", "ending early"], 5))
def test_two_devices_train_what_one_does(pair, study_of, name):
    check(pair, 2, study_of(name), CASES[name][0])


@pytest.mark.parametrize(("name", "devices"), seldom((name, devices) for name in CASES for devices in (1, 2, 3, 4)))
def test_any_number_of_devices_trains_what_one_does(four, study_of, devices, name):
    study = study_of(name)
    together = 4 if name == "ghosts" else 1
    check(four, len(places(study.batch_size, devices, together=together)), study, CASES[name][0])


@pytest.mark.slow
def test_a_device_that_runs_out_of_memory_alone_halves_the_micro_batch_of_all(pair, study_of):
    study = study_of("linear")
    curves = pair.run(2, _short_of_memory, study)
    assert [curve.micro_batch for curve in curves] == [9, 9]
    assert_near(curves[0], replace(trained(Team(), study, Blobs())[0], micro_batch=9), TOLERANCE)


def _short_of_memory(team: Team, study: Study) -> Curve:
    with pytest.MonkeyPatch.context() as patch:
        room_for(9 if team.rank == 1 else sys.maxsize, patch)
        return trained(team, study, Blobs())[0]


def test_checkpoints_are_the_leaders_and_fit_any_number_of_devices(pair, study_of):
    study, workload = study_of("accumulated"), Blobs()
    undisturbed, _ = trained(Team(), study, workload)
    (curve, taken), (_, theirs) = pair.run(2, trained, study, workload, 0.0)
    assert_near(curve, undisturbed, TOLERANCE)
    assert not any(theirs)
    assert len(taken) == STEPS
    for kept in (taken[2], taken[-1]):
        assert_near(trained(Team(), study, workload, None, kept)[0], undisturbed, TOLERANCE)
        for again, _ in pair.run(2, trained, study, workload, None, kept):
            assert_near(again, undisturbed, TOLERANCE)


@pytest.mark.parametrize("name", partly(["accumulated", "ghosts"], 2, 1))
def test_streamed_data_are_the_same_on_several_devices(pair, study_of, name):
    study = study_of(name)
    [resident, _], [streamed, _] = (pair.run(2, trained, study, CASES[name][0], None, None, how) for how in (None, 1))
    assert_same_bits(streamed[0], resident[0])


@pytest.mark.parametrize("together", [1, 4, 32])
@pytest.mark.parametrize("micro_batch", [None, 1, 5, 64])
@pytest.mark.parametrize("devices", [1, 2, 3, 8])
def test_places_cover_the_batch_once_and_cut_no_group(devices, micro_batch, together):
    for batch_size in (1, 2, 7, 33, 64, 100):
        shares = places(batch_size, devices, micro_batch, together)
        parts = [part for taken in shares for part in taken]
        assert [place for part in parts for place in range(part.start, part.stop)] == list(range(batch_size))
        assert len(shares) == min(devices, max(1, batch_size // together))
        assert all(part.start % together == 0 for part in parts)
        assert all(part.stop % together == 0 for part in parts[:-1])
        if together == 1 and micro_batch:
            assert max(part.stop - part.start for part in parts) <= micro_batch


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["engine.devices=0"], "engine.devices must be at least 1, but got 0"),
        (["engine.devices=2", "engine=lanes"], "fused lanes train on one device, but got 2"),
        (["engine.devices=2", "optimizer=kfac"], "kfac collects the gradients of single examples"),
        (["engine.data_memory=-1"], "engine.data_memory must be a number of GiB of at least 0"),
        (["engine.loaders=-1"], "engine.loaders must be at least 0"),
    ],
)
def test_refusals(tmp_path, says, asked, message):
    sweep = ["sweep", "batch_size=32", "engine.device=cpu", *asked, f"results={tmp_path / 'none'}"]
    assert message in says(*sweep, status=2)
    assert not (tmp_path / "none").exists()


def test_no_more_gpus_than_there_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match="at most the 2 GPUs there are, but got 4"):
        placement._devices("cuda", 4, None)
    with pytest.raises(UsageError, match=r"engine.devices=4 takes the first 4 devices of a kind"):
        placement._devices("cuda:1", 4, None)


def test_batch_norm_over_a_batch_that_comes_in_parts_is_refused(make_study):
    study = make_study(batch_size=8)
    plain = nn.Sequential(nn.Linear(24, 5), nn.BatchNorm1d(5))
    check_parts(study, plain, devices=1)
    parted = replace(study, micro_batch=4)
    for asked, devices, parts in ((study, 2, "parts on 2 devices"), (parted, 1, "micro-batches of 4 examples")):
        with pytest.raises(UsageError, match=f"are split into {parts}.*GhostBatchNorm"):
            check_parts(asked, plain, devices)
        check_parts(asked, nn.Sequential(nn.Linear(24, 5), GhostBatchNorm(5, group=4)), devices)


@pytest.mark.slow
def test_a_study_begun_with_lanes_is_not_gone_on_with_on_several_devices(tmp_path):
    small = ["batch_size=256", "engine.device=cpu", f"results={tmp_path}"]
    [job] = preflight.settle(parse_jobs(small))
    store.open_study(tmp_path, job.study, {"device": "cpu"})
    for asked in (["engine.devices=2"], ["engine.data_memory=0"]):
        with pytest.raises(UsageError, match=r"was begun with fused lanes \(linear_chain"):
            preflight.settle(parse_jobs([*small, *asked]))
        [other] = preflight.settle(parse_jobs([*small[:2], *asked, f"results={tmp_path / 'other'}"]))
        assert job.study.arithmetic.startswith("linear_chain")
        assert other.study.arithmetic == "plain"


@pytest.mark.parametrize(
    ("fields", "diverges"),
    [
        ({"stopping": "goal", "goal": Goal("val/loss", 1.4)}, False),
        ({"space": {"learning_rate": 1e30, "momentum": 0.0}}, True),
    ],
)
def test_goals_and_divergence_end_a_trial_everywhere(pair, study_of, fields, diverges):
    study = study_of("linear", **fields)
    expected, _ = trained(Team(), study, Blobs())
    assert (expected.first_bad_step is not None) == diverges
    assert len(expected.steps) == 0 or expected.steps[-1] < STEPS
    for curve, _ in pair.run(2, trained, study, Blobs()):
        assert_near(curve, expected, TOLERANCE)
