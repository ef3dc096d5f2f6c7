"""Weights and state that users keep in unusual places count in every engine, after a restart and in evaluations."""

import collections
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.desks import Desk
from helpers.desks import trained as train_all
from helpers.users import plain_loop
from helpers.users import workloads as users
from torch import Tensor, nn

from study.checks.optimizer import refusal
from study.engine import can_fuse
from study.engine.arithmetic import unfusible
from study.errors import Failed
from study.settings import Evaluation

SPACE = {"learning_rate": {"choices": [0.03]}, "momentum": {"choices": [0.9]}}
RATE = {"learning_rate": {"choices": [0.1]}}
DECAY = {"learning_rate_decay_fraction": {"choices": [0.5]}, "end_learning_rate_factor": {"choices": [0.01]}}


class Shared(nn.Module):
    """A weight that is used in two places."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 4)
        weight = self.first.weight
        if how == "data":
            self.second.weight.data = weight.data
        elif how == "parameter of the same memory":
            self.second.weight = nn.Parameter(weight.data)
        elif how == "list":
            self.held = [weight]
            self.between = lambda h: h @ self.held[0]
        elif how == "closure":
            self.between = lambda h: h @ weight
        else:
            self.second.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.between(torch.relu(self.first(x)))))

    def between(self, h: Tensor) -> Tensor:
        return self.second(h)


def sequence() -> nn.Module:
    model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 4))
    model[2].weight.data = model[0].weight.data[:4]
    return model


def of(model: Any) -> Any:
    class Workload(users.Base):
        def model(self) -> nn.Module:
            return model()

        def data(self) -> Any:
            from study.data.resident import Data

            return Data.of(self.splits(users.CPU))

    return Workload()


def asked(make_study: Any, **fields: Any) -> Any:
    given = {"space": SPACE, "steps": 24, "batch_size": 16, "evaluation": Evaluation(0.1, 1.6, 1)} | fields
    return make_study(examples=500, **given)


def trial_of(study: Any) -> Any:
    return study.trial(0, {name: each.choices[0] for name, each in study.search.space.items()})


def trained(study: Any, workload: Any, **more: Any) -> Any:
    return train_all(study, Desk([trial_of(study)], **more), workload=workload, data=workload.data())


@pytest.mark.parametrize("how", ["data", "parameter of the same memory", "list", "closure", "parameter"])
def test_lanes_refuse_weights_that_are_tied_behind_torchs_back(make_study, how):
    why = can_fuse.lanes_fail(asked(make_study, arithmetic="vmap"), of(lambda: Shared(how)), of(users.mlp).data())
    assert (why is None) == (how == "parameter")
    assert why is None or "weights that are not parameters of their own" in why


def test_a_linear_chain_refuses_layers_that_share_memory(make_study):
    study = asked(make_study, arithmetic="linear_chain")
    assert "tied by its memory" in str(can_fuse.lanes_fail(study, of(sequence), of(sequence).data()))
    assert can_fuse.lanes_fail(study, of(users.mlp), of(users.mlp).data()) is None


class Filter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filter, self.head = nn.Parameter(torch.randn(10, dtype=torch.complex64)), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.fft.ifft(torch.fft.fft(x) * self.filter).real)


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = users.mlp().bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.bfloat16()).float()


@pytest.mark.parametrize(("model", "tolerance"), [(Filter, 1e-5), (Half, 0.05)])
def test_parameters_of_other_types_train_alone_as_in_a_plain_loop(make_study, model, tolerance):
    study, workload = asked(make_study), of(model)
    assert "rows of trials hold float32" in str(unfusible(model(), study))
    found = trained(study, workload)[0].errors["val/loss"]
    np.testing.assert_allclose(found, plain_loop.by_hand(study, workload, trial_of(study))["loss"], rtol=tolerance)


class OwnRate(torch.optim.Optimizer):
    """Reads its learning rate from an attribute, which no schedule reaches."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {})
        self.lr = lr

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                weight.sub_(self.lr * weight.grad)


@pytest.mark.parametrize("schedule", ["constant", "linear_decay"])
def test_an_optimizer_that_no_schedule_reaches_is_refused(make_study, schedule):
    space, workload = RATE if schedule == "constant" else RATE | DECAY, of(users.mlp)
    study = asked(make_study, optimizer=f"{__name__}.OwnRate", space=space, schedule=schedule)
    said = refusal(study, workload, workload.data())
    assert (said is None) == (schedule == "constant")
    assert said is None or "its step takes no notice of `lr`" in said


class Clipping(torch.optim.SGD):
    """Clips the gradients that it finds, and then lets SGD call the closure, which computes others."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)

    def step(self, closure: Any = None) -> Any:
        for weight in self.param_groups[0]["params"]:
            if weight.grad is not None:
                weight.grad.clamp_(-1e-3, 1e-3)
        return super().step(closure)


class WithoutGraph(torch.optim.SGD):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            closure()
        return super().step()


class Decaying(torch.optim.SGD):
    """Has a scheduler of its own, whose rate the engine would replace at the next update."""

    def __init__(self, params: Any, lr: float, every: int = 1) -> None:
        super().__init__(params, lr)
        self.own = torch.optim.lr_scheduler.StepLR(self, every, gamma=0.5)

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self.own.step()
        return loss


class Shrinking(torch.optim.SGD):
    """Takes no closure, as many classes do."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)

    def step(self) -> None:
        super().step()
        self.param_groups[0]["lr"] *= 0.9


class DecayingLater(Decaying):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr, every=5)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Clipping", "must call the closure, which computes the gradients, before it reads them"),
        ("WithoutGraph", "differentiates what has no graph: begin it with `with torch.enable_grad()"),
        ("Decaying", "the step of Decaying changed `lr` in its param_groups"),
        ("Shrinking", "the step of Shrinking changed `lr` in its param_groups"),
    ],
)
def test_an_optimizer_whose_step_would_be_another_than_in_a_plain_loop_is_refused(make_study, name, why):
    workload = of(users.mlp)
    assert why in refusal(asked(make_study, optimizer=f"{__name__}.{name}", space=RATE), workload, workload.data())


class Sharpness(torch.optim.Optimizer):
    """SAM as many write it: two gradients if there is a closure, otherwise SGD."""

    def __init__(self, params: Any, lr: float, rho: float = 0.5) -> None:
        super().__init__(params, {"lr": lr, "rho": rho})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        weights = [weight for group in self.param_groups for weight in group["params"]]
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            moves = [self.defaults["rho"] * weight.grad.sign() for weight in weights]
            torch._foreach_add_(weights, moves)
            with torch.enable_grad():
                closure()
            torch._foreach_sub_(weights, moves)
        for weight in weights:
            weight.sub_(self.param_groups[0]["lr"] * weight.grad)
        return loss if closure is not None else None


def test_an_optimizer_that_computes_gradients_again_need_not_make_the_step_of_a_plain_loop(make_study):
    """It was told to call the closure first, as it does."""
    study, workload = asked(make_study, optimizer=f"{__name__}.Sharpness", space=RATE), of(users.mlp)
    assert refusal(study, workload, workload.data()) is None


def test_a_rate_that_an_optimizer_changes_later_ends_the_sweep(make_study):
    study, workload = asked(make_study, optimizer=f"{__name__}.DecayingLater", space=RATE), of(users.mlp)
    assert refusal(study, workload, workload.data()) is None
    with pytest.raises(Failed, match=r"at update 5 of .* changed `lr` in its param_groups"):
        trained(study, workload)


class Cooling(nn.Module):
    """Counts its forward passes in an object, and cools down with them."""

    def __init__(self, count: Any, only_training: bool = False) -> None:
        super().__init__()
        self.inner, self.count, self.only = users.mlp(), count, only_training

    def forward(self, x: Tensor) -> Tensor:
        if self.training or not self.only:
            self.count[0] += 1
        return torch.tanh(self.inner(x) * 0.97 ** float(self.count[0]))


@pytest.mark.parametrize(
    "count",
    [lambda: np.zeros(1), collections.Counter, lambda: collections.deque([0], 5)],
    ids=["array", "map", "deque"],
)
def test_an_evaluation_leaves_no_trace_in_objects(make_study, count):
    study, workload = asked(make_study), of(lambda: Cooling(count()))
    rare = replace(study, evaluation=Evaluation(first=1.0, ratio=2.0, every=1))
    often, once = (trained(each, workload)[0].errors["val/loss"][-1] for each in (study, rare))
    assert often == once


def test_averaged_weights_are_evaluated_with_the_state_of_the_model(make_study):
    """An average that forgets at once is the model itself."""
    space = SPACE | {"ema_decay": {"choices": [1e-9]}}
    [curve] = trained(asked(make_study, space=space), of(lambda: Cooling([0], only_training=True))).values()
    np.testing.assert_allclose(curve.errors["val/ema_loss"], curve.errors["val/loss"], rtol=1e-5)
