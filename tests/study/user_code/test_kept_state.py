"""An interrupted trial continues with all state that training changes, wherever its author keeps it."""

from typing import Any

import pytest
import torch
from helpers.desks import Desk, assert_same_bits, fixed_trial, trained
from helpers.users import workloads as users
from torch import Tensor, nn

from study.data.resident import Data
from study.settings import Evaluation
from study.user_code.snapshots import attributes

RATE = {"learning_rate": {"choices": [0.1]}}


class Centred(nn.Module):
    """A running mean in a buffer that is not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = users.mlp()
        self.register_buffer("mean", torch.zeros(10), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(x.mean(0), 0.1)
        return self.inner(x - self.mean)


class Thawing(nn.Module):
    """Freezes its first layer at one step, which it counts in a buffer, and thaws it at a later one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = users.mlp()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes += 1
            if int(self.passes) in (3, 18):
                self.inner[0].weight.requires_grad_(int(self.passes) > 3)
        return self.inner(x)


class Tagged(nn.Module):
    """Keeps a running scale on a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = users.mlp()

    def forward(self, x: Tensor) -> Tensor:
        weight = self.inner[0].weight
        if self.training:
            weight.scale = 0.9 * getattr(weight, "scale", 1.0) + 0.1 * x.abs().mean().item()
        return self.inner(x / getattr(weight, "scale", 1.0))


class Freezing(torch.optim.SGD):
    """Trains the last layer alone at first, and all of them from its tenth step on."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.count = 0
        self.thaw(False)

    def thaw(self, now: bool) -> None:
        for weight in self.param_groups[0]["params"][:-2]:
            weight.requires_grad_(now)

    def step(self, closure: Any = None) -> Any:
        self.count += 1
        if self.count == 10:
            self.thaw(True)
        return super().step(closure)


class Averaging(torch.optim.SGD):
    """Lookahead that keeps its count and its slow weights as attributes."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.count, self.slow = 0, None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        weights = [weight for group in self.param_groups for weight in group["params"]]
        self.count += 1
        self.slow = self.slow or [weight.clone() for weight in weights]
        for slow, weight in zip(self.slow, weights, strict=True) if self.count % 5 == 0 else ():
            weight.copy_(slow.lerp_(weight, 0.5))
        return loss


class Saving(Averaging):
    """Has a `state_dict` of its own."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "slow": [slow.clone() for slow in self.slow or ()], "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.slow, self.count = [each.clone() for each in state["slow"]], state["count"]
        super().load_state_dict({key: state[key] for key in ("state", "param_groups")})


class Resting(torch.optim.Optimizer):
    """Rests at every third step, which it counts in an attribute; its `step` does not call a closure."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.count += 1
        for group in self.param_groups:
            for weight in group["params"] if self.count % 3 else ():
                weight.sub_(group["lr"] * weight.grad)


CASES = {
    "buffer": (Centred, "torch.optim.Adam"),
    "frozen": (Thawing, "torch.optim.Adam"),
    "on a parameter": (Tagged, "torch.optim.Adam"),
    "frozen by the optimizer": (users.mlp, f"{__name__}.Freezing"),
    "optimizer": (users.mlp, f"{__name__}.Averaging"),
    "optimizer with a state_dict": (users.mlp, f"{__name__}.Saving"),
    "optimizer without a closure": (users.mlp, f"{__name__}.Resting"),
}


@pytest.mark.parametrize(("model", "optimizer"), CASES.values(), ids=CASES)
def test_a_trial_continues_with_all_of_its_state(make_study, model, optimizer):
    fields = {"space": RATE, "steps": 24, "batch_size": 16, "evaluation": Evaluation(0.1, 1.6, 1)}
    study = make_study(examples=500, optimizer=optimizer, **fields)
    workload, data = users.Base(), Data.of(users.blobs())
    workload.model = model
    desk = Desk([fixed_trial(study)], minutes=0)
    whole = trained(study, desk, workload=workload, data=data)
    for _, content in desk.taken[3::7]:
        again = Desk([fixed_trial(study)], kept={0: content})
        assert_same_bits(trained(study, again, workload=workload, data=data), whole)
        assert again.pace.made < 24


def test_what_a_class_of_tensors_holds_is_no_attribute():
    """Else averaged weights, which get the attributes of the model, would become its weights."""

    class Wrapped(torch.Tensor):
        pass

    model = nn.Linear(2, 2)
    model.weight = nn.Parameter(torch.Tensor._make_subclass(Wrapped, model.weight.detach()))
    model.weight.raw = torch.ones(1)
    model.bias.scale = 0.5
    assert type(model.weight) is Wrapped
    assert set(attributes(model)) >= {"weight.requires_grad", "bias.requires_grad", "bias.scale"}
    assert "weight.raw" not in attributes(model)
