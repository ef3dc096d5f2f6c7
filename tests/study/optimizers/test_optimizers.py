"""Every registered optimizer against an independent one, step for step: its rule, its fast forms, its lanes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import pytorch_optimizer
import torch
import torch.nn.functional as F
from helpers.fused import partly
from torch import Tensor, nn

from study.optimizers import OPTIMIZERS, base
from study.optimizers.base import Plain, decay_, in_place, resolved

STEPS = 100
TOLERANCE = 2e-4  # relative to the largest weight, after STEPS updates
H = {
    "learning_rate": 0.01,
    "momentum": 0.8,
    "momentum_correction": 1.0,
    "beta1": 0.8,
    "beta2": 0.95,
    "epsilon": 1e-6,
    "weight_decay": 0.02,
    "trust_coefficient": 0.05,
    "precondition_frequency": 7,
}
BETAS = H["beta1"], H["beta2"]


def rate(name: str, step: int) -> float:
    """A learning rate that changes at every step."""
    return TAME.get(name, 1.0) * H["learning_rate"] * (1 - 0.5 * step / STEPS)


class Muon:
    """torch's for matrices, AdamW for the rest; torch's own takes no convolutions and rounds to bfloat16."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.convolutions = [(p, nn.Parameter(p.detach().flatten(1).clone())) for p in parameters if p.dim() > 2]
        matrices = [p for p in parameters if p.dim() == 2] + [flat for _, flat in self.convolutions]
        self.muon = torch.optim.Muon(
            matrices,
            momentum=H["momentum"],
            weight_decay=H["weight_decay"],
            adjust_lr_fn="match_rms_adamw",
            ns_coefficients=(3.4445, -4.7750, 2.0315),
        )
        vectors = [p for p in parameters if p.dim() == 1]
        self.adamw = torch.optim.AdamW(vectors, betas=BETAS, eps=H["epsilon"], weight_decay=H["weight_decay"])
        self.param_groups = [*self.muon.param_groups, *self.adamw.param_groups]

    def step(self) -> None:
        for p, flat in self.convolutions:
            assert p.grad is not None
            flat.grad = p.grad.flatten(1)
        self.muon.step()
        self.adamw.step()
        with torch.no_grad():
            for p, flat in self.convolutions:
                p.copy_(flat.view_as(p))


class Lamb:
    """Algorithm 2 of You et al. 2020 written out; the library has an earlier version of the paper."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.moments = [(p, torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]
        self.param_groups = [{"lr": 0.0}]
        self.t = 0

    @torch.no_grad()
    def step(self) -> None:
        lr = self.param_groups[0]["lr"]
        self.t += 1
        for p, m, v in self.moments:
            assert p.grad is not None
            m.mul_(H["beta1"]).add_((1 - H["beta1"]) * p.grad)
            v.mul_(H["beta2"]).add_((1 - H["beta2"]) * p.grad**2)
            m_hat, v_hat = m / (1 - H["beta1"] ** self.t), v / (1 - H["beta2"] ** self.t)
            r = m_hat / (v_hat.sqrt() + H["epsilon"]) + H["weight_decay"] * p
            ratio = p.norm() / r.norm() if p.norm() > 0 and r.norm() > 0 else 1.0
            p.sub_(lr * ratio * r)


REFERENCES: dict[str, Callable[[list[nn.Parameter]], Any]] = {
    "sgd": lambda p: torch.optim.SGD(p),
    "momentum": lambda p: torch.optim.SGD(p, momentum=H["momentum"]),
    "nesterov": lambda p: torch.optim.SGD(p, momentum=H["momentum"], nesterov=True),
    "folded_momentum": lambda p: torch.optim.SGD(p, momentum=H["momentum"]),  # corrected: the same, PROTOCOL (c)
    "rmsprop": lambda p: torch.optim.RMSprop(p, alpha=H["beta2"], eps=H["epsilon"], momentum=H["momentum"]),
    "adam": lambda p: torch.optim.Adam(p, betas=BETAS, eps=H["epsilon"]),
    "adamw": lambda p: torch.optim.AdamW(p, betas=BETAS, eps=H["epsilon"], weight_decay=H["weight_decay"]),
    "nadam": lambda p: torch.optim.NAdam(p, betas=BETAS, eps=H["epsilon"], weight_decay=0.0),
    "lion": lambda p: pytorch_optimizer.Lion(p, betas=BETAS, weight_decay=0.0),
    "lars": lambda p: pytorch_optimizer.LARS(
        p, momentum=H["momentum"], weight_decay=H["weight_decay"], trust_coefficient=H["trust_coefficient"]
    ),
    "lamb": Lamb,
    "muon": Muon,
    "soap": lambda p: pytorch_optimizer.SOAP(
        p, betas=BETAS, eps=H["epsilon"], weight_decay=0.0, precondition_frequency=int(H["precondition_frequency"])
    ),
}
TAME = {"rmsprop": 0.2}
"""Smaller learning rates, where rounding grows to something visible otherwise."""
FUSED = [name for name, optimizer in OPTIMIZERS.items() if optimizer.update is not None]


def network(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        if name == "soap":  # square layers: the eigenvectors of the null space of others are anybody's choice
            first, widths = nn.AdaptiveAvgPool2d((2, 1)), (4, 4, 4)
        else:
            first, widths = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh()), (64, 5, 3)
        linear = [nn.Linear(a, b) for a, b in pairwise(widths)]
        model = nn.Sequential(first, nn.Flatten(), linear[0], nn.Tanh(), linear[1])
        for bias in (p for p in model.parameters() if p.dim() == 1):
            nn.init.normal_(bias, std=0.1)  # a norm of 0 is a case of its own
    return model


def loss_at(model: Callable[[Tensor], Tensor], step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    targets = torch.randint(3, (16,), generator=generator)
    inputs = torch.randn(16, 2, 4, 4, generator=generator) + targets.view(-1, 1, 1, 1)
    outputs = model(inputs)
    if outputs.shape[1] == 3:
        return F.cross_entropy(outputs, targets)
    return F.mse_loss(outputs, F.one_hot(targets, 4).float())  # whose gradients have no null space, see `network`


def asked(name: str) -> dict[str, float]:
    return {key: H[key] for key in OPTIMIZERS[name].hyperparameters}


def scalars(name: str) -> dict[str, Tensor]:
    return {key: torch.tensor(float(value)) for key, value in asked(name).items()}


def trained(name: str, build: Callable[[nn.Module], Any], ours: bool = True, **decay: float) -> Tensor:
    """The weights after STEPS updates by a torch.optim optimizer: `ours` by closures, as the engine does."""
    model = network(name)
    parameters = list(model.parameters())
    optimizer = build(model)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(name, step)

        def closure(step: int = step) -> Tensor:
            model.zero_grad()
            loss = loss_at(model, step)
            loss.backward()
            if ours:
                with torch.no_grad():
                    pairs = [(p, p.grad) for p in parameters]
                    decay_(OPTIMIZERS[name], pairs, rate(name, step), asked(name) | decay)
            return loss

        if ours:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    return torch.cat([p.detach().flatten() for p in parameters])


@cache
def by_rule(name: str, **decay: float) -> Tensor:
    """The weights that the rule reaches on the serial engine."""
    return trained(name, lambda model: Plain(model, OPTIMIZERS[name], asked(name)), **decay)


@cache
def in_lanes(name: str, fast: bool = True, **decay: float) -> Tensor:
    """The weights of the middle one of three lanes, the others at other learning rates."""
    algorithm = OPTIMIZERS[name] if fast else replace(OPTIMIZERS[name], stacked=None)
    lanes, update_, model = 3, in_place(algorithm), network(name)
    w = {key: p.detach().expand(lanes, *p.shape).clone() for key, p in model.named_parameters()}
    flat = (lambda x: x.flatten(1)) if algorithm.elementwise else (lambda x: x)
    state = {
        key: {part: t.expand(lanes, *t.shape).clone() for part, t in algorithm.init(flat(tensor)[0]).items()}
        for key, tensor in w.items()
    }
    h = asked(name) | decay
    fixed = {key: torch.full((lanes, 1), float(value)) for key, value in h.items()}
    for step in range(STEPS):
        gradients = []
        for lane in range(lanes):
            own = {key: tensor[lane].clone().requires_grad_() for key, tensor in w.items()}
            loss = loss_at(partial(torch.func.functional_call, model, own), step)
            gradients.append(torch.autograd.grad(loss, list(own.values())))
        now = fixed | {"learning_rate": torch.tensor([[0.5], [1.0], [1.5]]) * rate(name, step)}
        for key, *each in zip(w, *gradients, strict=True):
            g = torch.stack(each)
            decay_(algorithm, [(w[key].flatten(1), g.flatten(1))], now["learning_rate"], now)
            update_(flat(w[key]), flat(g), state[key], now, torch.full((lanes, 1), step + 1.0))
            for lane in range(lanes) if algorithm.refresh else ():
                held = {part: tensor[lane] for part, tensor in state[key].items()}
                for part, tensor in algorithm.refresh(held, h, step + 1).items():
                    state[key][part][lane] = tensor
    return torch.cat([tensor[1].flatten() for tensor in w.values()])


@pytest.fixture(scope="module")
def expected() -> Mapping[str, Tensor]:
    """The weights that the references reach."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)  # torch's Muon rounds its products
        return {name: by_reference(name, reference) for name, reference in REFERENCES.items()}


def by_reference(name: str, reference: Callable[[list[nn.Parameter]], Any]) -> Tensor:
    return trained(name, lambda model: reference(list(model.parameters())), ours=False)


def departure(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.slow
def test_every_optimizer_has_a_reference(expected):
    assert {*REFERENCES, "kfac"} == set(OPTIMIZERS)  # K-FAC's is in test_whole_models
    for name, weights in expected.items():
        assert departure(weights, torch.cat([p.detach().flatten() for p in network(name).parameters()])) > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", FUSED)
def test_the_rule_is_the_references(expected, name):
    assert departure(by_rule(name), expected[name]) < TOLERANCE


@pytest.mark.parametrize("name", [name for name in FUSED if OPTIMIZERS[name].build])
def test_the_serial_engines_own_form_is_the_references(expected, name):
    build = OPTIMIZERS[name].build
    assert departure(trained(name, lambda model: build(model, asked(name))), expected[name]) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", partly(FUSED, 6))
def test_lanes_are_the_references(expected, name):
    assert departure(in_lanes(name), expected[name]) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", partly([name for name in FUSED if OPTIMIZERS[name].stacked], 8))
def test_the_lanes_fast_form_is_the_rule(name):
    assert departure(in_lanes(name), in_lanes(name, fast=False)) < TOLERANCE


NADAM = {"betas": BETAS, "eps": H["epsilon"], "weight_decay": 0.05, "decoupled_weight_decay": True}


@pytest.mark.slow
@pytest.mark.parametrize("form", partly([by_rule, in_lanes], 2))
@pytest.mark.parametrize(
    ("name", "decay", "reference"),
    [
        ("momentum", {"l2": 0.05}, lambda p: torch.optim.SGD(p, momentum=H["momentum"], weight_decay=0.05)),
        ("adam", {"l2": 0.05}, lambda p: torch.optim.Adam(p, betas=BETAS, eps=H["epsilon"], weight_decay=0.05)),
        ("nadam", {"weight_decay": 0.05}, lambda p: torch.optim.NAdam(p, **NADAM)),
        ("lion", {"weight_decay": 0.05}, lambda p: pytorch_optimizer.Lion(p, betas=BETAS, weight_decay=0.05)),
    ],
)
def test_decay_is_coupled_or_decoupled(name, decay, reference, form):
    """As theirs, which know nothing of batches: it is never rescaled with the loss."""
    found, wanted = form(name, **decay), by_reference(name, reference)
    assert departure(found, wanted) < TOLERANCE
    assert departure(wanted, form(name)) > 0.01


@pytest.mark.parametrize(
    ("correction", "moved"),
    # v: 1, 1.5, then with the old gradients' own rate 0.85, 0.525; corrected 0.175, 0.1875
    [(0.0, 1 + 1.5 + 0.85 + 0.525), (1.0, 1 + 1.5 + 0.175 + 0.1875)],
)
def test_folded_momentum_by_hand(correction, moved):
    """One number, under a learning rate that drops to a tenth."""
    folded, w = OPTIMIZERS["folded_momentum"], torch.ones(1)
    state = folded.init(w)
    for step, lr in enumerate((1.0, 1.0, 0.1, 0.1), start=1):
        h = {"learning_rate": lr, "momentum": 0.5, "momentum_correction": correction}
        each = {name: torch.tensor(value) for name, value in h.items()}
        w, state = folded.update(w, torch.ones(1), state, each, torch.tensor(step))
    assert float(w) == pytest.approx(1 - moved)


def test_layers_of_zeros_have_the_ratio_one():
    for name in ("lars", "lamb"):
        algorithm, w = OPTIMIZERS[name], torch.zeros(2, 2)
        for slope, wanted in ((1.0, True), (0.0, False)):
            g = torch.full((2, 2), slope)
            moved, _ = algorithm.update(w, g, algorithm.init(w), scalars(name), torch.tensor(1.0))
            assert ((moved < 0) == wanted).all()
            assert ((moved == 0) != wanted).all()


def test_half_lives_are_kept_between_batch_sizes():
    found = {size: resolved({"beta1_half_life_examples": 64.0, "learning_rate": 0.1}, size) for size in (16, 64, 256)}
    assert [found[size]["beta1"] for size in (64, 256)] == [0.5, 0.5**4]
    assert found[16]["beta1"] ** 4 == pytest.approx(0.5)
    assert all(each["learning_rate"] == 0.1 for each in found.values())


def test_a_half_life_beyond_all_examples_is_no_beta_of_1():
    """Updates divide by 1 - beta, in float32."""
    beta = resolved({"beta2_half_life_examples": 1e12}, batch_size=1)["beta2"]
    assert torch.tensor(beta, dtype=torch.float32) == np.nextafter(np.float32(1), np.float32(0))


@pytest.mark.parametrize("name", FUSED)
def test_scalars_are_trained_too(name):
    w = torch.tensor(1.0)
    state = OPTIMIZERS[name].init(w)
    for step in (1.0, 2.0):
        w, state = OPTIMIZERS[name].update(w, torch.tensor(0.5), state, scalars(name), torch.tensor(step))
    assert w.shape == ()
    assert w < 1


def test_soap_has_a_basis_where_a_librarys_own_precision_finds_none(monkeypatch):
    eigh, matrix = torch.linalg.eigh, torch.tensor([[1.0, 1.0], [1.0, 1.0]])

    def failing(matrix):
        if matrix.dtype == torch.float32:
            raise torch.linalg.LinAlgError("The algorithm failed to converge")
        return eigh(matrix)

    def basis():
        return OPTIMIZERS["soap"].refresh({"left": matrix}, {"precondition_frequency": 1}, 1)["left_basis"]

    expected = basis()
    monkeypatch.setattr(torch.linalg, "eigh", failing)
    torch.testing.assert_close(basis(), expected)


@pytest.mark.parametrize("name", FUSED)
def test_a_diverged_gradient_stops_no_optimizer(name):
    """The engine finds out at its evaluation; nothing may raise before."""
    algorithm, w = OPTIMIZERS[name], torch.ones(4, 3)
    state = algorithm.init(w)
    for step in range(1, 10):
        g = torch.full((4, 3), math.inf if step > 1 else math.nan)
        w, state = algorithm.update(w, g, state, scalars(name), torch.tensor(float(step)))
        if algorithm.refresh is not None:
            state = algorithm.refresh(state, asked(name), step)


def test_legal_values_cover_half_lives_and_decays():
    legal = OPTIMIZERS["adam"].optional_hyperparameters
    assert 0.5 in legal["weight_decay"]
    assert -0.1 not in legal["l2"]
    assert 0 not in legal["beta2_half_life_examples"]
    assert "momentum_half_life_examples" not in legal
    assert "ema_decay_half_life_examples" in legal


def test_average_and_betas_are_of_one_table():
    assert set(base.AVERAGE) <= set(base.BETAS)
