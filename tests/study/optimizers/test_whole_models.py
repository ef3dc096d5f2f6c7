"""Optimizers that update whole models: K-FAC against its definition, and classes of others by their import path."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from study import optimizers
from study.optimizers import kfac

H = {"learning_rate": 0.01, "momentum": 0.8, "damping": 0.1, "factor_decay": 0.9, "inverse_frequency": 3}


def closure_of(model: nn.Module, loss: Callable[[Tensor], Tensor], inputs: Tensor) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        model.zero_grad()
        found = loss(model(inputs))
        found.backward()
        return found

    return closure


def test_kfac_is_the_inverse_of_its_kronecker_product():
    """One linear layer: the damped factors multiplied out and inverted as one matrix."""
    h = H | {"momentum": 0.0, "inverse_frequency": 1.0, "factor_decay": 0.0}
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = kfac.KFAC(model, h)
    for _ in range(3):
        x = torch.randn(20, 4, generator=generator)
        targets = torch.randint(3, (20,), generator=generator)
        before = torch.cat([model.weight, model.bias.unsqueeze(1)], 1).detach().clone()
        a = torch.cat([x, torch.ones(20, 1)], 1)
        d = model(x).softmax(1).detach() - F.one_hot(targets, 3)
        factor_a, factor_g = a.mT @ a / 20, d.mT @ d / 20
        pi = (factor_a.trace() / 5 / (factor_g.trace() / 3)).sqrt()
        damping = h["damping"] ** 0.5
        whole = torch.kron(factor_g + damping / pi * torch.eye(3), factor_a + pi * damping * torch.eye(5))
        wanted = before.flatten() - h["learning_rate"] * torch.linalg.solve(whole, (d.mT @ a / 20).flatten())

        def closure(x: Tensor = x, targets: Tensor = targets) -> Tensor:
            model.zero_grad()
            # In unequal parts, weighted by their examples, as a batch is accumulated.
            for part in (slice(0, 13), slice(13, 20)):
                (F.cross_entropy(model(x[part]), targets[part], reduction="sum") / 20).backward()
            return torch.zeros(())

        optimizer.step(closure)
        found = torch.cat([model.weight, model.bias.unsqueeze(1)], 1).flatten()
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_kfac_trains_what_is_no_linear_layer_by_momentum():
    def trained_by(build: Callable[[nn.Module], Any]) -> Tensor:
        model = nn.Sequential(nn.Conv2d(2, 3, 4), nn.Flatten())
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.linspace(-1, 1, p.numel()).view_as(p))
        optimizer = build(model)
        for step in range(20):
            inputs = torch.randn(16, 2, 4, 4, generator=torch.Generator().manual_seed(step))
            optimizer.step(closure_of(model, lambda found: F.cross_entropy(found, torch.arange(16) % 3), inputs))
        return model[0].weight.detach().flatten()

    by_torch = {"lr": H["learning_rate"], "momentum": H["momentum"]}
    wanted = trained_by(lambda model: torch.optim.SGD(model.parameters(), **by_torch))
    torch.testing.assert_close(trained_by(lambda model: kfac.KFAC(model, H)), wanted)


def test_kfac_is_let_go_with_its_model():
    """A trial's factors may be larger than all else, and the garbage collector comes late."""
    model = nn.Sequential(nn.Linear(4, 3))
    optimizer = kfac.KFAC(model, H)
    optimizer.step(closure_of(model, lambda found: found.square().sum(), torch.ones(2, 4)))
    held = [weakref.ref(each) for each in (optimizer, model[0].weight)]
    gc.disable()
    try:
        del model, optimizer
        assert [there() for there in held] == [None, None]
    finally:
        gc.enable()


def test_unknown_optimizers_are_refused():
    for name, arguments, message in (
        ("adm", {}, "unknown optimizer 'adm'; did you mean 'adam'"),
        ("adam", {"fused": True}, "optimizer.arguments are for optimizer=torch"),
        ("torch.nn.Linear", {}, "must be a torch.optim.Optimizer class"),
    ):
        with pytest.raises(ValueError, match=message):
            optimizers.find(name, arguments)


def test_foreign_optimizers_take_our_names_and_theirs():
    found = optimizers.find("torch.optim.RAdam", {"decoupled_weight_decay": True})
    names = {*found.hyperparameters, *found.optional_hyperparameters}
    assert {"beta1", "beta2", "epsilon", "weight_decay", "ema_decay"} <= names
    assert "l2" not in found.optional_hyperparameters
    h = {"learning_rate": 0.01, "beta2": 0.9, "epsilon": 1e-3, "weight_decay": 0.1, "label_smoothing": 0.1}
    [group] = found.build(nn.Linear(2, 2), h).param_groups
    assert (group["lr"], group["betas"], group["eps"]) == (0.01, (0.9, 0.9), 1e-3)
    assert (group["weight_decay"], group["decoupled_weight_decay"]) == (0.1, True)
    assert 0.9 in found.optional_hyperparameters["beta1"]
    assert 1.0 not in found.optional_hyperparameters["beta1"]
    given = optimizers.find("torch.optim.RAdam", {"betas": [0.5, 0.6]})
    [group] = given.build(nn.Linear(2, 2), {"learning_rate": 0.01, "beta1": 0.7}).param_groups
    assert group["betas"] == (0.7, 0.6)
    lamb = optimizers.find("pytorch_optimizer.Lamb", {"adanorm": True})  # one of its **kwargs
    assert "kwargs" not in lamb.optional_hyperparameters
    foreign = optimizers.find("torch.optim.SGD")
    [group] = foreign.build(nn.Linear(2, 2), {"learning_rate": 0.1, "momentum": 0.9, "nesterov": 1.0}).param_groups
    assert group["nesterov"] is True


class Passing(torch.optim.AdamW):
    def __init__(self, params, boost=2.0, **keywords):
        super().__init__(params, **keywords)


class PassingAll(torch.optim.AdamW):
    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)


class Inheriting(PassingAll):
    pass


class PassingOn(torch.optim.SGD):
    def __init__(self, params, lr=0.1, **keywords):
        super().__init__(params, lr=lr, **keywords)


@pytest.mark.parametrize(
    ("name", "taken"),
    [("Passing", "boost"), ("PassingAll", "beta2"), ("Inheriting", "weight_decay"), ("PassingOn", "momentum")],
)
def test_a_constructor_that_passes_keywords_on_takes_those_of_the_class_it_inherits_from(name, taken):
    path = f"{__name__}.{name}"
    found = optimizers.foreign(path, {"foreach": True})
    assert taken in found.optional
    model = nn.Linear(2, 1)
    assert found.build(model, {"learning_rate": 0.3, "weight_decay": 0.2}).param_groups[0]["weight_decay"] == 0.2


@pytest.mark.parametrize(
    ("path", "name", "value", "beyond"),
    [
        ("torch.optim.Adafactor", "beta2_decay", -0.8, None),
        ("pytorch_optimizer.A2Grad", "beta", 10.0, None),
        ("pytorch_optimizer.Ranger21", "beta_softplus", 50.0, None),
        ("pytorch_optimizer.DAdaptAdaGrad", "epsilon", 0.0, None),
        ("torch.optim.RMSprop", "momentum", 0.0, 1.0),
        ("torch.optim.AdamW", "weight_decay", 0.0, -0.1),
    ],
)
def test_legal_values_have_the_usual_meaning_of_a_name_only_if_the_default_has_it(path, name, value, beyond):
    legal = optimizers.find(path).optional_hyperparameters[name]
    assert value in legal
    assert beyond is None or beyond not in legal


class Windowed(torch.optim.SGD):
    def __init__(
        self, params, lr, window, *, cap: float, every=None, until: int | None = None, most: float | None = None
    ):
        super().__init__(params, lr)
        self.given = window, cap, every, until, most


def test_whole_numbers_come_as_integers_unless_the_constructor_says_otherwise():
    h = {"learning_rate": 0.1, "window": 3.0, "cap": 1.0, "every": 4.0, "until": 5.0, "most": 2.0}
    found = optimizers.find(f"{__name__}.Windowed").build(nn.Linear(2, 2), h).given
    assert list(map(repr, found)) == ["3", "1.0", "4", "5", "2.0"]
    found = optimizers.find(f"{__name__}.Windowed").build(nn.Linear(2, 2), h | {"window": 0.5}).given
    assert found[0] == 0.5


@pytest.mark.parametrize(
    ("path", "arguments"),
    [("torch.optim.Adafactor", ["epsilon"]), ("torch.optim.Adam", ["betas"]), ("torch.optim.Rprop", ["etas"])],
)
def test_arguments_that_are_no_numbers_are_not_searched(path, arguments):
    assert not optimizers.find(path).optional_hyperparameters.keys() & set(arguments)
