"""Frozen parameters: lanes share them, or have their own if trials draw them; nothing ever moves them."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from helpers.blobs import Blobs
from helpers.desks import Desk, assert_same_bits, fixed_trial, trained
from helpers.fused import Flat, Rule, admitted, partly, plain_loop, seldom
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from study.engine import timing
from study.engine.arithmetic import candidates
from study.engine.fused import vmapped
from study.engine.run import Run
from study.errors import Failed
from study.optimizers.kfac import KFAC
from study.records import Study
from study.settings import Evaluation

STEPS = 10
TOLERANCE = 2e-4
WIDTH = 96
SPACES: dict[str, dict[str, float]] = {
    "momentum": {"learning_rate": 0.05, "momentum": 0.8, "l2": 0.1},
    "adamw": {"learning_rate": 0.02, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3, "weight_decay": 0.5},
    "lamb": {"learning_rate": 0.03, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3, "weight_decay": 0.5, "ema_decay": 0.7},
    "folded_momentum": {"learning_rate": 0.05, "momentum": 0.8, "momentum_correction": 1.0, "weight_decay": 0.1},
    "sgd": {"learning_rate": 0.2, "clip_norm": 0.3},
}


class LowRank(nn.Module):
    """A frozen linear layer and a trained update of low rank (Hu et al. 2021)."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.mT @ self.up.mT


@dataclass
class FineTuned(Blobs):
    """A backbone that is loaded, or that each trial draws, under updates of low rank; a trained head."""

    loaded: bool = True

    def model(self) -> nn.Module:
        model = nn.Sequential(LowRank(24, WIDTH), nn.Tanh(), LowRank(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 5))
        if self.loaded:
            generator = torch.Generator().manual_seed(7)
            with torch.no_grad():
                for parameter in model.parameters():
                    if not parameter.requires_grad:
                        parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        return model


@pytest.fixture
def asked(make_study: Any) -> Any:
    def make(how: str, optimizer: str = "momentum", **fields: Any) -> Study:
        space = {
            name: {"choices": [value, 2 * value]} if name == "learning_rate" else value
            for name, value in SPACES.get(optimizer, {"learning_rate": 0.02}).items()
        }
        grid = Evaluation(first=1 / STEPS, ratio=1 + 1e-9, every=STEPS)
        defaults = {"batch_size": 6, "steps": STEPS, "evaluation": grid}
        return make_study(space=space, optimizer=optimizer, arithmetic=how, **defaults | fields)

    return make


def desk(study: Study, count: int = 3) -> Desk:
    rates = study.search.space["learning_rate"].choices or ()
    return Desk([fixed_trial(study, index, learning_rate=rates[index % 2]) for index in range(count)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "optimizer", "loaded"),
    seldom(partly(product(["plain", "accumulated", "vmap", "flat"], SPACES, [True, False]), 7)),
)
def test_frozen_parameters_are_constants_of_the_plain_loop(asked, monkeypatch, how, optimizer, loaded):
    if how == "flat":
        monkeypatch.setattr(vmapped, "Vmapped", Flat)
    fields = {"micro_batch": 4} if how == "accumulated" else {}
    study = asked("vmap" if how in ("vmap", "flat") else "plain", optimizer, no_decay=["up", "bias"], **fields)
    workload = FineTuned(loaded=loaded)
    undecayed = [name for name, _ in workload.model().named_parameters() if "up" in name or "bias" in name]
    curves = trained(study, desk(study), workload=workload)
    for trial in desk(study).trials:
        wanted = list(plain_loop(study, workload, trial, lambda m, h: Rule(m, optimizer, h, undecayed=undecayed)))
        np.testing.assert_allclose(curves[trial.index].errors["val/loss"], wanted, rtol=TOLERANCE)
    if "ema_decay" in SPACES[optimizer]:
        alone = trained(asked("plain", optimizer, no_decay=["up", "bias"]), desk(study), workload=workload)
        for index, curve in curves.items():
            averaged = curve.errors["val/ema_loss"], alone[index].errors["val/ema_loss"]
            np.testing.assert_allclose(*averaged, rtol=TOLERANCE)


def test_only_models_through_vmap_have_frozen_parameters_in_lanes(asked):
    study = asked("plain")
    assert candidates(FineTuned().model(), study, "cpu", forced=True) == ["vmap", "plain"]
    chain = Blobs().model()
    chain[1].weight.requires_grad_(False)
    assert candidates(chain, study, "cpu", forced=True) == ["vmap", "plain"]


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that an operation returns in memory of its own."""

    numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        given = {each.untyped_storage().data_ptr() for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        for each in tree_leaves(found):
            if isinstance(each, Tensor) and each.untyped_storage().data_ptr() not in given:
                self.numel = max(self.numel, each.untyped_storage().nbytes() // 4)
        return found


def test_lanes_share_a_loaded_backbone_and_copy_one_that_trials_draw(asked):
    study, lanes = asked("vmap", batch_size=2), 4
    sizes = {name: p.numel() for name, p in FineTuned().model().named_parameters()}
    frozen = sum(size for name, size in sizes.items() if "base" in name)
    widths, largest = [], []
    for loaded in (True, False):
        workload = FineTuned(loaded=loaded)
        fused = timing.started(study, workload, workload.data(), range(lanes))
        with Largest() as mode:
            fused.advance(2)
        widths.append(fused.stack.weights.shape[1])
        largest.append(mode.numel)
        assert all(tensor.shape == (lanes, fused.stack.layout.trained_width) for tensor in fused.stack.state.values())
    assert widths[0] < sum(sizes.values()) - frozen + 16 * len(sizes)
    assert widths[1] >= sum(sizes.values())
    assert max(largest) < WIDTH * WIDTH  # no step copies the largest frozen weight


@pytest.mark.slow
@pytest.mark.parametrize("loaded", partly([True, False], 2))
def test_a_lane_with_frozen_parameters_does_not_depend_on_its_neighbours(asked, monkeypatch, loaded):
    study, workload = asked("vmap", "adamw"), FineTuned(loaded=loaded)
    monkeypatch.setitem(admitted.__globals__["WORKLOADS"], "vmap", workload)
    heights = admitted(study)
    assert len(heights) > 1
    alone = {}
    for trial in desk(study, 5).trials:
        alone |= trained(study, Desk([trial]), heights[:1], workload)
    for order in (1, -1):
        found = trained(study, Desk(desk(study, 5).trials[::order]), heights[-1:], workload)
        assert_same_bits({index: found[index] for index in alone}, alone)


class Changing(FineTuned):
    """Loads the same backbone for the first two trials, and another one for the third."""

    made = 0

    def model(self) -> nn.Module:
        model = super().model()
        Changing.made += 1
        with torch.no_grad():
            model[0].base.weight += float(Changing.made > 4)
        return model


def test_a_shared_parameter_that_changes_later_is_refused(asked, monkeypatch):
    monkeypatch.setattr(Changing, "made", 0)
    study = asked("vmap")
    with pytest.raises(Failed, match=r"the frozen parameter 0.base.weight is equal in .* choose engine=serial and"):
        trained(study, desk(study), workload=Changing())


class Counting(torch.optim.SGD):
    """Creates its state at once, for all parameters it is given."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.given = [p for group in self.param_groups for p in group["params"]]


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", f"{__name__}.Counting"])
def test_alone_frozen_parameters_get_no_gradient_and_no_state(asked, optimizer):
    study, workload = asked("plain", optimizer), FineTuned()
    run = Run(study, workload, workload.data(), desk(study).trials[0])
    before = {name: p.clone() for name, p in run.model.named_parameters()}
    run.advance(3)
    for name, parameter in run.model.named_parameters():
        if "base" in name:
            assert parameter.grad is None
            assert parameter not in run.optimizer.state
            assert torch.equal(parameter, before[name])
        else:
            assert not torch.equal(parameter, before[name])
    given = {p for group in run.optimizer.param_groups for p in group["params"]}
    assert given == {p for p in run.model.parameters() if p.requires_grad}


def test_kfac_trains_a_layer_that_is_frozen_in_part_by_momentum():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].bias.requires_grad_(False)
    h = {"learning_rate": 0.1, "momentum": 0.8, "damping": 0.1, "factor_decay": 0.9, "inverse_frequency": 3}
    optimizer, before = KFAC(model, h), model[0].weight.detach().clone()

    def closure() -> Tensor:
        loss = model(torch.ones(5, 4)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert optimizer.layers == [model[1]]
    torch.testing.assert_close(model[0].weight, before - 0.1 * model[0].weight.grad)
